//! Notifications, connections and servers that fail: nothing is lost or doubled, it only comes later.

use seqline_testkit::{History, TestServer, check};
use tokio::task::JoinSet;

use super::*;
use crate::support::{append, event, head, log};

#[tokio::test]
async fn events_from_before_listen_took_effect_arrive_by_the_read_after_it() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    let proxy = proxy_for(&db).await;
    proxy.black_hole();
    // The hand never moves: there is no poll.
    let mut tail =
        Running::start(db.reader(), through(&proxy, &db, Role::Reader), config(Start::After(0)), manual().0)
            .await;
    // Its only read so far.
    tail.reaches(1).await;
    append(&db.producer(), [2]).await;
    proxy.heal();
    tail.reaches(2).await;
    assert_eq!(tail.taken.seqs(), [1, 2]);
}

#[tokio::test]
async fn events_from_while_the_listener_was_cut_arrive_by_the_read_after_it_is_back() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let (clock, hand) = manual();
    // No poll during this test.
    let config = TailConfig { poll_interval: 1000 * HEARTBEAT, ..config(Start::Head) };
    let mut tail = Running::start(db.reader(), through(&proxy, &db, Role::Reader), config, clock).await;
    tail.listens(true).await;
    append(&db.producer(), [1]).await;
    tail.reaches(1).await;
    proxy.black_hole();
    proxy.cut();
    tail.listens(false).await;
    append(&db.producer(), [2]).await;
    proxy.heal();
    advance_until(&hand, POLL, "the listener is back", || *tail.listening.borrow()).await;
    tail.reaches(2).await;
    assert_eq!(tail.taken.seqs(), [1, 2]);
}

#[tokio::test]
async fn without_a_listener_events_arrive_with_the_poll_and_not_before() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    let proxy = proxy_for(&db).await;
    proxy.refuse();
    let (clock, hand) = manual();
    let mut tail =
        Running::start(db.reader(), through(&proxy, &db, Role::Reader), config(Start::After(0)), clock).await;
    let mut witness = Running::on(&db, quick(Start::After(0)), Clock::system()).await;
    tail.reaches(1).await;
    append(&db.producer(), [2]).await;
    hand.advance(POLL - Duration::from_millis(1));
    // Somebody who polls all the time has seen it.
    witness.reaches(2).await;
    assert_eq!(tail.position(), 1);
    hand.advance(Duration::from_millis(1));
    tail.reaches(2).await;
}

#[tokio::test]
async fn an_event_whose_notification_was_swallowed_arrives_with_the_poll() {
    let db = TestDb::new().await;
    let (clock, hand) = manual();
    let mut tail = Running::on(&db, config(Start::Head), clock).await;
    tail.listens(true).await;
    insert_as_owner(&db, &[1]).await;
    advance_until(&hand, POLL, "the event", || tail.position() == 1).await;
    assert_eq!(tail.taken.seqs(), [1]);
}

#[tokio::test]
async fn events_arrive_by_polling_while_the_listener_is_half_open() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let (clock, hand) = manual();
    let config = TailConfig { listen_heartbeat_interval: 1000 * HEARTBEAT, ..config(Start::Head) };
    let mut tail = Running::start(db.reader(), through(&proxy, &db, Role::Reader), config, clock).await;
    tail.listens(true).await;
    append(&db.producer(), [1]).await;
    tail.reaches(1).await;
    proxy.black_hole();
    append(&db.producer(), [2]).await;
    advance_until(&hand, POLL, "the event", || tail.position() == 2).await;
    assert!(*tail.listening.borrow(), "the connection only seems to be up");
}

#[tokio::test]
async fn a_half_open_listener_is_found_out_by_the_heartbeat_and_replaced() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let (clock, hand) = manual();
    let config = TailConfig {
        poll_interval: 1000 * HEARTBEAT,
        listen_heartbeat_timeout: SHORT,
        ..config(Start::Head)
    };
    let tail = Running::start(db.reader(), through(&proxy, &db, Role::Reader), config, clock).await;
    // On a busy machine it may be late once more.
    advance_until(&hand, POLL, "it listens", || *tail.listening.borrow()).await;
    proxy.black_hole();
    advance_until(&hand, HEARTBEAT, "the loss is noticed", || !*tail.listening.borrow()).await;
    proxy.heal();
    advance_until(&hand, POLL, "the listener is back", || *tail.listening.borrow()).await;
    append(&db.producer(), [1]).await;
    // As may a heartbeat.
    advance_until(&hand, POLL, "the event", || tail.position() == 1).await;
    eventually(DEADLINE, "the old backend is gone", async || listening_backends(&db).await.len() == 1).await;
}

#[tokio::test]
async fn a_listener_that_answers_its_heartbeat_is_kept() {
    let db = TestDb::new().await;
    let (clock, hand) = manual();
    let mut tail = Running::on(&db, config(Start::Head), clock).await;
    tail.listens(true).await;
    let before = listening_backends(&db).await;
    let last_query = async || -> String {
        sqlx::query_scalar("SELECT query FROM pg_stat_activity WHERE pid = $1")
            .bind(before[0])
            .fetch_one(&db.admin())
            .await
            .expect("the listener's backend is there")
    };
    eventually(DEADLINE, "a heartbeat", async || {
        hand.advance(HEARTBEAT);
        last_query().await == "SELECT 1"
    })
    .await;
    append(&db.producer(), [1]).await;
    tail.reaches(1).await;
    assert_eq!(listening_backends(&db).await, before);
}

#[tokio::test]
async fn a_read_that_gets_no_answer_is_given_up_and_repeated() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let (clock, hand) = manual();
    let config = TailConfig { statement_timeout: SHORT, ..config(Start::After(0)) };
    let pool = pool_through(&proxy, &db, Role::Reader, 3);
    let mut tail = Running::start(pool, db.options(Role::Reader), config, clock).await;
    tail.listens(true).await;
    append(&db.producer(), 1..=2).await;
    // On a busy machine the first reads may be given up too.
    advance_until(&hand, POLL, "the first events", || tail.position() == 2).await;
    proxy.black_hole();
    append(&db.producer(), 3..=4).await;
    // Several reads in vain, each on a connection of its own.
    for _ in 0..2 {
        hand.advance(POLL);
        let _ = tokio::time::timeout(2 * SHORT, tail.head.changed()).await;
    }
    assert_eq!(tail.position(), 2);
    proxy.heal();
    append(&db.producer(), [5]).await;
    advance_until(&hand, POLL, "the tail recovers", || tail.position() == 5).await;
    assert_eq!(tail.taken.seqs(), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_pool_whose_connections_are_all_cut_recovers() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let pool = pool_through(&proxy, &db, Role::Reader, 2);
    let mut tail = Running::start(pool, db.options(Role::Reader), quick(Start::Head), Clock::system()).await;
    for n in 1..=5 {
        append(&db.producer(), [n]).await;
        proxy.cut();
    }
    tail.reaches(5).await;
    assert_eq!(tail.taken.seqs(), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_tail_goes_on_after_the_server_was_killed_and_started_again() {
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let mut tail = Running::on(&db, quick(Start::Head), Clock::system()).await;
    tail.listens(true).await;
    append(&db.producer(), 1..=3).await;
    tail.reaches(3).await;
    server.kill().await;
    tail.listens(false).await;
    server.start_again().await;
    append(&db.pool(Role::Producer, 1), 4..=6).await;
    tail.reaches(6).await;
    tail.listens(true).await;
    assert_eq!(tail.taken.seqs(), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn what_a_tail_was_given_survives_a_crash_although_its_writer_did_not_wait_for_durability() {
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let mut tail = Running::on(&db, quick(Start::Head), Clock::system()).await;
    tail.listens(true).await;
    let careless = db.options(Role::Producer).options([("synchronous_commit", "off")]);
    append(&PgPoolOptions::new().max_connections(1).connect_lazy_with(careless), [1]).await;
    tail.reaches(1).await;
    let given = tail.taken.events();
    server.kill().await;
    server.start_again().await;
    assert_eq!(log(&mut db.connect(Role::Reader).await).await, given);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminating_the_tails_backend_while_writers_run_loses_nothing() {
    const WRITERS: i64 = 8;
    const TERMINATIONS: usize = 5;
    let db = TestDb::new().await;
    let tail = Running::on(&db, quick(Start::Head), Clock::system()).await;
    let (history, done) = (History::new(), CancellationToken::new());
    let pool = db.pool(Role::Producer, 8);
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write_until(done.clone(), pool.clone(), history.clone(), writer));
    }
    let mut terminated = Vec::new();
    while terminated.len() < TERMINATIONS {
        eventually(DEADLINE, "a new listening backend", async || {
            let Some(pid) = listening_backends(&db).await.into_iter().find(|pid| !terminated.contains(pid))
            else {
                return false;
            };
            sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(&db.admin()).await.unwrap();
            terminated.push(pid);
            true
        })
        .await;
    }
    done.cancel();
    writers.join_all().await;
    let head = head(&db).await;
    let mut tail = tail;
    tail.reaches(head).await;
    let summary = check(&history.snapshot(), &tail.taken.events(), 1).unwrap();
    assert_eq!(summary.events, usize::try_from(head).unwrap());
}

/// Transactions of one to three events, every fourth rolled back.
async fn write_until(done: CancellationToken, pool: PgPool, history: History, writer: i64) {
    let mut n = writer;
    while !done.is_cancelled() {
        n += 1;
        let events: Vec<_> = (0..1 + n % 3).map(event).collect();
        let attempt = history.begin();
        let mut tx = seqline::begin(&pool).await.unwrap();
        let ids = seqline::append(&mut tx, &events).await.unwrap();
        if n % 4 == 0 {
            tx.rollback().await.unwrap();
            attempt.rolled_back(ids);
        } else {
            seqline::commit(tx).await.unwrap();
            attempt.committed(ids);
        }
    }
}

#[tokio::test]
async fn a_cancelled_begin_leaves_no_open_transaction_in_the_pool() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let pool = pool_through(&proxy, &db, Role::App, 1);
    let mut cancelled = 0;
    for moment in 0..40_u64 {
        // Connected, so that the delay meets BEGIN.
        drop(pool.acquire().await.unwrap());
        proxy.delay(Duration::from_millis(5));
        let begin = tokio::time::timeout(Duration::from_millis(moment), seqline::begin(&pool)).await;
        cancelled += i32::from(begin.is_err());
        drop(begin);
        proxy.heal();
        assert!(hands_out_fresh_connections(&pool).await, "in a transaction, cancelled after {moment} ms");
    }
    assert!(cancelled > 0, "no begin was cancelled in flight");
    let open: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert_eq!(open, 0);
}
