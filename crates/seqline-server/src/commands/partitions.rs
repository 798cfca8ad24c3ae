//! `seqline partitions`

use seqline::maintenance::{Maintenance, MaintenanceConfig, partitions};
use seqline::{Clock, read};
use serde::Serialize;

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
}

#[derive(Serialize)]
struct Done {
    created: i32,
    closed: bool,
    dropped: i32,
    postponed: bool,
}

pub(crate) async fn run(database: &DatabaseArgs, args: PartitionsArgs) -> Result<(), Failure> {
    let pool = connect::pool(&connect::options(database)?, 1).await?;
    let done = match args.action {
        None => return list(&pool, args.json).await,
        Some(PartitionsAction::Ensure) => {
            let maintenance = Maintenance::new(pool, MaintenanceConfig::default(), Clock::system());
            let created = maintenance.ensure().await?;
            Done { created, closed: false, dropped: 0, postponed: false }
        }
        Some(PartitionsAction::Maintain(retention)) => {
            let report = Maintenance::new(pool, retention.config(), Clock::system()).run().await?;
            Done {
                created: report.created,
                closed: report.closed,
                dropped: report.dropped,
                postponed: report.postponed,
            }
        }
    };
    if args.json {
        return output::json(&done);
    }
    let closed = if done.closed { 1 } else { 0 };
    output::line(format!("{} created, {closed} closed, {} dropped", done.created, done.dropped))?;
    if done.postponed {
        eprintln!("seqline: others use the log, the rest is left to the next run");
    }
    Ok(())
}

async fn list(pool: &sqlx::PgPool, json: bool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
    let partitions = partitions(&mut connection).await?;
    let head = read::head(&mut connection).await?;
    let min_retained = read::min_retained(&mut connection).await?;
    let rows: Vec<Row> = partitions
        .into_iter()
        .map(|partition| Row {
            // The log is dense, so bounds and ends say how many.
            events: (head.min(partition.upper_bound - 1) - min_retained.max(partition.lower_bound) + 1)
                .max(0),
            name: partition.name,
            lower_bound: partition.lower_bound,
            upper_bound: partition.upper_bound,
            total_bytes: partition.total_bytes,
        })
        .collect();
    if json {
        return output::json(&rows);
    }
    let cells = rows
        .iter()
        .map(|row| {
            vec![
                row.name.clone(),
                grouped(row.lower_bound),
                grouped(row.upper_bound - 1),
                grouped(row.events),
                grouped(row.total_bytes),
            ]
        })
        .collect();
    output::table(&["partition", "first seq", "last seq", "events", "bytes"], &[1, 2, 3, 4], cells)
}
