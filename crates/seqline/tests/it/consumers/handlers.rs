//! Handlers that fail: whatever they do, nothing of the round is left, the pool is sound, and the next round works.

use std::panic::resume_unwind;

use super::*;

/// Three events, of which the second meets `trouble` until that is over. Returns why the first round failed.
async fn failed_round<F>(config: ConsumerConfig, trouble: F) -> (RoundError, Bench, Switch)
where
    F: for<'a, 'r> Fn(&'a mut Round<'r>) -> Handling<'a> + Send + Sync + 'static,
{
    let switch = Switch::on();
    let acts = switch.clone();
    let handler =
        acting(
            move |event, round| {
                if event.seq == 2 && acts.acts() { trouble(round) } else { Box::pin(async { Ok(()) }) }
            },
        );
    let bench = Bench::new(config, handler).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.expect_err("the round fails");
    (error, bench, switch)
}

async fn nothing_is_left_and_the_next_round_works(bench: &Bench, switch: &Switch) {
    bench.assert_untouched().await;
    bench.assert_pool_is_sound().await;
    switch.off();
    // The old connection may be about to give the consumer back.
    eventually(DEADLINE, "the next round", async || {
        bench.round().await.expect("the round succeeds").outcome == Outcome::Processed
    })
    .await;
    bench.assert_handled(3).await;
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn an_error_takes_the_whole_round_back() {
    let (error, bench, switch) = failed_round(config(), |_| Box::pin(async { Err("refused".into()) })).await;
    let RoundError::Handler { seq: 2, source } = &error else { panic!("{error:?}") };
    assert_eq!(source.to_string(), "refused");
    assert_eq!((error.error_type(), error.seq()), ("handler", Some(2)));
    assert_eq!(switch.times(), 1, "it is not tried again at once");
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_statement_that_fails_takes_the_whole_round_back() {
    let (error, bench, switch) = failed_round(config(), |round| {
        Box::pin(async {
            sqlx::query("SELECT 1 / 0").execute(round.connection()).await?;
            Ok(())
        })
    })
    .await;
    assert_eq!((error.error_type(), error.seq()), ("handler", Some(2)));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn an_error_text_of_a_handler_is_not_in_the_text_of_the_failure() {
    let (error, ..) = failed_round(config(), |_| Box::pin(async { Err("swordfish".into()) })).await;
    assert!(!error.to_string().contains("swordfish"), "{error}");
}

#[tokio::test]
async fn a_panic_takes_the_whole_round_back() {
    let (error, bench, switch) = failed_round(config(), |_| {
        Box::pin(async { resume_unwind(Box::new("on purpose, without the noise of panic!")) })
    })
    .await;
    assert_eq!((error.error_type(), error.seq()), ("panic", Some(2)));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_panic_before_there_is_a_future_takes_the_whole_round_back() {
    let (error, bench, switch) = failed_round(config(), |_| resume_unwind(Box::new("at once"))).await;
    assert_eq!((error.error_type(), error.seq()), ("panic", Some(2)));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

/// A handler that is a function and panics before it returns its future.
struct PanicsWhenCalled(Switch);

impl Handler for PanicsWhenCalled {
    fn handle(
        &self,
        event: &StoredEvent,
        _: &mut Round<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        if event.seq == 2 && self.0.acts() {
            resume_unwind(Box::new("when called"));
        }
        std::future::ready(Ok(()))
    }
}

#[tokio::test]
async fn a_panic_while_a_handler_is_called_is_its_failure() {
    let switch = Switch::on();
    let bench = Bench::new(config(), PanicsWhenCalled(switch.clone())).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.unwrap_err();
    assert_eq!((error.error_type(), error.seq()), ("panic", Some(2)));
    assert_eq!(cursor(&bench.db, PROBE).await, 0);
    bench.assert_pool_is_sound().await;
    switch.off();
    bench.processes(3).await;
}

#[tokio::test]
async fn a_panic_while_a_statement_is_under_way_takes_the_whole_round_back() {
    let (error, bench, switch) = failed_round(config(), |round| {
        Box::pin(async {
            let sleeping = sqlx::query("SELECT pg_sleep(0.3)").execute(round.connection());
            let _ = tokio::time::timeout(SHORT / 10, sleeping).await;
            resume_unwind(Box::new("with an answer on its way"))
        })
    })
    .await;
    assert_eq!((error.error_type(), error.seq()), ("panic", Some(2)));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn an_error_while_a_statement_is_under_way_takes_the_whole_round_back() {
    let (error, bench, switch) = failed_round(config(), |round| {
        Box::pin(async {
            let sleeping = sqlx::query("SELECT pg_sleep(0.3)").execute(round.connection());
            tokio::time::timeout(SHORT / 10, sleeping).await??;
            Ok(())
        })
    })
    .await;
    assert_eq!((error.error_type(), error.seq()), ("handler", Some(2)));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_handler_may_give_up_a_statement_and_go_on() {
    let handler = acting(|event, round| {
        let seq = event.seq;
        Box::pin(async move {
            if seq == 2 {
                let sleeping = sqlx::query("SELECT pg_sleep(0.1)").execute(round.connection());
                let given_up = tokio::time::timeout(SHORT / 50, sleeping).await;
                assert!(given_up.is_err(), "it was under way");
            }
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), 1..=3).await;
    bench.processes(3).await;
    bench.assert_handled(3).await;
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_statement_whose_failure_is_swallowed_fails_the_round() {
    let (error, bench, switch) = failed_round(config(), |round| {
        Box::pin(async {
            let _ = sqlx::query("SELECT 1 / 0").execute(round.connection()).await;
            Ok(())
        })
    })
    .await;
    // The third handler is the first that is refused.
    let RoundError::TransactionFailed { first_seq: 1, last_seq: 3 } = error else { panic!("{error:?}") };
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_failure_that_is_swallowed_at_the_last_event_fails_the_round() {
    let switch = Switch::on();
    let acts = switch.clone();
    let handler = acting(move |event, round| {
        let fails = event.seq == 3 && acts.acts();
        Box::pin(async move {
            if fails {
                let _ = sqlx::query("SELECT 1 / 0").execute(round.connection()).await;
            }
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::TransactionFailed { first_seq: 1, last_seq: 3 } = error else { panic!("{error:?}") };
    assert_eq!((error.error_type(), error.seq()), ("transaction_failed", Some(1)));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_backend_that_is_terminated_takes_the_whole_round_back() {
    let (error, bench, switch) = failed_round(config(), |round| {
        Box::pin(async {
            sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())").execute(round.connection()).await?;
            Ok(())
        })
    })
    .await;
    assert_eq!((error.error_type(), error.seq()), ("handler", Some(2)));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_backend_that_is_gone_when_the_handlers_are_done_takes_the_whole_round_back() {
    let gate = Gate::closed();
    let bench = Bench::new(config(), gate.handler()).await;
    append(&bench.db.producer(), [1]).await;
    let killing = async {
        gate.is_reached(1).await;
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND state = 'idle in transaction'";
        as_admin(&bench.db, sql).await;
        eventually(DEADLINE, "the backend is gone", async || open_transactions(&bench.db).await == 0).await;
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.round(), killing);
    assert_eq!(result.unwrap_err().error_type(), "database");
    bench.assert_untouched().await;
    bench.processes(1).await;
    bench.assert_handled(1).await;
}

#[tokio::test]
async fn what_the_database_refuses_at_commit_fails_the_round() {
    let switch = Switch::on();
    let acts = switch.clone();
    let handler = acting(move |event, round| {
        let fails = event.seq == 2 && acts.acts();
        Box::pin(async move {
            if fails {
                sqlx::query("INSERT INTO positive VALUES (1), (1)").execute(round.connection()).await?;
            }
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    let sql = "CREATE TABLE positive (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    sqlx::raw_sql(sql).execute(&bench.db.app()).await.unwrap();
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.unwrap_err();
    assert_eq!((error.error_type(), error.seq()), ("commit", None));
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_deadlock_with_somebody_else_is_tried_again_at_once() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let attempts = Switch::on();
    let counted = attempts.clone();
    let handler = acting(move |_, round| {
        let gate = at_gate.clone();
        counted.acts();
        Box::pin(async move {
            sqlx::query("UPDATE things SET n = n + 1 WHERE id = 1").execute(round.connection()).await?;
            gate.pass(1).await;
            sqlx::query("UPDATE things SET n = n + 1 WHERE id = 2").execute(round.connection()).await?;
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    let sql =
        "CREATE TABLE things (id int PRIMARY KEY, n int NOT NULL); INSERT INTO things VALUES (1, 0), (2, 0)";
    sqlx::raw_sql(sql).execute(&bench.db.app()).await.unwrap();
    append(&bench.db.producer(), [1]).await;
    let other = async {
        // Waits longer before it looks for deadlocks, so it is not the victim.
        let mut other = bench.db.connect(Role::Admin).await;
        let begin = "SET deadlock_timeout = '20 s'; BEGIN; UPDATE things SET n = n + 10 WHERE id = 2";
        sqlx::raw_sql(begin).execute(&mut other).await.unwrap();
        gate.is_reached(1).await;
        let rest = sqlx::raw_sql("UPDATE things SET n = n + 10 WHERE id = 1; COMMIT").execute(&mut other);
        let opening = async {
            eventually(DEADLINE, "the other one waits", async || {
                sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
                    .fetch_one(&bench.db.admin())
                    .await
                    .unwrap()
            })
            .await;
            gate.open();
        };
        let (rest, ()) = tokio::join!(rest, opening);
        rest.unwrap();
    };
    let (result, ()) = tokio::join!(bench.round(), other);
    assert_eq!(result.unwrap().processed, 1);
    assert_eq!(attempts.times(), 2);
    bench.assert_handled(1).await;
    let things: Vec<i32> =
        sqlx::query_scalar("SELECT n FROM things").fetch_all(&bench.db.app()).await.unwrap();
    assert_eq!(things, [11, 11]);
}

#[tokio::test]
async fn a_conflict_that_stays_is_given_up_after_a_few_attempts() {
    let sqlstate = watch::Sender::new("40P01");
    let told = sqlstate.subscribe();
    let (_, bench, switch) = failed_round(config(), move |round| {
        let sql = format!("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{}'; END $$", *told.borrow());
        Box::pin(async move {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(round.connection()).await?;
            Ok(())
        })
    })
    .await;
    assert_eq!(switch.times(), 3);
    let cases = [("40001", 3), ("55P03", 3), ("23505", 1), ("57014", 1), ("P0001", 1), ("22012", 1)];
    for (code, attempts) in cases {
        sqlstate.send_replace(code);
        let before = switch.times();
        assert_eq!(bench.round().await.unwrap_err().error_type(), "handler");
        assert_eq!(switch.times() - before, attempts, "{code}");
    }
    nothing_is_left_and_the_next_round_works(&bench, &switch).await;
}

#[tokio::test]
async fn a_conflict_is_recognised_in_an_error_of_the_library() {
    let (error, _bench, switch) = failed_round(config(), |round| {
        Box::pin(async {
            let sql = "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40P01'; END $$";
            sqlx::raw_sql(sql).execute(round.connection()).await.map_err(seqline::AppendError::from)?;
            Ok(())
        })
    })
    .await;
    assert_eq!((error.error_type(), switch.times()), ("handler", 3));
}
