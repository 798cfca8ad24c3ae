//! Partitions of the log: what is in each, and what keeps it.

use std::collections::HashMap;

use seqline::maintenance::{
    HeldPartition, Holders, Holding, Maintenance, MaintenanceConfig, MaintenanceReport, holders, partitions,
};
use seqline::{Clock, read};
use serde::Serialize;
use sqlx::{PgConnection, PgPool};
use utoipa::ToSchema;

use super::Refusal;
use crate::sqlstate;

/// A partition.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Partition)]
pub(crate) struct Row {
    /// Its name, as a table.
    pub(crate) name: String,
    /// The first number that it is for.
    pub(crate) lower_bound: i64,
    /// The first number that it is not for.
    pub(crate) upper_bound: i64,
    /// How many events it holds.
    pub(crate) events: i64,
    /// Its size with its indexes.
    pub(crate) total_bytes: i64,
    /// The first of the consumers that keep it.
    held_by: Vec<String>,
    /// How many keep it.
    holders: usize,
}

/// What maintenance did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MaintenanceDone)]
pub(crate) struct Done {
    /// How many partitions were created.
    created: i32,
    /// Whether one was closed.
    closed: bool,
    /// How many were dropped.
    dropped: i32,
    /// Whether something is left for the next run.
    postponed: bool,
    /// The partition that should have been dropped and was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    held: Option<Held>,
    /// Those that were dropped although consumers had not passed them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    lost: Vec<Held>,
}

/// A partition that has expired and that consumers have not passed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HeldPartition)]
struct Held {
    /// Its name.
    name: String,
    /// How long ago it expired.
    beyond_retention_seconds: u64,
    /// The first of the consumers.
    held_by: Vec<String>,
    /// How many there are.
    holders: usize,
}

impl Done {
    pub(crate) fn of(report: &MaintenanceReport) -> Self {
        Self {
            created: report.created,
            closed: report.closed,
            dropped: report.dropped,
            postponed: report.postponed,
            held: report.held.as_ref().map(Held::of),
            lost: report.lost.iter().map(Held::of).collect(),
        }
    }
}

impl Held {
    fn of(held: &HeldPartition) -> Self {
        Self {
            name: held.name.clone(),
            beyond_retention_seconds: held.beyond_retention.as_secs(),
            held_by: held.holders.named().to_vec(),
            holders: held.holders.0.len(),
        }
    }
}

/// All of them, and who keeps each.
pub(crate) async fn list(connection: &mut PgConnection) -> Result<Vec<(Row, Holders)>, Refusal> {
    let partitions = partitions(connection).await?;
    let head = read::head(connection).await?;
    let min_retained = read::min_retained(connection).await?;
    let mut held_by: HashMap<i64, Holders> = HashMap::new();
    for holding in holdings(connection).await? {
        held_by.entry(holding.lower_bound).or_default().0.push(holding.consumer);
    }
    let rows = partitions.into_iter().map(|partition| {
        let holders = held_by.remove(&partition.lower_bound).unwrap_or_default();
        let row = Row {
            // The log is dense, so bounds and ends say how many.
            events: (head.min(partition.upper_bound - 1) - min_retained.max(partition.lower_bound) + 1)
                .max(0),
            name: partition.name,
            lower_bound: partition.lower_bound,
            upper_bound: partition.upper_bound,
            total_bytes: partition.total_bytes,
            held_by: holders.named().to_vec(),
            holders: holders.0.len(),
        };
        (row, holders)
    });
    Ok(rows.collect())
}

/// Who keeps what. Nothing where that cannot be seen: as a role that only reads, and in an older schema, in which retention does not
/// wait.
pub(crate) async fn holdings(connection: &mut PgConnection) -> Result<Vec<Holding>, Refusal> {
    match holders(connection).await {
        Ok(holdings) => Ok(holdings),
        Err(error) => match error.sqlstate() {
            Some(sqlstate::INSUFFICIENT_PRIVILEGE | sqlstate::UNDEFINED_FUNCTION) => Ok(Vec::new()),
            _ => Err(error.into()),
        },
    }
}

/// Creates those that are missing ahead of the head.
pub(crate) async fn ensure(pool: PgPool, config: MaintenanceConfig) -> Result<MaintenanceReport, Refusal> {
    let maintenance = Maintenance::new(pool, config, Clock::system());
    Ok(MaintenanceReport { created: maintenance.ensure().await?, ..Default::default() })
}
