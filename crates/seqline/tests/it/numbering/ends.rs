//! The two ends of the log and the number of an event.

use seqline::read::{head, min_retained, seq_of};
use seqline_testkit::{Role, TestDb};
use uuid::Uuid;

use crate::support::{append, event};

#[tokio::test]
async fn an_empty_log_has_head_0_and_would_begin_at_1() {
    let db = TestDb::new().await;
    let mut reader = db.connect(Role::Reader).await;
    assert_eq!((head(&mut reader).await.unwrap(), min_retained(&mut reader).await.unwrap()), (0, 1));
    assert_eq!(seq_of(&mut reader, Uuid::now_v7()).await.unwrap(), None);
}

#[tokio::test]
async fn the_ends_are_the_first_and_the_last_number() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=5).await;
    let mut reader = db.connect(Role::Reader).await;
    assert_eq!((head(&mut reader).await.unwrap(), min_retained(&mut reader).await.unwrap()), (5, 1));
}

#[tokio::test]
async fn every_committed_event_has_its_number() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), 1..=3).await;
    let mut reader = db.connect(Role::Reader).await;
    for (seq, id) in (1..).zip(ids) {
        assert_eq!(seq_of(&mut reader, id).await.unwrap(), Some(seq));
    }
}

#[tokio::test]
async fn the_head_of_an_open_snapshot_stands_still() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    let mut reader = db.connect(Role::Reader).await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut reader).await.unwrap();
    assert_eq!(head(&mut reader).await.unwrap(), 1);
    append(&db.producer(), [2]).await;
    assert_eq!(head(&mut reader).await.unwrap(), 1);
    sqlx::raw_sql("COMMIT").execute(&mut reader).await.unwrap();
    assert_eq!(head(&mut reader).await.unwrap(), 2);
}

#[tokio::test]
async fn a_rolled_back_event_never_had_a_number() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let ids = seqline::append(&mut tx, &[event(1)]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(seq_of(&mut db.connect(Role::Reader).await, ids[0]).await.unwrap(), None);
}
