//! Databases that start alike.

use std::time::Duration;

use seqline::Clock;
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::{Sequencing, set_sequencing};
use seqline::status::staged;
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::peers::Peers;
use crate::ways::Way;

/// Rows of the business table, of which each transaction updates one.
pub(crate) const ORDERS: i64 = 10_000;

/// Fresh databases for one run of all ways, so that what an earlier run wrote does not count.
pub(crate) struct Databases {
    at_commit: TestDb,
    after_commit: TestDb,
}

impl Databases {
    pub(crate) async fn create(server: &TestServer, peers: &Peers) -> anyhow::Result<Self> {
        let at_commit = TestDb::on(server).await;
        create_orders(&at_commit).await?;
        peers.install(&at_commit).await?;
        let after_commit = after_commit(server).await?;
        create_orders(&after_commit).await?;
        Ok(Self { at_commit, after_commit })
    }

    /// The one where this way is at home.
    pub(crate) fn of(&self, way: Way) -> &TestDb {
        if way == Way::AfterCommit { &self.after_commit } else { &self.at_commit }
    }

    /// Drops them, and waits for that: it would be work for the server during the next measurement.
    pub(crate) async fn drop_and_wait(self, server: &TestServer) {
        drop(self);
        wait_for_drops(server).await;
    }
}

/// A database that numbers after commit. Nobody sequences it yet.
pub(crate) async fn after_commit(server: &TestServer) -> anyhow::Result<TestDb> {
    let db = TestDb::on(server).await;
    set_sequencing(&mut db.connect(Role::Admin).await, Sequencing::AfterCommit, None).await?;
    Ok(db)
}

/// Waits until no database but those that the server has itself is left.
pub(crate) async fn wait_for_drops(server: &TestServer) {
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(server.admin_options());
    eventually(Duration::from_secs(60), "the end of databases that are done", async || {
        let gone = "SELECT NOT EXISTS (SELECT FROM pg_database WHERE datname LIKE 'test\\_%')";
        sqlx::query_scalar(gone).fetch_one(&pool).await.is_ok_and(|gone: bool| gone)
    })
    .await;
    pool.close().await;
}

/// The business table.
pub(crate) async fn create_orders(db: &TestDb) -> anyhow::Result<()> {
    sqlx::raw_sql("CREATE TABLE orders (id bigint PRIMARY KEY, n bigint NOT NULL)")
        .execute(&mut db.connect(Role::App).await)
        .await?;
    sqlx::query("INSERT INTO orders SELECT id, 0 FROM generate_series(0, $1 - 1) id")
        .bind(ORDERS)
        .execute(&mut db.connect(Role::App).await)
        .await?;
    Ok(())
}

/// Before each measurement: no dead rows of another one, plans that know their tables, and no checkpoint that is due.
pub(crate) async fn settle(db: &TestDb) -> anyhow::Result<()> {
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut admin).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut admin).await?;
    Ok(())
}

/// How long events that are left may take to get their numbers.
const CATCH_UP: Duration = Duration::from_secs(120);

/// A sequencer with the default configuration, in this process as a server would run it. Only while it is needed: it would be work
/// beside other measurements.
pub(crate) struct Running {
    db: PgPool,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// When it has the lease.
    pub(crate) async fn start(db: &TestDb) -> Self {
        let stop = CancellationToken::new();
        let sequencer = Sequencer::new(db.app_pool(2), SequencerConfig::default(), Clock::system());
        let running = Self { db: db.app(), task: tokio::spawn(sequencer.run(stop.clone())), stop };
        eventually(CATCH_UP, "the lease of the sequencer", async || {
            let Ok(mut connection) = running.db.acquire().await else { return false };
            staged(&mut connection).await.is_ok_and(|staged| staged.sequencer.is_some())
        })
        .await;
        running
    }

    /// Stops it when no event waits any more.
    pub(crate) async fn finish(self) -> anyhow::Result<()> {
        eventually(CATCH_UP, "the numbers of what was left", async || {
            let Ok(mut connection) = self.db.acquire().await else { return false };
            staged(&mut connection).await.is_ok_and(|staged| staged.transactions == 0)
        })
        .await;
        self.stop.cancel();
        Ok(self.task.await?)
    }
}
