//! River, in a schema of its own.

use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::{PostgresMigrator, SchemaName};
use riverqueue::{Client, ClientBuilder, JobArgs};
use seqline_testkit::TestDb;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

pub(crate) const SCHEMA: &str = "river";

/// The job of an event.
#[derive(Debug, JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send")]
pub(crate) struct SendInvoice {
    pub(crate) order_id: String,
    pub(crate) seq: i64,
}

/// Brings up River's tables, which belong to the application.
pub(crate) async fn bring_up(db: &TestDb) -> anyhow::Result<()> {
    sqlx::raw_sql("CREATE SCHEMA river; GRANT USAGE, CREATE ON SCHEMA river TO PUBLIC")
        .execute(&db.admin())
        .await?;
    PostgresMigrator::new(db.app()).with_schema(SchemaName::new(SCHEMA)?).migrate_up().await?;
    Ok(())
}

/// A client, to be built.
pub(crate) fn client(pool: PgPool) -> anyhow::Result<ClientBuilder> {
    Ok(Client::builder(PostgresDatabase::new(pool).with_schema(SchemaName::new(SCHEMA)?)))
}
