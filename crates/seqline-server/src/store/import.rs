//! The progress of imports.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// What the beginning of an input looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) bytes: i32,
    pub(crate) sha256: String,
}

/// Registers an import; a registered one stays as it is.
pub(crate) async fn register(
    connection: &mut PgConnection,
    name: &str,
    head: &Fingerprint,
    run: Uuid,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO seqline.imports (name, head_bytes, head_sha256, run_id) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
    )
    .bind(name)
    .bind(head.bytes)
    .bind(&head.sha256)
    .bind(run)
    .execute(connection)
    .await
    .map(drop)
}

/// Takes the import over: waits for the transactions of other runs that are under way, and makes their next ones fail. The
/// fingerprint grows with the input; false when it is not the known one any more.
pub(crate) async fn take_over(
    connection: &mut PgConnection,
    name: &str,
    run: Uuid,
    known: &Fingerprint,
    now: &Fingerprint,
) -> Result<bool, sqlx::Error> {
    let updated = sqlx::query(
        "UPDATE seqline.imports SET run_id = $2, head_bytes = $3, head_sha256 = $4
         WHERE name = $1 AND head_bytes = $5 AND head_sha256 = $6",
    )
    .bind(name)
    .bind(run)
    .bind(now.bytes)
    .bind(&now.sha256)
    .bind(known.bytes)
    .bind(&known.sha256)
    .execute(connection)
    .await?;
    Ok(updated.rows_affected() == 1)
}

/// Waits for the transactions of other runs that are under way, and keeps new ones out until the end of the transaction. A
/// lock that queues: with a lock on the row new transactions would go past whoever waits for it.
pub(crate) async fn wait_for_others(connection: &mut PgConnection, name: &str) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('seqline.imports ' || $1, 0))")
        .bind(name)
        .execute(connection)
        .await
        .map(drop)
}

/// Makes other runs wait for this transaction before they take the import over.
pub(crate) async fn keep_others_waiting(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_xact_lock_shared(hashtextextended('seqline.imports ' || $1, 0))")
        .bind(name)
        .execute(connection)
        .await
        .map(drop)
}

/// Whether the import still belongs to this run. Holds until the end of the transaction for whoever keeps others waiting.
pub(crate) async fn belongs_to(
    connection: &mut PgConnection,
    name: &str,
    run: Uuid,
) -> Result<bool, sqlx::Error> {
    let row = sqlx::query("SELECT FROM seqline.imports WHERE name = $1 AND run_id = $2")
        .bind(name)
        .bind(run)
        .fetch_optional(connection)
        .await?;
    Ok(row.is_some())
}

pub(crate) async fn registered(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<Fingerprint>, sqlx::Error> {
    let row = sqlx::query("SELECT head_bytes, head_sha256 FROM seqline.imports WHERE name = $1")
        .bind(name)
        .fetch_optional(connection)
        .await?;
    row.map(|row| Ok(Fingerprint { bytes: row.try_get(0)?, sha256: row.try_get(1)? })).transpose()
}

/// A range of lines that is done, with how many were imported and rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first_line: i64,
    pub(crate) last_line: i64,
    pub(crate) imported: i64,
    pub(crate) rejected: i64,
}

pub(crate) async fn ranges(connection: &mut PgConnection, name: &str) -> Result<Vec<Range>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT first_line, last_line, imported, rejected FROM seqline.import_ranges WHERE name = $1 ORDER BY first_line",
    )
    .bind(name)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Range {
                first_line: row.try_get(0)?,
                last_line: row.try_get(1)?,
                imported: row.try_get(2)?,
                rejected: row.try_get(3)?,
            })
        })
        .collect()
}

/// In the transaction that appends the events of these lines. The primary key keeps the same range from being done
/// twice.
pub(crate) async fn record_range(
    connection: &mut PgConnection,
    name: &str,
    range: Range,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO seqline.import_ranges (name, first_line, last_line, imported, rejected) VALUES ($1, $2, $3, $4, $5)")
        .bind(name)
        .bind(range.first_line)
        .bind(range.last_line)
        .bind(range.imported)
        .bind(range.rejected)
        .execute(connection)
        .await
        .map(drop)
}

pub(crate) async fn savepoint(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("SAVEPOINT seqline_import").execute(connection).await.map(drop)
}

pub(crate) async fn rollback_to_savepoint(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT seqline_import").execute(connection).await.map(drop)
}

pub(crate) async fn release_savepoint(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("RELEASE SAVEPOINT seqline_import").execute(connection).await.map(drop)
}
