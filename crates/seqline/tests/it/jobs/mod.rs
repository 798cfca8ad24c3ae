//! Jobs that are inserted in the transaction that makes them necessary.

mod conformance;

use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::{Direction, MigrateOpts, PostgresMigrator, SchemaName};
use riverqueue::{Client, ClientBuilder};
use seqline_testkit::TestDb;
use sqlx::{AssertSqlSafe, PgPool};

/// The schema of River's tables in most tests.
const SCHEMA: &str = "queue";

/// A database with River's tables in [`SCHEMA`], which belong to the application.
async fn database() -> TestDb {
    let db = TestDb::new().await;
    bring_up(&db, SCHEMA, None).await;
    db
}

/// River's tables, up to this version of theirs or the newest.
pub(crate) async fn bring_up(db: &TestDb, schema: &str, version: Option<i64>) {
    let app = db.app();
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"")))
        .execute(&db.admin())
        .await
        .expect("the schema is made");
    sqlx::raw_sql(AssertSqlSafe(format!("GRANT ALL ON SCHEMA \"{schema}\" TO PUBLIC")))
        .execute(&db.admin())
        .await
        .expect("the application may use it");
    let mut options = MigrateOpts::new();
    if let Some(version) = version {
        options = options.with_target_version(version);
    }
    PostgresMigrator::new(app)
        .with_schema(SchemaName::new(schema).expect("the name is valid"))
        .migrate(Direction::Up, options)
        .await
        .expect("River's tables are brought up");
}

/// River's own client over [`SCHEMA`], to be built.
fn client(pool: PgPool) -> ClientBuilder {
    let schema = SchemaName::new(SCHEMA).expect("the name is valid");
    Client::builder(PostgresDatabase::new(pool).with_schema(schema))
}
