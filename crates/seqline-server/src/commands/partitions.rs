//! `seqline partitions`

use std::collections::HashMap;
use std::time::Duration;

use seqline::maintenance::{
    HeldPartition, Holders, Maintenance, MaintenanceConfig, MaintenanceReport, partitions,
};
use seqline::{Clock, read};
use serde::Serialize;

use super::status::retention::holdings;
use crate::cli::{DatabaseArgs, PartitionsAction, PartitionsArgs};
use crate::failure::Failure;
use crate::output::grouped;
use crate::{connect, output};

#[derive(Serialize)]
struct Row {
    name: String,
    lower_bound: i64,
    upper_bound: i64,
    events: i64,
    total_bytes: i64,
    /// The first of them.
    held_by: Vec<String>,
    holders: usize,
}

#[derive(Serialize)]
struct Done {
    created: i32,
    closed: bool,
    dropped: i32,
    postponed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Held>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<Held>,
}

#[derive(Serialize)]
struct Held {
    name: String,
    beyond_retention_seconds: u64,
    /// The first of them.
    held_by: Vec<String>,
    holders: usize,
}

pub(crate) async fn run(database: &DatabaseArgs, args: PartitionsArgs) -> Result<(), Failure> {
    let pool = connect::pool(&connect::options(database)?, 1).await?;
    let report = match args.action {
        None => return list(&pool, args.json).await,
        Some(PartitionsAction::Ensure) => {
            let maintenance = Maintenance::new(pool, MaintenanceConfig::default(), Clock::system());
            MaintenanceReport { created: maintenance.ensure().await?, ..Default::default() }
        }
        Some(PartitionsAction::Maintain(retention)) => {
            Maintenance::new(pool, retention.config(), Clock::system()).run().await?
        }
    };
    if args.json {
        return output::json(&Done {
            created: report.created,
            closed: report.closed,
            dropped: report.dropped,
            postponed: report.postponed,
            held: report.held.as_ref().map(held),
            lost: report.lost.iter().map(held).collect(),
        });
    }
    let closed = if report.closed { 1 } else { 0 };
    output::line(format!("{} created, {closed} closed, {} dropped", report.created, report.dropped))?;
    for lost in &report.lost {
        eprintln!("seqline: {} was dropped, its events are lost to {}", lost.name, lost.holders);
    }
    if let Some(held) = &report.held {
        let beyond = humantime::format_duration(whole_minutes(held.beyond_retention));
        eprintln!(
            "seqline: {} stays, {beyond} beyond retention, and has not been passed by {}",
            held.name, held.holders
        );
    }
    if report.postponed {
        eprintln!("seqline: others use the log, the rest is left to the next run");
    }
    Ok(())
}

fn held(held: &HeldPartition) -> Held {
    Held {
        name: held.name.clone(),
        beyond_retention_seconds: held.beyond_retention.as_secs(),
        held_by: held.holders.named().to_vec(),
        holders: held.holders.0.len(),
    }
}

fn whole_minutes(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() / 60 * 60)
}

async fn list(pool: &sqlx::PgPool, json: bool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
    let partitions = partitions(&mut connection).await?;
    let head = read::head(&mut connection).await?;
    let min_retained = read::min_retained(&mut connection).await?;
    let mut held_by: HashMap<i64, Holders> = HashMap::new();
    for holding in holdings(&mut connection).await? {
        held_by.entry(holding.lower_bound).or_default().0.push(holding.consumer);
    }
    let rows: Vec<(Row, Holders)> = partitions
        .into_iter()
        .map(|partition| {
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
        })
        .collect();
    if json {
        return output::json(&rows.into_iter().map(|(row, _)| row).collect::<Vec<_>>());
    }
    let cells = rows
        .iter()
        .map(|(row, holders)| {
            vec![
                row.name.clone(),
                grouped(row.lower_bound),
                grouped(row.upper_bound - 1),
                grouped(row.events),
                grouped(row.total_bytes),
                holders.to_string(),
            ]
        })
        .collect();
    output::table(&["partition", "first seq", "last seq", "events", "bytes", "held by"], &[1, 2, 3, 4], cells)
}
