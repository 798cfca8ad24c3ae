//! The version of the schema.

use sqlx::PgConnection;

/// The highest migration that was applied.
pub(crate) async fn version(connection: &mut PgConnection) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar("SELECT max(version) FROM seqline.schema_version").fetch_one(connection).await
}
