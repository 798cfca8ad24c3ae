//! Stopping: no round begins any more, those that run are finished while there is time, and the rest is rolled back.

use super::*;

/// A runner whose handler stands at the gate with the first event.
async fn at_the_gate(db: &TestDb, gate: &Gate, config: ConsumerConfig) -> (Running, ClockHand) {
    let (clock, hand) = manual();
    append(&db.producer(), 1..=3).await;
    let running = Running::on(db, config, clock, [probe(gate.handler())]);
    gate.is_reached(1).await;
    (running, hand)
}

#[tokio::test]
async fn a_stop_ends_consumers_that_wait() {
    let db = database().await;
    let mut running = Running::on(&db, config(), manual().0, [probe(plain())]);
    running.listens(true).await;
    running.stops().await;
}

#[tokio::test]
async fn a_stop_ends_consumers_that_pause_after_a_failure() {
    let db = database().await;
    append(&db.producer(), [1]).await;
    let running = Running::on(&db, config(), manual().0, [probe(Switch::on().failing_at(1))]);
    eventually(DEADLINE, "the failure", async || state_of(&db, PROBE).await.last_failure.is_some()).await;
    running.stops().await;
}

#[tokio::test]
async fn a_round_that_runs_when_the_stop_comes_is_finished_and_no_other_begins() {
    let db = database().await;
    let gate = Gate::closed();
    let (running, _hand) = at_the_gate(&db, &gate, ConsumerConfig { batch_size: 2, ..config() }).await;
    running.stop.cancel();
    gate.open();
    running.ends().await.unwrap();
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (2, twice(1..=2)));
    assert_eq!(open_transactions(&db).await, 0);
}

#[tokio::test]
async fn a_stop_before_the_start_handles_nothing() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let stop = CancellationToken::new();
    stop.cancel();
    let consumers = consumers(db.app(), db.options(Role::App), config(), manual().0, [probe(plain())]);
    consumers.run(stop).await.unwrap();
    assert!(cursor(&db, PROBE).await <= 0);
    assert_eq!(effects(&db).await, twice([]));
}

#[tokio::test]
async fn a_stop_does_not_wait_for_cursors_that_cannot_be_made() {
    let db = database().await;
    let _squatter = registers_and_stays(&db).await;
    let config = ConsumerConfig { lock_timeout: 3 * DEADLINE, statement_timeout: 3 * DEADLINE, ..config() };
    let running = Running::on(&db, config, manual().0, [probe(plain())]);
    eventually(DEADLINE, "the wait", async || waiting_to_ensure(&db).await == 1).await;
    running.stop.cancel();
    running.ends().await.unwrap();
}

#[tokio::test]
async fn a_round_that_does_not_end_in_time_is_rolled_back_and_handled_once_by_the_next_process() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    let gate = Gate::closed();
    let config = ConsumerConfig { event_timeout: 100_000 * POLL, ..config() };
    let (running, hand) = at_the_gate(&db, &gate, config.clone()).await;
    running.stop.cancel();
    // The time begins when the stop is noticed.
    eventually(DEADLINE, "the end", async || {
        hand.advance(config.stop_timeout);
        running.task.is_finished()
    })
    .await;
    running.ends().await.unwrap();
    eventually(DEADLINE, "it is rolled back", async || open_transactions(&db).await == 0).await;
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (0, twice([])));
    assert_eq!(captured.count("did not end in time"), 1);
    let next = Running::on(&db, config, manual().0, [probe(plain())]);
    reaches(&db, PROBE, 3).await;
    assert_eq!(effects(&db).await, twice(1..=3));
    next.stops().await;
}

#[tokio::test]
async fn a_round_within_the_time_is_not_disturbed_by_the_stop() {
    let db = database().await;
    let gate = Gate::closed();
    let config = ConsumerConfig { event_timeout: 1000 * POLL, ..config() };
    let (running, hand) = at_the_gate(&db, &gate, config.clone()).await;
    running.stop.cancel();
    hand.advance(config.stop_timeout - Duration::from_millis(1));
    tokio::task::yield_now().await;
    gate.open();
    running.ends().await.unwrap();
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (3, twice(1..=3)));
}

#[tokio::test]
async fn consumers_that_are_dropped_leave_nothing_behind() {
    let db = database().await;
    let gate = Gate::closed();
    let (running, _hand) = at_the_gate(&db, &gate, config()).await;
    running.task.abort();
    eventually(DEADLINE, "the round is rolled back", async || open_transactions(&db).await == 0).await;
    eventually(DEADLINE, "the listening backend is gone", async || {
        let listening: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()",
        )
        .bind(CONSUMER_WAKE_APPLICATION_NAME)
        .fetch_one(&db.admin())
        .await
        .unwrap();
        listening == 0
    })
    .await;
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (0, twice([])));
}
