//! Reads the figures that come from the database, again and again.

use std::time::Duration;

use riverqueue::migrate::SchemaName;
use seqline::Clock;
use time::PrimitiveDateTime;
use tokio_util::sync::CancellationToken;

use super::points::{Retention, points};
use super::{Metrics, facts};
use crate::connect::OwnConnection;

/// How to read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) interval: Duration,
    /// How long one may take.
    pub(crate) limit: Duration,
    pub(crate) retention: Retention,
    pub(crate) jobs_schema: SchemaName,
}

/// Reads until `stop` is cancelled. What cannot be read is not shown, and the data path does not notice.
pub(crate) async fn run(
    mut database: OwnConnection,
    metrics: Metrics,
    reading: Reading,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut failure_said = false;
    loop {
        let retention = reading.retention.retention.try_into().unwrap_or(time::Duration::MAX);
        let expired_before =
            clock.now().checked_sub(retention).unwrap_or(PrimitiveDateTime::MIN.assume_utc());
        let question = async |connection: &mut sqlx::PgConnection| {
            facts::read(connection, &reading.jobs_schema, expired_before).await
        };
        let read = tokio::select! {
            read = clock.timeout(reading.limit, database.read(question)) => read,
            () = stop.cancelled() => return,
        };
        match read {
            Some(Ok(facts)) => {
                failure_said = false;
                metrics.latest.set(Some(points(&facts, reading.retention, clock.now())));
                if facts.database.follows {
                    database.forget();
                }
            }
            failed => {
                metrics.latest.set(None);
                // That the database is away is said by those who work with it; what is wrong with these reads alone is said here.
                if let Some(Err(error)) = failed
                    && !error.is_retryable()
                    && !std::mem::replace(&mut failure_said, true)
                {
                    tracing::warn!(error = %error, "metrics of the database cannot be read");
                }
            }
        }
        tokio::select! {
            () = clock.sleep(reading.interval) => {}
            () = stop.cancelled() => return,
        }
    }
}
