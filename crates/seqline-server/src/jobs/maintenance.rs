//! The job that keeps the partitions of the log, and forgets keys of requests and rows of the ledger that are too old.

use std::time::Duration;

use riverqueue::{BoxError, Error, JobArgs, WorkCancelled, WorkContext};
use seqline::Clock;
use seqline::maintenance::Maintenance;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use super::ledger::{self, LedgerAge};
use super::registry::{JobOptions, MAINTENANCE_QUEUE, Registry};
use crate::api::{self, Database};
use crate::config::Config;
use crate::limits::MAINTENANCE_ATTEMPTS;

/// A run needs to be told nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JobArgs)]
#[river(kind = "sync.partition_maintenance")]
pub struct PartitionMaintenance {}

/// Once per `sync.partition_maintenance_interval` over all workers, and at the start.
pub(super) fn register(registry: &mut Registry, pool: &PgPool, config: &Config) -> Result<(), Error> {
    let options = JobOptions {
        queue: MAINTENANCE_QUEUE,
        max_attempts: MAINTENANCE_ATTEMPTS,
        interval: Some(config.sync.partition_maintenance_interval),
        run_on_start: true,
    };
    let maintenance = Maintenance::new(pool.clone(), config.maintenance(), Clock::system());
    let database = Database::new(pool.clone(), Clock::system(), config.database.statement_timeout);
    let ages = Ages { keys: config.api.idempotency_retention, ledger: LedgerAge::of(config) };
    registry.add(options, move |context, _: PartitionMaintenance| {
        run(maintenance.clone(), database.clone(), ages, context)
    })
}

/// What is forgotten when.
#[derive(Debug, Clone, Copy)]
struct Ages {
    keys: Duration,
    ledger: LedgerAge,
}

/// As text: the error itself can lead to one of the driver, which shows more.
fn told(error: impl std::error::Error) -> String {
    error.to_string()
}

async fn run(
    maintenance: Maintenance,
    database: Database,
    ages: Ages,
    context: WorkContext,
) -> Result<(), BoxError> {
    let stop = context.cancellation_token();
    let report = maintenance.run_until(stop).await.map_err(told)?;
    tracing::info!(
        created = report.created,
        closed = report.closed,
        dropped = report.dropped,
        held = report.held.is_some(),
        postponed = report.postponed,
        "partition maintenance done"
    );
    let keys = api::prune(&database, ages.keys, stop).await.map_err(told)?;
    if keys > 0 {
        tracing::info!(keys, "idempotency keys forgotten");
    }
    let handled = ledger::forget(&database, ages.ledger, stop).await.map_err(told)?;
    if handled > 0 {
        tracing::info!(events = handled, "events that were handled long ago forgotten");
    }
    // Cut short it is not finished, and goes to the next worker as it is. What others were in the way of can wait.
    if report.postponed && stop.is_cancelled() { Err(WorkCancelled.into()) } else { Ok(()) }
}
