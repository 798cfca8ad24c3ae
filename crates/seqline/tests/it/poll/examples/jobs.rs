//! The examples that hand jobs to River: one job for each paid order, worked by River, and one invoice, also when they are
//! killed in the middle.

use std::collections::BTreeSet;
use std::time::Duration;

use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::{PostgresMigrator, SchemaName};
use riverqueue::{Client, Job, QueueConfig, WorkOutcome, Workers};
use seqline::job::{JobArgs, JobSink, NewJob, River};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::*;

/// The program that pays orders is the example in Rust, whoever hands over the jobs.
async fn pay(db: &TestDb, orders: i64) {
    rust(db, "jobs").arg("pay").arg(orders.to_string()).succeed().await;
    db.settled().await;
}

/// A database with the schema `queue`, in which the application and those who poll may do what the examples ask for.
async fn database() -> TestDb {
    let db = TestDb::new().await;
    let make = format!(
        "CREATE SCHEMA queue AUTHORIZATION {}; GRANT USAGE ON SCHEMA queue TO {}",
        Role::App.login(),
        Role::Consumer.login()
    );
    run(&mut db.connect(Role::Admin).await, &make).await;
    db
}

async fn bring_up_river(db: &TestDb) {
    let migrator = PostgresMigrator::new(db.app()).with_schema(SchemaName::new("queue").unwrap());
    migrator.migrate_up().await.unwrap();
    let grant = format!(
        "GRANT SELECT, INSERT ON queue.river_job TO {0}; GRANT USAGE ON SEQUENCE queue.river_job_id_seq TO {0}",
        Role::Consumer.login()
    );
    run(&mut db.connect(Role::App).await, &grant).await;
}

async fn count(db: &TestDb, what: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {what}")))
        .fetch_one(&db.admin())
        .await
        .unwrap()
}

/// Makes each row of a table take its time, so that there is a middle.
async fn slow_down(db: &TestDb, table: &str) {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_sleep(0.002); RETURN NEW; END';
         CREATE TRIGGER take_time BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION take_time()"
    );
    run(&mut db.connect(Role::Admin).await, &sql).await;
}

/// Kills a program while it inserts into a table, and waits until its sessions have noticed.
async fn kill_while_it_inserts(db: &TestDb, role: Role, mut program: tokio::process::Child, table: &str) {
    let sessions = |which: &str| {
        format!(
            "pg_stat_activity WHERE datname = current_database() AND usename = '{}' {which}",
            role.login()
        )
    };
    let inserting = sessions(&format!("AND wait_event = 'PgSleep' AND query LIKE '%INSERT INTO%{table}%'"));
    eventually(DEADLINE, "an insert", async || count(db, &inserting).await > 0).await;
    program.kill().await.unwrap();
    eventually(DEADLINE, "the end of its sessions", async || count(db, &sessions("")).await == 0).await;
}

/// One job for each paid order, which names its event, and no other.
async fn assert_one_job_for_each_order(db: &TestDb) {
    let wrong: Vec<(Option<i64>, Option<i64>)> = sqlx::query_as(
        "SELECT e.seq, j.id FROM seqline.event_log e FULL JOIN queue.river_job j
             ON j.metadata @> jsonb_build_object('seqline:seq', e.seq, 'seqline:event_id', e.id)
                 AND j.args = jsonb_build_object('order_id', e.resource_id)
         WHERE e.seq IS NULL OR j.id IS NULL",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    assert_eq!(wrong, []);
    assert_eq!(count(db, "queue.river_job").await, count(db, "orders").await);
}

#[tokio::test]
async fn the_rust_example_sends_one_invoice_for_each_order_although_it_is_killed() {
    const ORDERS: i64 = 900;
    let db = database().await;
    let start = || rust(&db, "jobs").arg("work").arg("queue").start();
    let running = start();
    let listening = "pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    eventually(DEADLINE, "its tables and those of River", async || count(&db, listening).await > 0).await;
    programs::interrupt(running).await;
    slow_down(&db, "queue.river_job").await;
    slow_down(&db, "invoices").await;
    pay(&db, ORDERS).await;
    for table in ["river_job", "invoices", "river_job", "invoices"] {
        kill_while_it_inserts(&db, Role::App, start(), table).await;
    }
    assert!(count(&db, "invoices").await < ORDERS, "all was done before the last kill");
    // Half a minute later, when it is sure that nobody does what killed processes have left.
    let later =
        "UPDATE queue.river_job SET attempted_at = attempted_at - interval '30 s' WHERE state = 'running';
                 UPDATE queue.river_leader SET expires_at = now()";
    run(&mut db.connect(Role::App).await, later).await;

    let running = start();
    eventually(DEADLINE, "the end of all jobs", async || {
        count(&db, "queue.river_job WHERE state = 'completed'").await == ORDERS
    })
    .await;
    programs::interrupt(running).await;
    assert_one_job_for_each_order(&db).await;
    assert_ne!(count(&db, "queue.river_job WHERE attempt > 1").await, 0, "no job was killed");
    let invoiced = "orders JOIN invoices ON order_id = id AND invoices.customer = orders.customer
                        AND invoices.amount = orders.amount";
    assert_eq!(count(&db, invoiced).await, ORDERS);
    assert_eq!(count(&db, "invoices").await, ORDERS);
}

#[derive(riverqueue::JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send")]
struct SendInvoice {
    order_id: String,
}

/// A client of River that works nothing but what it is told of.
fn client(db: &TestDb, worked: mpsc::UnboundedSender<String>) -> Client {
    let mut workers = Workers::new();
    let work = move |_, job: Job<SendInvoice>| {
        let sent = worked.send(job.args.order_id);
        async move { sent.map(|()| WorkOutcome::Complete) }
    };
    workers.add_fn(work).unwrap();
    let queue = QueueConfig::new(10).with_fetch_poll_interval(Duration::from_secs(86_400));
    let database = PostgresDatabase::new(db.app()).with_schema(SchemaName::new("queue").unwrap());
    Client::builder(database).workers(workers).queue("mail", queue).build().unwrap()
}

#[tokio::test]
async fn a_client_of_river_works_the_jobs_of_the_python_example_and_is_woken_by_it() {
    let db = database().await;
    bring_up_river(&db).await;
    let (sender, mut worked) = mpsc::unbounded_channel();
    let mut client = client(&db, sender).start().unwrap();
    client.wait_ready().await.unwrap();
    let running = python(&db, "jobs").arg("--schema").arg("queue").start();
    for order in 1..=3 {
        pay(&db, 1).await;
        let next = tokio::time::timeout(DEADLINE, worked.recv()).await;
        assert_eq!(next.expect("a worker is woken"), Some(order.to_string()));
    }
    programs::interrupt(running).await;
    client.stop().await.unwrap();
    assert_one_job_for_each_order(&db).await;
    assert_eq!(count(&db, "queue.river_job WHERE state = 'completed'").await, 3);
}

#[tokio::test]
async fn the_python_example_hands_over_one_job_for_each_order_although_it_is_killed() {
    const ORDERS: i64 = 1_200;
    let db = database().await;
    bring_up_river(&db).await;
    let program = || python(&db, "jobs").arg("--schema").arg("queue");
    slow_down(&db, "queue.river_job").await;
    pay(&db, ORDERS).await;
    for _ in 0..3 {
        kill_while_it_inserts(&db, Role::Consumer, program().start(), "river_job").await;
    }
    assert!(count(&db, "queue.river_job").await < ORDERS, "all was handed over before the last kill");
    for _ in 0..2 {
        program().arg("--once").succeed().await;
        assert_one_job_for_each_order(&db).await;
    }
    let (sender, mut worked) = mpsc::unbounded_channel();
    let mut client = client(&db, sender).start().unwrap();
    let mut orders = BTreeSet::new();
    while (orders.len() as i64) < ORDERS {
        let next = tokio::time::timeout(DEADLINE, worked.recv()).await;
        let order = next.expect("the jobs are worked").unwrap();
        assert!(orders.insert(order), "an order was worked twice");
    }
    client.stop().await.unwrap();
    assert_eq!(count(&db, "queue.river_job WHERE state = 'completed'").await, ORDERS);
}

#[tokio::test]
async fn the_python_example_writes_the_row_that_the_sink_writes() {
    let db = database().await;
    bring_up_river(&db).await;
    pay(&db, 1).await;
    python(&db, "jobs").arg("--schema").arg("queue").arg("--once").succeed().await;

    let event = seqline::read::events_after(&mut db.connect(Role::App).await, 0, 1).await.unwrap().remove(0);
    let args = JobArgs::new().with("order_id", event.resource_id.as_deref().unwrap());
    let job = NewJob { queue: "mail".to_owned(), ..NewJob::new("invoice.send", args) }.check().unwrap();
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    River::in_schema("queue").insert(&mut tx, &[job.of(&event)]).await.unwrap();
    tx.commit().await.unwrap();

    let rows: Vec<serde_json::Value> = sqlx::query_scalar(
        "SELECT to_jsonb(j) - 'id' - 'created_at' - 'scheduled_at'
             || jsonb_build_object('waits', scheduled_at - created_at, 'args_text', args::text)
         FROM queue.river_job j ORDER BY id",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], rows[1]);
}

#[tokio::test]
async fn an_example_that_may_not_insert_jobs_says_so() {
    let db = database().await;
    let said = python(&db, "jobs").arg("--schema").arg("queue").arg("--once").fail().await;
    assert_eq!(said, "error: relation \"queue.river_job\" does not exist\n");
    let said = rust(&db, "jobs").arg("work").arg("nowhere").fail().await;
    assert!(said.contains("bring up River's tables"), "{said}");
}
