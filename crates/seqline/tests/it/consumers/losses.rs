//! Numbers that are missing: a hole is a failure that stays, retention is a loss that is recorded once, and a cursor above the
//! head waits for a person.

use super::*;
use crate::partitions::{drop_oldest, ensure, small_partitions};

async fn lost_ranges(db: &TestDb) -> Vec<(String, i64, i64)> {
    sqlx::query_as("SELECT consumer, lost_from, lost_to FROM seqline.lost_ranges ORDER BY 1, 2")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

fn range(from: i64, to: i64) -> (String, i64, i64) {
    (PROBE.to_owned(), from, to)
}

/// A consumer that has handled nothing of a log whose first `lost` events are gone.
async fn behind_retention(batch_size: u32, lost: i64, last: i64, handler: impl Handler) -> Bench {
    let db = database().await;
    small_partitions(&db, lost, 3).await;
    let bench = Bench::on(db, ConsumerConfig { batch_size, ..config() }, probe(handler)).await;
    append(&bench.db.producer(), 1..=last).await;
    assert_eq!(drop_oldest(&bench.db).await, 1);
    bench
}

#[tokio::test]
async fn a_consumer_behind_retention_goes_on_with_what_is_left_and_records_the_loss_once() {
    for batch_size in [1, 10] {
        let bench = behind_retention(batch_size, 2, 5, plain()).await;
        let first = bench.round().await.unwrap();
        assert_eq!(first.lost, Some(LostRange { from: 1, to: 2 }), "batch size {batch_size}");
        while bench.round().await.unwrap().outcome == Outcome::Processed {}
        assert_eq!(cursor(&bench.db, PROBE).await, 5);
        assert_eq!(effects(&bench.db).await, twice(3..=5));
        assert_eq!(lost_ranges(&bench.db).await, [range(1, 2)]);
        assert_eq!(state_of(&bench.db, PROBE).await.lost, 2);
    }
}

#[tokio::test]
async fn a_loss_larger_than_a_batch_is_stepped_over_at_once() {
    let bench = behind_retention(5, 20, 23, plain()).await;
    let result = bench.processes(3).await;
    assert_eq!(result.lost, Some(LostRange { from: 1, to: 20 }));
    assert_eq!((cursor(&bench.db, PROBE).await, effects(&bench.db).await), (23, twice(21..=23)));
    assert_eq!(lost_ranges(&bench.db).await, [range(1, 20)]);
}

#[tokio::test]
async fn a_loss_that_was_seen_by_a_round_that_failed_is_recorded_once() {
    let switch = Switch::on();
    let bench = behind_retention(10, 2, 5, switch.failing_at(4)).await;
    for _ in 0..2 {
        assert_eq!(bench.round().await.unwrap_err().error_type(), "handler");
        assert_eq!(lost_ranges(&bench.db).await, []);
        bench.assert_untouched().await;
    }
    switch.off();
    assert_eq!(bench.processes(3).await.lost, Some(LostRange { from: 1, to: 2 }));
    assert_eq!(lost_ranges(&bench.db).await, [range(1, 2)]);
    assert_eq!(effects(&bench.db).await, twice(3..=5));
}

#[tokio::test]
async fn several_losses_are_recorded_each() {
    let bench = behind_retention(10, 2, 3, plain()).await;
    bench.processes(1).await;
    ensure(&bench.db.app()).await;
    append(&bench.db.producer(), 4..=7).await;
    assert_eq!(drop_oldest(&bench.db).await, 1);
    assert_eq!(drop_oldest(&bench.db).await, 1);
    assert_eq!(bench.processes(1).await.lost, Some(LostRange { from: 4, to: 6 }));
    assert_eq!(lost_ranges(&bench.db).await, [range(1, 2), range(4, 6)]);
    assert_eq!(state_of(&bench.db, PROBE).await.lost, 5);
}

#[tokio::test]
async fn a_loss_that_was_recorded_before_an_operator_set_the_cursor_back_does_not_stop_the_consumer() {
    let bench = behind_retention(10, 2, 5, plain()).await;
    bench.processes(3).await;
    set_cursor(&bench.db, 0).await;
    let result = bench.round().await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(cursor(&bench.db, PROBE).await, 5);
}

#[tokio::test]
async fn retention_waits_for_a_round_and_not_the_other_way_round() {
    let gate = Gate::closed();
    let db = database().await;
    small_partitions(&db, 2, 3).await;
    let bench = Bench::on(db, config(), probe(gate.handler())).await;
    append(&bench.db.producer(), 1..=5).await;
    let dropping = async {
        gate.is_reached(1).await;
        let dropped =
            sqlx::query("SELECT seqline.sync_event_log_drop_expired(now(), now(), seqline.head(), '50 ms')")
                .execute(&bench.db.app())
                .await;
        gate.open();
        dropped
    };
    let (result, dropped) = tokio::join!(bench.round(), dropping);
    assert_eq!(result.unwrap().processed, 5);
    let code = dropped.unwrap_err().as_database_error().and_then(|error| error.code()).unwrap().into_owned();
    assert_eq!(code, "55P03");
    assert_eq!(drop_oldest(&bench.db).await, 1);
    assert_eq!(lost_ranges(&bench.db).await, []);
}

#[tokio::test]
async fn a_hole_stops_the_consumer_until_it_is_closed() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    insert_as_owner(&bench.db, &[4, 5]).await;
    for _ in 0..2 {
        let error = bench.round().await.unwrap_err();
        let RoundError::Gap(gap) = &error else { panic!("{error:?}") };
        assert_eq!((gap.expected, gap.found), (3, 4));
        assert_eq!((error.error_type(), error.seq()), ("gap", Some(3)));
        bench.assert_untouched().await;
        bench.assert_pool_is_sound().await;
    }
    insert_as_owner(&bench.db, &[3]).await;
    bench.processes(5).await;
    bench.assert_handled(5).await;
    assert_eq!(lost_ranges(&bench.db).await, []);
}

#[tokio::test]
async fn a_hole_directly_behind_the_cursor_is_no_loss() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    bench.processes(2).await;
    insert_as_owner(&bench.db, &[4]).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::Gap(gap) = &error else { panic!("{error:?}") };
    assert_eq!((gap.expected, gap.found), (3, 4));
    bench.assert_handled(2).await;
    assert_eq!(lost_ranges(&bench.db).await, []);
}

#[tokio::test]
async fn a_hole_wider_than_a_batch_is_a_gap_that_names_the_number_behind_it() {
    let bench = Bench::new(ConsumerConfig { batch_size: 2, ..config() }, plain()).await;
    append(&bench.db.producer(), [1]).await;
    bench.processes(1).await;
    insert_as_owner(&bench.db, &[100]).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::Gap(gap) = &error else { panic!("{error:?}") };
    assert_eq!((gap.expected, gap.found), (2, 100));
    bench.assert_handled(1).await;
}

#[tokio::test]
async fn a_hole_directly_behind_a_loss_is_a_gap() {
    let db = database().await;
    small_partitions(&db, 2, 3).await;
    let bench = Bench::on(db, config(), probe(plain())).await;
    append(&bench.db.producer(), 1..=3).await;
    insert_as_owner(&bench.db, &[5]).await;
    assert_eq!(drop_oldest(&bench.db).await, 1);
    let error = bench.round().await.unwrap_err();
    let RoundError::Gap(gap) = &error else { panic!("{error:?}") };
    assert_eq!((gap.expected, gap.found), (4, 5));
    bench.assert_untouched().await;
    assert_eq!(lost_ranges(&bench.db).await, []);
}

#[tokio::test]
async fn a_cursor_above_the_head_is_a_failure_until_somebody_sets_it() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    set_cursor(&bench.db, 5).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::AheadOfHead { last_seq: 5, head: 2 } = error else { panic!("{error:?}") };
    assert_eq!((error.error_type(), error.seq()), ("ahead_of_head", None));
    append(&bench.db.producer(), 3..=4).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::AheadOfHead { last_seq: 5, head: 4 } = error else { panic!("{error:?}") };
    let state = state_of(&bench.db, PROBE).await;
    assert!(state.is_ahead_of_head());
    assert_eq!((state.lag(), state.oldest_pending_at), (0, None));
    assert_eq!(effects(&bench.db).await, twice([]));
    set_cursor(&bench.db, 2).await;
    bench.processes(2).await;
    assert_eq!((cursor(&bench.db, PROBE).await, effects(&bench.db).await), (4, twice(3..=4)));
}

#[tokio::test]
async fn ensuring_leaves_a_cursor_above_the_head_where_it_is() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    set_cursor(&bench.db, 5).await;
    let _ = bench.consumers.ensure().await;
    assert_eq!(cursor(&bench.db, PROBE).await, 5);
}

#[tokio::test]
async fn a_cursor_on_an_emptied_log_is_above_the_head() {
    let bench = Bench::new(config(), plain()).await;
    set_cursor(&bench.db, i64::MAX).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::AheadOfHead { last_seq: i64::MAX, head: 0 } = error else { panic!("{error:?}") };
    state_of(&bench.db, PROBE).await;
}

#[tokio::test]
async fn a_cursor_that_is_gone_is_not_one_that_is_locked() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), [1]).await;
    as_admin(&bench.db, "DELETE FROM seqline.event_consumer_cursors").await;
    let error = bench.round().await.unwrap_err();
    assert!(matches!(error, RoundError::MissingCursor), "{error:?}");
    assert_eq!((error.error_type(), error.seq()), ("missing_cursor", None));
    bench.assert_pool_is_sound().await;
    bench.consumers.ensure().await.unwrap();
    bench.processes(1).await;
}

#[tokio::test]
async fn a_cursor_that_somebody_is_about_to_remove_is_locked_until_it_is_gone() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), [1]).await;
    let mut removing = seqline::begin(&bench.db.admin()).await.unwrap();
    sqlx::query("DELETE FROM seqline.event_consumer_cursors").execute(&mut *removing).await.unwrap();
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Locked);
    removing.commit().await.unwrap();
    assert_eq!(bench.round().await.unwrap_err().error_type(), "missing_cursor");
}

/// It has nothing left to handle, and is in another history all the same.
#[tokio::test]
async fn a_replay_at_its_end_above_the_head_is_a_failure_too() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    bench.processes(2).await;
    as_admin(&bench.db, "UPDATE seqline.event_consumers SET until_seq = 5").await;
    set_cursor(&bench.db, 5).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::AheadOfHead { last_seq: 5, head: 2 } = error else { panic!("{error:?}") };
    assert_eq!(cursor(&bench.db, PROBE).await, 5);
}
