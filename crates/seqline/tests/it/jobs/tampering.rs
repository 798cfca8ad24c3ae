//! Handlers that tamper with the transaction of the round: no job of theirs stays.

use seqline::consumer::RoundError;

use super::*;
use crate::consumers::{PROBE, config};
use crate::support::{append, assert_nothing_staged, event, numbers};

/// A consumer whose handler runs this after the jobs of the second of three events, and what became of the round.
async fn tampers_with(sql: &'static str) -> (Bench, RoundError) {
    let handler = inserting(move |event, round| {
        let tampers = event.seq == 2;
        Box::pin(async move {
            if tampers {
                // What it says is ignored, as it should not be.
                let _ = sqlx::raw_sql(sql).execute(round.connection()).await;
            }
            Ok(())
        })
    });
    let bench = bench(config(), handler).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.expect_err(sql);
    (bench, error)
}

#[tokio::test]
async fn jobs_of_a_round_whose_handler_ended_its_transaction_do_not_stay() {
    for sql in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "COMMIT AND CHAIN"] {
        let (bench, error) = tampers_with(sql).await;
        assert!(
            matches!(error, RoundError::TransactionEnded { first_seq: 1, last_seq: 3 }),
            "{sql}: {error:?}"
        );
        assert_eq!((cursor(&bench.db, PROBE).await, jobs(&bench.db).await), (0, vec![]), "{sql}");
        bench.assert_pool_is_sound().await;
    }
}

#[tokio::test]
async fn jobs_of_a_round_with_a_failed_statement_do_not_stay() {
    let (bench, error) = tampers_with("SELECT 1 / 0").await;
    assert!(matches!(error, RoundError::TransactionFailed { first_seq: 1, .. }), "{error:?}");
    assert_untouched(&bench.db).await;
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_statement_that_failed_in_a_savepoint_takes_no_job_with_it() {
    let handler = inserting(|_, round| {
        Box::pin(async move {
            sqlx::raw_sql("SAVEPOINT s").execute(round.connection()).await?;
            sqlx::raw_sql("SELECT 1 / 0").execute(round.connection()).await.expect_err("it fails");
            sqlx::raw_sql("ROLLBACK TO s").execute(round.connection()).await?;
            Ok(())
        })
    });
    let bench = bench(config(), handler).await;
    append(&bench.db.producer(), 1..=3).await;
    bench.processes(3).await;
    assert_handled(&bench.db, 3).await;
}

#[tokio::test]
async fn a_handler_that_appends_has_no_event_no_job_and_no_cursor() {
    let handler = inserting(|_, round| {
        Box::pin(async move {
            seqline::append(round.transaction(), &[event(100)]).await?;
            Ok(())
        })
    });
    let bench = bench(config(), handler).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.unwrap_err();
    assert!(matches!(error, RoundError::Appended { first_seq: 1, last_seq: 3 }), "{error:?}");
    assert_untouched(&bench.db).await;
    assert_eq!(numbers(&mut bench.db.connect(Role::Reader).await).await, [1, 2, 3]);
    assert_nothing_staged(&mut bench.db.connect(Role::Admin).await).await;
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_handler_that_may_append_has_its_event_and_its_jobs_together() {
    let handler = inserting(|stored, round| {
        let appends = stored.seq == 1;
        Box::pin(async move {
            if appends {
                seqline::append(round.transaction(), &[event(100)]).await?;
            }
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), feeding(handler).may_append()).await;
    append(&bench.db.producer(), [1]).await;
    bench.processes(1).await;
    bench.db.settled().await;
    bench.processes(1).await;
    assert_handled(&bench.db, 2).await;
}
