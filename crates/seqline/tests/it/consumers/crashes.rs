//! Crashes in the middle of a round: nothing of it is left, and whoever comes next handles each event once.

use std::process::{Command, Stdio};

use super::*;

/// Set in the process that is going to be killed: the database.
const VICTIM: &str = "SEQLINE_TEST_CONSUMER_VICTIM";

/// Taken by the test. The victim waits for it in the middle of a round.
const BARRIER: i64 = 73_001;

const EVENTS: i64 = 12;

async fn a_fresh_worker_makes_each_effect_once(db: &TestDb) {
    let config = ConsumerConfig { batch_size: 5, ..quick() };
    let running = Running::on(db, config, Clock::system(), [probe(plain())]);
    reaches(db, PROBE, EVENTS).await;
    assert_eq!(effects(db).await, twice(1..=EVENTS));
    running.stops().await;
}

/// Twelve events in rounds of five. The second round crashes at its third event.
async fn crashes<F>(crash: F) -> Bench
where
    F: for<'a, 'r> Fn(&'a mut Round<'r>) -> Handling<'a> + Send + Sync + 'static,
{
    let handler =
        acting(move |event, round| if event.seq == 8 { crash(round) } else { Box::pin(async { Ok(()) }) });
    let bench = Bench::new(ConsumerConfig { batch_size: 5, ..config() }, handler).await;
    append(&bench.db.producer(), 1..=EVENTS).await;
    bench.processes(5).await;
    bench
}

async fn assert_second_round_left_nothing(db: &TestDb) {
    eventually(DEADLINE, "the round is rolled back", async || open_transactions(db).await == 0).await;
    assert_eq!((cursor(db, PROBE).await, effects(db).await), (5, twice(1..=5)));
}

#[tokio::test]
async fn a_terminated_backend_leaves_nothing_and_doubles_nothing() {
    let bench = crashes(|round| {
        Box::pin(async {
            let kill = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())");
            kill.execute(round.connection()).await?;
            Ok(())
        })
    })
    .await;
    bench.round().await.unwrap_err();
    assert_second_round_left_nothing(&bench.db).await;
    a_fresh_worker_makes_each_effect_once(&bench.db).await;
}

#[tokio::test]
async fn an_error_leaves_nothing_and_doubles_nothing() {
    let bench = crashes(|_| Box::pin(async { Err("refused".into()) })).await;
    bench.round().await.unwrap_err();
    assert_second_round_left_nothing(&bench.db).await;
    a_fresh_worker_makes_each_effect_once(&bench.db).await;
}

#[tokio::test]
async fn a_panic_leaves_nothing_and_doubles_nothing() {
    let bench = crashes(|_| Box::pin(async { std::panic::resume_unwind(Box::new("on purpose")) })).await;
    bench.round().await.unwrap_err();
    assert_second_round_left_nothing(&bench.db).await;
    a_fresh_worker_makes_each_effect_once(&bench.db).await;
}

#[tokio::test]
async fn a_dropped_future_leaves_nothing_and_doubles_nothing() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let bench = crashes(move |_| {
        let gate = at_gate.clone();
        Box::pin(async move {
            gate.pass(8).await;
            Ok(())
        })
    })
    .await;
    tokio::select! {
        result = bench.round() => panic!("{result:?}"),
        () = gate.is_reached(8) => {}
    }
    assert_second_round_left_nothing(&bench.db).await;
    a_fresh_worker_makes_each_effect_once(&bench.db).await;
}

/// Not a test by itself: what the killed process does. Without the variable it does nothing.
#[tokio::test]
async fn victim() {
    let Ok(url) = std::env::var(VICTIM) else { return };
    let options: PgConnectOptions = url.parse().unwrap();
    let handler = acting(|event, round| {
        let waits = event.seq == 8;
        Box::pin(async move {
            if waits {
                sqlx::query("SELECT pg_advisory_xact_lock($1)")
                    .bind(BARRIER)
                    .execute(round.connection())
                    .await?;
            }
            Ok(())
        })
    });
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options.clone());
    let config = ConsumerConfig { batch_size: 5, ..quick() };
    let consumers = consumers(pool, options, config, Clock::system(), [probe(handler)]);
    consumers.run(CancellationToken::new()).await.unwrap();
}

#[tokio::test]
async fn a_process_that_is_killed_in_a_round_leaves_nothing_and_doubles_nothing() {
    let db = database().await;
    append(&db.producer(), 1..=EVENTS).await;
    let mut barrier = seqline::begin(&db.admin()).await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(BARRIER).execute(&mut *barrier).await.unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "consumers::crashes::victim"])
        .env(VICTIM, db.url(Role::App))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually(DEADLINE, "the victim is in its second round", async || {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                            WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database())",
        )
        .fetch_one(&db.admin())
        .await
        .unwrap()
    })
    .await;
    // SIGKILL.
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (5, twice(1..=5)));
    // Its backend goes on, until it has something to say and nobody is there.
    barrier.rollback().await.unwrap();
    assert_second_round_left_nothing(&db).await;
    a_fresh_worker_makes_each_effect_once(&db).await;
}
