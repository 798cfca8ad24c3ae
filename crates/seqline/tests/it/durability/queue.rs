//! A queue of notifications that is full, because somebody listens and does not come to the end of the transaction.

use seqline::CommitError;
use seqline::embedded::{Durability, PostgresBinaries};
use seqline::sequencer::drain;
use seqline::settings::{Notification, Sequencing, set_notification, set_sequencing};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::{Connection, PgConnection};

use crate::numbering::DEADLINE;
use crate::support::{append, assert_nothing_staged, event, numbers};

/// The fewest that PostgreSQL takes.
const QUEUE: [(&str, &str); 1] = [("max_notify_queue_pages", "64")];

/// A listener that holds everything in the queue, until it is dropped.
async fn fill(db: &TestDb) -> PgConnection {
    let mut listener = db.connect(Role::Reader).await;
    sqlx::raw_sql("LISTEN other").execute(&mut listener).await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT 1").execute(&mut listener).await.unwrap();
    let mut sender = db.connect(Role::Reader).await;
    // A page each, until there is none left, and then as little as an event would add.
    for size in [7_900, 1] {
        for sent in 0.. {
            let notify = sqlx::query("SELECT pg_notify('other', repeat('x', $1) || $2)")
                .bind(size)
                .bind(sent.to_string());
            if let Err(error) = notify.execute(&mut sender).await {
                assert_eq!(error.as_database_error().unwrap().code().unwrap(), "54000", "{error}");
                break;
            }
            assert!(sent < 10_000, "the queue is never full");
        }
    }
    listener
}

/// Nobody holds anything back any more. PostgreSQL finds that out when somebody asks how full the queue is.
async fn clear(admin: &mut PgConnection, listener: PgConnection) {
    listener.close().await.unwrap();
    eventually(DEADLINE, "an empty queue", async || {
        let usage: f64 =
            sqlx::query_scalar("SELECT pg_notification_queue_usage()").fetch_one(&mut *admin).await.unwrap();
        usage < 0.1
    })
    .await;
}

async fn one_event(db: &TestDb, n: i64) -> Result<(), CommitError> {
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event(n)]).await.unwrap();
    seqline::commit(tx).await
}

#[tokio::test]
async fn a_full_queue_fails_no_append_unless_the_transaction_itself_notifies() {
    // Before that the queue takes 8 GB.
    const ADJUSTABLE_SINCE: u16 = 17;
    if PostgresBinaries::find(None).unwrap().major() < ADJUSTABLE_SINCE {
        return;
    }
    let server = TestServer::with(Durability::Fast, &QUEUE).await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    let mut admin = db.connect(Role::Admin).await;
    append(&db.producer(), [1]).await;
    let listener = fill(&db).await;

    // The transaction notifies: it fails as a whole, and cleanly.
    for n in [-1, -2] {
        let error = one_event(&db, n).await.unwrap_err();
        let CommitError::Database(refused) = &error else { panic!("{error:?}") };
        assert_eq!(refused.sqlstate(), Some("54000"));
        assert!(error.had_no_effect());
    }
    assert_nothing_staged(&mut admin).await;
    assert_eq!(numbers(&mut admin).await, [1]);

    // Whoever notifies afterwards, or does not, appends.
    set_notification(&mut admin, Notification::AfterCommit, None).await.unwrap();
    one_event(&db, 2).await.unwrap();
    set_notification(&mut admin, Notification::Off, None).await.unwrap();
    one_event(&db, 3).await.unwrap();
    set_sequencing(&mut admin, Sequencing::AfterCommit, None).await.unwrap();
    for (n, notification) in
        [(4, Notification::InTransaction), (5, Notification::AfterCommit), (6, Notification::Off)]
    {
        set_notification(&mut admin, notification, None).await.unwrap();
        one_event(&db, n).await.unwrap();
        assert_eq!(drain(&mut admin).await.unwrap(), 1, "{notification}");
    }
    assert_eq!(numbers(&mut admin).await, [1, 2, 3, 4, 5, 6]);

    // Still full.
    set_sequencing(&mut admin, Sequencing::AtCommit, None).await.unwrap();
    set_notification(&mut admin, Notification::InTransaction, None).await.unwrap();
    one_event(&db, -3).await.unwrap_err();
    clear(&mut admin, listener).await;
    one_event(&db, 7).await.unwrap();
    assert_eq!(numbers(&mut admin).await, [1, 2, 3, 4, 5, 6, 7]);
    assert_nothing_staged(&mut admin).await;
}
