//! What stands between a consumer and its next event: retention, which is recorded and passed, and damage, which is not.

use std::io::Write;
use std::sync::{Arc, Mutex};

use seqline_testkit::{Role, TestDb};
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::partitions::{drop_oldest, small_partitions};
use crate::support::append;

/// Ten events in partitions of three, a consumer that has seen none, and the first of the partitions dropped.
async fn after_retention(dropped: i32) -> (TestDb, PgConnection) {
    let db = TestDb::new().await;
    small_partitions(&db, 3, 4).await;
    append(&db.producer(), 1..=10).await;
    let mut session = session(&db).await;
    register(&mut session, "totals", "oldest").await;
    for _ in 0..dropped {
        assert_eq!(drop_oldest(&db).await, 1);
    }
    (db, session)
}

/// What PostgreSQL notes beside its answers, as the driver logs it on this thread.
#[derive(Clone, Default)]
struct Notices(Arc<Mutex<Vec<u8>>>);

impl Write for Notices {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Notices {
    fn record(&self) -> tracing::subscriber::DefaultGuard {
        let notices = self.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || notices.clone());
        tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
    }

    /// The warnings about lost events since the last look.
    fn warnings(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        text.lines().filter_map(|line| Some(line[line.find("consumer ")?..].to_owned())).collect()
    }
}

fn totals_lost(from: i64, to: i64) -> (String, i64, i64) {
    ("totals".to_owned(), from, to)
}

#[tokio::test]
async fn what_retention_took_is_recorded_and_the_consumer_goes_on_behind_it() {
    let (db, mut session) = after_retention(1).await;
    assert_eq!(poll(&mut session, "totals", 100).await, [4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(lost_ranges(&db).await, [totals_lost(1, 3)]);
    assert_eq!(cursor(&db, "totals").await, 10);
}

#[tokio::test]
async fn a_loss_that_ends_inside_the_asked_range_gives_the_rest_of_the_range() {
    let (db, mut session) = after_retention(1).await;
    // The numbers 1 to 5 were asked for.
    let first = poll(&mut session, "totals", 5).await;
    assert_eq!(first[..2], [4, 5]);
    assert_eq!(cursor(&db, "totals").await, *first.last().unwrap());
    assert_eq!(poll(&mut session, "totals", 1).await, [*first.last().unwrap() + 1]);
}

#[tokio::test]
async fn a_loss_larger_than_a_call_asks_for_is_passed_in_one_step() {
    let (db, mut session) = after_retention(2).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [7, 8]);
    assert_eq!(lost_ranges(&db).await, [totals_lost(1, 6)]);
    assert_eq!(cursor(&db, "totals").await, 8);
    assert_eq!(poll(&mut session, "totals", 1).await, [9]);
}

#[tokio::test]
async fn a_loss_as_large_as_a_call_asks_for_is_passed_too() {
    let (db, mut session) = after_retention(1).await;
    assert_eq!(poll(&mut session, "totals", 3).await, [4, 5, 6]);
    assert_eq!(lost_ranges(&db).await, [totals_lost(1, 3)]);
}

#[tokio::test]
async fn only_what_the_consumer_had_not_seen_is_lost() {
    let (db, mut session) = after_retention(0).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
    assert_eq!(drop_oldest(&db).await, 1);
    assert_eq!(poll(&mut session, "totals", 1).await, [4]);
    assert_eq!(lost_ranges(&db).await, [totals_lost(3, 3)]);
}

#[tokio::test]
async fn a_consumer_that_had_seen_all_that_retention_took_has_lost_nothing() {
    let (db, mut session) = after_retention(0).await;
    assert_eq!(poll(&mut session, "totals", 3).await, [1, 2, 3]);
    assert_eq!(drop_oldest(&db).await, 1);
    assert_eq!(poll(&mut session, "totals", 1).await, [4]);
    assert_eq!(lost_ranges(&db).await, []);
}

#[tokio::test]
async fn each_loss_is_recorded_once_and_for_its_own_consumer() {
    let (db, mut session) = after_retention(0).await;
    register(&mut session, "invoices", "oldest").await;
    assert_eq!(poll(&mut session, "totals", 1).await, [1]);
    assert_eq!(drop_oldest(&db).await, 1);
    assert_eq!(poll(&mut session, "totals", 1).await, [4]);
    assert_eq!(drop_oldest(&db).await, 1);
    assert_eq!(poll(&mut session, "totals", 1).await, [7]);
    assert_eq!(poll(&mut session, "totals", 1).await, [8]);
    assert_eq!(poll(&mut session, "invoices", 1).await, [7]);
    assert_eq!(lost_ranges(&db).await, [("invoices".to_owned(), 1, 6), totals_lost(2, 3), totals_lost(5, 6)]);
}

#[tokio::test]
async fn a_loss_is_told_to_the_caller_each_time_and_recorded_with_the_commit() {
    let (db, mut session) = after_retention(1).await;
    let notices = Notices::default();
    let _recording = notices.record();
    for _ in 0..2 {
        run(&mut session, "BEGIN").await;
        assert_eq!(poll(&mut session, "totals", 100).await.first(), Some(&4));
        run(&mut session, "ROLLBACK").await;
        assert_eq!(notices.warnings(), ["consumer totals lost events 1 to 3 to retention"]);
        assert_eq!(lost_ranges(&db).await, []);
    }
    assert_eq!(poll(&mut session, "totals", 1).await, [4]);
    assert_eq!(notices.warnings(), ["consumer totals lost events 1 to 3 to retention"]);
    assert_eq!(poll(&mut session, "totals", 1).await, [5]);
    assert_eq!(notices.warnings(), [""; 0]);
    assert_eq!(lost_ranges(&db).await, [totals_lost(1, 3)]);
}

#[tokio::test]
async fn the_loss_of_a_round_that_another_has_in_hand_is_not_recorded_twice() {
    let (db, mut holder) = after_retention(1).await;
    run(&mut holder, "BEGIN").await;
    assert_eq!(poll(&mut holder, "totals", 1).await, [4]);
    let mut other = session(&db).await;
    assert_eq!(poll(&mut other, "totals", 1).await, [0; 0]);
    run(&mut holder, "COMMIT").await;
    assert_eq!(poll(&mut other, "totals", 1).await, [5]);
    assert_eq!(lost_ranges(&db).await, [totals_lost(1, 3)]);
}

/// Removes events behind the back of the product.
async fn damage(db: &TestDb, from: i64, to: i64) {
    let sql = format!("DELETE FROM seqline.event_log WHERE seq BETWEEN {from} AND {to}");
    run(&mut db.connect(Role::Admin).await, &sql).await;
}

fn gap(expected: i64, found: i64) -> Refusal {
    Refusal {
        sqlstate: "XX001".to_owned(),
        constraint: Some("seqline_gap".to_owned()),
        message: format!("consumer totals found a gap in the log: expected seq {expected}, found {found}"),
        hint: Some("The consumer stays where it is. Find out what removed events from the log.".to_owned()),
    }
}

#[tokio::test]
async fn a_hole_inside_a_batch_is_an_error_and_no_step() {
    let (db, mut session) = with_events(10).await;
    damage(&db, 5, 5).await;
    assert_eq!(poll_refused(&mut session, "totals", 100).await, gap(5, 6));
    assert_eq!(cursor(&db, "totals").await, 0);
    assert_eq!(lost_ranges(&db).await, []);
}

#[tokio::test]
async fn a_hole_is_not_passed_however_few_events_are_asked_for() {
    let (db, mut session) = with_events(10).await;
    damage(&db, 5, 7).await;
    assert_eq!(poll(&mut session, "totals", 4).await, [1, 2, 3, 4]);
    for max_events in [1, 2, 3, 4, 100] {
        assert_eq!(poll_refused(&mut session, "totals", max_events).await, gap(5, 8), "{max_events}");
    }
    append(&db.producer(), [11]).await;
    assert_eq!(poll_refused(&mut session, "totals", 1).await, gap(5, 8));
    assert_eq!(cursor(&db, "totals").await, 4);
    assert_eq!(lost_ranges(&db).await, []);
}

#[tokio::test]
async fn a_hole_before_the_head_is_an_error_and_no_step() {
    let (db, mut session) = with_events(10).await;
    damage(&db, 9, 9).await;
    assert_eq!(poll(&mut session, "totals", 8).await.len(), 8);
    for max_events in [1, 2] {
        assert_eq!(poll_refused(&mut session, "totals", max_events).await, gap(9, 10), "{max_events}");
    }
    assert_eq!(cursor(&db, "totals").await, 8);
}

#[tokio::test]
async fn a_hole_behind_what_retention_took_is_an_error_and_records_no_loss() {
    for max_events in [3, 6, 100] {
        let (db, mut session) = after_retention(1).await;
        damage(&db, 5, 5).await;
        assert_eq!(poll_refused(&mut session, "totals", max_events).await, gap(5, 6), "{max_events}");
        assert_eq!(cursor(&db, "totals").await, 0);
        assert_eq!(lost_ranges(&db).await, []);
    }
}

#[tokio::test]
async fn a_hole_at_the_cursor_is_not_taken_for_retention_that_stopped_before_it() {
    let (db, mut session) = after_retention(1).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [4, 5]);
    let before = lost_ranges(&db).await;
    damage(&db, 6, 8).await;
    for max_events in [1, 3, 100] {
        assert_eq!(poll_refused(&mut session, "totals", max_events).await, gap(6, 9), "{max_events}");
    }
    assert_eq!(cursor(&db, "totals").await, 5);
    assert_eq!(lost_ranges(&db).await, before);
}

#[tokio::test]
async fn the_other_consumers_of_a_log_with_a_hole_go_on() {
    let (db, mut session) = with_events(10).await;
    register(&mut session, "invoices", "6").await;
    damage(&db, 5, 5).await;
    poll_refused(&mut session, "totals", 100).await;
    assert_eq!(poll(&mut session, "invoices", 100).await, [6, 7, 8, 9, 10]);
}

async fn set_cursor(db: &TestDb, to: i64) {
    let sql = format!("UPDATE seqline.event_consumer_cursors SET last_seq = {to} WHERE name = 'totals'");
    run(&mut db.connect(Role::Admin).await, &sql).await;
}

#[tokio::test]
async fn a_cursor_above_the_head_is_an_error_and_no_step() {
    let (db, mut session) = with_events(3).await;
    for at in [4, 50, 1_000_000, 5_000_000_000] {
        set_cursor(&db, at).await;
        let refused = poll_refused(&mut session, "totals", 100).await;
        assert_eq!(refused.constraint.as_deref(), Some("seqline_consumer_ahead_of_head"));
        assert_eq!(refused.message, format!("consumer totals is at seq {at}, above the head 3 of the log"));
        assert_eq!(
            refused.hint.as_deref(),
            Some("The database was taken back to an earlier state: its cursors have to be set anew.")
        );
        assert_eq!(cursor(&db, "totals").await, at);
    }
}

#[tokio::test]
async fn a_cursor_above_the_head_of_an_empty_log_is_an_error_too() {
    let (db, mut session) = with_events(0).await;
    set_cursor(&db, 7).await;
    let refused = poll_refused(&mut session, "totals", 100).await;
    assert_eq!(refused.message, "consumer totals is at seq 7, above the head 0 of the log");
}

#[tokio::test]
async fn events_that_are_new_below_a_cursor_above_the_head_are_not_handed_out() {
    let (db, mut session) = with_events(3).await;
    set_cursor(&db, 6).await;
    append(&db.producer(), 4..=5).await;
    let refused = poll_refused(&mut session, "totals", 100).await;
    assert_eq!(refused.message, "consumer totals is at seq 6, above the head 5 of the log");
    assert_eq!(cursor(&db, "totals").await, 6);
}

#[tokio::test]
async fn a_cursor_at_the_end_of_all_numbers_is_an_error_and_no_step() {
    let (db, mut session) = with_events(3).await;
    for at in [i64::MAX, i64::MAX - 50] {
        set_cursor(&db, at).await;
        poll_refused(&mut session, "totals", 100).await;
        assert_eq!(cursor(&db, "totals").await, at);
    }
}

/// After an operator has set cursors anew, which is no reason to stop at what is known to be lost.
#[tokio::test]
async fn a_loss_that_a_consumer_meets_again_is_passed_again() {
    let (db, mut session) = after_retention(1).await;
    for _ in 0..2 {
        set_cursor(&db, 0).await;
        assert_eq!(poll(&mut session, "totals", 1).await, [4]);
    }
    assert_eq!(lost_ranges(&db).await, [totals_lost(1, 3), totals_lost(1, 3)]);
}
