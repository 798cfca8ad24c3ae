//! The principal of whoever tries it, on a server that is theirs alone.

use seqline::access::{
    ChangeError, NewPrincipal, PrincipalKind, Rights, create_principal, create_token, enable_principal,
    list_tokens, revoke_token, set_rights,
};
use seqline::limits::READ_EVENTS_MAX;
use sqlx::PgConnection;

use crate::commands::access::failed;
use crate::failure::Failure;

/// Its id.
pub(super) const LOCAL: &str = "local";

/// What tokens are called that were made here. Those that somebody has made for the same principal are theirs.
const LABEL: &str = "seqline up";

/// Makes a token that may do everything. The one of an earlier run is revoked: it was on a screen.
pub(super) async fn token(connection: &mut PgConnection) -> Result<String, Failure> {
    let why = Some(LABEL);
    let rights = Rights { append: true, operate: true };
    let local = NewPrincipal { id: LOCAL.to_owned(), kind: PrincipalKind::App, name: None, rights };
    match create_principal(connection, &local, why).await {
        Err(ChangeError::Refused { rule, .. }) if rule == "principal_exists" => {
            set_rights(connection, LOCAL, rights, why).await.map_err(failed)?;
            enable_principal(connection, LOCAL, why).await.map_err(failed)?;
        }
        made => made.map_err(failed)?,
    }
    let mut after = None;
    loop {
        let tokens = list_tokens(connection, Some(LOCAL), after, READ_EVENTS_MAX).await?;
        let Some(last) = tokens.last() else { break };
        after = Some(last.id);
        for token in tokens {
            if token.revoked_at.is_none() && token.label.as_deref() == Some(LABEL) {
                revoke_token(connection, token.id, why).await.map_err(failed)?;
            }
        }
    }
    let made = create_token(connection, LOCAL, Some(LABEL), None, why).await.map_err(failed)?;
    Ok(made.token.reveal().to_owned())
}
