//! Any queue that a statement can insert into.

use std::time::Duration;

use seqline::clock::Clock;
use seqline::consumer::RoundError;
use seqline::job::{SqlSink, Unique};
use serde_json::{Value, json};
use time::macros::datetime;

use super::*;
use crate::consumers::config;
use crate::support::{append, log};

/// A queue of the application: what each call was given, and a row for each job.
async fn own_queue() -> TestDb {
    let db = consumers::database().await;
    sqlx::raw_sql(
        "CREATE TABLE calls (id bigserial, jobs jsonb NOT NULL);
         CREATE TABLE own_jobs (id bigserial, kind text NOT NULL, args jsonb NOT NULL, run_at timestamptz, tags text[]);
         CREATE FUNCTION my_enqueue(jobs jsonb) RETURNS bigint LANGUAGE sql AS
             $$ INSERT INTO calls (jobs) VALUES (jobs) RETURNING id $$",
    )
    .execute(&db.app())
    .await
    .unwrap();
    db
}

/// The argument of each call.
async fn calls(db: &TestDb) -> Vec<Value> {
    sqlx::query_scalar("SELECT jobs FROM calls ORDER BY id").fetch_all(&db.admin()).await.unwrap()
}

fn enqueue() -> SqlSink {
    SqlSink::new("SELECT my_enqueue($1)")
}

#[tokio::test]
async fn the_statement_gets_a_job_with_all_and_with_no_optional_members() {
    let db = own_queue().await;
    let (clock, _hand) = Clock::manual(datetime!(2026-03-01 10:00 UTC));
    let full = NewJob {
        kind: "invoice.send".to_owned(),
        args: JobArgs::new().with("order_id", "a<\"4711\"> \u{1f4e6}").with("seq", -17),
        queue: "mail".to_owned(),
        run_at: Some(datetime!(2026-03-02 11:30:15.5 +01:00)),
        priority: 2,
        max_attempts: 3,
        unique: Some(Unique { by_args: true, by_period: Some(Duration::from_secs(60)), ..Unique::default() }),
        tags: vec!["one".to_owned(), "two".to_owned()],
    };
    let wanted = checked([full, NewJob::new("ping", JobArgs::new())]);
    let key = wanted[0].unique_key(datetime!(2026-03-01 10:00 UTC)).expect("it is unique");
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let inserted = insert(&db.app(), &enqueue().with_clock(clock), &wanted).await.unwrap();
    assert_eq!(inserted, InsertedJobs { inserted: 2, ..InsertedJobs::default() });
    let expected = json!([
        {
            "kind": "invoice.send",
            "args": {"order_id": "a<\"4711\"> \u{1f4e6}", "seq": -17},
            "queue": "mail",
            "priority": 2,
            "max_attempts": 3,
            "tags": ["one", "two"],
            "run_at": "2026-03-02T11:30:15.5+01:00",
            "unique_key": key,
            "unique_until": "deleted",
        },
        {"kind": "ping", "args": {}, "queue": "default", "priority": 1, "max_attempts": 25, "tags": []},
    ]);
    assert_eq!(calls(&db).await, [expected]);
}

#[tokio::test]
async fn a_round_is_one_call_and_says_for_which_events() {
    let bench = Bench::on(own_queue().await, config(), probe(two_jobs()).jobs(enqueue())).await;
    append(&bench.db.producer(), [1]).await;
    let caused = "SELECT seqline.append('test.happened', '{}', 'test', 'any',
        traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00')";
    sqlx::raw_sql(caused).execute(&bench.db.producer()).await.unwrap();
    bench.db.settled().await;
    assert_eq!(bench.processes(2).await.jobs, 4);
    let ids = log(&mut bench.db.connect(Role::Reader).await).await;
    let job = |seq: i64| {
        let mut job = json!({
            "kind": KIND, "args": {"seq": seq}, "queue": "default", "priority": 1, "max_attempts": 25, "tags": [],
            "seq": seq, "event_id": ids[seq as usize - 1].1,
        });
        if seq == 2 {
            job["correlation_id"] = json!("4bf92f35-77b3-4da6-a3ce-929d0e0e4736");
        }
        job
    };
    assert_eq!(calls(&bench.db).await, [json!([job(1), job(1), job(2), job(2)])]);
    bench.assert_handled(2).await;
}

#[tokio::test]
async fn a_statement_of_any_form_takes_the_jobs() {
    let db = own_queue().await;
    for statement in [
        "SELECT my_enqueue($1)",
        "SELECT my_enqueue(($1::jsonb))",
        "CALL my_procedure($1)",
        "INSERT INTO own_jobs (kind, args) SELECT kind, args FROM jsonb_to_recordset($1) AS j (kind text, args jsonb)",
        "INSERT INTO own_jobs (kind, args, run_at, tags)
             SELECT kind, args, run_at, tags
             FROM jsonb_to_recordset($1) AS j (kind text, args jsonb, run_at timestamptz, tags text[]) RETURNING id",
        "WITH jobs AS (SELECT * FROM jsonb_array_elements($1))
         INSERT INTO own_jobs (kind, args) SELECT value ->> 'kind', value -> 'args' FROM jobs",
    ] {
        as_admin(&db, "TRUNCATE calls, own_jobs; DROP PROCEDURE IF EXISTS my_procedure").await;
        let procedure = "CREATE PROCEDURE my_procedure(jobs jsonb) LANGUAGE sql AS $$ SELECT my_enqueue(jobs) $$";
        sqlx::raw_sql(procedure).execute(&db.app()).await.unwrap();
        let sink = SqlSink::new(statement);
        sink.health(&mut db.connect(Role::App).await).await.expect(statement);
        let tags = vec!["one".to_owned(), "two".to_owned()];
        let run_at = Some(datetime!(2999-01-01 0:00 UTC));
        let wanted = checked([new_job(1), NewJob { tags, run_at, ..new_job(2) }]);
        insert(&db.app(), &sink, &wanted).await.expect(statement);
        let seqs: Vec<i64> = sqlx::query_scalar(
            "SELECT (args ->> 'seq')::bigint FROM own_jobs
             UNION ALL SELECT (j -> 'args' ->> 'seq')::bigint FROM calls, jsonb_array_elements(jobs) j ORDER BY 1",
        )
        .fetch_all(&db.admin())
        .await
        .unwrap();
        assert_eq!(seqs, [1, 2], "{statement}");
    }
}

#[tokio::test]
async fn what_is_rolled_back_was_never_handed_over() {
    let db = own_queue().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    enqueue().insert(&mut tx, &checked([new_job(1)])).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(insert(&db.app(), &enqueue(), &[]).await.unwrap(), InsertedJobs::default());
    assert_eq!(calls(&db).await, [] as [Value; 0], "and nothing is handed over where there is nothing");
}

#[tokio::test]
async fn a_function_that_raises_fails_the_round() {
    let bench = Bench::on(own_queue().await, config(), probe(two_jobs()).jobs(enqueue())).await;
    as_admin(&bench.db, "ALTER TABLE calls ADD CONSTRAINT refused CHECK (jsonb_array_length(jobs) < 4)")
        .await;
    append(&bench.db.producer(), 1..=2).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::Jobs { first_seq: 1, last_seq: 2, source: JobError::Database(source) } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(source.sqlstate(), Some("23514"));
    assert_eq!(calls(&bench.db).await, [] as [Value; 0]);
    bench.assert_untouched().await;
    bench.assert_pool_is_sound().await;
    as_admin(&bench.db, "ALTER TABLE calls DROP CONSTRAINT refused").await;
    assert_eq!(bench.processes(2).await.jobs, 4);
    bench.assert_handled(2).await;
}

#[tokio::test]
async fn a_statement_that_cannot_be_run_is_found_by_its_health() {
    let db = own_queue().await;
    let mut connection = db.connect(Role::App).await;
    for (statement, expected) in [
        ("SELECT no_such_function($1)", "function no_such_function(jsonb) does not exist"),
        ("SELEC my_enqueue($1)", "syntax error at or near \"SELEC\""),
        ("SELECT my_enqueue($1, $2)", "function my_enqueue(jsonb, unknown) does not exist"),
        ("SELECT my_enqueue($1); SELECT 1", "cannot insert multiple commands into a prepared statement"),
        ("INSERT INTO no_such_table SELECT $1", "relation \"no_such_table\" does not exist"),
    ] {
        let error = SqlSink::new(statement).health(&mut connection).await.expect_err(statement);
        assert!(matches!(error, JobError::Database(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{statement}: {error}");
    }
    // One connection asks again and again, and a function can go.
    let sink = enqueue();
    sink.health(&mut connection).await.expect("the function is there");
    assert_eq!(calls(&db).await, [] as [Value; 0], "health changes nothing");
    as_admin(&db, "DROP FUNCTION my_enqueue").await;
    sink.health(&mut connection).await.expect_err("the function is gone");
}

#[tokio::test]
async fn a_statement_that_takes_no_jobs_is_found_before_they_are_lost() {
    let db = own_queue().await;
    let expected = "the statement of a sink must have one parameter, $1: the jobs";
    for statement in
        ["SELECT 1", "INSERT INTO calls (jobs) VALUES ('[]')", "SELECT my_enqueue($2)", "SELECT $1, $2"]
    {
        let sink = SqlSink::new(statement);
        let mut tx = seqline::begin(&db.app()).await.unwrap();
        let error = sink.health(&mut tx).await.expect_err(statement);
        assert_eq!(error.to_string(), expected, "{statement}");
        let error = sink.insert(&mut tx, &checked([new_job(1)])).await.expect_err(statement);
        if !statement.contains("$1") {
            assert_eq!(error.to_string(), expected, "{statement}");
            sqlx::query("SELECT 1").execute(&mut *tx).await.expect("the transaction is usable");
        }
    }
    assert_eq!(calls(&db).await, [] as [Value; 0]);
}

#[tokio::test]
async fn jobs_in_quotes_or_in_a_comment_are_none() {
    let db = own_queue().await;
    let mut connection = db.connect(Role::App).await;
    for statement in ["SELECT my_enqueue('\"$1\"')", "SELECT my_enqueue('[]') /* $1 */"] {
        let error = SqlSink::new(statement).health(&mut connection).await.expect_err(statement);
        assert!(matches!(error, JobError::Statement), "{statement}: {error:?}");
    }
    // What it takes is not known without its type.
    as_admin(&db, "CREATE FUNCTION my_enqueue(text) RETURNS int LANGUAGE sql AS 'SELECT 1'").await;
    as_admin(&db, "CREATE FUNCTION my_enqueue(date) RETURNS int LANGUAGE sql AS 'SELECT 1'").await;
    enqueue().health(&mut connection).await.expect("it is the one for jsonb");
}
