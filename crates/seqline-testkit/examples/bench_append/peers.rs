//! Sets up what appends are compared with, each by the SQL that it ships.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use riverqueue::migrate::{PostgresMigrator, SchemaName};
use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// The SQL of other products, read once.
pub(crate) struct Peers {
    pgmq: String,
    /// In order.
    graphile_worker: Vec<String>,
}

impl Peers {
    /// `cargo xtask bench append` says where they are.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let path = |variable: &str| {
            let path = env::var_os(variable).map(PathBuf::from);
            path.with_context(|| format!("{variable} is not set: run `cargo xtask bench append`"))
        };
        let pgmq = path("SEQLINE_PGMQ_SQL")?;
        let pgmq = fs::read_to_string(&pgmq).with_context(|| pgmq.display().to_string())?;
        let folder = path("SEQLINE_GRAPHILE_WORKER_SQL")?;
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        files.sort();
        let graphile_worker = files.iter().map(fs::read_to_string).collect::<std::io::Result<Vec<_>>>()?;
        ensure!(!graphile_worker.is_empty(), "there are no migrations in {}", folder.display());
        Ok(Self { pgmq, graphile_worker })
    }

    /// All of them belong to the application, which has no more rights than elsewhere.
    pub(crate) async fn install(&self, db: &TestDb) -> anyhow::Result<()> {
        let grant = format!("GRANT CREATE ON DATABASE {} TO {}", db.name(), Role::App.login());
        sqlx::raw_sql(AssertSqlSafe(grant)).execute(&mut db.connect(Role::Admin).await).await?;
        let mut connection = db.connect(Role::App).await;
        create_tables(&mut connection).await.context("set up the outboxes")?;
        self.install_pgmq(&mut connection).await.context("set up pgmq")?;
        self.install_graphile_worker(&mut connection).await.context("set up Graphile Worker")?;
        sqlx::raw_sql("CREATE SCHEMA river").execute(&mut connection).await?;
        PostgresMigrator::new(db.app()).with_schema(SchemaName::new("river")?).migrate_up().await?;
        Ok(connection.close().await?)
    }

    async fn install_pgmq(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(self.pgmq.clone())).execute(&mut *connection).await?;
        sqlx::raw_sql("SELECT pgmq.create('events')").execute(connection).await?;
        Ok(())
    }

    async fn install_graphile_worker(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        sqlx::raw_sql(
            "CREATE SCHEMA graphile_worker;
             CREATE TABLE graphile_worker.migrations (
                 id int PRIMARY KEY, ts timestamptz NOT NULL DEFAULT now(), breaking boolean NOT NULL DEFAULT false
             )",
        )
        .execute(&mut *connection)
        .await?;
        for migration in &self.graphile_worker {
            let migration = migration.replace(":GRAPHILE_WORKER_SCHEMA", "graphile_worker");
            sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {migration}; COMMIT")))
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }
}

/// The outbox that one would write oneself, and the same with a counter in front of it. Columns and indexes are those of the log.
async fn create_tables(connection: &mut PgConnection) -> anyhow::Result<()> {
    sqlx::raw_sql(
        "CREATE TABLE outbox (LIKE seqline.event_log INCLUDING DEFAULTS INCLUDING INDEXES);
         CREATE SEQUENCE outbox_seq_seq OWNED BY outbox.seq;
         ALTER TABLE outbox ALTER seq SET DEFAULT nextval('outbox_seq_seq');
         CREATE TABLE counted (LIKE seqline.event_log INCLUDING DEFAULTS INCLUDING INDEXES);
         CREATE TABLE counter (value bigint NOT NULL);
         INSERT INTO counter VALUES (0);",
    )
    .execute(&mut *connection)
    .await?;
    let indexes: Vec<i64> = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM pg_index i WHERE i.indrelid = t.oid)
         FROM unnest('{seqline.event_log, outbox, counted}'::regclass[]) t (oid)",
    )
    .fetch_all(connection)
    .await?;
    ensure!(indexes.iter().all(|count| *count == indexes[0]), "the indexes differ: {indexes:?}");
    Ok(())
}
