//! Notifications wake consumers; losing them, or the connection they come over, loses no event.

use tokio::task::JoinSet;

use super::*;
use crate::support::{event, head};

/// No poll during the test.
fn without_polls() -> ConsumerConfig {
    ConsumerConfig { poll_interval: 100_000 * POLL, ..config() }
}

async fn waking_backends(db: &TestDb) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database() ORDER BY pid",
    )
    .bind(CONSUMER_WAKE_APPLICATION_NAME)
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

#[tokio::test]
async fn a_notification_wakes_every_consumer() {
    let db = database().await;
    let list = ["a", "b", "c"].map(|text| Consumer::new(name(text), plain()));
    let mut running = Running::on(&db, without_polls(), manual().0, list);
    running.listens(true).await;
    for seq in 1..=3 {
        append(&db.producer(), [seq]).await;
        for consumer in ["a", "b", "c"] {
            reaches(&db, consumer, seq).await;
        }
    }
    running.stops().await;
}

#[tokio::test]
async fn one_connection_listens_for_all_consumers_and_is_not_of_the_pool() {
    let db = database().await;
    let list = ["a", "b", "c"].map(|text| Consumer::new(name(text), plain()));
    let mut running = Running::on(&db, without_polls(), manual().0, list);
    running.listens(true).await;
    assert_eq!(waking_backends(&db).await.len(), 1);
    running.stops().await;
    eventually(DEADLINE, "it is closed", async || waking_backends(&db).await.is_empty()).await;
}

#[tokio::test]
async fn an_event_from_before_listen_took_effect_is_handled_by_the_look_after_it() {
    let db = database().await;
    append(&db.producer(), [1]).await;
    let proxy = proxy_for(&db).await;
    proxy.black_hole();
    let listen = through(&proxy, &db, Role::App);
    let running =
        Running::start(consumers(db.app_pool(5), listen, without_polls(), manual().0, [probe(plain())]));
    // Its only look so far.
    reaches(&db, PROBE, 1).await;
    append(&db.producer(), [2]).await;
    proxy.heal();
    reaches(&db, PROBE, 2).await;
    running.stops().await;
}

#[tokio::test]
async fn events_from_while_nobody_listened_are_handled_by_the_look_after_that() {
    let db = database().await;
    let proxy = proxy_for(&db).await;
    let (clock, hand) = manual();
    let listen = through(&proxy, &db, Role::App);
    let mut running =
        Running::start(consumers(db.app_pool(5), listen, without_polls(), clock, [probe(plain())]));
    running.listens(true).await;
    append(&db.producer(), [1]).await;
    reaches(&db, PROBE, 1).await;
    proxy.black_hole();
    proxy.cut();
    running.listens(false).await;
    append(&db.producer(), 2..=4).await;
    proxy.heal();
    advance_until(&hand, POLL, "it listens again", || *running.listening.borrow()).await;
    reaches(&db, PROBE, 4).await;
    assert_eq!(effects(&db).await, twice(1..=4));
}

#[tokio::test]
async fn without_a_listening_connection_events_are_handled_with_the_poll() {
    let db = database().await;
    let deaf = Deaf::start(&db, config(), [probe(plain())]).await;
    for seq in 1..=3 {
        append(&db.producer(), [seq]).await;
        deaf.advances_until(&db, PROBE, seq).await;
    }
    assert!(!*deaf.running.listening.borrow());
    deaf.proxy.heal();
    advance_until(&deaf.hand, POLL, "it listens at last", || *deaf.running.listening.borrow()).await;
    deaf.running.stops().await;
}

#[tokio::test]
async fn an_event_that_nobody_announced_is_handled_with_the_poll() {
    let db = database().await;
    let (clock, hand) = manual();
    let mut running = Running::on(&db, config(), clock, [probe(plain())]);
    running.listens(true).await;
    insert_as_owner(&db, &[1]).await;
    eventually(DEADLINE, "the event", async || {
        hand.advance(POLL);
        cursor(&db, PROBE).await == 1
    })
    .await;
}

#[tokio::test]
async fn wakes_that_come_while_a_consumer_works_are_one() {
    const EVENTS: i64 = 100;
    let db = database().await;
    let gate = Gate::closed();
    let config = ConsumerConfig { batch_size: 1_000, ..without_polls() };
    let proxy = proxy_for(&db).await;
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(through(&proxy, &db, Role::App));
    let list = [probe(gate.handler())];
    let mut running = Running::start(consumers(pool, db.options(Role::App), config, manual().0, list));
    running.listens(true).await;
    append(&db.producer(), [1]).await;
    gate.is_reached(1).await;
    for n in 2..=EVENTS {
        append(&db.producer(), [n]).await;
    }
    let before = proxy.requests();
    gate.open();
    reaches(&db, PROBE, EVENTS).await;
    append(&db.producer(), [0]).await;
    reaches(&db, PROBE, EVENTS + 1).await;
    // Two for each event, and some for three rounds and a few looks.
    let beyond_effects = proxy.requests() - before - 2 * EVENTS.unsigned_abs();
    assert!(beyond_effects < EVENTS.unsigned_abs(), "{beyond_effects} requests after {EVENTS} notifications");
    assert_eq!(rounds(&db).await, [1, EVENTS - 1, 1]);
}

#[tokio::test]
async fn a_half_open_listening_connection_is_found_out_and_replaced() {
    let db = database().await;
    let proxy = proxy_for(&db).await;
    let (clock, hand) = manual();
    let config = ConsumerConfig {
        listen_heartbeat_interval: HEARTBEAT,
        listen_heartbeat_timeout: 4 * SHORT,
        ..without_polls()
    };
    let listen = through(&proxy, &db, Role::App);
    let running = Running::start(consumers(db.app_pool(5), listen, config, clock, [probe(plain())]));
    advance_until(&hand, POLL, "it listens", || *running.listening.borrow()).await;
    append(&db.producer(), [1]).await;
    reaches(&db, PROBE, 1).await;
    proxy.black_hole();
    append(&db.producer(), [2]).await;
    advance_until(&hand, HEARTBEAT, "the loss is noticed", || !*running.listening.borrow()).await;
    proxy.heal();
    advance_until(&hand, POLL, "it listens again", || *running.listening.borrow()).await;
    reaches(&db, PROBE, 2).await;
    append(&db.producer(), [3]).await;
    // On a busy machine a heartbeat may be late once more.
    eventually(DEADLINE, "the event", async || {
        hand.advance(POLL);
        cursor(&db, PROBE).await == 3
    })
    .await;
    assert_eq!(effects(&db).await, twice(1..=3));
    eventually(DEADLINE, "the old backend is gone", async || waking_backends(&db).await.len() == 1).await;
}

/// Transactions of one to three events, every fourth rolled back, until `done`.
pub(super) async fn write_until(done: CancellationToken, pool: PgPool, writer: i64) {
    let mut n = writer;
    while !done.is_cancelled() {
        n += 1;
        let events: Vec<_> = (0..1 + n % 3).map(event).collect();
        let mut tx = seqline::begin(&pool).await.unwrap();
        seqline::append(&mut tx, &events).await.unwrap();
        match n % 4 {
            0 => tx.rollback().await.unwrap(),
            _ => seqline::commit(tx).await.unwrap(),
        }
    }
}

#[tokio::test]
async fn terminating_the_waking_backend_while_writers_run_loses_nothing() {
    const TERMINATIONS: usize = 4;
    let db = database().await;
    let config = ConsumerConfig { batch_size: 50, poll_interval: 100_000 * POLL, ..quick() };
    let running = Running::on(&db, config, Clock::system(), [probe(plain())]);
    let done = CancellationToken::new();
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        writers.spawn(write_until(done.clone(), db.pool(Role::Producer, 1), writer));
    }
    let mut terminated = Vec::new();
    while terminated.len() < TERMINATIONS {
        eventually(DEADLINE, "a new waking backend", async || {
            let Some(pid) = waking_backends(&db).await.into_iter().find(|pid| !terminated.contains(pid))
            else {
                return false;
            };
            as_admin(&db, &format!("SELECT pg_terminate_backend({pid})")).await;
            terminated.push(pid);
            true
        })
        .await;
    }
    done.cancel();
    writers.join_all().await;
    let head = head(&db).await;
    reaches(&db, PROBE, head).await;
    assert_eq!(effects(&db).await, twice(1..=head));
    running.stops().await;
}

/// How often a pool was asked over a proxy, once that has come to rest: twice the same with other work in between, and nobody has a connection.
async fn settled(proxy: &FaultProxy, pool: &PgPool, db: &TestDb) -> u64 {
    let mut last = proxy.requests();
    loop {
        for _ in 0..20 {
            cursor(db, PROBE).await;
        }
        let now = proxy.requests();
        if now == last && pool.num_idle() == pool.size() as usize {
            return now;
        }
        last = now;
    }
}

#[tokio::test]
async fn polling_costs_one_look_however_many_consumers_there_are() {
    let db = database().await;
    let (counting, refusing) = (proxy_for(&db).await, proxy_for(&db).await);
    refusing.refuse();
    let pool = PgPoolOptions::new().max_connections(5).connect_lazy_with(through(&counting, &db, Role::App));
    let (clock, hand) = manual();
    let many = (0..20).map(|n| Consumer::new(name(&format!("idle_{n}")), plain()));
    let listen = through(&refusing, &db, Role::App);
    let running = Running::start(consumers(pool.clone(), listen, config(), clock, many));
    eventually(DEADLINE, "the cursors", async || cursor(&db, "idle_19").await == 0).await;
    all_pause(&hand, 0).await;
    let mut asked = settled(&counting, &pool, &db).await;
    for _ in 0..5 {
        hand.advance(POLL);
        all_pause(&hand, 0).await;
        eventually(DEADLINE, "the look", async || counting.requests() > asked).await;
        let now = settled(&counting, &pool, &db).await;
        // One statement, and the pool asks before and after it whether the connection is alive.
        assert!(now - asked <= 3, "{} requests for a poll", now - asked);
        asked = now;
    }
    running.stops().await;
}
