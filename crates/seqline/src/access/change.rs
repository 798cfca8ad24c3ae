//! What people change about principals by command. Each change is one statement, and leaves a row in `seqline.audit_log`.

use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Grant, PrincipalKind, Rights, Token};
use crate::consumer::Mode;
use crate::error::DatabaseError;
use crate::store;

/// Why something was not changed. Nothing was, then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// It was refused, with the reason.
    #[error("{message}")]
    Refused {
        /// The rule: `principal_unknown`, `principal_exists`, `token_unknown` and others.
        rule: String,
        /// The message of the database.
        message: String,
        /// What to do: a sentence.
        hint: Option<String>,
    },
    /// What the database or the connection reported.
    #[error("database refused it: {0}")]
    Database(DatabaseError),
}

impl From<sqlx::Error> for ChangeError {
    fn from(error: sqlx::Error) -> Self {
        let error = DatabaseError::from(error);
        match (error.seqline_constraint(), error.pg()) {
            (Some(rule), Some(pg)) => Self::Refused {
                rule: rule.to_owned(),
                message: pg.message().to_owned(),
                hint: pg.hint().map(str::to_owned),
            },
            _ => Self::Database(error),
        }
    }
}

impl ChangeError {
    /// Whether the same may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_retryable())
    }
}

/// A principal that is to be.
#[derive(Debug, Clone)]
pub struct NewPrincipal {
    /// The id by which events name it, 1 to 128 characters.
    pub id: String,
    /// What it is.
    pub kind: PrincipalKind,
    /// What people call it.
    pub name: Option<String>,
    /// What it may do.
    pub rights: Rights,
}

/// Creates a principal. It sees what everybody sees, until something is [granted](grant) to it.
///
/// # Errors
///
/// [`ChangeError`], when there is one of this id already among others.
pub async fn create_principal(
    connection: &mut PgConnection,
    principal: &NewPrincipal,
    why: Option<&str>,
) -> Result<(), ChangeError> {
    Ok(store::access::create_principal(connection, principal, why).await?)
}

/// Sets what a principal may do, and returns what it was allowed before.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn set_rights(
    connection: &mut PgConnection,
    id: &str,
    rights: Rights,
    why: Option<&str>,
) -> Result<Rights, ChangeError> {
    Ok(store::access::set_rights(connection, id, rights, why).await?)
}

/// Takes everything from a principal until it is [enabled](enable_principal), and says whether that is new. Its tokens and grants stay, and
/// are good for nothing meanwhile.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn disable_principal(
    connection: &mut PgConnection,
    id: &str,
    why: Option<&str>,
) -> Result<bool, ChangeError> {
    Ok(store::access::set_disabled(connection, id, true, why).await?)
}

/// Gives a disabled principal back what it had, and says whether that is new.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn enable_principal(
    connection: &mut PgConnection,
    id: &str,
    why: Option<&str>,
) -> Result<bool, ChangeError> {
    Ok(store::access::set_disabled(connection, id, false, why).await?)
}

/// What goes with a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// Tokens, those included that have expired or were revoked.
    pub tokens: i64,
    /// Grants.
    pub grants: i64,
}

/// Removes a principal with its tokens and grants, or says how many those are. Events go on to name it.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn delete_principal(
    connection: &mut PgConnection,
    id: &str,
    mode: Mode<'_>,
) -> Result<Deletion, ChangeError> {
    let (apply, why) = mode.parts();
    let (tokens, grants) = store::access::delete_principal(connection, id, apply, why).await?;
    Ok(Deletion { tokens, grants })
}

/// A token that was made just now. It is nowhere else: only its hash is stored.
#[derive(Debug)]
pub struct NewToken {
    /// By which it is revoked.
    pub id: Uuid,
    /// The token.
    pub token: Token,
    /// Until when it is good; `None` until it is revoked.
    pub expires_at: Option<OffsetDateTime>,
}

/// Makes a token for a principal.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn create_token(
    connection: &mut PgConnection,
    principal: &str,
    label: Option<&str>,
    expires_in: Option<Duration>,
    why: Option<&str>,
) -> Result<NewToken, ChangeError> {
    let (id, token) = (Uuid::now_v7(), Token::generate());
    let expires_at =
        store::access::create_token(connection, id, principal, &token, label, expires_in, why).await?;
    Ok(NewToken { id, token, expires_at })
}

/// Ends a token for good, and says whether that is new.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn revoke_token(
    connection: &mut PgConnection,
    id: Uuid,
    why: Option<&str>,
) -> Result<bool, ChangeError> {
    Ok(store::access::revoke_token(connection, id, why).await?)
}

/// Lets a principal receive events, and says whether that is new.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn grant(
    connection: &mut PgConnection,
    principal: &str,
    grant: &Grant,
    why: Option<&str>,
) -> Result<bool, ChangeError> {
    Ok(store::access::add_grant(connection, principal, grant, why).await?)
}

/// Takes back exactly this grant, and says whether it was there. Others that cover the same events stay.
///
/// # Errors
///
/// [`ChangeError`].
pub async fn ungrant(
    connection: &mut PgConnection,
    principal: &str,
    grant: &Grant,
    why: Option<&str>,
) -> Result<bool, ChangeError> {
    Ok(store::access::remove_grant(connection, principal, grant, why).await?)
}
