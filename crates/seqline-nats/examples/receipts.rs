//! A service that writes a receipt for each paid order. It reads the stream, and needs nothing of the server that fills it.
//!
//! ```console
//! $ export SEQLINE_DATABASE_URL=postgres://... SEQLINE_NATS_URL=nats://127.0.0.1:4222
//! $ cargo run -p seqline-nats --example receipts
//! ```
//!
//! Start it as often as you like: the processes divide the work. The login needs the roles `seqline_consumer` and `seqline_reader`, and the right to
//! create a table.

use anyhow::Context as _;
use seqline_nats::broker::{Broker, BrokerConfig, DEFAULT_URL};
use seqline_nats::consumer::{Context, Handler, HandlerError, Runtime, StreamConsumer, StreamConsumerConfig};
use seqline_nats::stream::StreamSettings;
use seqline_nats::{Clock, Envelope};
use serde::Deserialize;
use sqlx::PgPool;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

struct Receipts;

#[derive(Deserialize)]
struct OrderPaid {
    order: i64,
    customer: String,
    amount: i64,
}

impl Handler for Receipts {
    async fn handle(&self, event: &Envelope, context: &mut Context<'_>) -> Result<(), HandlerError> {
        let order: OrderPaid = serde_json::from_str(event.payload.get())?;
        sqlx::query("INSERT INTO receipts (order_id, customer, amount) VALUES ($1, $2, $3)")
            .bind(order.order)
            .bind(order.customer)
            .bind(order.amount)
            .execute(context.connection())
            .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let database = std::env::var("SEQLINE_DATABASE_URL").context("set SEQLINE_DATABASE_URL")?;
    let url = std::env::var("SEQLINE_NATS_URL").unwrap_or_else(|_| DEFAULT_URL.to_owned());
    let pool = PgPool::connect(&database).await.context("connect")?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS receipts (order_id bigint NOT NULL, customer text NOT NULL, amount bigint NOT NULL)",
    )
    .execute(&pool)
    .await?;

    let consumer = StreamConsumer::new("receipts", Receipts)?.types(["order.paid"])?;
    let runtime = Runtime::new(
        pool,
        Broker::new(BrokerConfig::new(url)),
        StreamSettings::default(),
        consumer,
        StreamConsumerConfig::default(),
        Clock::system(),
    );
    runtime.run(stop_on_signal()?).await;
    Ok(())
}

/// Cancelled by Ctrl-C or SIGTERM. What is being handled is finished first.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminated = signal(SignalKind::terminate())?;
    let asked = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminated.recv() => {}
        }
        asked.cancel();
    });
    Ok(stop)
}
