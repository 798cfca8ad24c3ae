//! Two-phase commit: possible when numbers come after commit, refused when they come inside it.

use seqline::settings::{Notification, Sequencing, set_notification};
use seqline_testkit::{Role, TestDb, TestServer};
use sqlx::PgConnection;

use super::{change, sequencer, settled};
use crate::support::{append, numbers};

async fn prepare(connection: &mut PgConnection, n: i64) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "BEGIN; SELECT seqline.append('test.happened', '{{\"n\": {n}}}', 'test', 'any'); PREPARE TRANSACTION 'p{n}'"
    )))
    .execute(connection)
    .await
    .map(drop)
}

async fn logged(db: &TestDb) -> Vec<i64> {
    numbers(&mut db.connect(Role::Reader).await).await
}

#[tokio::test]
async fn a_prepared_transaction_holds_nobody_up_and_comes_when_it_is_committed() {
    let mut server = TestServer::durable().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    change(&db, Sequencing::AfterCommit).await;
    let mut producer = db.connect(Role::Producer).await;
    for n in [1, 2] {
        prepare(&mut producer, n).await.unwrap();
    }
    {
        let _sequencer = sequencer(&db);
        append(&db.producer(), [3]).await;
        settled(&db).await;
        assert_eq!(logged(&db).await, [3]);
    }
    // It survives what unlogged tables do not.
    server.kill().await;
    server.start_again().await;
    let _sequencer = sequencer(&db);
    let mut producer = db.connect(Role::Producer).await;
    sqlx::raw_sql("ROLLBACK PREPARED 'p1'").execute(&mut producer).await.unwrap();
    sqlx::raw_sql("COMMIT PREPARED 'p2'").execute(&mut producer).await.unwrap();
    settled(&db).await;
    append(&db.pool(Role::Producer, 1), [4]).await;
    settled(&db).await;
    let mut admin = db.connect(Role::Admin).await;
    assert_eq!(numbers(&mut admin).await, [3, 2, 4]);
    let left: i64 =
        sqlx::query_scalar("SELECT (SELECT count(*) FROM seqline.staged_events) + (SELECT count(*) FROM seqline.staged_transactions)")
            .fetch_one(&mut admin)
            .await
            .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn numbered_inside_commit_it_cannot_be_prepared_whoever_tells_listeners() {
    let db = TestDb::at_commit().await;
    let mut producer = db.connect(Role::Producer).await;
    for notification in [Notification::InTransaction, Notification::AfterCommit, Notification::Off] {
        set_notification(&mut db.connect(Role::App).await, notification, None).await.unwrap();
        let error = prepare(&mut producer, 1).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().unwrap(), "0A000", "{notification}: {error}");
        sqlx::raw_sql("ROLLBACK").execute(&mut producer).await.unwrap();
        append(&db.producer(), [2]).await;
    }
    assert_eq!(logged(&db).await, [2, 2, 2]);
    // Without events it is nobody's business.
    for sql in
        ["BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'none'", "ROLLBACK PREPARED 'none'"]
    {
        sqlx::raw_sql(sql).execute(&mut producer).await.unwrap();
    }
}
