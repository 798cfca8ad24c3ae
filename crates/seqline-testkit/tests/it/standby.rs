//! A standby that its primary waits for.

use std::time::Duration;

use seqline_testkit::{Role, Standby, TestDb, TestServer, eventually};
use sqlx::PgConnection;

const DEADLINE: Duration = Duration::from_secs(60);

async fn rows(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(connection).await.unwrap()
}

/// Waits until a commit waits for the standby.
async fn until_waiting(admin: &mut PgConnection) {
    eventually(DEADLINE, "a commit that waits", async || {
        let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')";
        sqlx::query_scalar(waits).fetch_one(&mut *admin).await.unwrap()
    })
    .await;
}

#[tokio::test]
async fn commits_wait_for_a_standby_that_is_away_and_are_there_when_it_takes_over() {
    use sqlx::Connection;
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let mut standby = Standby::synchronous(&server).await;
    let mut admin = db.connect(Role::Admin).await;
    sqlx::query("CREATE TABLE kept AS SELECT 1").execute(&mut admin).await.unwrap();
    let put = async |pool| sqlx::query("INSERT INTO kept VALUES (2)").execute(&pool).await.map(drop);

    standby.pause().await;
    let waiting = tokio::spawn(put(db.admin()));
    until_waiting(&mut admin).await;
    assert!(!waiting.is_finished());
    standby.resume();
    waiting.await.unwrap().unwrap();

    standby.stop().await;
    let waiting = tokio::spawn(put(db.admin()));
    until_waiting(&mut admin).await;
    standby.start_again().await;
    waiting.await.unwrap().unwrap();

    server.kill().await;
    standby.promote().await;
    let mut promoted = PgConnection::connect_with(&standby.options(db.options(Role::Admin))).await.unwrap();
    assert_eq!(rows(&mut promoted).await, 3);
    sqlx::query("INSERT INTO kept VALUES (3)").execute(&mut promoted).await.unwrap();
}
