//! `seqline partitions`

use std::time::Duration;

use seqline::Clock;
use seqline::maintenance::{Maintenance, MaintenanceConfig};

use crate::cli::{DatabaseArgs, PartitionsAction, PartitionsArgs};
use crate::failure::Failure;
use crate::operate::partitions::{self, Done};
use crate::output::grouped;
use crate::{connect, output};

pub(crate) async fn run(database: &DatabaseArgs, args: PartitionsArgs) -> Result<(), Failure> {
    let pool = connect::pool(&connect::options(database)?, 1).await?;
    let report = match args.action {
        None => return list(&pool, args.json).await,
        Some(PartitionsAction::Ensure) => partitions::ensure(pool, MaintenanceConfig::default()).await?,
        Some(PartitionsAction::Maintain(retention)) => {
            Maintenance::new(pool, retention.config(), Clock::system()).run().await?
        }
    };
    if args.json {
        return output::json(&Done::of(&report));
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

fn whole_minutes(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() / 60 * 60)
}

async fn list(pool: &sqlx::PgPool, json: bool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
    let rows = partitions::list(&mut connection).await?;
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
