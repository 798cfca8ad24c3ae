//! The rows are those that River's own client writes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use riverqueue::jiff::Timestamp;
use riverqueue::{InsertOpts, JobState, UniqueOpts};
use seqline::job::{Unique, UniqueUntil};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;

use super::*;

/// Arguments of any shape, for the client.
#[derive(Serialize, Deserialize)]
struct AnyArgs(BTreeMap<String, Value>);

impl riverqueue::JobArgs for AnyArgs {
    const KIND: &'static str = KIND;
}

/// Random jobs, the same in every run.
fn random_jobs(count: usize) -> Vec<NewJob> {
    const YEAR: i64 = 365 * 24 * 3_600;
    let odd = prop::sample::select(vec!['<', '>', '&', '"', '\'', '\\', ',', '{', '\u{2028}', '\u{1f600}']);
    let usual = any::<char>().prop_filter("ids have none", |c| !c.is_control());
    let id = prop::collection::vec(prop_oneof![odd, usual], 1..8).prop_map(String::from_iter);
    let value = prop_oneof![any::<i64>().prop_map(Value::from), id.prop_map(Value::from)];
    let run_at = (-30 * YEAR..300 * YEAR, 0_i32..1_000_000_000).prop_map(|(seconds, nanoseconds)| {
        let begin = OffsetDateTime::from_unix_timestamp(2_000_000_000).expect("the time is valid");
        begin + time::Duration::new(seconds, nanoseconds)
    });
    let period = prop::sample::select(vec![36 * 3_600_u64, 7 * 24 * 3_600, 100 * YEAR.unsigned_abs()]);
    let until = prop::sample::select(vec![UniqueUntil::Deleted, UniqueUntil::Completed]);
    let unique = (any::<bool>(), any::<bool>(), prop::option::of(period), until).prop_map(
        |(by_args, by_queue, period, until)| Unique {
            by_args,
            by_queue,
            by_period: period.map(std::time::Duration::from_secs),
            until,
        },
    );
    let job = (
        prop::collection::btree_map("[a-zA-Z_][a-zA-Z0-9_]{0,5}", value, 0..5),
        "[a-z0-9]{1,3}([_|-][a-z0-9]{1,2}){0,2}",
        prop::option::of(run_at),
        (1_i16..=4, 1..=i16::MAX),
        prop::option::of(unique),
        prop::collection::vec("[A-Za-z0-9_][A-Za-z0-9_-]{1,9}[A-Za-z0-9_]", 0..4),
    );
    let job = job.prop_map(|(members, queue, run_at, (priority, max_attempts), unique, tags)| {
        let args = members.into_iter().fold(JobArgs::new(), |args, (name, value)| match value {
            Value::Number(number) => args.with(name, number.as_i64().expect("it is one")),
            value => args.with(name, value.as_str().expect("it is a text")),
        });
        NewJob { queue, run_at, priority, max_attempts, unique, tags, ..NewJob::new(KIND, args) }
    });
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| job.new_tree(&mut runner).expect("there are such jobs").current()).collect()
}

/// The same for the client.
fn in_terms_of_the_client(job: &NewJob) -> (AnyArgs, InsertOpts) {
    let mut opts = InsertOpts::default()
        .with_queue(&job.queue)
        .with_priority(job.priority)
        .with_max_attempts(job.max_attempts.into())
        .with_tags(&job.tags);
    if let Some(at) = job.run_at {
        let nanoseconds = at.unix_timestamp_nanos();
        opts = opts.with_scheduled_at(Timestamp::from_nanosecond(nanoseconds).expect("River has this time"));
    }
    if let Some(Unique { by_args, by_queue, by_period, until }) = job.unique {
        let done = |state: &JobState| *state != JobState::Completed || until == UniqueUntil::Deleted;
        let mut unique = UniqueOpts::new()
            .with_by_args(by_args)
            .with_by_queue(by_queue)
            .with_by_state(JobState::UNIQUE_DEFAULT.iter().copied().filter(done));
        if let Some(period) = by_period {
            unique = unique.with_by_period(period);
        }
        opts = opts.with_unique(unique);
    }
    let args = serde_json::to_value(&job.args).and_then(serde_json::from_value).expect("they are an object");
    (AnyArgs(args), opts)
}

/// Everything of each row but when it was inserted.
async fn rows(db: &TestDb, schema: &str) -> Vec<Value> {
    let sql = format!(
        "SELECT to_jsonb(j) - 'created_at' - 'scheduled_at'
             || jsonb_build_object('waits', nullif(scheduled_at, created_at), 'args_text', args::text)
         FROM {schema}.river_job j ORDER BY id",
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&db.admin()).await.expect("the jobs can be read")
}

#[tokio::test]
async fn the_rows_are_those_that_the_client_writes() {
    let db = database().await;
    bring_up(&db, "reference", None).await;
    let pool = db.app();
    let client = client_in("reference", pool.clone()).build().expect("the client is built");
    let (mut inserted, mut left_out) = (0, 0);
    for job in random_jobs(400) {
        let (args, opts) = in_terms_of_the_client(&job);
        let by_client = client.insert(args).opts(opts).await.expect("the client inserts");
        let shown = format!("{job:?}");
        let by_sink = insert(&pool, &river(), &checked([job])).await.expect("the sink inserts");
        assert_eq!(by_sink.inserted == 0, by_client.unique_skipped_as_duplicate, "{shown}");
        inserted += by_sink.inserted;
        left_out += by_sink.duplicates.len();
        for duplicate in by_sink.duplicates {
            assert_eq!((duplicate.index, duplicate.existing), (0, by_client.job.id()), "{shown}");
        }
    }
    assert!(inserted > 100 && left_out > 20, "{inserted} inserted, {left_out} left out");
    let (own, expected) = (rows(&db, SCHEMA).await, rows(&db, "reference").await);
    assert_eq!((own.len(), expected.len()), (inserted, inserted));
    for (own, expected) in own.into_iter().zip(expected) {
        assert_eq!(own, expected);
    }
}

#[tokio::test]
async fn jobs_of_one_call_are_the_rows_that_the_client_writes_one_by_one() {
    let db = database().await;
    bring_up(&db, "reference", None).await;
    let pool = db.app();
    let client = client_in("reference", pool.clone()).build().expect("the client is built");
    let jobs: Vec<NewJob> = random_jobs(300).into_iter().map(|job| NewJob { unique: None, ..job }).collect();
    for job in &jobs {
        let (args, opts) = in_terms_of_the_client(job);
        client.insert(args).opts(opts).await.expect("the client inserts");
    }
    let inserted = insert(&pool, &river(), &checked(jobs)).await.expect("the sink inserts");
    assert_eq!(inserted, InsertedJobs { inserted: 300, ..InsertedJobs::default() });
    assert_eq!(rows(&db, SCHEMA).await, rows(&db, "reference").await, "in this order");
}
