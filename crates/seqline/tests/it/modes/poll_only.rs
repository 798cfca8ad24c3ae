//! Without a listening connection everything arrives by polling, and nobody tries to listen.

use seqline::Clock;
use seqline::consumer::{Consumer, ConsumerConfig};
use seqline::tail::{Start, TailConfig};
use seqline_testkit::{Role, TestDb, eventually};

use crate::consumers::{self, Captured, DEADLINE, POLL, cursor, name, plain, quick, reaches};
use crate::support::append;
use crate::tail::{self, manual, proxy_for, through};

/// Sessions of the database that have said LISTEN as the last thing, or are named as listeners.
async fn listeners(db: &TestDb) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
             AND (query ILIKE 'LISTEN%' OR application_name IN ('seqline-event-tail', 'seqline-consumer-wake'))",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap()
}

#[tokio::test]
async fn consumers_that_do_not_listen_poll_and_say_nothing() {
    let (lines, _guard) = Captured::start();
    let db = consumers::database().await;
    // Only listening would go through it.
    let proxy = proxy_for(&db).await;
    let config = ConsumerConfig { listen: false, ..quick() };
    let list = [Consumer::new(name("probe"), plain())];
    let running = consumers::Running::start(consumers::consumers(
        db.app_pool(5),
        through(&proxy, &db, Role::App),
        config,
        Clock::system(),
        list,
    ));
    eventually(DEADLINE, "the cursor", async || cursor(&db, "probe").await == 0).await;
    for n in 1..=3 {
        append(&db.producer(), [n]).await;
        reaches(&db, "probe", n).await;
        assert_eq!(listeners(&db).await, 0);
    }
    assert!(!*running.listening.borrow());
    assert_eq!(proxy.requests(), 0);
    running.stops().await;
    assert_eq!(lines.said(tracing::Level::WARN), [""; 0]);
}

/// While the clock stands still there is nothing else that would make it look.
#[tokio::test]
async fn only_the_poll_interval_wakes_them() {
    let db = consumers::database().await;
    let (clock, hand) = manual();
    let config = ConsumerConfig { listen: false, ..consumers::config() };
    let list = [Consumer::new(name("probe"), plain())];
    let options = db.options(Role::App);
    let running =
        consumers::Running::start(consumers::consumers(db.app_pool(5), options, config, clock, list));
    // The poll waits, with its own hold of the clock and that of the consumers.
    eventually(DEADLINE, "the poll", async || cursor(&db, "probe").await == 0 && hand.receivers() >= 2).await;
    consumers::has_nothing_to_do(&db).await;
    append(&db.producer(), [1]).await;
    assert_eq!(cursor(&db, "probe").await, 0);
    assert_eq!(listeners(&db).await, 0);
    eventually(DEADLINE, "the event", async || {
        hand.advance(POLL);
        cursor(&db, "probe").await == 1
    })
    .await;
    running.stops().await;
}

#[tokio::test]
async fn a_tail_that_does_not_listen_polls_and_says_nothing() {
    let (lines, _guard) = Captured::start();
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let listen = through(&proxy, &db, Role::Reader);
    let config = TailConfig { listen: false, ..tail::quick(Start::Head) };
    let mut tail = tail::Running::start(db.pool(Role::Reader, 2), listen, config, Clock::system()).await;
    for n in 1..=3 {
        append(&db.producer(), [n]).await;
        tail.reaches(n).await;
        assert_eq!(listeners(&db).await, 0);
    }
    assert!(!*tail.listening.borrow());
    assert_eq!(proxy.requests(), 0);
    tail.stop.cancel();
    tail.ends().await.unwrap();
    assert_eq!(lines.said(tracing::Level::WARN), [""; 0]);
}
