//! What there is of principals, tokens and grants, for people.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Grant, PrincipalKind, Rights};
use crate::error::DatabaseError;
use crate::limits::READ_EVENTS_MAX;
use crate::store;

/// A principal as it is stored.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the members are those of the table, described there")]
pub struct Principal {
    pub id: String,
    pub kind: PrincipalKind,
    pub name: Option<String>,
    pub rights: Rights,
    pub created_at: OffsetDateTime,
    pub disabled_at: Option<OffsetDateTime>,
    /// How many tokens it has that are good.
    pub tokens: i64,
    pub grants: i64,
}

/// A token as it is stored: nobody can use it.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the members are those of the table, described there")]
pub struct TokenRow {
    pub id: Uuid,
    pub principal: String,
    pub hint: String,
    pub label: Option<String>,
    pub created_at: OffsetDateTime,
    pub expires_at: Option<OffsetDateTime>,
    pub revoked_at: Option<OffsetDateTime>,
    /// Whether its time is over, by the clock of the database.
    pub expired: bool,
}

/// A grant as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the members are those of the table, described there")]
pub struct GrantRow {
    pub id: i64,
    pub principal: String,
    pub grant: Grant,
}

/// Principals in the order of their ids, those behind `after`, at most `limit` (and [`READ_EVENTS_MAX`]).
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn list_principals(
    connection: &mut PgConnection,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Principal>, DatabaseError> {
    Ok(store::access::principals(connection, after, None, page(limit)).await?)
}

/// One principal.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn principal(connection: &mut PgConnection, id: &str) -> Result<Option<Principal>, DatabaseError> {
    Ok(store::access::principals(connection, None, Some(id), 1).await?.pop())
}

/// Tokens of a principal or of all, in the order of their ids, those behind `after`, at most `limit` (and [`READ_EVENTS_MAX`]).
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn list_tokens(
    connection: &mut PgConnection,
    principal: Option<&str>,
    after: Option<Uuid>,
    limit: u32,
) -> Result<Vec<TokenRow>, DatabaseError> {
    Ok(store::access::tokens(connection, principal, None, after, page(limit)).await?)
}

/// One token.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn token_by_id(connection: &mut PgConnection, id: Uuid) -> Result<Option<TokenRow>, DatabaseError> {
    Ok(store::access::tokens(connection, None, Some(id), None, 1).await?.pop())
}

/// Grants of a principal or of all, in the order in which they were made, those behind `after`, at most `limit` (and
/// [`READ_EVENTS_MAX`]).
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn list_grants(
    connection: &mut PgConnection,
    principal: Option<&str>,
    after: i64,
    limit: u32,
) -> Result<Vec<GrantRow>, DatabaseError> {
    Ok(store::access::grants(connection, principal, after, page(limit)).await?)
}

fn page(limit: u32) -> i64 {
    i64::from(limit.clamp(1, READ_EVENTS_MAX))
}
