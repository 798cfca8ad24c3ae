//! Rounds whose future is dropped, at each point where that can be.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use super::*;

/// Drops the future instead of polling it once more; `None` then.
pub(super) async fn at_poll<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Rounds that are dropped after one poll, after two, and so on. Returns how many were, and how many came to an end before.
async fn drop_rounds(bench: &Bench, rounds: usize) -> (usize, usize) {
    let (mut dropped, mut ended, mut head) = (0, 0, 0);
    for polls in 0..rounds {
        append(&bench.db.producer(), head..head + 2).await;
        head += 2;
        match at_poll(bench.round(), polls).await {
            None => dropped += 1,
            Some(result) => {
                result.unwrap_or_else(|error| panic!("after {polls} polls: {error:?}"));
                ended += 1;
            }
        }
        assert!(
            hands_out_fresh_connections(&bench.pool).await,
            "in a transaction, dropped after {polls} polls"
        );
        let last_seq = cursor(&bench.db, PROBE).await;
        assert_eq!(effects(&bench.db).await, twice(1..=last_seq), "dropped after {polls} polls");
    }
    eventually(DEADLINE, "the last round", async || bench.round().await.unwrap().outcome == Outcome::Idle)
        .await;
    bench.assert_handled(head).await;
    eventually(DEADLINE, "no transaction is open", async || open_transactions(&bench.db).await == 0).await;
    (dropped, ended)
}

#[tokio::test]
async fn rounds_that_are_dropped_at_any_point_skip_and_double_nothing() {
    let bench = Bench::new(ConsumerConfig { batch_size: 3, ..config() }, plain()).await;
    // On a busy machine answers are there before somebody waits for them, so there are few points.
    let (dropped, ended) = drop_rounds(&bench, 60).await;
    assert!(dropped >= 2 && ended >= 5, "{dropped} dropped, {ended} ended: points are left out");
}

#[tokio::test]
async fn rounds_over_a_slow_network_that_are_dropped_at_any_point_skip_and_double_nothing() {
    let db = database().await;
    let proxy = proxy_for(&db).await;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(through(&proxy, &db, Role::App));
    let (clock, hand) = manual();
    let config = ConsumerConfig { batch_size: 3, ..config() };
    let consumers = consumers(pool.clone(), db.options(Role::App), config, clock, [probe(plain())]);
    consumers.ensure().await.unwrap();
    proxy.delay(Duration::from_millis(1));
    let bench = Bench { db, pool, consumers, hand };
    let (dropped, ended) = drop_rounds(&bench, 60).await;
    assert!(dropped >= 10 && ended >= 5, "{dropped} dropped, {ended} ended: points are left out");
}

#[tokio::test]
async fn a_round_that_is_dropped_in_its_handler_gives_the_consumer_back() {
    let gate = Gate::closed();
    let bench = Bench::new(config(), gate.handler()).await;
    append(&bench.db.producer(), 1..=2).await;
    for _ in 0..10 {
        tokio::select! {
            result = bench.round() => panic!("{result:?}"),
            () = gate.is_reached(1) => {}
        }
        gate.reached.send_replace(0);
        bench.assert_pool_is_sound().await;
        bench.assert_untouched().await;
    }
    gate.open();
    bench.processes(2).await;
    bench.assert_handled(2).await;
}
