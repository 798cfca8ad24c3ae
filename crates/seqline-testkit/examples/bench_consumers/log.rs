//! A log to consume.

use seqline::consumer::{ConsumerName, states};
use seqline::{NewEvent, Payload};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

pub(crate) const RESOURCE: &str = "17";

pub(crate) fn event() -> NewEvent {
    let payload =
        Payload::from_json(r#"{"order": 17, "customer": "Alex", "total": 12.50, "lines": [1, 2, 3]}"#);
    let payload = payload.expect("the payload is an object");
    NewEvent::builder("order.created", "order", "any")
        .resource_id(RESOURCE)
        .payload(payload)
        .build()
        .expect("it is valid")
}

/// Appends that many events, 1,000 in a transaction.
pub(crate) async fn fill(db: &TestDb, events: usize) -> anyhow::Result<()> {
    let pool = db.app_pool(1);
    let batch = vec![event(); 1_000];
    for first in (0..events).step_by(batch.len()) {
        let mut tx = seqline::begin(&pool).await?;
        seqline::append(&mut tx, &batch[..batch.len().min(events - first)]).await?;
        seqline::commit(tx).await?;
    }
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut admin).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut admin).await?;
    Ok(())
}

/// Where a consumer stands; 0 before it exists.
pub(crate) async fn cursor(connection: &mut PgConnection, name: &ConsumerName) -> anyhow::Result<i64> {
    let states = states(connection).await?;
    Ok(states.iter().find(|state| state.name == name.as_str()).map_or(0, |state| state.last_seq))
}
