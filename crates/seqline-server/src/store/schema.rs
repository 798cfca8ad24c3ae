//! The version of the schema.

use sqlx::{PgConnection, Row};

/// The highest migration that was applied.
pub(crate) async fn version(connection: &mut PgConnection) -> Result<Option<i32>, sqlx::Error> {
    // Not prepared: behind a pooler in transaction mode another session would execute it.
    let row = sqlx::raw_sql("SELECT max(version) FROM seqline.schema_version").fetch_one(connection).await?;
    row.try_get(0)
}
