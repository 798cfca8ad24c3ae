//! A database that is away for a while ends nothing.

use seqline_testkit::TestServer;
use tracing::Level;

use super::*;

fn impatient_pool(options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new().max_connections(2).acquire_timeout(4 * SHORT).connect_lazy_with(options)
}

#[tokio::test]
async fn consumers_go_on_after_the_server_was_killed_and_started_again() {
    let (captured, _guard) = Captured::start();
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    make_effects(&db).await;
    append(&db.producer(), 1..=3).await;
    let pool = impatient_pool(db.options(Role::App));
    let list = [probe(plain())];
    let mut running = Running::start(consumers(pool, db.options(Role::App), quick(), Clock::system(), list));
    running.listens(true).await;
    reaches(&db, PROBE, 3).await;
    server.kill().await;
    running.listens(false).await;
    eventually(DEADLINE, "the failure", async || captured.count("event consumer round failed") == 1).await;
    // More rounds in vain.
    let errors = || captured.said(Level::DEBUG).iter().filter(|line| line.contains("round error")).count();
    eventually(DEADLINE, "more failures", async || errors() >= 2).await;
    assert!(!running.task.is_finished());
    server.start_again().await;
    append(&db.pool(Role::Producer, 1), 4..=6).await;
    reaches(&db, PROBE, 6).await;
    eventually(DEADLINE, "the end is logged", async || captured.count("event consumer recovered") == 1).await;
    running.listens(true).await;
    assert_eq!(captured.count("event consumer round failed"), 1);
    assert_eq!(effects(&db).await, twice(1..=6));
    let state = state_of(&db, PROBE).await;
    assert!(state.last_failure.is_none_or(|failure| !failure.current));
    running.stops().await;
}

#[tokio::test]
async fn a_network_that_is_cut_again_and_again_skips_and_doubles_nothing() {
    let db = database().await;
    let proxy = proxy_for(&db).await;
    append(&db.producer(), 1..=60).await;
    let pool = impatient_pool(through(&proxy, &db, Role::App));
    let config = ConsumerConfig { batch_size: 5, ..quick() };
    let list = [probe(plain())];
    let made = consumers(db.app(), db.options(Role::App), quick(), Clock::system(), [probe(plain())]);
    made.ensure().await.unwrap();
    let running =
        Running::start(consumers(pool, through(&proxy, &db, Role::App), config, Clock::system(), list));
    let mut last_seq = 0;
    while last_seq < 60 {
        // In the middle of the next round, as a rule.
        eventually(DEADLINE, "progress", async || cursor(&db, PROBE).await > last_seq).await;
        proxy.cut();
        // In one look: a COMMIT that the server has got by then still goes through.
        let (at, of_rounds): (i64, Vec<i64>) = sqlx::query_as(
            "SELECT last_seq, ARRAY(SELECT seq FROM effects ORDER BY seq) FROM seqline.event_consumer_cursors",
        )
        .fetch_one(&db.admin())
        .await
        .unwrap();
        assert_eq!(of_rounds, twice(1..=at));
        last_seq = at;
    }
    assert_eq!(effects(&db).await, twice(1..=60));
    running.stops().await;
}

#[tokio::test]
async fn a_round_that_gets_no_answer_is_given_up_and_repeated() {
    let db = database().await;
    let proxy = proxy_for(&db).await;
    let gate = Gate::closed();
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(through(&proxy, &db, Role::App));
    let config = ConsumerConfig { statement_timeout: 4 * SHORT, idle_in_tx_timeout: SHORT, ..quick() };
    let list = [probe(gate.handler())];
    let mut running = Running::start(consumers(pool, db.options(Role::App), config, Clock::system(), list));
    running.listens(true).await;
    append(&db.producer(), 1..=2).await;
    gate.is_reached(1).await;
    proxy.black_hole();
    gate.open();
    eventually(DEADLINE, "the server takes the cursor back", async || open_transactions(&db).await == 0)
        .await;
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (0, twice([])));
    proxy.heal();
    reaches(&db, PROBE, 2).await;
    assert_eq!(effects(&db).await, twice(1..=2));
    running.stops().await;
}

#[tokio::test]
async fn a_stop_ends_consumers_whose_database_is_silent() {
    let db = database().await;
    let proxy = proxy_for(&db).await;
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(through(&proxy, &db, Role::App));
    let (clock, hand) = manual();
    let list = [probe(plain())];
    let mut running = Running::start(consumers(pool, through(&proxy, &db, Role::App), config(), clock, list));
    running.listens(true).await;
    append(&db.producer(), [1]).await;
    reaches(&db, PROBE, 1).await;
    proxy.black_hole();
    // Into a look that gets no answer.
    hand.advance(POLL);
    running.stop.cancel();
    eventually(DEADLINE, "the end", async || {
        hand.advance(config().stop_timeout);
        running.task.is_finished()
    })
    .await;
    running.ends().await.unwrap();
}
