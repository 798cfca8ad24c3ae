//! `seqline status`

pub(super) mod consumers;
mod jobs;
mod numbering;
mod relays;
mod retention;

use seqline::Clock;
use seqline::settings::Sequencing;
use seqline::status::LogStatus;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::configuration;
use crate::cli::{DatabaseArgs, StatusArgs};
use crate::failure::Failure;
use crate::operate::consumers::Row;
use crate::output::{grouped, rfc3339};
use crate::{connect, output};

#[derive(Serialize)]
struct Report<'a> {
    server_version: String,
    schema_version: i32,
    log_id: Uuid,
    epoch: Uuid,
    head: i64,
    min_retained: i64,
    retained: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    newest_at: Option<String>,
    partitions: usize,
    headroom: i64,
    total_bytes: i64,
    numbering: numbering::Numbering,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumers: Option<Vec<Row>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<jobs::Counts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held: Vec<retention::Keeper>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    relays: Vec<super::relay::Row<'a>>,
}

pub(crate) async fn run(database: &DatabaseArgs, args: StatusArgs) -> Result<(), Failure> {
    let config = configuration(&args.config)?;
    let mut connection = connect::connect_to_log(&connect::options(database)?).await?;
    let status = seqline::status::status(&mut connection).await?;
    let consumers = consumers::consumers(&mut connection).await?;
    let jobs = jobs::jobs(&mut connection, config.jobs.schema).await?;
    let now = Clock::system().now();
    let keepers = retention::keepers(&mut connection, config.sync.event_retention, now).await?;
    let relays = relays::relays(&mut connection).await?;
    let known = seqline::migrate::newest_version();
    let retained = status.retained();
    if args.json {
        output::json(&Report {
            retained,
            server_version: status.server_version.clone(),
            schema_version: status.schema_version,
            log_id: status.log_id,
            epoch: status.epoch,
            head: status.head,
            min_retained: status.min_retained,
            oldest_at: status.oldest_at.map(rfc3339),
            newest_at: status.newest_at.map(rfc3339),
            partitions: status.partitions,
            headroom: status.headroom,
            total_bytes: status.total_bytes,
            numbering: numbering::numbering(&status.settings, &status.staged, now),
            consumers: consumers.map(|consumers| Row::all(consumers, now)),
            jobs: jobs.counts(),
            held: keepers,
            relays: relays.iter().map(super::relay::Row::of).collect(),
        })?;
        return appends_work(&status);
    }
    let at = |at: Option<OffsetDateTime>| at.map_or_else(String::new, |at| format!(" ({})", rfc3339(at)));
    let schema = match status.schema_version {
        version if version < known => {
            format!("version {version}, this program knows {known}: run seqline migrate")
        }
        version => format!("version {version}"),
    };
    for (name, value) in [
        ("PostgreSQL", status.server_version.clone()),
        ("schema", schema),
        ("log", format!("{} (epoch {})", status.log_id, status.epoch)),
        ("head", format!("{}{}", grouped(status.head), at(status.newest_at))),
        ("min retained", format!("{}{}", grouped(status.min_retained), at(status.oldest_at))),
        ("events", grouped(retained)),
        ("partitions", format!("{}, room for {} more events", status.partitions, grouped(status.headroom))),
        ("size", format!("{} bytes", grouped(status.total_bytes))),
    ] {
        output::line(format!("{name:<14}{value}"))?;
    }
    numbering::print(&status.settings, &status.staged, now)?;
    output::line(format!("{:<14}{}", "jobs", jobs.text()))?;
    retention::print(&keepers)?;
    relays::print(&relays, now)?;
    consumers::print(&consumers.unwrap_or_default(), now)?;
    appends_work(&status)
}

/// Fails when they do not, so that whoever watches notices.
fn appends_work(status: &LogStatus) -> Result<(), Failure> {
    if status.headroom == 0 {
        let what = match status.settings.sequencing {
            Sequencing::AtCommit => "appends fail",
            Sequencing::AfterCommit => "events wait for their numbers",
        };
        return Err(Failure::Refused(format!("no partition is left, {what}: run seqline partitions ensure")));
    }
    numbering::refuse_backlog(&status.settings, &status.staged)
}
