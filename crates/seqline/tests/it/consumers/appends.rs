//! Handlers that append: only where their consumer was declared to.

use super::*;
use crate::support::{assert_nothing_staged, event, numbers};

/// A handler that appends an event with the payload number 100 + seq for each of the first `events`.
fn appending(events: i64, switch: &Switch) -> impl Handler + use<> {
    let switch = switch.clone();
    acting(move |stored, round| {
        let (n, appends) = (100 + stored.seq, stored.seq <= events && switch.acts());
        Box::pin(async move {
            if appends {
                seqline::append(round.transaction(), &[event(n)]).await?;
            }
            Ok(())
        })
    })
}

async fn log_numbers(db: &TestDb) -> Vec<i64> {
    numbers(&mut db.connect(Role::Reader).await).await
}

#[tokio::test]
async fn a_handler_that_appends_fails_the_round_and_nothing_is_appended() {
    for last in [1, 3] {
        let switch = Switch::on();
        let bench = Bench::new(config(), appending(last, &switch)).await;
        append(&bench.db.producer(), 1..=3).await;
        let error = bench.round().await.unwrap_err();
        let RoundError::Appended { first_seq: 1, last_seq: 3 } = error else { panic!("{error:?}") };
        assert_eq!((error.error_type(), error.seq()), ("appended", Some(1)));
        bench.assert_untouched().await;
        assert_eq!(log_numbers(&bench.db).await, [1, 2, 3]);
        assert_nothing_staged(&mut bench.db.connect(Role::Admin).await).await;
        bench.assert_pool_is_sound().await;
        switch.off();
        bench.processes(3).await;
        bench.assert_handled(3).await;
    }
}

#[tokio::test]
async fn appends_in_plain_sql_are_found_too() {
    let statement = watch::Sender::new("");
    let told = statement.subscribe();
    let handler = acting(move |_, round| {
        let sql = *told.borrow();
        Box::pin(async move {
            sqlx::raw_sql(sql).execute(round.connection()).await?;
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), [1]).await;
    for sql in [
        "SELECT seqline.append('test.happened', '{}', 'test', 'any')",
        "SAVEPOINT s; SELECT seqline.append('test.happened', '{}', 'test', 'any'); RELEASE s",
        "SELECT seqline.append('test.happened', '{}', 'test', 'any'); SET CONSTRAINTS ALL IMMEDIATE",
        "DO $$ BEGIN PERFORM seqline.append('test.happened', '{}', 'test', 'any'); EXCEPTION WHEN others THEN NULL; END $$",
    ] {
        statement.send_replace(sql);
        let error = bench.round().await.expect_err(sql);
        assert_eq!(error.error_type(), "appended", "{sql}: {error:?}");
        bench.assert_untouched().await;
        assert_eq!(log_numbers(&bench.db).await, [1], "{sql}");
    }
}

#[tokio::test]
async fn an_append_that_was_taken_back_is_none() {
    let handler = acting(|_, round| {
        Box::pin(async {
            let sql =
                "SAVEPOINT s; SELECT seqline.append('test.happened', '{}', 'test', 'any'); ROLLBACK TO s";
            sqlx::raw_sql(sql).execute(round.connection()).await?;
            Ok(())
        })
    });
    let bench = Bench::new(config(), handler).await;
    append(&bench.db.producer(), 1..=2).await;
    bench.processes(2).await;
    bench.assert_handled(2).await;
    assert_eq!(log_numbers(&bench.db).await, [1, 2]);
}

#[tokio::test]
async fn an_append_of_somebody_else_meanwhile_is_none() {
    let gate = Gate::closed();
    let bench = Bench::new(config(), gate.handler()).await;
    append(&bench.db.producer(), [1]).await;
    let mut staged = seqline::begin(&bench.db.producer()).await.unwrap();
    seqline::append(&mut staged, &[event(2)]).await.unwrap();
    let opening = async {
        gate.is_reached(1).await;
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.round(), opening);
    assert_eq!(result.unwrap().processed, 1);
    seqline::commit(staged).await.unwrap();
    bench.db.settled().await;
    bench.processes(1).await;
    bench.assert_handled(2).await;
}

#[tokio::test]
async fn a_consumer_that_may_append_appends_handles_and_moves_in_one_transaction() {
    let switch = Switch::on();
    let gate = Gate::closed();
    let (acts, at_gate) = (switch.clone(), gate.clone());
    let handler = acting(move |stored, round| {
        let (n, appends, gate) = (100 + stored.seq, stored.seq <= 2 && acts.acts(), at_gate.clone());
        Box::pin(async move {
            if appends {
                seqline::append(round.transaction(), &[event(n)]).await?;
                gate.pass(stored.seq).await;
            }
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), probe(handler).may_append()).await;
    append(&bench.db.producer(), 1..=2).await;
    let looking = async {
        gate.is_reached(1).await;
        bench.assert_untouched().await;
        assert_eq!(log_numbers(&bench.db).await, [1, 2]);
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.round(), looking);
    assert_eq!(result.unwrap().processed, 2);
    bench.assert_handled(2).await;
    assert_eq!(log_numbers(&bench.db).await, [1, 2, 101, 102]);
    // Its own events come to it like all others.
    bench.processes(2).await;
    bench.assert_handled(4).await;
    assert_nothing_staged(&mut bench.db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_consumer_that_may_append_and_fails_has_appended_nothing() {
    let switch = Switch::on();
    let acts = switch.clone();
    let handler = acting(move |stored, round| {
        let (n, seq, fails) = (100 + stored.seq, stored.seq, stored.seq == 2 && acts.acts());
        Box::pin(async move {
            if seq <= 2 {
                seqline::append(round.transaction(), &[event(n)]).await?;
            }
            if fails { Err("refused".into()) } else { Ok(()) }
        })
    });
    let bench = Bench::on(database().await, config(), probe(handler).may_append()).await;
    append(&bench.db.producer(), 1..=2).await;
    assert_eq!(bench.round().await.unwrap_err().error_type(), "handler");
    bench.assert_untouched().await;
    assert_eq!(log_numbers(&bench.db).await, [1, 2]);
    switch.off();
    bench.processes(2).await;
    assert_eq!(log_numbers(&bench.db).await, [1, 2, 101, 102]);
}

#[tokio::test]
async fn a_consumer_that_may_append_and_finds_no_partition_handles_nothing() {
    let db = TestDb::at_commit().await;
    make_effects(&db).await;
    crate::partitions::small_partitions(&db, 3, 1).await;
    let switch = Switch::on();
    let bench = Bench::on(db, config(), probe(appending(3, &switch)).may_append()).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.unwrap_err();
    assert!(matches!(error, RoundError::Commit(seqline::CommitError::NoPartition { .. })), "{error:?}");
    bench.assert_untouched().await;
    bench.assert_pool_is_sound().await;
    crate::partitions::ensure(&bench.db.app()).await;
    bench.processes(3).await;
    bench.assert_handled(3).await;
}
