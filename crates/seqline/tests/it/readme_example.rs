//! The Rust examples of the README, as they stand there.

use std::error::Error;

use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, InvalidConsumerName, Round,
    StartAt,
};
use seqline::job::{JobArgs, NewJob, River};
use seqline::{Clock, NewEvent, Payload, StoredEvent};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

async fn pay_order(pool: &PgPool, order: i64) -> Result<(), Box<dyn Error>> {
    let mut tx = seqline::begin(pool).await?;
    sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(order).execute(&mut *tx).await?;
    let event = NewEvent::builder("order.paid", "order", "any")
        .resource_id(order.to_string())
        .payload(Payload::from_json(r#"{"amount": 1250}"#)?)
        .build()?;
    seqline::append(&mut tx, &[event]).await?;
    seqline::commit(tx).await?;
    Ok(())
}

struct Invoices;

impl Handler for Invoices {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        if event.event_type == "order.paid" {
            sqlx::query("INSERT INTO invoices (order_id) VALUES ($1::bigint)")
                .bind(&event.resource_id)
                .execute(round.connection())
                .await?;
        }
        Ok(())
    }
}

async fn work(pool: PgPool, listen: PgConnectOptions, stop: CancellationToken) -> Result<(), Box<dyn Error>> {
    let mut consumers = Consumers::new(pool, listen, ConsumerConfig::default(), Clock::system());
    let invoices = Consumer::new(ConsumerName::new("invoices")?, Invoices).start_at(StartAt::Oldest);
    consumers.register(invoices)?;
    Ok(consumers.run(stop).await?)
}

struct Invoicing;

impl Handler for Invoicing {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        if let ("order.paid", Some(order)) = (event.event_type.as_str(), &event.resource_id) {
            let args = JobArgs::new().with("order_id", order);
            round.jobs().insert(NewJob { queue: "mail".into(), ..NewJob::new("invoice.send", args) })?;
        }
        Ok(())
    }
}

fn invoicing() -> Result<Consumer, InvalidConsumerName> {
    Ok(Consumer::new(ConsumerName::new("invoicing")?, Invoicing).jobs(River::in_schema("public")))
}

/// Runs the example.
pub(super) async fn run(pool: &PgPool, order: i64) -> Result<(), Box<dyn Error>> {
    pay_order(pool, order).await
}

/// The jobs that the example makes of what is in the log.
pub(super) async fn run_invoicing(pool: PgPool, listen: PgConnectOptions) -> Result<usize, String> {
    let mut consumers = Consumers::new(pool, listen, ConsumerConfig::default(), Clock::system());
    let consumer = invoicing().map_err(|error| error.to_string())?.start_at(StartAt::Oldest);
    consumers.register(consumer).map_err(|error| error.to_string())?;
    consumers.ensure().await.map_err(|error| error.to_string())?;
    let name = ConsumerName::new("invoicing").map_err(|error| error.to_string())?;
    let round = Box::pin(consumers.round(&name)).await.map_err(|error| error.to_string())?;
    Ok(round.jobs)
}

/// Runs the worker.
pub(super) async fn run_worker(
    pool: PgPool,
    listen: PgConnectOptions,
    stop: CancellationToken,
) -> Result<(), String> {
    work(pool, listen, stop).await.map_err(|error| error.to_string())
}
