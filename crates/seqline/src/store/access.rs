//! Principals, tokens and grants.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::tasks::pg_interval;
use crate::access::{
    Access, Grant, GrantRow, NewPrincipal, Principal, PrincipalKind, Rights, Token, TokenRow, Viewer,
};

/// What is known of a principal that is enabled, as [`decode_access`] takes it. All of one snapshot: version and permissions belong together.
const ACCESS: &str = "p.id, p.kind, p.rights,
    (SELECT c.value FROM seqline.sequence_counters c WHERE c.name = 'permission_version'),
    g.actions, g.spaces, g.channels, g.threads";

const GRANTED: &str = "CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(g.action ORDER BY g.id), '{}') AS actions, coalesce(array_agg(g.space_id ORDER BY g.id), '{}') AS spaces,
           coalesce(array_agg(g.channel_id ORDER BY g.id), '{}') AS channels, coalesce(array_agg(g.thread_id ORDER BY g.id), '{}') AS threads
    FROM seqline.grants g WHERE g.principal_id = p.id) g
    WHERE p.disabled_at IS NULL";

pub(crate) async fn of_token(
    connection: &mut PgConnection,
    hash: &[u8; 32],
) -> Result<Option<Access>, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT {ACCESS}, t.expires_at
         FROM seqline.api_tokens t JOIN seqline.principals p ON p.id = t.principal_id {GRANTED}
           AND t.hash = $1 AND t.revoked_at IS NULL AND coalesce(t.expires_at > clock_timestamp(), true)"
    )))
    .bind(hash.as_slice())
    .fetch_optional(connection)
    .await?;
    row.map(|row| decode_access(&row)).transpose()
}

pub(crate) async fn of_principal(
    connection: &mut PgConnection,
    id: &str,
) -> Result<Option<Access>, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT {ACCESS}, NULL::timestamptz FROM seqline.principals p {GRANTED} AND p.id = $1"
    )))
    .bind(id)
    .fetch_optional(connection)
    .await?;
    row.map(|row| decode_access(&row)).transpose()
}

pub(crate) async fn permission_version(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT value FROM seqline.sequence_counters WHERE name = 'permission_version'")
        .fetch_one(connection)
        .await
}

fn decode_access(row: &PgRow) -> Result<Access, sqlx::Error> {
    let principal: String = row.try_get(0)?;
    let actions: Vec<String> = row.try_get(4)?;
    let scopes: [Vec<Option<String>>; 3] = [row.try_get(5)?, row.try_get(6)?, row.try_get(7)?];
    let [spaces, channels, threads] = scopes;
    let grants = actions
        .into_iter()
        .zip(spaces)
        .zip(channels)
        .zip(threads)
        .map(|(((action, space_id), channel_id), thread_id)| Grant {
            action,
            space_id,
            channel_id,
            thread_id,
        })
        .collect();
    Ok(Access {
        kind: kind(row.try_get(1)?)?,
        rights: Rights::from_names(&row.try_get::<Vec<String>, _>(2)?),
        viewer: Viewer::new(principal.clone(), grants),
        permission_version: row.try_get(3)?,
        expires_at: row.try_get(8)?,
        principal,
    })
}

fn kind(text: &str) -> Result<PrincipalKind, sqlx::Error> {
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

pub(crate) async fn create_principal(
    connection: &mut PgConnection,
    principal: &NewPrincipal,
    why: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.create_principal($1, $2, $3, $4, $5)")
        .bind(&principal.id)
        .bind(principal.kind.as_str())
        .bind(&principal.name)
        .bind(principal.rights.names())
        .bind(why)
        .execute(connection)
        .await
        .map(drop)
}

pub(crate) async fn set_rights(
    connection: &mut PgConnection,
    id: &str,
    rights: Rights,
    why: Option<&str>,
) -> Result<Rights, sqlx::Error> {
    let before: Vec<String> = sqlx::query_scalar("SELECT seqline.set_principal_rights($1, $2, $3)")
        .bind(id)
        .bind(rights.names())
        .bind(why)
        .fetch_one(connection)
        .await?;
    Ok(Rights::from_names(&before))
}

pub(crate) async fn set_disabled(
    connection: &mut PgConnection,
    id: &str,
    disabled: bool,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_principal_disabled($1, $2, $3)")
        .bind(id)
        .bind(disabled)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn delete_principal(
    connection: &mut PgConnection,
    id: &str,
    apply: bool,
    why: Option<&str>,
) -> Result<(i64, i64), sqlx::Error> {
    sqlx::query_as("SELECT tokens, grants FROM seqline.delete_principal($1, $2, $3)")
        .bind(id)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn create_token(
    connection: &mut PgConnection,
    id: Uuid,
    principal: &str,
    token: &Token,
    label: Option<&str>,
    expires_in: Option<Duration>,
    why: Option<&str>,
) -> Result<Option<OffsetDateTime>, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.create_api_token($1, $2, $3, $4, $5, $6, $7)")
        .bind(id)
        .bind(principal)
        .bind(token.hash().as_slice())
        .bind(token.hint())
        .bind(label)
        .bind(expires_in.map(pg_interval))
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn revoke_token(
    connection: &mut PgConnection,
    id: Uuid,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.revoke_api_token($1, $2)")
        .bind(id)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn add_grant(
    connection: &mut PgConnection,
    principal: &str,
    grant: &Grant,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.add_grant($1, $2, $3, $4, $5, $6)")
        .bind(principal)
        .bind(&grant.action)
        .bind(&grant.space_id)
        .bind(&grant.channel_id)
        .bind(&grant.thread_id)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn remove_grant(
    connection: &mut PgConnection,
    principal: &str,
    grant: &Grant,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.remove_grant($1, $2, $3, $4, $5, $6)")
        .bind(principal)
        .bind(&grant.action)
        .bind(&grant.space_id)
        .bind(&grant.channel_id)
        .bind(&grant.thread_id)
        .bind(why)
        .fetch_one(connection)
        .await
}

/// Principals behind an id, or the one of an id.
pub(crate) async fn principals(
    connection: &mut PgConnection,
    after: Option<&str>,
    id: Option<&str>,
    limit: i64,
) -> Result<Vec<Principal>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT p.id, p.kind, p.name, p.rights, p.created_at, p.disabled_at,
                (SELECT count(*) FROM seqline.api_tokens t WHERE t.principal_id = p.id AND t.revoked_at IS NULL
                   AND coalesce(t.expires_at > clock_timestamp(), true)),
                (SELECT count(*) FROM seqline.grants g WHERE g.principal_id = p.id)
         FROM seqline.principals p
         WHERE p.id > coalesce($1, '') AND p.id = coalesce($2, p.id) ORDER BY p.id LIMIT $3",
    )
    .bind(after)
    .bind(id)
    .bind(limit)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Principal {
                id: row.try_get(0)?,
                kind: kind(row.try_get(1)?)?,
                name: row.try_get(2)?,
                rights: Rights::from_names(&row.try_get::<Vec<String>, _>(3)?),
                created_at: row.try_get(4)?,
                disabled_at: row.try_get(5)?,
                tokens: row.try_get(6)?,
                grants: row.try_get(7)?,
            })
        })
        .collect()
}

/// Tokens behind an id, or the one of an id.
pub(crate) async fn tokens(
    connection: &mut PgConnection,
    principal: Option<&str>,
    id: Option<Uuid>,
    after: Option<Uuid>,
    limit: i64,
) -> Result<Vec<TokenRow>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT t.id, t.principal_id, t.hint, t.label, t.created_at, t.expires_at, t.revoked_at,
                coalesce(t.expires_at <= clock_timestamp(), false)
         FROM seqline.api_tokens t
         WHERE ($1::text IS NULL OR t.principal_id = $1) AND ($2::uuid IS NULL OR t.id = $2) AND ($3::uuid IS NULL OR t.id > $3)
         ORDER BY t.id LIMIT $4",
    )
    .bind(principal)
    .bind(id)
    .bind(after)
    .bind(limit)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(TokenRow {
                id: row.try_get(0)?,
                principal: row.try_get(1)?,
                hint: row.try_get(2)?,
                label: row.try_get(3)?,
                created_at: row.try_get(4)?,
                expires_at: row.try_get(5)?,
                revoked_at: row.try_get(6)?,
                expired: row.try_get(7)?,
            })
        })
        .collect()
}

pub(crate) async fn grants(
    connection: &mut PgConnection,
    principal: Option<&str>,
    after: i64,
    limit: i64,
) -> Result<Vec<GrantRow>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT g.id, g.principal_id, g.action, g.space_id, g.channel_id, g.thread_id
         FROM seqline.grants g WHERE ($1::text IS NULL OR g.principal_id = $1) AND g.id > $2 ORDER BY g.id LIMIT $3",
    )
    .bind(principal)
    .bind(after)
    .bind(limit)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let grant = Grant {
                action: row.try_get(2)?,
                space_id: row.try_get(3)?,
                channel_id: row.try_get(4)?,
                thread_id: row.try_get(5)?,
            };
            Ok(GrantRow { id: row.try_get(0)?, principal: row.try_get(1)?, grant })
        })
        .collect()
}
