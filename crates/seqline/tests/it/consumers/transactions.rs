//! Handlers that tamper with the transaction of the round. It fails then: the cursor never moves without the effects.

use sqlx::Connection;

use super::*;

/// Three events, and a handler that runs a statement after the effects of the second, if there is one.
struct Tampering {
    bench: Bench,
    sql: watch::Sender<&'static str>,
}

impl Tampering {
    async fn new() -> Self {
        let sql = watch::Sender::new("");
        let told = sql.subscribe();
        let handler = acting(move |event, round| {
            let sql = *told.borrow();
            let tampers = event.seq == 2 && !sql.is_empty();
            Box::pin(async move {
                if tampers {
                    sqlx::raw_sql(sql).execute(round.connection()).await?;
                }
                Ok(())
            })
        });
        let bench = Bench::new(config(), handler).await;
        append(&bench.db.producer(), 1..=3).await;
        Self { bench, sql }
    }

    async fn with(&self, sql: &'static str) -> &Bench {
        self.bench.begin_again().await;
        self.sql.send_replace(sql);
        &self.bench
    }

    async fn assert_recovers(&self) {
        self.sql.send_replace("");
        self.bench.processes(3).await;
        assert_eq!(cursor(&self.bench.db, PROBE).await, 3);
    }
}

async fn assert_transaction_ended(bench: &Bench, what: &str) {
    let error = bench.round().await.expect_err(what);
    let RoundError::TransactionEnded { first_seq: 1, last_seq: 3 } = error else {
        panic!("{what}: {error:?}")
    };
    assert_eq!((error.error_type(), error.seq()), ("transaction_ended", Some(1)));
    assert_eq!(cursor(&bench.db, PROBE).await, 0, "{what}");
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_handler_that_rolls_back_fails_the_round() {
    let tampering = Tampering::new().await;
    for sql in ["ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN", "ABORT"] {
        let bench = tampering.with(sql).await;
        assert_transaction_ended(bench, sql).await;
        // What came after the end was committed by the handler, statement by statement, if no transaction was open.
        let open = sql != "ROLLBACK" && sql != "ABORT";
        let committed = if open { vec![] } else { twice([3]) };
        assert_eq!(effects(&bench.db).await, committed, "{sql}");
        tampering.assert_recovers().await;
    }
}

#[tokio::test]
async fn a_handler_that_commits_fails_the_round_and_the_cursor_does_not_move() {
    let tampering = Tampering::new().await;
    for sql in ["COMMIT", "COMMIT; BEGIN", "COMMIT AND CHAIN", "END; START TRANSACTION"] {
        let bench = tampering.with(sql).await;
        assert_transaction_ended(bench, sql).await;
        let committed = if sql == "COMMIT" { twice(1..=3) } else { twice(1..=2) };
        assert_eq!(effects(&bench.db).await, committed, "{sql}");
        tampering.assert_recovers().await;
    }
}

#[tokio::test]
async fn a_handler_that_commits_and_then_fails_leaves_the_pool_sound() {
    let tampering = Tampering::new().await;
    for sql in ["COMMIT; SELECT 1 / 0", "COMMIT; BEGIN; SELECT 1 / 0", "ROLLBACK; BEGIN; SELECT 1 / 0"] {
        let bench = tampering.with(sql).await;
        let error = bench.round().await.expect_err(sql);
        assert_eq!((error.error_type(), error.seq()), ("handler", Some(2)), "{sql}");
        assert_eq!(cursor(&bench.db, PROBE).await, 0, "{sql}");
        bench.assert_pool_is_sound().await;
        tampering.assert_recovers().await;
    }
}

#[tokio::test]
async fn another_worker_that_goes_on_after_a_commit_of_the_handler_is_not_taken_back() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let handler = acting(move |_, round| {
        let gate = at_gate.clone();
        Box::pin(async move {
            sqlx::raw_sql("COMMIT").execute(round.connection()).await?;
            gate.pass(1).await;
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), [1]).await;
    let pool = bench.db.app_pool(1);
    let other = consumers(pool, bench.db.options(Role::App), config(), manual().0, [probe(plain())]);
    let going_on = async {
        gate.is_reached(1).await;
        assert_eq!(other.round(&name(PROBE)).await.unwrap().processed, 1);
        append(&bench.db.producer(), [2]).await;
        assert_eq!(other.round(&name(PROBE)).await.unwrap().processed, 1);
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.round(), going_on);
    assert_eq!(result.unwrap_err().error_type(), "transaction_ended");
    assert_eq!(cursor(&bench.db, PROBE).await, 2);
}

#[tokio::test]
async fn savepoints_are_the_handlers_own_affair() {
    let tampering = Tampering::new().await;
    for sql in [
        "SAVEPOINT s; INSERT INTO effects (consumer, seq) VALUES ('kept', 2); RELEASE s",
        "SAVEPOINT s; INSERT INTO effects (consumer, seq) VALUES ('kept', 2)",
        "INSERT INTO effects (consumer, seq) VALUES ('kept', 2); SAVEPOINT s;
         INSERT INTO effects (consumer, seq) VALUES ('kept', 3); ROLLBACK TO s",
        "INSERT INTO effects (consumer, seq) VALUES ('kept', 2); SAVEPOINT s; SAVEPOINT t; RELEASE s",
    ] {
        let bench = tampering.with(sql).await;
        bench.processes(3).await;
        bench.assert_handled(3).await;
        assert_eq!(effects_of(&bench.db, "kept").await, [2], "{sql}");
        bench.assert_pool_is_sound().await;
    }
}

#[tokio::test]
async fn a_failed_statement_inside_a_savepoint_does_not_fail_the_round() {
    let handler = acting(|_, round| {
        Box::pin(async {
            let mut inner = round.connection().begin().await?;
            sqlx::query("SELECT 1 / 0").execute(&mut *inner).await.expect_err("no such number");
            inner.rollback().await?;
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), 1..=3).await;
    bench.processes(3).await;
    bench.assert_handled(3).await;
}

/// How a handler leaves a nested transaction of the driver behind.
#[derive(Debug, Clone, Copy)]
enum Nested {
    Committed,
    RolledBack,
    Dropped,
    Forgotten,
}

async fn with_nested(nested: Nested, fails: bool) -> (Bench, Result<RoundResult, RoundError>) {
    let handler = acting(move |_, round| {
        Box::pin(async move {
            let mut inner = round.transaction().begin().await?;
            sqlx::query("INSERT INTO effects (consumer, seq) VALUES ('nested', 1)")
                .execute(&mut *inner)
                .await?;
            match nested {
                Nested::Committed => inner.commit().await?,
                Nested::RolledBack => inner.rollback().await?,
                Nested::Dropped => drop(inner),
                Nested::Forgotten => std::mem::forget(inner),
            }
            if fails { Err("refused".into()) } else { Ok(()) }
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), [1]).await;
    let result = bench.round().await;
    (bench, result)
}

#[tokio::test]
async fn a_nested_transaction_ends_as_the_handler_ends_it() {
    for (nested, kept) in
        [(Nested::Committed, vec![1]), (Nested::RolledBack, vec![]), (Nested::Dropped, vec![])]
    {
        let (bench, result) = with_nested(nested, false).await;
        assert_eq!(result.unwrap().processed, 1, "{nested:?}");
        bench.assert_handled(1).await;
        assert_eq!(effects_of(&bench.db, "nested").await, kept, "{nested:?}");
        bench.assert_pool_is_sound().await;
    }
}

#[tokio::test]
async fn a_nested_transaction_that_is_never_ended_does_not_keep_the_round_from_its_commit() {
    let (bench, result) = with_nested(Nested::Forgotten, false).await;
    let open = open_transactions(&bench.db).await;
    // Either is right, as long as what the round says is what happened.
    let seq = i64::from(result.is_ok());
    assert_eq!(
        (cursor(&bench.db, PROBE).await, effects(&bench.db).await),
        (seq, twice(1..=seq)),
        "{result:?}"
    );
    assert_eq!(open, 0);
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_nested_transaction_that_is_never_ended_does_not_keep_a_failed_round_open() {
    let (bench, result) = with_nested(Nested::Forgotten, true).await;
    assert_eq!(result.unwrap_err().error_type(), "handler");
    bench.assert_untouched().await;
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_begin_that_the_handler_gives_up_does_not_split_the_round() {
    let points = watch::Sender::new(0);
    let told = points.subscribe();
    let handler = acting(move |_, round| {
        let polls = *told.borrow();
        Box::pin(async move {
            drop(dropped::at_poll(round.transaction().begin(), polls).await);
            sqlx::query("INSERT INTO effects (consumer, seq) VALUES ('after', 1)")
                .execute(round.connection())
                .await?;
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), [1]).await;
    // At each point where it can be given up.
    for polls in 0..6 {
        points.send_replace(polls);
        bench.begin_again().await;
        match bench.round().await {
            Ok(_) => {
                bench.assert_handled(1).await;
                assert_eq!(effects_of(&bench.db, "after").await, [1], "given up after {polls} polls");
            }
            Err(RoundError::TransactionEnded { .. }) => {
                bench.assert_untouched().await;
            }
            Err(error) => panic!("given up after {polls} polls: {error:?}"),
        }
        bench.assert_pool_is_sound().await;
    }
}

#[tokio::test]
async fn a_handler_that_moves_its_cursor_fails_the_round() {
    let tampering = Tampering::new().await;
    for sql in [
        "SELECT seqline.advance_consumer('probe', 0, 0, 1, pg_current_xact_id()::text, true)",
        "SELECT seqline.advance_consumer('probe', 0, 0, 3, pg_current_xact_id()::text, true)",
    ] {
        let bench = tampering.with(sql).await;
        let error = bench.round().await.unwrap_err();
        let RoundError::CursorMoved { first_seq: 1, last_seq: 3 } = error else { panic!("{error:?}") };
        assert_eq!((error.error_type(), error.seq()), ("cursor_moved", Some(1)));
        bench.assert_untouched().await;
        bench.assert_pool_is_sound().await;
        tampering.assert_recovers().await;
        bench.assert_handled(3).await;
    }
}

#[tokio::test]
async fn settings_that_a_handler_makes_for_its_transaction_end_with_it() {
    let tampering = Tampering::new().await;
    let bench = tampering.with("SET LOCAL lock_timeout = '1 ms'; SET LOCAL work_mem = '64 kB'").await;
    bench.processes(3).await;
    let setting: String =
        sqlx::query_scalar("SELECT current_setting('work_mem')").fetch_one(&bench.pool).await.unwrap();
    assert_ne!(setting, "64kB");
}
