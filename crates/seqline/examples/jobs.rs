//! A shop that sends an invoice for each order that is paid: from the order to the job, and from the job to the invoice.
//!
//! ```console
//! $ export SEQLINE_DATABASE_URL=postgres://...
//! $ cargo run -p seqline --example jobs -- pay 3        # three orders are paid
//! $ cargo run -p seqline --example jobs -- work         # their invoices are sent, and those to come, until Ctrl-C
//! $ cargo run -p seqline --example jobs -- work queue   # the same with River's tables in the schema queue
//! ```
//!
//! Run `work` as often as you like at the same time, and kill it: each order gets one job, and one invoice.
//!
//! The login needs the role `seqline_app` and the right to create tables, in the schema `public` and in that of River's
//! tables if it is another one, which has to exist: `CREATE SCHEMA queue AUTHORIZATION shop`.

use std::time::Duration;

use anyhow::{Context, bail};
use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::{PostgresMigrator, SchemaName};
use riverqueue::{Client, Job, MaintenanceConfig, QueueConfig, WorkOutcome, Workers};
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, StartAt,
};
use seqline::job::{JobArgs, NewJob, River};
use seqline::{Clock, NewEvent, Payload, StoredEvent};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use sqlx::types::Uuid;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// The queue of everything that sends mail.
const QUEUE: &str = "mail";

// 1. Somebody pays. The order and the event that says so are one transaction: both are there, or neither.

async fn pay(pool: &PgPool, customer: &str, amount: i64) -> anyhow::Result<i64> {
    let mut tx = seqline::begin(pool).await?;
    let order = sqlx::query_scalar("INSERT INTO orders (customer, amount) VALUES ($1, $2) RETURNING id")
        .bind(customer)
        .bind(amount)
        .fetch_one(&mut *tx)
        .await?;
    let event = NewEvent::builder("order.paid", "order", "any")
        .resource_id(format!("{order}"))
        .payload(Payload::from_json(&format!(r#"{{"amount": {amount}}}"#))?)
        .build()?;
    seqline::append(&mut tx, &[event]).await?;
    seqline::commit(tx).await?;
    Ok(order)
}

// 2. A consumer sees every event once, in order, and says what has to be done. The job becomes a row of River's tables in
//    the transaction that moves the consumer's cursor, so each event gets its job exactly once.

struct Invoices;

impl Handler for Invoices {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        if event.event_type == "order.paid" {
            let order_id = event.resource_id.as_deref().ok_or("a paid order has an id")?;
            // Ids, not data: who does the work looks up what is true then.
            let job = NewJob::new("invoice.send", JobArgs::new().with("order_id", order_id));
            round.jobs().insert(NewJob { queue: QUEUE.to_owned(), ..job })?;
        }
        Ok(())
    }
}

// 3. A worker of River does it. This time the promise is "at least once": a worker can do the work and be killed before it
//    has said so, and then another one does it again. What tells a repetition is the id of the event, which the job carries
//    in its metadata. Here it is the key of the invoice; a mail service would be given it as its idempotency key.

#[derive(riverqueue::JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send")]
struct SendInvoice {
    order_id: String,
}

async fn send_invoice(pool: PgPool, job: Job<SendInvoice>) -> anyhow::Result<WorkOutcome> {
    let event_id: Uuid =
        job.row.metadata.get("seqline:event_id")?.context("the job is not made for an event")?;
    sqlx::query(
        "INSERT INTO invoices (event_id, order_id, customer, amount)
         SELECT $1, id, customer, amount FROM orders WHERE id = $2::bigint
         ON CONFLICT (event_id) DO NOTHING",
    )
    .bind(event_id)
    .bind(job.args.order_id)
    .execute(&pool)
    .await?;
    Ok(WorkOutcome::Complete)
}

fn client(pool: PgPool, schema: SchemaName) -> anyhow::Result<Client> {
    let mut workers = Workers::new();
    let pool_of_work = pool.clone();
    workers.add_fn(move |_, job: Job<SendInvoice>| send_invoice(pool_of_work.clone(), job))?;
    // A job that is still marked as running after that time was left by a process that is gone. River waits for an hour unless
    // told otherwise. It has to be longer than a job may take.
    let maintenance = MaintenanceConfig::default()
        .with_rescue_after(Duration::from_secs(30))
        .with_rescuer_interval(Duration::from_secs(5));
    let client = Client::builder(PostgresDatabase::new(pool).with_schema(schema))
        .workers(workers)
        .queue(QUEUE, QueueConfig::new(10))
        .job_timeout(Duration::from_secs(20))
        .maintenance(maintenance)
        .build()?;
    Ok(client)
}

// 4. All of it in one program. In a larger one the consumer and the workers are often different processes: what they have in
//    common is the database.

async fn work(pool: PgPool, options: PgConnectOptions, schema: &str) -> anyhow::Result<()> {
    let river = SchemaName::new(schema)?;
    let migrator = PostgresMigrator::new(pool.clone()).with_schema(river.clone());
    migrator.migrate_up().await.context("bring up River's tables")?;

    let mut consumers = Consumers::new(pool.clone(), options, ConsumerConfig::default(), Clock::system());
    // From the oldest event, so that orders are not forgotten that were paid before the consumer existed.
    let invoices = Consumer::new(ConsumerName::new("invoice_jobs")?, Invoices).start_at(StartAt::Oldest);
    consumers.register(invoices.jobs(River::in_schema(schema)))?;

    let stop = stop_on_signal()?;
    let mut jobs = client(pool, river)?.start_with_graceful_stop(stop.clone().cancelled_owned())?;
    // Each ends when it is asked to stop. If one of them cannot go on, the program ends.
    tokio::try_join!(async { consumers.run(stop.clone()).await.context("the consumer ended") }, async {
        jobs.wait().await.context("River's client ended")
    },)?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let url = std::env::var("SEQLINE_DATABASE_URL").context("set SEQLINE_DATABASE_URL")?;
    let options: PgConnectOptions = url.parse()?;
    // By itself first: a pool would try for long and then say only that it did.
    PgConnection::connect_with(&options).await.context("connect")?.close().await?;
    let pool = PgPool::connect_with(options.clone()).await?;
    create_tables(&pool).await?;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pay", orders] => {
            for (number, customer) in (1..=orders.parse()?).zip(["Alex", "Sam", "Robin"].into_iter().cycle())
            {
                let order = pay(&pool, customer, 100 * number).await?;
                println!("order {order} of {customer} is paid");
            }
            Ok(())
        }
        ["work"] => work(pool, options, "public").await,
        ["work", schema] => work(pool, options, schema).await,
        _ => bail!("usage: jobs pay ORDERS | jobs work [SCHEMA]"),
    }
}

async fn create_tables(pool: &PgPool) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS orders (
             id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, amount bigint NOT NULL);
         CREATE TABLE IF NOT EXISTS invoices (
             event_id uuid PRIMARY KEY, order_id bigint NOT NULL, customer text NOT NULL, amount bigint NOT NULL)",
    )
    .execute(pool)
    .await
    .map(drop)
}

/// Cancelled by Ctrl-C, or by what a supervisor sends: then no round and no job begins, and those that run are finished.
fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stopped.cancel();
    });
    Ok(stop)
}
