//! Keeps a table of what each customer has paid, from the events of the log.
//!
//! ```console
//! $ export SEQLINE_DATABASE_URL=postgres://...
//! $ cargo run -p seqline --example projection             # follow the log until Ctrl-C
//! $ cargo run -p seqline --example projection -- --once   # handle what is there, then end
//! ```
//!
//! The login needs the role `seqline_app` and the right to create a table.

use std::time::Duration;

use anyhow::Context;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Outcome, Round, StartAt,
};
use seqline::{Clock, StoredEvent};
use serde::Deserialize;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

struct OrderTotals;

#[derive(Deserialize)]
struct OrderPaid {
    customer: String,
    amount: i64,
}

impl Handler for OrderTotals {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        if event.event_type != "order.paid" {
            return Ok(());
        }
        let order: OrderPaid = event.payload.deserialize()?;
        sqlx::query(
            "INSERT INTO order_totals AS t (customer, orders, amount) VALUES ($1, 1, $2)
             ON CONFLICT (customer) DO UPDATE SET orders = t.orders + 1, amount = t.amount + excluded.amount",
        )
        .bind(order.customer)
        .bind(order.amount)
        .execute(round.connection())
        .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `RUST_LOG=seqline=debug` shows what a handler says that fails.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let url = std::env::var("SEQLINE_DATABASE_URL").context("set SEQLINE_DATABASE_URL")?;
    let options: PgConnectOptions = url.parse()?;
    // By itself first: a pool would try for long and then say only that it did.
    PgConnection::connect_with(&options).await.context("connect")?.close().await?;
    let pool = PgPool::connect_with(options.clone()).await?;
    create_table(&pool).await?;

    let name = ConsumerName::new("order_totals")?;
    let mut consumers = Consumers::new(pool, options, ConsumerConfig::default(), Clock::system());
    // A projection of everything, so from the oldest event. A consumer that exists stays where it is.
    consumers.register(Consumer::new(name.clone(), OrderTotals).start_at(StartAt::Oldest))?;
    match std::env::args().nth(1).as_deref() {
        Some("--once") => catch_up(&consumers, &name).await,
        Some(other) => anyhow::bail!("there is no option {other}"),
        None => Ok(consumers.run(stop_on_signal()?).await?),
    }
}

async fn create_table(pool: &PgPool) -> Result<(), sqlx::Error> {
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS order_totals (
             customer text PRIMARY KEY, orders bigint NOT NULL, amount bigint NOT NULL)",
    )
    .execute(pool)
    .await
    .map(drop)
}

/// Rounds until there is nothing new.
async fn catch_up(consumers: &Consumers, name: &ConsumerName) -> anyhow::Result<()> {
    consumers.ensure().await?;
    loop {
        // Without its cause, which can hold what is in an event.
        let round = consumers.round(name).await.map_err(|error| anyhow::anyhow!("{error}"))?;
        match round.outcome {
            Outcome::Processed => {}
            // Another worker is at it, or an event is not to be tried again yet. What is left then comes to us.
            Outcome::Locked | Outcome::Waiting => Clock::system().sleep(Duration::from_millis(100)).await,
            // There is nothing new, or somebody does not want it to be handled.
            _ => return Ok(()),
        }
    }
}

/// Cancelled by Ctrl-C, or by what a supervisor sends: then no round begins, and one that runs is finished.
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
