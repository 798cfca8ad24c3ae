//! When a worker works: again at once after a full round, else when its pause is over.

use super::*;
use crate::partitions::{drop_oldest, ensure, small_partitions};

#[tokio::test]
async fn a_backlog_is_drained_round_by_round_without_waiting() {
    let db = database().await;
    append(&db.producer(), 1..=5).await;
    let config = ConsumerConfig { batch_size: 2, ..config() };
    let deaf = Deaf::start(&db, config, [probe(plain())]).await;
    reaches(&db, PROBE, 5).await;
    assert_eq!(rounds(&db).await, [2, 2, 1]);
    assert_eq!(effects(&db).await, twice(1..=5));
    deaf.running.stops().await;
}

#[tokio::test]
async fn a_backlog_that_ends_with_a_full_round_is_drained_and_more_comes_with_the_poll() {
    let db = database().await;
    append(&db.producer(), 1..=4).await;
    let config = ConsumerConfig { batch_size: 2, ..config() };
    let deaf = Deaf::start(&db, config, [probe(plain())]).await;
    reaches(&db, PROBE, 4).await;
    all_pause(&deaf.hand, 0).await;
    append(&db.producer(), [5]).await;
    deaf.hand.advance(POLL);
    reaches(&db, PROBE, 5).await;
    assert_eq!(rounds(&db).await, [2, 2, 1]);
}

#[tokio::test]
async fn a_worker_waits_after_a_short_round() {
    let db = database().await;
    append(&db.producer(), [1]).await;
    let deaf = Deaf::start(&db, config(), [probe(plain())]).await;
    reaches(&db, PROBE, 1).await;
    let witness = Witness::of(&db).await;
    all_pause(&deaf.hand, 0).await;
    witness.sees_an_event().await;
    deaf.hand.advance(POLL - Duration::from_millis(1));
    witness.sees_an_event().await;
    assert_eq!(cursor(&db, PROBE).await, 1);
    deaf.hand.advance(Duration::from_millis(1));
    reaches(&db, PROBE, 5).await;
}

#[tokio::test]
async fn a_worker_waits_after_a_look_that_found_nothing() {
    let db = database().await;
    let deaf = Deaf::start(&db, config(), [probe(plain())]).await;
    has_nothing_to_do(&db).await;
    let witness = Witness::of(&db).await;
    witness.sees_an_event().await;
    assert_eq!(cursor(&db, PROBE).await, 0);
    deaf.hand.advance(POLL);
    reaches(&db, PROBE, 2).await;
}

#[tokio::test]
async fn a_worker_waits_after_it_found_the_consumer_locked() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    Bench::on(TestDb::new().await, config(), probe(plain())).await;
    consumers(db.app(), db.options(Role::App), config(), manual().0, [probe(plain())])
        .ensure()
        .await
        .unwrap();
    let mut other = seqline::begin(&db.admin()).await.unwrap();
    sqlx::query("SELECT FROM seqline.event_consumer_cursors WHERE name = 'probe' FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let deaf = Deaf::start(&db, config(), [probe(plain())]).await;
    has_nothing_to_do(&db).await;
    other.rollback().await.unwrap();
    let witness = Witness::of(&db).await;
    witness.sees_an_event().await;
    assert_eq!(cursor(&db, PROBE).await, 0);
    deaf.hand.advance(POLL);
    reaches(&db, PROBE, 4).await;
}

#[tokio::test]
async fn a_worker_waits_after_a_failed_round_and_wakes_do_not_hasten_it() {
    let db = database().await;
    let switch = Switch::on();
    let (clock, hand) = manual();
    let mut running = Running::on(&db, config(), clock, [probe(switch.failing_at(1))]);
    running.listens(true).await;
    append(&db.producer(), [1]).await;
    eventually(DEADLINE, "the failure", async || state_of(&db, PROBE).await.last_failure.is_some()).await;
    let witness = Witness::of(&db).await;
    for n in 2..=200 {
        append(&db.producer(), [n]).await;
    }
    witness.sees_an_event().await;
    assert_eq!(switch.times(), 1, "attempts while time stands still");
    switch.off();
    all_pause(&hand, 1).await;
    hand.advance(POLL);
    reaches(&db, PROBE, 202).await;
    assert_eq!(effects(&db).await, twice(1..=202));
}

#[tokio::test]
async fn pauses_after_failures_become_longer_up_to_a_bound() {
    const MS: Duration = Duration::from_millis(1);
    let db = database().await;
    let witness = Witness::of(&db).await;
    append(&db.producer(), [1]).await;
    let switch = Switch::on();
    let config = ConsumerConfig { failure_backoff_cap: 4 * POLL, ..config() };
    let deaf = Deaf::start(&db, config, [probe(switch.failing_at(1))]).await;
    for (failures, step) in [POLL, 2 * POLL, 4 * POLL, 4 * POLL].into_iter().enumerate() {
        eventually(DEADLINE, "the next attempt", async || switch.times() == failures + 1).await;
        eventually(DEADLINE, "the end of its round", async || open_transactions(&db).await == 0).await;
        all_pause(&deaf.hand, 1).await;
        // A pause lasts between half and all of its step.
        deaf.hand.advance(step / 2 - MS);
        witness.sees_an_event().await;
        assert_eq!(switch.times(), failures + 1, "attempts after {failures} pauses, before half of {step:?}");
        deaf.hand.advance(step / 2 + MS);
    }
    eventually(DEADLINE, "the last attempt", async || switch.times() == 5).await;
    deaf.running.stops().await;
}

#[tokio::test]
async fn after_a_success_pauses_begin_anew() {
    // Once after a short round, and once after a full one.
    for batch_size in [10, 1] {
        let db = database().await;
        let failed = Arc::new(AtomicUsize::new(0));
        let count = failed.clone();
        // Each event fails once.
        let handler = acting(move |event, _| {
            let attempts = usize::try_from(event.seq).expect("seqs are positive");
            let fails =
                count.compare_exchange(attempts - 1, attempts, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            Box::pin(async move { if fails { Err("once".into()) } else { Ok(()) } })
        });
        let deaf = Deaf::start(&db, ConsumerConfig { batch_size, ..config() }, [probe(handler)]).await;
        has_nothing_to_do(&db).await;
        let failures: usize = 5;
        append(&db.producer(), 1..=5).await;
        deaf.hand.advance(POLL);
        for n in 1..=failures {
            eventually(DEADLINE, "the failure", async || failed.load(Ordering::SeqCst) >= n).await;
            // It is noted before the pause.
            eventually(DEADLINE, "the failure is noted", async || {
                let state = state_of(&db, PROBE).await;
                state.last_failure.is_some_and(|failure| failure.seq.is_some_and(|seq| seq >= n as i64))
            })
            .await;
            all_pause(&deaf.hand, 1).await;
            // In rounds of ten the same round fails five times, so the pauses grow.
            let pause = if batch_size == 1 { POLL } else { POLL * 2_u32.pow(n as u32 - 1) };
            deaf.hand.advance(pause);
        }
        reaches(&db, PROBE, 5).await;
        assert_eq!(effects(&db).await, twice(1..=5));
    }
}

#[tokio::test]
async fn a_consumer_behind_retention_is_drained_without_waiting() {
    for (lost, batch_size) in [(3, 5), (5, 5), (8, 5)] {
        let db = database().await;
        small_partitions(&db, lost, 5).await;
        consumers(db.app(), db.options(Role::App), config(), manual().0, [probe(plain())])
            .ensure()
            .await
            .unwrap();
        append(&db.producer(), 1..=14).await;
        assert_eq!(drop_oldest(&db).await, 1);
        ensure(&db.app()).await;
        let config = ConsumerConfig { batch_size, ..config() };
        let deaf = Deaf::start(&db, config, [probe(plain())]).await;
        reaches(&db, PROBE, 14).await;
        assert_eq!(effects(&db).await, twice(lost + 1..=14), "{lost} lost");
        deaf.running.stops().await;
    }
}

#[tokio::test]
async fn consumers_do_not_wait_for_each_other() {
    let db = database().await;
    append(&db.producer(), 1..=3).await;
    let (gate, switch) = (Gate::closed(), Switch::on());
    let list = [
        Consumer::new(name("hanging"), gate.handler()).start_at(StartAt::Oldest),
        Consumer::new(name("failing"), switch.failing_at(2)).start_at(StartAt::Oldest),
        probe(plain()),
    ];
    let mut running = Running::on(&db, config(), manual().0, list);
    running.listens(true).await;
    gate.is_reached(1).await;
    reaches(&db, PROBE, 3).await;
    append(&db.producer(), [4]).await;
    reaches(&db, PROBE, 4).await;
    let lags: Vec<(String, i64)> = states(&mut db.connect(Role::App).await)
        .await
        .unwrap()
        .into_iter()
        .map(|state| (state.name.clone(), state.lag()))
        .collect();
    assert_eq!(lags, [("failing".into(), 4), ("hanging".into(), 4), (PROBE.into(), 0)]);
    gate.open();
    reaches(&db, "hanging", 4).await;
}

#[tokio::test]
async fn consumers_that_share_one_connection_get_on() {
    let db = database().await;
    append(&db.producer(), 1..=20).await;
    let list = ["a", "b", "c"].map(|text| Consumer::new(name(text), plain()).start_at(StartAt::Oldest));
    let config = ConsumerConfig { batch_size: 3, ..quick() };
    let pool = db.app_pool(1);
    let running = Running::start(consumers(pool, db.options(Role::App), config, Clock::system(), list));
    for consumer in ["a", "b", "c"] {
        reaches(&db, consumer, 20).await;
        assert_eq!(effects_of(&db, consumer).await, twice(1..=20));
    }
    running.stops().await;
}
