//! The Rust example of the README, as it stands there.

use std::error::Error;

use seqline::{NewEvent, Payload};
use sqlx::PgPool;

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

/// Runs the example.
pub(super) async fn run(pool: &PgPool, order: i64) -> Result<(), Box<dyn Error>> {
    pay_order(pool, order).await
}
