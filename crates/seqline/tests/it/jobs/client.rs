//! The client of an application: its types, defaults and hooks, in the transaction of the round.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use riverqueue::{BoxError, Hook, InsertContext, InsertOpts, UniqueOpts};
use seqline::clock::Clock;
use seqline::consumer::RoundError;
use seqline::job::{InvalidJob, RiverClient};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::*;
use crate::consumers::{Switch, config};
use crate::support::append;

#[derive(riverqueue::JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send", queue = "mail", max_attempts = 7)]
struct SendInvoice {
    order_id: String,
    seq: i64,
}

/// Arguments of any shape.
#[derive(Serialize, Deserialize)]
struct AnyArgs(Value);

impl riverqueue::JobArgs for AnyArgs {
    const KIND: &'static str = KIND;
}

/// Counts the jobs that the client inserts, and may refuse them.
#[derive(Clone)]
struct Counting {
    inserted: Arc<AtomicUsize>,
    refuses: Switch,
}

impl Hook for Counting {
    async fn insert_begin(&self, _: &mut InsertContext) -> Result<(), BoxError> {
        self.inserted.fetch_add(1, Ordering::SeqCst);
        if self.refuses.acts() { Err("refused".into()) } else { Ok(()) }
    }
}

fn river_client(db: &TestDb) -> RiverClient {
    RiverClient::new(client_in(SCHEMA, db.app()).build().expect("the client is built"))
}

/// A consumer that inserts a job of its own type for each event, and fails at the third while the switch is on.
fn sending(river: RiverClient, fails: &Switch) -> Consumer {
    let fails = fails.clone();
    probe(acting(move |event, round| {
        let (river, fails) = (river.clone(), event.seq == 3 && fails.acts());
        Box::pin(async move {
            let args = SendInvoice { order_id: "a-4711".to_owned(), seq: event.seq };
            river.insert(round.transaction(), event, args, InsertOpts::default()).await?;
            if fails { Err("refused".into()) } else { Ok(()) }
        })
    }))
}

#[tokio::test]
async fn typed_jobs_stand_and_fall_with_the_round() {
    let db = database().await;
    let fails = Switch::on();
    let consumer = sending(river_client(&db), &fails);
    let bench = Bench::on(db, config(), consumer).await;
    let ids = append(&bench.db.producer(), 1..=3).await;
    bench.round().await.unwrap_err();
    assert_untouched(&bench.db).await;
    fails.off();
    bench.processes(3).await;
    bench.assert_handled(3).await;
    assert_eq!(jobs(&bench.db).await, [1, 2, 3]);
    let row: Value = sqlx::query_scalar(
        "SELECT to_jsonb(j) FROM queue.river_job j WHERE metadata @> '{\"seqline:seq\": 2}'",
    )
    .fetch_one(&bench.db.admin())
    .await
    .unwrap();
    assert_eq!(row["args"], json!({"order_id": "a-4711", "seq": 2}));
    assert_eq!(
        (&row["queue"], &row["max_attempts"], &row["state"]),
        (&json!("mail"), &json!(7), &json!("available"))
    );
    assert_eq!(row["metadata"], json!({"seqline:seq": 2, "seqline:event_id": ids[1]}));
}

#[tokio::test]
async fn what_is_said_about_the_event_is_added_to_the_metadata_of_the_caller() {
    let db = database().await;
    let river = river_client(&db);
    let handler = acting(move |event, round| {
        let river = river.clone();
        Box::pin(async move {
            let own: Map<String, Value> =
                [("tenant".to_owned(), json!("example.com")), ("seqline:seq".to_owned(), json!(99))]
                    .into_iter()
                    .collect();
            let opts = InsertOpts::default().with_metadata(own).with_tags(["own"]);
            river.insert(round.transaction(), event, AnyArgs(json!({"seq": event.seq})), opts).await?;
            Ok(())
        })
    });
    let bench = Bench::on(db, config(), probe(handler)).await;
    sqlx::raw_sql(
        "SELECT seqline.append('test.happened', '{}', 'test', 'any',
             traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00')",
    )
    .execute(&bench.db.producer())
    .await
    .unwrap();
    bench.db.settled().await;
    bench.processes(1).await;
    let (metadata, tags): (Value, Vec<String>) =
        sqlx::query_as("SELECT metadata - 'seqline:event_id', tags FROM queue.river_job")
            .fetch_one(&bench.db.admin())
            .await
            .unwrap();
    let correlation_id = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736";
    let expected =
        json!({"tenant": "example.com", "seqline:seq": 1, "seqline:correlation_id": correlation_id});
    assert_eq!((metadata, tags), (expected, vec!["own".to_owned()]));
}

/// Hands these arguments to the client for an event, in a transaction that is committed, and says what came of it.
async fn insert_any(db: &TestDb, args: Value, opts: InsertOpts) -> Result<bool, JobError> {
    let event =
        seqline::read::events_after(&mut db.connect(Role::Reader).await, 0, 1).await.unwrap().remove(0);
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let inserted = river_client(db).insert(&mut tx, &event, AnyArgs(args), opts).await;
    sqlx::query("SELECT 1").execute(&mut *tx).await.expect("the transaction is usable");
    seqline::commit(tx).await.unwrap();
    inserted.map(|inserted| !inserted.unique_skipped_as_duplicate)
}

#[tokio::test]
async fn arguments_that_are_no_ids_and_numbers_are_refused_by_name() {
    const MARKER: &str = "swordfish";
    let db = database().await;
    append(&db.producer(), [1]).await;
    let wrong_type = "argument order of a job is neither a whole number nor a text: it carries ids, not data";
    let many: Map<String, Value> = (0..33).map(|n| (format!("a{n}"), json!(MARKER))).collect();
    for (args, expected) in [
        (json!({"order": {"id": MARKER}}), wrong_type),
        (json!({"order": [MARKER]}), wrong_type),
        (
            json!({"swordfish\n": true}),
            "the name of an argument must have 1 to 64 letters, digits or _, the first not a digit",
        ),
        (json!({"order": 1.5}), wrong_type),
        (json!({"order": u64::MAX}), wrong_type),
        (json!({"order": true}), wrong_type),
        (json!({"order": null}), wrong_type),
        (
            json!({"order": MARKER.repeat(20)}),
            "argument order of a job has more than 128 characters: it carries ids, not data",
        ),
        (json!({"order": ""}), "argument order of a job is empty"),
        (json!({"order": "swordfish\n"}), "argument order of a job contains a control character"),
        (
            json!({"order id": MARKER}),
            "the name of an argument must have 1 to 64 letters, digits or _, the first not a digit",
        ),
        (json!(many), "a job has at most 32 arguments: it carries ids, not data"),
        (json!([MARKER]), "the arguments of a job must be an object"),
        (json!(MARKER), "the arguments of a job must be an object"),
        (json!(null), "the arguments of a job must be an object"),
    ] {
        let error = insert_any(&db, args, InsertOpts::default()).await.expect_err(expected);
        assert!(matches!(error, JobError::Invalid(_)), "{error:?}");
        assert_eq!(error.to_string(), expected);
        assert!(!format!("{error:?}").contains(MARKER), "{error:?}");
    }
    assert_eq!(jobs(&db).await, [] as [i64; 0]);
    let error = insert_any(&db, json!({"order": true}), InsertOpts::default()).await.unwrap_err();
    assert!(matches!(error, JobError::Invalid(InvalidJob::ArgumentType(name)) if name == "order"));
}

#[tokio::test]
async fn unique_jobs_and_refusals_are_those_of_the_client() {
    let db = database().await;
    append(&db.producer(), [1]).await;
    let unique = || InsertOpts::default().with_unique(UniqueOpts::new().with_by_args(true));
    assert!(insert_any(&db, json!({"seq": 1}), unique()).await.unwrap());
    assert!(!insert_any(&db, json!({"seq": 1}), unique()).await.unwrap());
    // The sink knows it as the same job.
    let by_args = Some(seqline::job::Unique { by_args: true, ..Default::default() });
    let wanted = checked([NewJob { unique: by_args, ..new_job(1) }]);
    assert_eq!(insert(&db.app(), &river(), &wanted).await.unwrap().duplicates.len(), 1);
    let error =
        insert_any(&db, json!({"seq": 2}), InsertOpts::default().with_queue("No Queue")).await.unwrap_err();
    assert_eq!(error.to_string(), "the River client did not insert the job");
    let source = error.source().expect("what the client said").to_string();
    assert!(source.contains("invalid queue name"), "{source}");
    assert_eq!(jobs(&db).await, [1]);
}

#[tokio::test]
async fn hooks_of_the_client_run_and_can_refuse() {
    let db = database().await;
    let hook = Counting { inserted: Arc::default(), refuses: Switch::on() };
    let client = client_in(SCHEMA, db.app()).hook(hook.clone()).build().expect("the client is built");
    let never = Switch::on();
    never.off();
    let consumer = sending(RiverClient::new(client), &never);
    let bench = Bench::on(db, config(), consumer).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::Handler { seq: 1, source } = &error else { panic!("{error:?}") };
    assert!(matches!(source.downcast_ref(), Some(JobError::Client(_))), "{source:?}");
    assert_untouched(&bench.db).await;
    hook.refuses.off();
    bench.processes(3).await;
    assert_eq!((hook.inserted.load(Ordering::SeqCst), jobs(&bench.db).await), (4, vec![1, 2, 3]));
}

#[tokio::test]
async fn a_conflict_that_the_client_met_is_tried_again() {
    let db = database().await;
    // The first statement of each transaction that is not the second loses.
    as_admin(
        &db,
        "CREATE SEQUENCE times;
         GRANT ALL ON SEQUENCE times TO PUBLIC;
         CREATE FUNCTION loses_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('public.times') = 1 THEN
                 RAISE EXCEPTION 'deadlock detected' USING ERRCODE = 'deadlock_detected';
             END IF;
             RETURN NEW; END $$;
         CREATE TRIGGER loses_once BEFORE INSERT ON queue.river_job FOR EACH ROW EXECUTE FUNCTION loses_once()",
    )
    .await;
    let never = Switch::on();
    never.off();
    let list = [sending(river_client(&db), &never)];
    let consumers = consumers::consumers(db.app(), db.options(Role::App), config(), Clock::system(), list);
    consumers.ensure().await.unwrap();
    append(&db.producer(), [1]).await;
    let result = consumers.round(&consumers::name(consumers::PROBE)).await.expect("it is tried again");
    assert_eq!(result.processed, 1);
    assert_eq!(jobs(&db).await, [1]);
}

#[tokio::test]
async fn the_row_is_the_one_that_the_sink_writes() {
    let db = database().await;
    let caused = "SELECT seqline.append('test.happened', '{}', 'test', 'any',
        traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00')";
    sqlx::raw_sql(caused).execute(&db.producer()).await.unwrap();
    db.settled().await;
    let event =
        seqline::read::events_after(&mut db.connect(Role::Reader).await, 0, 1).await.unwrap().remove(0);
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let args = SendInvoice { order_id: "a<4711>".to_owned(), seq: 1 };
    river_client(&db).insert(&mut tx, &event, args, InsertOpts::default()).await.unwrap();
    let args = JobArgs::new().with("order_id", "a<4711>").with("seq", 1);
    let job = NewJob { queue: "mail".to_owned(), max_attempts: 7, ..NewJob::new(KIND, args) };
    river().insert(&mut tx, &[job.check().unwrap().of(&event)]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    let rows: Vec<Value> = sqlx::query_scalar("SELECT to_jsonb(j) - 'id' FROM queue.river_job j ORDER BY id")
        .fetch_all(&db.admin())
        .await
        .unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], rows[1]);
}
