//! The audit log.

use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;

#[derive(FromRow)]
pub(crate) struct AuditRow {
    pub(crate) id: i64,
    pub(crate) recorded_at: OffsetDateTime,
    pub(crate) who: String,
    pub(crate) principal: Option<String>,
    pub(crate) action: String,
    pub(crate) subject: String,
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) why: Option<String>,
}

/// The newest rows before one, or of all. Of what was before and after no more than so many characters.
pub(crate) async fn newest(
    connection: &mut PgConnection,
    before: Option<i64>,
    limit: i64,
    characters: i32,
) -> Result<Vec<AuditRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT a.id, a.recorded_at, a.who, a.principal, a.action, a.subject,
                left(a.before::text, $3) AS before, left(a.after::text, $3) AS after, a.why
         FROM seqline.audit_log a WHERE a.id < coalesce($1, 9223372036854775807) ORDER BY a.id DESC LIMIT $2",
    )
    .bind(before)
    .bind(limit)
    .bind(characters)
    .fetch_all(connection)
    .await
}

/// What people did to a consumer, the last first. Of what was before and after no more than so many characters.
pub(crate) async fn of_consumer(
    connection: &mut PgConnection,
    name: &str,
    limit: i64,
    characters: i32,
) -> Result<Vec<AuditRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT a.id, a.recorded_at, a.who, a.principal, a.action, a.subject,
                left(a.before::text, $3) AS before, left(a.after::text, $3) AS after, a.why
         FROM seqline.audit_log a
         WHERE a.subject = $1 AND (a.action LIKE 'consumer.%' OR a.action LIKE 'parked.%') ORDER BY a.id DESC LIMIT $2",
    )
    .bind(name)
    .bind(limit)
    .bind(characters)
    .fetch_all(connection)
    .await
}

/// Names a principal until the end of the transaction.
pub(crate) async fn act_for(connection: &mut PgConnection, principal: &str) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT set_config('seqline.principal', $1, true)")
        .bind(principal)
        .execute(connection)
        .await
        .map(drop)
}
