//! Callers with every isolation level: an event is never skipped and never given twice, and what cannot go on says 40001.

use seqline_testkit::{Role, TestDb};

use super::*;
use crate::partitions::{drop_oldest, small_partitions};
use crate::support::append;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
const STRICT: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// Begins a transaction and makes it look at the database, so that it has its snapshot.
async fn begin_with_snapshot(session: &mut PgConnection, level: &str) {
    run(session, &format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM pg_class")).await;
}

#[tokio::test]
async fn rounds_go_on_with_every_isolation_level() {
    for level in LEVELS {
        let (db, mut session) = with_events(5).await;
        for expected in [vec![1, 2], vec![3, 4], vec![5], vec![]] {
            begin_with_snapshot(&mut session, level).await;
            assert_eq!(poll(&mut session, "totals", 2).await, expected, "{level}");
            run(&mut session, "COMMIT").await;
        }
        assert_eq!(cursor(&db, "totals").await, 5);
    }
}

#[tokio::test]
async fn two_calls_in_one_transaction_go_on_with_every_isolation_level() {
    for level in LEVELS {
        let (db, mut session) = with_events(5).await;
        begin_with_snapshot(&mut session, level).await;
        assert_eq!(poll(&mut session, "totals", 2).await, [1, 2], "{level}");
        assert_eq!(poll(&mut session, "totals", 9).await, [3, 4, 5], "{level}");
        assert_eq!(poll(&mut session, "totals", 9).await, [0; 0], "{level}");
        run(&mut session, "COMMIT").await;
        assert_eq!(cursor(&db, "totals").await, 5);
    }
}

#[tokio::test]
async fn a_snapshot_from_before_the_round_of_another_is_a_conflict() {
    for level in STRICT {
        let (db, mut session) = with_events(5).await;
        begin_with_snapshot(&mut session, level).await;
        assert_eq!(poll(&mut super::session(&db).await, "totals", 2).await, [1, 2]);
        assert_eq!(poll_refused(&mut session, "totals", 2).await.sqlstate, "40001", "{level}");
        run(&mut session, "ROLLBACK").await;
        begin_with_snapshot(&mut session, level).await;
        assert_eq!(poll(&mut session, "totals", 9).await, [3, 4, 5], "{level}");
        run(&mut session, "COMMIT").await;
    }
}

#[tokio::test]
async fn with_read_committed_the_round_of_another_is_seen_and_gone_on_from() {
    let (db, mut session) = with_events(5).await;
    begin_with_snapshot(&mut session, "READ COMMITTED").await;
    assert_eq!(poll(&mut super::session(&db).await, "totals", 2).await, [1, 2]);
    assert_eq!(poll(&mut session, "totals", 9).await, [3, 4, 5]);
    run(&mut session, "COMMIT").await;
    assert_eq!(cursor(&db, "totals").await, 5);
}

#[tokio::test]
async fn a_consumer_in_hand_gives_no_rows_with_every_isolation_level() {
    for level in LEVELS {
        let (db, mut holder) = with_events(2).await;
        run(&mut holder, "BEGIN").await;
        poll(&mut holder, "totals", 1).await;
        let mut session = session(&db).await;
        begin_with_snapshot(&mut session, level).await;
        assert_eq!(poll(&mut session, "totals", 1).await, [0; 0], "{level}");
    }
}

#[tokio::test]
async fn events_that_a_snapshot_does_not_see_come_with_the_next() {
    for level in STRICT {
        let (db, mut session) = with_events(2).await;
        begin_with_snapshot(&mut session, level).await;
        append(&db.producer(), 3..=4).await;
        assert_eq!(poll(&mut session, "totals", 9).await, [1, 2], "{level}");
        assert_eq!(poll(&mut session, "totals", 9).await, [0; 0], "{level}");
        run(&mut session, "COMMIT").await;
        assert_eq!(poll(&mut session, "totals", 9).await, [3, 4], "{level}");
    }
}

#[tokio::test]
async fn a_snapshot_of_an_empty_log_gives_no_rows_and_loses_none() {
    for level in STRICT {
        let (db, mut session) = with_events(0).await;
        begin_with_snapshot(&mut session, level).await;
        append(&db.producer(), 1..=2).await;
        assert_eq!(poll(&mut session, "totals", 9).await, [0; 0], "{level}");
        run(&mut session, "COMMIT").await;
        assert_eq!(poll(&mut session, "totals", 9).await, [1, 2], "{level}");
    }
}

/// The catalog that retention changed is seen by everybody at once, and the log with the old snapshot.
#[tokio::test]
async fn retention_behind_the_back_of_a_snapshot_is_a_loss_or_a_conflict_and_no_gap() {
    for level in STRICT {
        for max_events in [2, 100] {
            let db = TestDb::new().await;
            small_partitions(&db, 3, 4).await;
            append(&db.producer(), 1..=8).await;
            let mut session = session(&db).await;
            register(&mut session, "totals", "oldest").await;
            begin_with_snapshot(&mut session, level).await;
            assert_eq!(drop_oldest(&db).await, 1);
            match try_poll(&mut session, Some("totals"), Some(max_events)).await {
                Ok(seqs) => assert_eq!(seqs.first(), Some(&4), "{level}: {seqs:?}"),
                Err(refused) => assert_eq!(refused.sqlstate, "40001", "{level}: {refused:?}"),
            }
            run(&mut session, "ROLLBACK").await;
            assert_eq!(poll(&mut session, "totals", 100).await, [4, 5, 6, 7, 8], "{level}");
            assert_eq!(lost_ranges(&db).await, [("totals".to_owned(), 1, 3)]);
        }
    }
}

/// Partitions that are new to a snapshot are open to it all the same.
#[tokio::test]
async fn a_snapshot_from_before_a_partition_was_made_gives_what_it_sees() {
    for level in STRICT {
        let db = TestDb::new().await;
        small_partitions(&db, 3, 1).await;
        append(&db.producer(), 1..=2).await;
        let mut session = session(&db).await;
        register(&mut session, "totals", "oldest").await;
        begin_with_snapshot(&mut session, level).await;
        crate::partitions::set_sizes(&db, 3, 3).await;
        crate::partitions::ensure(&db.app()).await;
        append(&db.producer(), 3..=8).await;
        assert_eq!(poll(&mut session, "totals", 100).await, [1, 2], "{level}");
        run(&mut session, "COMMIT").await;
        assert_eq!(poll(&mut session, "totals", 100).await, [3, 4, 5, 6, 7, 8], "{level}");
    }
}

#[tokio::test]
async fn a_partition_that_is_closed_behind_the_back_of_a_snapshot_changes_nothing() {
    for level in LEVELS {
        let db = TestDb::new().await;
        small_partitions(&db, 100, 2).await;
        append(&db.producer(), 1..=5).await;
        let mut session = session(&db).await;
        register(&mut session, "totals", "2").await;
        begin_with_snapshot(&mut session, level).await;
        let close = "SELECT seqline.sync_event_log_close_partition(now(), '5 s')";
        assert!(sqlx::query_scalar::<_, bool>(close).fetch_one(&db.app()).await.unwrap());
        assert_eq!(poll(&mut session, "totals", 100).await, [2, 3, 4, 5], "{level}");
        run(&mut session, "COMMIT").await;
        append(&db.producer(), 6..=7).await;
        assert_eq!(poll(&mut session, "totals", 100).await, [6, 7], "{level}");
    }
}

#[tokio::test]
async fn a_read_only_transaction_cannot_poll() {
    let (db, mut session) = with_events(2).await;
    run(&mut session, "BEGIN READ ONLY").await;
    assert_eq!(poll_refused(&mut session, "totals", 1).await.sqlstate, "25006");
    assert_eq!(cursor(&db, "totals").await, 0);
}

#[tokio::test]
async fn a_prepared_round_has_the_consumer_in_hand_until_it_is_decided() {
    let (db, mut session) = with_events(3).await;
    run(&mut session, "BEGIN").await;
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
    run(&mut session, &format!("PREPARE TRANSACTION '{}'", db.name())).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [0; 0]);
    run(&mut session, &format!("COMMIT PREPARED '{}'", db.name())).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [3]);
}

#[tokio::test]
async fn a_session_whose_default_is_serializable_polls_and_retries() {
    let (db, _) = with_events(4).await;
    let mut session = db.connect(Role::Consumer).await;
    run(&mut session, "SET default_transaction_isolation = serializable").await;
    assert_eq!(poll(&mut session, "totals", 3).await, [1, 2, 3]);
    assert_eq!(poll(&mut session, "totals", 3).await, [4]);
}

#[tokio::test]
async fn a_snapshot_from_before_a_pause_gets_no_round() {
    let (db, mut session) = with_events(3).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        run(&mut session, &format!("BEGIN ISOLATION LEVEL {level}; SELECT 1")).await;
        run(&mut db.connect(Role::App).await, "SELECT seqline.set_consumer_paused('totals', true, NULL)")
            .await;
        assert_eq!(poll_refused(&mut session, "totals", 10).await.sqlstate, "40001", "{level}");
        run(&mut session, "ROLLBACK").await;
        run(&mut db.connect(Role::App).await, "SELECT seqline.set_consumer_paused('totals', false, NULL)")
            .await;
    }
    assert_eq!(poll(&mut session, "totals", 10).await, [1, 2, 3]);
}
