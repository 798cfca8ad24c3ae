//! Databases that start alike.

use std::time::Duration;

use seqline_testkit::{Role, TestDb, TestServer, eventually};

use crate::peers::Peers;
use crate::ways::Way;

/// Rows of the business table, of which each transaction updates one.
pub(crate) const ORDERS: i64 = 10_000;

/// Fresh databases for one run of all ways, so that what an earlier run wrote does not count.
pub(crate) struct Databases {
    at_commit: TestDb,
}

impl Databases {
    pub(crate) async fn create(server: &TestServer, peers: &Peers) -> anyhow::Result<Self> {
        let at_commit = TestDb::on(server).await;
        create_orders(&at_commit).await?;
        peers.install(&at_commit).await?;
        Ok(Self { at_commit })
    }

    /// The one where this way is at home.
    pub(crate) fn of(&self, _way: Way) -> &TestDb {
        &self.at_commit
    }

    /// Drops them, and waits for that: it would be work for the server during the next measurement.
    pub(crate) async fn drop_and_wait(self, server: &TestServer) {
        drop(self);
        wait_for_drops(server).await;
    }
}

/// Waits until no database but those that the server has itself is left.
pub(crate) async fn wait_for_drops(server: &TestServer) {
    let pool = sqlx::PgPool::connect_lazy_with(server.admin_options());
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
