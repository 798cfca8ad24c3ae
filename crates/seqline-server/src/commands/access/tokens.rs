//! `seqline tokens`
//!
//! A new token goes to standard output and nowhere else, once.

use std::time::Duration;

use seqline::access::{self, TokenRow};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{ADD_YES, connect, failed, more, say, unknown};
use crate::cli::{Confirm, DatabaseArgs, TokensAction, TokensArgs};
use crate::failure::Failure;
use crate::output::{self, rfc3339, seconds};

pub(crate) async fn run(database: &DatabaseArgs, args: TokensArgs) -> Result<(), Failure> {
    let (mut connection, json) = (connect(database).await?, args.json);
    let connection = &mut connection;
    match args.action {
        TokensAction::Create { principal, label, expires_in, reason } => {
            create(connection, &principal, label.as_deref(), expires_in, reason.as_deref(), json).await
        }
        TokensAction::List { principal, after, limit } => {
            list(connection, principal.as_deref(), after, limit, json).await
        }
        TokensAction::Revoke { id, confirm } => revoke(connection, id, &confirm, json).await,
    }
}

/// A token as JSON: nobody can use it.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    id: Uuid,
    principal: &'a str,
    hint: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    state: &'static str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
}

impl<'a> Row<'a> {
    pub(super) fn of(token: &'a TokenRow) -> Self {
        Self {
            id: token.id,
            principal: &token.principal,
            hint: &token.hint,
            label: token.label.as_deref(),
            state: state(token),
            created_at: rfc3339(token.created_at),
            expires_at: token.expires_at.map(rfc3339),
            revoked_at: token.revoked_at.map(rfc3339),
        }
    }
}

fn state(token: &TokenRow) -> &'static str {
    match (token.revoked_at, token.expired) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "good",
    }
}

#[derive(Serialize)]
struct CreateReport<'a> {
    id: Uuid,
    principal: &'a str,
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

async fn create(
    connection: &mut PgConnection,
    principal: &str,
    label: Option<&str>,
    expires_in: Option<Duration>,
    reason: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let new = access::create_token(connection, principal, label, expires_in, reason).await.map_err(failed)?;
    let report = CreateReport {
        id: new.id,
        principal,
        token: new.token.reveal(),
        label,
        expires_at: new.expires_at.map(rfc3339),
    };
    say(json, &report, new.token.reveal().to_owned())?;
    if !json {
        let until =
            new.expires_at.map_or_else(|| "revoked".to_owned(), |at| format!("{} or revoked", seconds(at)));
        eprintln!("seqline: token {} of {principal}, good until {until}; it is shown this once", new.id);
    }
    Ok(())
}

async fn list(
    connection: &mut PgConnection,
    principal: Option<&str>,
    after: Option<Uuid>,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    if let Some(id) = principal {
        access::principal(connection, id).await?.ok_or_else(|| unknown(id))?;
    }
    let mut tokens = access::list_tokens(connection, principal, after, limit + 1).await?;
    let more = more(&mut tokens, limit);
    match (json, tokens.is_empty()) {
        (true, _) => output::json(&tokens.iter().map(Row::of).collect::<Vec<_>>())?,
        (false, true) => eprintln!("seqline: no tokens found"),
        (false, false) => table(&tokens)?,
    }
    if let (true, Some(last)) = (more, tokens.last()) {
        eprintln!("seqline: there are more: --after {} goes on", last.id);
    }
    Ok(())
}

pub(super) fn table(tokens: &[TokenRow]) -> Result<(), Failure> {
    let cells = |token: &TokenRow| {
        vec![
            token.id.to_string(),
            token.principal.clone(),
            format!("{}...", token.hint),
            token.label.clone().unwrap_or_default(),
            state(token).to_owned(),
            seconds(token.created_at),
            token.expires_at.map_or_else(|| "never".to_owned(), seconds),
        ]
    };
    output::table(
        &["token", "principal", "begins with", "label", "state", "created", "expires"],
        &[],
        tokens.iter().map(cells).collect(),
    )
}

#[derive(Serialize)]
struct RevokeReport<'a> {
    token: Row<'a>,
    done: bool,
    changed: bool,
}

async fn revoke(
    connection: &mut PgConnection,
    id: Uuid,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    let changed = match confirm.yes {
        false => None,
        true => Some(access::revoke_token(connection, id, confirm.reason.as_deref()).await.map_err(failed)?),
    };
    let token = access::token_by_id(connection, id).await?;
    let token = token.ok_or_else(|| {
        Failure::Refused(format!("there is no token {id}: seqline tokens list shows those that there are"))
    })?;
    let changed = changed.unwrap_or_else(|| token.revoked_at.is_none());
    let label = token.label.as_ref().map_or_else(String::new, |label| format!(" ({label})"));
    let which = format!("token {}...{label} of {}", token.hint, token.principal);
    let sentence = match (changed, confirm.yes) {
        (false, _) => format!("{which} is revoked already"),
        (true, false) => format!("would revoke {which}: it opens nothing then, for good{ADD_YES}"),
        (true, true) => format!("{which} is revoked"),
    };
    say(json, &RevokeReport { token: Row::of(&token), done: confirm.yes, changed }, sentence)
}
