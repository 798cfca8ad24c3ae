//! Jobs are committed together with the cursor, in one statement, and say which event they are made for.

use seqline::consumer::{Consumer, Outcome};
use seqline::limits::{EVENT_JOBS_MAX, JOBS_STATEMENT_MAX};

use super::*;
use crate::consumers::{Gate, PROBE, config, name};
use crate::support::{append, log};

/// Notes each statement that inserts jobs, and where the cursor of the probe was then.
async fn note_statements(db: &TestDb) {
    as_admin(
        db,
        "CREATE TABLE statements (id bigserial, jobs bigint NOT NULL, last_seq bigint NOT NULL);
         CREATE FUNCTION note_statement() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
             INSERT INTO public.statements (jobs, last_seq) SELECT (SELECT count(*) FROM inserted), last_seq
                 FROM seqline.event_consumer_cursors WHERE name = 'probe';
             RETURN NULL; END $$;
         CREATE TRIGGER note_statement AFTER INSERT ON queue.river_job REFERENCING NEW TABLE AS inserted
             FOR EACH STATEMENT EXECUTE FUNCTION note_statement()",
    )
    .await;
}

/// How many jobs each statement inserted, and the cursor then.
async fn statements(db: &TestDb) -> Vec<(i64, i64)> {
    sqlx::query_as("SELECT jobs, last_seq FROM statements ORDER BY id").fetch_all(&db.admin()).await.unwrap()
}

#[tokio::test]
async fn a_new_consumer_makes_jobs_for_what_comes_and_not_for_what_was() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let bench = Bench::on(db, config(), Consumer::new(name(PROBE), two_jobs()).jobs(river())).await;
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    bench.consumers.ensure().await.unwrap();
    append(&bench.db.producer(), 3..=4).await;
    bench.consumers.ensure().await.unwrap();
    assert_eq!(bench.processes(2).await.jobs, 4);
    assert_eq!((cursor(&bench.db, PROBE).await, jobs(&bench.db).await), (4, twice(3..=4)));
}

#[tokio::test]
async fn jobs_and_cursor_become_visible_together() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let handler = inserting(move |event, _| {
        let (gate, seq) = (at_gate.clone(), event.seq);
        Box::pin(async move {
            gate.pass(seq).await;
            Ok(())
        })
    });
    let bench = bench(config(), handler).await;
    append(&bench.db.producer(), 1..=2).await;
    let look = async {
        gate.is_reached(1).await;
        assert_untouched(&bench.db).await;
        gate.open();
    };
    let (result, ()) = tokio::join!(bench.round(), look);
    assert_eq!(result.unwrap().jobs, 4);
    assert_handled(&bench.db, 2).await;
}

#[tokio::test]
async fn somebody_who_looks_all_the_time_never_sees_one_without_the_other() {
    let bench = bench(ConsumerConfig { batch_size: 3, ..config() }, two_jobs()).await;
    append(&bench.db.producer(), 1..=60).await;
    let working = async { while bench.round().await.unwrap().outcome == Outcome::Processed {} };
    let looking = async {
        loop {
            let (last_seq, jobs): (i64, i64) = sqlx::query_as(
                "SELECT (SELECT last_seq FROM seqline.event_consumer_cursors), (SELECT count(*) FROM queue.river_job)",
            )
            .fetch_one(&bench.db.admin())
            .await
            .unwrap();
            assert_eq!(jobs, 2 * last_seq);
        }
    };
    tokio::select! {
        () = working => {}
        () = looking => unreachable!("it looks until the work is done"),
    }
    assert_handled(&bench.db, 60).await;
}

#[tokio::test]
async fn a_round_that_finds_the_consumer_locked_inserts_nothing() {
    let bench = bench(config(), two_jobs()).await;
    append(&bench.db.producer(), 1..=3).await;
    let mut other = seqline::begin(&bench.db.admin()).await.unwrap();
    sqlx::query("SELECT FROM seqline.event_consumer_cursors FOR UPDATE").execute(&mut *other).await.unwrap();
    let result = bench.round().await.unwrap();
    assert_eq!((result.outcome, result.jobs), (Outcome::Locked, 0));
    assert_untouched(&bench.db).await;
    other.rollback().await.unwrap();
    assert_eq!(bench.processes(3).await.jobs, 6);
    assert_handled(&bench.db, 3).await;
}

#[tokio::test]
async fn the_jobs_of_a_round_are_one_statement_before_the_cursor_moves() {
    let bench = bench(ConsumerConfig { batch_size: 5, ..config() }, two_jobs()).await;
    note_statements(&bench.db).await;
    append(&bench.db.producer(), 1..=8).await;
    assert_eq!(bench.processes(5).await.jobs, 10);
    assert_eq!(bench.processes(3).await.jobs, 6);
    assert_eq!(bench.round().await.unwrap().jobs, 0);
    assert_eq!(statements(&bench.db).await, [(10, 0), (6, 5)]);
    assert_handled(&bench.db, 8).await;
}

#[tokio::test]
async fn a_round_without_jobs_asks_the_queue_nothing() {
    let bench = Bench::on(consumers::database().await, config(), feeding(consumers::plain())).await;
    append(&bench.db.producer(), 1..=3).await;
    // Nothing of River is there.
    assert_eq!(bench.processes(3).await.jobs, 0);
    bench.assert_handled(3).await;
}

#[tokio::test]
async fn a_round_with_very_many_jobs_is_several_statements() {
    let per_event = EVENT_JOBS_MAX as i64;
    let handler = acting(move |event, round| {
        let asked = (0..per_event).try_for_each(|_| round.jobs().insert(new_job(event.seq)));
        Box::pin(async move { Ok(asked?) })
    });
    let bench = bench(ConsumerConfig { batch_size: 100, ..config() }, handler).await;
    note_statements(&bench.db).await;
    append(&bench.db.producer(), 1..=12).await;
    assert_eq!(bench.processes(12).await.jobs, 12 * EVENT_JOBS_MAX);
    let first = JOBS_STATEMENT_MAX as i64;
    assert_eq!(statements(&bench.db).await, [(first, 0), (12 * per_event - first, 0)]);
    let expected: Vec<i64> = (1..=12).flat_map(|seq| vec![seq; EVENT_JOBS_MAX]).collect();
    assert!(jobs(&bench.db).await == expected, "in the order of the events");
}

#[tokio::test]
async fn a_call_with_very_many_jobs_is_several_statements() {
    let bench = bench(config(), two_jobs()).await;
    note_statements(&bench.db).await;
    let count = JOBS_STATEMENT_MAX as i64 + 1;
    let unique = Some(seqline::job::Unique { by_args: true, ..Default::default() });
    let wanted = (1..=count).chain([1, count]).map(|seq| NewJob { unique, ..new_job(seq) });
    let inserted = insert(&bench.db.app(), &river(), &checked(wanted)).await.unwrap();
    assert_eq!((inserted.inserted as i64, inserted.duplicates.len()), (count, 2));
    assert_eq!(statements(&bench.db).await, [(count - 1, 0), (1, 0)]);
    assert!(jobs(&bench.db).await == (1..=count).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_handler_may_ask_for_so_many_jobs_for_each_event() {
    let handler = acting(|event, round| {
        let asked: Vec<_> = (0..=EVENT_JOBS_MAX).map(|_| round.jobs().insert(new_job(event.seq))).collect();
        Box::pin(async move {
            let (last, before) = asked.split_last().expect("there are some");
            assert!(before.iter().all(Result::is_ok));
            assert!(matches!(last, Err(JobError::TooMany)), "{last:?}");
            let said = last.as_ref().unwrap_err().to_string();
            assert_eq!(said, "a handler inserts at most 1000 jobs for one event");
            Ok(())
        })
    });
    let bench = bench(config(), handler).await;
    append(&bench.db.producer(), 1..=2).await;
    assert_eq!(bench.processes(2).await.jobs, 2 * EVENT_JOBS_MAX);
}

#[tokio::test]
async fn a_job_that_is_refused_is_not_among_those_of_the_round() {
    let handler = acting(|event, round| {
        let refused = round.jobs().insert(NewJob { priority: 9, ..new_job(event.seq) });
        let asked = round.jobs().insert(new_job(event.seq));
        Box::pin(async move {
            let error = refused.expect_err("it breaks a rule");
            assert_eq!(error.to_string(), "the priority of a job must be from 1 to 4");
            Ok(asked?)
        })
    });
    let bench = bench(config(), handler).await;
    append(&bench.db.producer(), 1..=2).await;
    assert_eq!(bench.processes(2).await.jobs, 2);
    assert_eq!(jobs(&bench.db).await, [1, 2]);
}

#[tokio::test]
async fn a_consumer_without_a_sink_says_that_it_has_none() {
    let bench = Bench::on(database().await, config(), probe(two_jobs())).await;
    append(&bench.db.producer(), [1]).await;
    let error = bench.round().await.unwrap_err();
    let seqline::consumer::RoundError::Handler { seq: 1, source } = &error else { panic!("{error:?}") };
    assert!(matches!(source.downcast_ref(), Some(JobError::NoSink)), "{source:?}");
    assert_eq!(source.to_string(), "the consumer has no sink for jobs: declare it with Consumer::jobs");
    assert_untouched(&bench.db).await;
}

#[tokio::test]
async fn a_job_says_for_which_event_it_is_and_is_found_by_it() {
    let handler = acting(|event, round| {
        let unique = Some(seqline::job::Unique { by_args: true, ..Default::default() });
        let wanted = [new_job(event.seq), NewJob { unique, ..new_job(-event.seq) }];
        let asked = wanted.into_iter().try_for_each(|job| round.jobs().insert(job));
        Box::pin(async move { Ok(asked?) })
    });
    let bench = bench(config(), handler).await;
    let plain = append(&bench.db.producer(), [1]).await;
    let caused = "SELECT seqline.append('test.happened', '{}', 'test', 'any',
        traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00')";
    sqlx::raw_sql(caused).execute(&bench.db.producer()).await.unwrap();
    let caused = log(&mut bench.db.connect(Role::Reader).await).await[1].1;
    append(&bench.db.producer(), [3]).await;
    bench.processes(3).await;
    for (seq, expected) in [
        (1, serde_json::json!({"seqline:seq": 1, "seqline:event_id": plain[0]})),
        (
            2,
            serde_json::json!({
                           "seqline:seq": 2, "seqline:event_id": caused,
            "seqline:correlation_id": "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"
                       }),
        ),
    ] {
        let found: Vec<(i64, serde_json::Value)> = sqlx::query_as(
            "SELECT (args ->> 'seq')::bigint, metadata FROM queue.river_job
             WHERE metadata @> jsonb_build_object('seqline:seq', $1::bigint) ORDER BY id",
        )
        .bind(seq)
        .fetch_all(&bench.db.admin())
        .await
        .unwrap();
        assert_eq!(found, [(seq, expected.clone()), (-seq, expected)]);
    }
}
