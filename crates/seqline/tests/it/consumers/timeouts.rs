//! Bounds of time in a round: of its statements, of its locks, of its pauses, of its handler.

use super::*;

#[tokio::test]
async fn timeouts_are_in_effect_inside_a_round_and_not_after_it() {
    const SETTINGS: &str =
        "SELECT ARRAY[current_setting('statement_timeout'), current_setting('lock_timeout'),
        current_setting('idle_in_transaction_session_timeout'), current_setting('tcp_user_timeout')]";
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inside = seen.clone();
    let handler = acting(move |_, round| {
        let inside = inside.clone();
        Box::pin(async move {
            let settings: Vec<String> = sqlx::query_scalar(SETTINGS).fetch_one(round.connection()).await?;
            *inside.lock().expect("no handler panicked") = settings;
            Ok(())
        })
    });
    let config = ConsumerConfig {
        statement_timeout: Duration::from_millis(12_345),
        lock_timeout: Duration::from_millis(3_456),
        idle_in_tx_timeout: Duration::from_millis(45_678),
        ..config()
    };
    let bench = Bench::new(config, handler).await;
    append(&bench.db.producer(), [1]).await;
    let before: Vec<String> = sqlx::query_scalar(SETTINGS).fetch_one(&bench.pool).await.unwrap();
    bench.processes(1).await;
    assert_eq!(*seen.lock().unwrap(), ["12345ms", "3456ms", "45678ms", "45678"]);
    let after: Vec<String> = sqlx::query_scalar(SETTINGS).fetch_one(&bench.pool).await.unwrap();
    assert_eq!(after, before);
}

#[tokio::test]
async fn timeouts_out_of_bounds_are_brought_into_them() {
    let extremes = |timeout| ConsumerConfig {
        statement_timeout: DEADLINE,
        lock_timeout: timeout,
        idle_in_tx_timeout: timeout,
        ..config()
    };
    let bench = Bench::new(extremes(Duration::MAX), plain()).await;
    append(&bench.db.producer(), [1]).await;
    bench.processes(1).await;
    let bench =
        Bench::on(bench.db, ConsumerConfig { lock_timeout: Duration::ZERO, ..config() }, probe(plain()))
            .await;
    append(&bench.db.producer(), [2]).await;
    bench.processes(1).await;
    let everything = ConsumerConfig {
        statement_timeout: Duration::MAX,
        event_timeout: Duration::MAX,
        stop_timeout: Duration::MAX,
        ..extremes(Duration::MAX)
    };
    let bench = Bench::on(bench.db, everything, probe(plain())).await;
    append(&bench.db.producer(), [3]).await;
    bench.processes(1).await;
    bench.assert_handled(3).await;
}

/// A consumer whose handler runs a statement, while the switch is on.
async fn running(config: ConsumerConfig, sql: &'static str) -> (Bench, Switch) {
    let switch = Switch::on();
    let acts = switch.clone();
    let handler = acting(move |_, round| {
        let runs = acts.acts();
        Box::pin(async move {
            if runs {
                sqlx::raw_sql(sql).execute(round.connection()).await?;
            }
            Ok(())
        })
    });
    let bench = Bench::new(config, handler).await;
    append(&bench.db.producer(), [1]).await;
    (bench, switch)
}

#[tokio::test]
async fn a_statement_that_hangs_fails_the_round_and_nothing_is_left() {
    let config = ConsumerConfig { statement_timeout: 2 * SHORT, ..config() };
    let (bench, switch) = running(config, "SELECT pg_sleep(60)").await;
    let error = bench.round().await.unwrap_err();
    assert_eq!((error.error_type(), error.seq()), ("handler", Some(1)));
    assert_eq!(switch.times(), 1);
    bench.assert_untouched().await;
    bench.assert_pool_is_sound().await;
    switch.off();
    bench.processes(1).await;
    bench.assert_handled(1).await;
}

#[tokio::test]
async fn a_lock_that_somebody_else_keeps_fails_the_round_after_a_few_attempts() {
    let config = ConsumerConfig { lock_timeout: SHORT, ..config() };
    let (bench, switch) = running(config, "LOCK TABLE mine IN ACCESS EXCLUSIVE MODE").await;
    sqlx::raw_sql("CREATE TABLE mine ()").execute(&bench.db.app()).await.unwrap();
    let mut other = seqline::begin(&bench.db.app()).await.unwrap();
    sqlx::raw_sql("LOCK TABLE mine IN ACCESS SHARE MODE").execute(&mut *other).await.unwrap();
    let error = bench.round().await.unwrap_err();
    assert_eq!((error.error_type(), switch.times()), ("handler", 3));
    bench.assert_untouched().await;
    other.rollback().await.unwrap();
    bench.assert_pool_is_sound().await;
    bench.processes(1).await;
    bench.assert_handled(1).await;
}

#[tokio::test]
async fn a_handler_that_pauses_for_too_long_loses_the_round_and_not_more() {
    let gate = Gate::closed();
    let config = ConsumerConfig { idle_in_tx_timeout: 4 * SHORT, ..config() };
    let bench = Bench::new(config, gate.handler()).await;
    append(&bench.db.producer(), [1]).await;
    let opening = async {
        gate.is_reached(1).await;
        eventually(DEADLINE, "the server ends it", async || open_transactions(&bench.db).await == 0).await;
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.round(), opening);
    assert_eq!(result.unwrap_err().error_type(), "database");
    bench.assert_untouched().await;
    bench.processes(1).await;
    bench.assert_handled(1).await;
}

#[tokio::test]
async fn a_handler_that_hangs_is_given_up_after_its_time() {
    let gate = Gate::closed();
    let bench = Bench::new(config(), gate.handler()).await;
    append(&bench.db.producer(), 1..=2).await;
    let limit = config().event_timeout;
    let waiting = async {
        gate.is_reached(1).await;
        bench.hand.advance(limit - Duration::from_millis(1));
        // It still waits.
        assert_eq!(open_transactions(&bench.db).await, 1);
        bench.hand.advance(Duration::from_millis(1));
    };
    let (result, ()) = tokio::join!(bench.round(), waiting);
    let error = result.unwrap_err();
    assert_eq!((error.error_type(), error.seq()), ("timeout", Some(1)));
    bench.assert_untouched().await;
    bench.assert_pool_is_sound().await;
    gate.open();
    bench.processes(2).await;
    bench.assert_handled(2).await;
}

#[tokio::test]
async fn each_event_has_the_whole_time() {
    let gate = Gate::closed();
    let hand = Arc::new(Mutex::new(None::<ClockHand>));
    let later = hand.clone();
    let handler = acting(move |_, _| {
        let hand = later.lock().expect("no handler panicked").clone();
        Box::pin(async move {
            hand.expect("the hand was given").advance(config().event_timeout - Duration::from_millis(1));
            tokio::task::yield_now().await;
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    *hand.lock().unwrap() = Some(bench.hand.clone());
    drop(gate);
    append(&bench.db.producer(), 1..=3).await;
    bench.processes(3).await;
    bench.assert_handled(3).await;
}

#[tokio::test]
async fn a_handler_that_hangs_in_a_statement_is_given_up_after_its_time() {
    let (bench, switch) = running(config(), "SELECT pg_advisory_xact_lock(17)").await;
    let mut lock = bench.db.connect(Role::Admin).await;
    sqlx::query("SELECT pg_advisory_lock(17)").execute(&mut lock).await.unwrap();
    let waiting = async {
        eventually(DEADLINE, "the statement runs", async || {
            sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_stat_activity
                                WHERE wait_event = 'advisory' AND datname = current_database())",
            )
            .fetch_one(&bench.db.admin())
            .await
            .unwrap()
        })
        .await;
        bench.hand.advance(config().event_timeout);
    };
    let (result, ()) = tokio::join!(bench.round(), waiting);
    assert_eq!(result.unwrap_err().error_type(), "timeout");
    switch.off();
    assert!(hands_out_fresh_connections(&bench.pool).await);
    // The server notices when the statement is done.
    sqlx::query("SELECT pg_advisory_unlock(17)").execute(&mut lock).await.unwrap();
    eventually(DEADLINE, "the consumer is free", async || {
        bench.round().await.unwrap().outcome == Outcome::Processed
    })
    .await;
    bench.assert_handled(1).await;
}
