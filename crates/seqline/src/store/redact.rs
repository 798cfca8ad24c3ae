//! Redaction. Each statement says what it did, or would do without `apply`.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::redact::Redaction;

pub(crate) async fn event(
    connection: &mut PgConnection,
    id: Uuid,
    apply: bool,
    why: Option<&str>,
) -> Result<Redaction, sqlx::Error> {
    let row =
        sqlx::query("SELECT events, already, 0::bigint, waiting, partitions FROM seqline.redact($1, $2, $3)")
            .bind(id)
            .bind(why)
            .bind(!apply)
            .fetch_one(connection)
            .await?;
    decode(&row)
}

/// Of the kind and id of a resource.
pub(crate) async fn resource(
    connection: &mut PgConnection,
    (kind, id): (&str, &str),
    max_events: Option<u32>,
    apply: bool,
    why: Option<&str>,
) -> Result<Redaction, sqlx::Error> {
    let row = sqlx::query(
        "SELECT events, already, remaining, waiting, partitions FROM seqline.redact_resource($1, $2, $3, $4, $5)",
    )
    .bind(kind)
    .bind(id)
    .bind(why)
    .bind(!apply)
    .bind(max_events.map(i64::from))
    .fetch_one(connection)
    .await?;
    decode(&row)
}

fn decode(row: &PgRow) -> Result<Redaction, sqlx::Error> {
    Ok(Redaction {
        events: row.try_get(0)?,
        already: row.try_get(1)?,
        remaining: row.try_get(2)?,
        waiting: row.try_get(3)?,
        partitions: row.try_get(4)?,
    })
}
