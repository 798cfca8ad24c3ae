//! Bookings that are paid, and their receipts: see docs/guide/learn/rust.md.

use anyhow::{Context, bail};
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Filter, Handler, HandlerError, Round, StartAt,
};
use seqline::{Clock, NewEvent, Payload, StoredEvent};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS bookings (id text PRIMARY KEY, amount bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS receipts (booking_id text PRIMARY KEY, amount bigint NOT NULL)";

/// The booking and its event, in one transaction: both, or neither.
async fn pay(pool: &PgPool, booking: &str, amount: i64) -> anyhow::Result<()> {
    let mut tx = seqline::begin(pool).await?;
    sqlx::query("INSERT INTO bookings VALUES ($1, $2)").bind(booking).bind(amount).execute(&mut *tx).await?;
    let event = NewEvent::builder("booking.paid", "booking", "any")
        .resource_id(booking)
        .payload(Payload::from_json(&format!(r#"{{"amount": {amount}}}"#))?)
        .build()?;
    seqline::append(&mut tx, &[event]).await?;
    seqline::commit(tx).await?;
    println!("booking {booking} is paid");
    Ok(())
}

struct Receipts;

impl Handler for Receipts {
    /// Writes through the transaction that also moves the consumer's cursor: each event has its effect exactly once.
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO receipts SELECT id, amount FROM bookings WHERE id = $1")
            .bind(&event.resource_id)
            .execute(round.connection())
            .await?;
        println!("receipt for booking {}", event.resource_id.as_deref().unwrap_or_default());
        Ok(())
    }
}

async fn work(pool: PgPool, listen: PgConnectOptions) -> anyhow::Result<()> {
    let mut consumers = Consumers::new(pool, listen, ConsumerConfig::default(), Clock::system());
    let paid = Filter::everything().types(["booking.paid"]);
    let receipts = Consumer::new(ConsumerName::new("receipts")?, Receipts);
    consumers.register(receipts.start_at(StartAt::Oldest).filter(paid)?)?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stopped.cancel();
    });
    Ok(consumers.run(stop).await?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("SEQLINE_DATABASE_URL").context("set SEQLINE_DATABASE_URL")?;
    let options: PgConnectOptions = url.parse()?;
    let pool = PgPool::connect_with(options.clone()).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pay", booking, amount] => pay(&pool, booking, amount.parse()?).await,
        ["work"] => work(pool, options).await,
        _ => bail!("say pay BOOKING AMOUNT, or work"),
    }
}
