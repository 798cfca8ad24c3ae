//! Where a new consumer starts, and that one that exists stays where it is.

use futures_util::future::join_all;
use seqline_testkit::{Role, TestDb};

use super::*;
use crate::partitions::{drop_oldest, small_partitions};
use crate::support::append;

#[tokio::test]
async fn a_new_consumer_starts_at_the_head_if_nothing_else_is_said() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let mut session = session(&db).await;
    let at: i64 = sqlx::query_scalar("SELECT seqline.register_consumer('totals')")
        .fetch_one(&mut session)
        .await
        .unwrap();
    assert_eq!(at, 3);
    assert_eq!(poll(&mut session, "totals", 10).await, [0; 0]);
    append(&db.producer(), [4]).await;
    assert_eq!(poll(&mut session, "totals", 10).await, [4]);
}

#[tokio::test]
async fn each_start_gives_the_events_that_it_names() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let mut session = session(&db).await;
    for (name, start_at, at, expected) in [
        ("at_head", "head", 3, vec![]),
        ("at_oldest", "oldest", 0, vec![1, 2, 3]),
        ("at_first", "1", 0, vec![1, 2, 3]),
        ("at_middle", "2", 1, vec![2, 3]),
        ("at_last", "3", 2, vec![3]),
        ("at_next", "4", 3, vec![]),
        ("at_padded", "0003", 2, vec![3]),
    ] {
        assert_eq!(register(&mut session, name, start_at).await, at, "{start_at}");
        assert_eq!(poll(&mut session, name, 10).await, expected, "{start_at}");
    }
}

#[tokio::test]
async fn in_an_empty_log_every_start_is_before_the_first_event() {
    let db = TestDb::new().await;
    let mut session = session(&db).await;
    for (name, start_at) in [("at_head", "head"), ("at_oldest", "oldest"), ("at_first", "1")] {
        assert_eq!(register(&mut session, name, start_at).await, 0);
    }
    append(&db.producer(), [1]).await;
    for name in ["at_head", "at_oldest", "at_first"] {
        assert_eq!(poll(&mut session, name, 10).await, [1], "{name}");
    }
}

#[tokio::test]
async fn after_retention_a_consumer_starts_at_what_is_left_and_has_lost_nothing() {
    let db = TestDb::new().await;
    small_partitions(&db, 3, 4).await;
    append(&db.producer(), 1..=8).await;
    assert_eq!(drop_oldest(&db).await, 1);
    let mut session = session(&db).await;
    assert_eq!(register(&mut session, "at_oldest", "oldest").await, 3);
    assert_eq!(register(&mut session, "at_seq", "4").await, 3);
    let refused = try_register(&mut session, Some("too_early"), Some("3")).await.unwrap_err();
    assert_eq!(refused.message, "seq 3 is not in the log: it holds 4 to 8");
    assert_eq!(poll(&mut session, "at_oldest", 100).await, [4, 5, 6, 7, 8]);
    assert_eq!(poll(&mut session, "at_seq", 1).await, [4]);
    assert_eq!(lost_ranges(&db).await, []);
}

#[tokio::test]
async fn registering_again_changes_nothing_whatever_it_says() {
    let (db, mut session) = with_events(5).await;
    poll(&mut session, "totals", 2).await;
    for start_at in [Some("head"), Some("oldest"), Some("1"), Some("5"), Some("77"), Some("nonsense"), None] {
        assert_eq!(try_register(&mut session, Some("totals"), start_at).await, Ok(2), "{start_at:?}");
    }
    assert_eq!(cursor(&db, "totals").await, 2);
    assert_eq!(poll(&mut session, "totals", 1).await, [3]);
}

#[tokio::test]
async fn a_registration_that_is_rolled_back_never_was() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=2).await;
    let mut session = session(&db).await;
    run(&mut session, "BEGIN").await;
    register(&mut session, "totals", "oldest").await;
    assert_eq!(poll(&mut session, "totals", 10).await, [1, 2]);
    run(&mut session, "ROLLBACK").await;
    let refused = poll_refused(&mut session, "totals", 10).await;
    assert_eq!(refused.rule(), ("22023", "seqline_consumer_unknown"));
}

#[tokio::test]
async fn a_consumer_whose_registration_is_not_committed_cannot_be_polled_by_others() {
    let db = TestDb::new().await;
    let mut session = session(&db).await;
    run(&mut session, "BEGIN").await;
    register(&mut session, "totals", "oldest").await;
    let refused = poll_refused(&mut super::session(&db).await, "totals", 10).await;
    assert_eq!(refused.rule(), ("22023", "seqline_consumer_unknown"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_register_at_once_make_one_consumer() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let mut sessions = Vec::new();
    for _ in 0..16 {
        sessions.push(db.connect(Role::Consumer).await);
    }
    for round in 0..5 {
        let name = format!("totals_{round}");
        let starts = ["head", "oldest", "2"].into_iter().cycle();
        let registered =
            join_all(sessions.iter_mut().zip(starts).map(|(session, start)| register(session, &name, start)))
                .await;
        let at = cursor(&db, &name).await;
        assert_eq!(registered, vec![at; 16]);
    }
}

#[tokio::test]
async fn a_registration_waits_for_that_of_another_and_stands_in_when_it_is_rolled_back() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let (mut first, mut second) = (session(&db).await, db.connect(Role::Consumer).await);
    run(&mut first, "BEGIN").await;
    register(&mut first, "totals", "head").await;
    let (at, ()) = tokio::join!(register(&mut second, "totals", "oldest"), run(&mut first, "ROLLBACK"));
    assert_eq!(at, 0);
    assert_eq!(cursor(&db, "totals").await, 0);
}

#[tokio::test]
async fn a_snapshot_that_is_older_than_the_registration_of_another_is_a_conflict() {
    let db = TestDb::new().await;
    let mut session = session(&db).await;
    run(&mut session, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    register(&mut super::session(&db).await, "totals", "oldest").await;
    let refused = try_register(&mut session, Some("totals"), Some("oldest")).await.unwrap_err();
    assert_eq!(refused.sqlstate, "40001");
}
