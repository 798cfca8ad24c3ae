//! What wakes a consumer, and what stops it: jobs come with it, each once.

use seqline::clock::Clock;
use seqline::consumer::LostRange;
use seqline_testkit::eventually;

use super::*;
use crate::consumers::{
    Captured, DEADLINE, Deaf, Gate, PROBE, Running, config, open_transactions, reaches, state_of,
};
use crate::partitions::{drop_oldest, small_partitions};
use crate::support::append;
use crate::tail::{insert_as_owner, manual};

/// A handler that stops at the gate after the jobs of each event.
fn stopping_at(gate: &Gate) -> impl Handler + use<> {
    let gate = gate.clone();
    inserting(move |event, _| {
        let (gate, seq) = (gate.clone(), event.seq);
        Box::pin(async move {
            gate.pass(seq).await;
            Ok(())
        })
    })
}

#[tokio::test]
async fn a_notification_brings_jobs_while_nothing_is_polled() {
    let db = database().await;
    // The hand of this clock stands still.
    let mut running = Running::on(&db, config(), manual().0, [feeding(two_jobs())]);
    running.listens(true).await;
    for seq in 1..=3 {
        append(&db.producer(), [seq]).await;
        reaches(&db, PROBE, seq).await;
        assert_handled(&db, seq).await;
    }
    running.stops().await;
}

#[tokio::test]
async fn the_poll_brings_jobs_while_nobody_listens() {
    let db = database().await;
    let deaf = Deaf::start(&db, config(), [feeding(two_jobs())]).await;
    for seq in 1..=3 {
        append(&db.producer(), [seq]).await;
        deaf.advances_until(&db, PROBE, seq).await;
        assert_handled(&db, seq).await;
    }
    deaf.running.stops().await;
}

#[tokio::test]
async fn what_retention_took_makes_no_job_and_what_is_left_does() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    small_partitions(&db, 2, 3).await;
    let bench = Bench::on(db, config(), feeding(two_jobs())).await;
    append(&bench.db.producer(), 1..=5).await;
    assert_eq!(drop_oldest(&bench.db).await, 1);
    let running = Running::on(&bench.db, config(), manual().0, [feeding(two_jobs())]);
    reaches(&bench.db, PROBE, 5).await;
    running.stops().await;
    assert_eq!(jobs(&bench.db).await, twice(3..=5));
    assert_eq!(state_of(&bench.db, PROBE).await.lost, 2);
    assert_eq!(captured.count("lost events to retention"), 1);
}

#[tokio::test]
async fn a_round_that_loses_events_to_retention_says_so_and_counts_its_jobs() {
    let db = database().await;
    small_partitions(&db, 2, 3).await;
    let bench = Bench::on(db, config(), feeding(two_jobs())).await;
    append(&bench.db.producer(), 1..=5).await;
    assert_eq!(drop_oldest(&bench.db).await, 1);
    let result = bench.processes(3).await;
    assert_eq!((result.jobs, result.lost), (6, Some(LostRange { from: 1, to: 2 })));
}

#[tokio::test]
async fn a_hole_makes_no_job_until_it_is_closed() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    insert_as_owner(&db, &[4, 5]).await;
    let running = Running::on(&db, consumers::quick(), Clock::system(), [feeding(two_jobs())]);
    let failure = async || state_of(&db, PROBE).await.last_failure;
    eventually(DEADLINE, "the failure", async || failure().await.is_some()).await;
    assert_eq!(failure().await.unwrap().error_type, "gap");
    assert_untouched(&db).await;
    insert_as_owner(&db, &[3]).await;
    reaches(&db, PROBE, 5).await;
    eventually(DEADLINE, "the end", async || failure().await.is_some_and(|failure| !failure.current)).await;
    running.stops().await;
    assert_handled(&db, 5).await;
    let counts = ["error.type=\"gap\"", "event consumer recovered"].map(|text| captured.count(text));
    assert_eq!(counts, [1, 1]);
}

#[tokio::test]
async fn a_round_that_ends_within_the_time_for_stopping_has_its_jobs() {
    let db = database().await;
    let gate = Gate::closed();
    append(&db.producer(), 1..=3).await;
    let config = ConsumerConfig { batch_size: 2, ..config() };
    let running = Running::on(&db, config, manual().0, [feeding(stopping_at(&gate))]);
    gate.is_reached(1).await;
    running.stop.cancel();
    gate.open();
    running.ends().await.unwrap();
    assert_handled(&db, 2).await;
}

#[tokio::test]
async fn a_round_that_does_not_end_in_time_has_no_job_and_the_next_process_makes_each_once() {
    let db = database().await;
    let gate = Gate::closed();
    append(&db.producer(), 1..=3).await;
    let (clock, hand) = manual();
    let config = ConsumerConfig { event_timeout: 100_000 * consumers::DEADLINE, ..config() };
    let running = Running::on(&db, config.clone(), clock, [feeding(stopping_at(&gate))]);
    gate.is_reached(1).await;
    running.stop.cancel();
    eventually(DEADLINE, "the end", async || {
        hand.advance(config.stop_timeout);
        running.task.is_finished()
    })
    .await;
    running.ends().await.unwrap();
    eventually(DEADLINE, "it is rolled back", async || open_transactions(&db).await == 0).await;
    assert_untouched(&db).await;
    let next = Running::on(&db, config, manual().0, [feeding(two_jobs())]);
    reaches(&db, PROBE, 3).await;
    next.stops().await;
    assert_handled(&db, 3).await;
}
