//! River's own client works the jobs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use riverqueue::{Job as RiverJob, MaintenanceConfig, QueueConfig, WorkContext, WorkOutcome, Workers};
use seqline::clock::Clock;
use seqline_testkit::eventually;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::*;
use crate::consumers::DEADLINE;

#[derive(riverqueue::JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send")]
struct SendInvoice {
    order_id: String,
    seq: i64,
}

fn invoice(seq: i64) -> NewJob {
    let order_id = format!("order <{seq}> & \u{1f4e6} \u{2028} \"\\");
    NewJob::new(KIND, JobArgs::new().with("seq", seq).with("order_id", order_id))
}

#[tokio::test]
async fn a_thousand_jobs_of_one_call_are_worked_once_each() {
    let db = database().await;
    let now = Clock::system().now();
    let jobs = (0..1_000).map(|seq| NewJob {
        queue: if seq % 3 == 0 { "mail" } else { "print" }.to_owned(),
        priority: 1 + (seq % 4) as i16,
        tags: vec![format!("tag-{seq}")],
        // The scheduler makes them available that are due; this one is not.
        run_at: (seq % 100 == 0)
            .then(|| now + if seq == 0 { time::Duration::HOUR } else { time::Duration::SECOND }),
        ..invoice(seq)
    });
    let inserted = insert(&db.app(), &river(), &checked(jobs)).await.expect("the jobs are inserted");
    assert_eq!(inserted.inserted, 1_000);

    let worked: Arc<Mutex<BTreeMap<i64, Vec<i64>>>> = Arc::default();
    let notes = worked.clone();
    let mut workers = Workers::new();
    let work = move |_: WorkContext, job: RiverJob<SendInvoice>| {
        let expected = invoice(job.args.seq).args.to_json();
        let seen =
            JobArgs::new().with("seq", job.args.seq).with("order_id", job.args.order_id.clone()).to_json();
        assert_eq!(seen, expected);
        notes.lock().unwrap().entry(job.id()).or_default().push(job.args.seq);
        async { Ok::<_, Infallible>(WorkOutcome::Complete) }
    };
    workers.add_fn(work).expect("the kind is valid");
    let quick = Duration::from_millis(20);
    let config = QueueConfig::new(100).with_fetch_poll_interval(10 * quick).with_fetch_cooldown(quick);
    let client = client_in(SCHEMA, db.app_pool(10))
        .workers(workers)
        .queue("mail", config.clone())
        .queue("print", config)
        .maintenance(MaintenanceConfig::default().with_scheduler_interval(10 * quick))
        .build()
        .expect("the client is built");
    let mut run = client.start().expect("the client starts");
    let states = async || -> Vec<(String, i64)> {
        sqlx::query_as("SELECT state::text, count(*) FROM queue.river_job GROUP BY 1 ORDER BY 1")
            .fetch_all(&db.admin())
            .await
            .unwrap()
    };
    let expected = [("completed".to_owned(), 999), ("scheduled".to_owned(), 1)];
    eventually(DEADLINE, "the end of the work", async || states().await == expected).await;
    run.stop().await.expect("the client stops");

    let worked = worked.lock().unwrap();
    assert_eq!(worked.len(), 999);
    assert!(worked.values().all(|seqs| seqs.len() == 1), "{worked:?}");
    let seqs: Vec<i64> = worked.values().map(|seqs| seqs[0]).collect();
    assert_eq!(seqs, (1..1_000).collect::<Vec<_>>(), "ids follow the order of insertion");
}

#[tokio::test]
async fn a_worker_that_waits_begins_at_once_when_a_job_is_committed() {
    const POLL: Duration = Duration::from_secs(3_600);
    let db = database().await;
    let (sender, mut begun) = mpsc::unbounded_channel();
    let mut workers = Workers::new();
    let work = move |_: WorkContext, job: RiverJob<SendInvoice>| {
        sender.send((job.args.seq, Clock::system().now())).expect("the test waits");
        async { Ok::<_, Infallible>(WorkOutcome::Complete) }
    };
    workers.add_fn(work).expect("the kind is valid");
    let config =
        QueueConfig::new(5).with_fetch_poll_interval(POLL).with_fetch_cooldown(Duration::from_millis(1));
    let client = client_in(SCHEMA, db.app_pool(5)).workers(workers).queue("default", config);
    let mut run = client.build().expect("the client is built").start().expect("the client starts");
    run.wait_ready().await.expect("the client listens");
    // It looks when it starts. This one tells that it waits now, whether by that look or by the notification.
    let (sink, pool) = (river(), db.app());
    insert(&pool, &sink, &checked([invoice(0)])).await.expect("the job is inserted");
    tokio::time::timeout(DEADLINE, begun.recv()).await.expect("the worker is there");

    let mut waits = Vec::new();
    for seq in 1..=11 {
        let mut tx = seqline::begin(&pool).await.unwrap();
        sink.insert(&mut tx, &checked([invoice(seq)])).await.expect("the job is inserted");
        assert!(begun.try_recv().is_err(), "nobody knows before the commit");
        let committing = Clock::system().now();
        seqline::commit(tx).await.unwrap();
        let begun = tokio::time::timeout(DEADLINE, begun.recv()).await.expect("long before the poll");
        let (worked, at) = begun.expect("the worker is there");
        assert_eq!(worked, seq);
        waits.push(at - committing);
    }
    waits.sort();
    assert!(waits[5] < Duration::from_millis(100), "{waits:?}");
    run.stop().await.expect("the client stops");
}
