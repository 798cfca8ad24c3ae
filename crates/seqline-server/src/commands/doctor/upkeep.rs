//! What the doctor looks at of those who use the log and of its care: consumers, retention, maintenance, and whether it takes events.

use std::time::Duration;

use seqline::DatabaseError;
use seqline::consumer::{ConsumerState, states};
use seqline::maintenance::{Holding, holders};
use seqline::settings::{MaintenanceMode, settings};
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::finding::{Finding, named, ok, seconds, unknown, warning};
use super::thresholds::Thresholds;
use crate::config::Sync;
use crate::failure::Failure;
use crate::jobs::schema::schema_name;
use crate::output::{count, grouped, shortened};
use crate::{output, store};

type Found = Result<Vec<Finding>, DatabaseError>;

pub(super) async fn consumers(connection: &mut PgConnection, thresholds: &Thresholds) -> Found {
    let mut consumers = states(connection).await?;
    consumers.retain(|consumer| consumer.retired_at.is_none());
    let now = store::doctor::time(connection).await?;
    Ok(of_consumers(&consumers, now, thresholds.pending_age))
}

fn of_consumers(consumers: &[ConsumerState], now: OffsetDateTime, limit: Duration) -> Vec<Finding> {
    const ID: &str = "consumers";
    let mut findings = Vec::new();
    let of = |what: &dyn Fn(&ConsumerState) -> Option<String>| consumers.iter().filter_map(what).collect();
    let late: Vec<String> = of(&|consumer| {
        let pending = consumer.oldest_pending_at.filter(|_| consumer.lag() > 0)?;
        let age = now - pending;
        (age > limit).then(|| format!("{} for {}", consumer.name, seconds(age.as_seconds_f64())))
    });
    let limit = humantime::format_duration(limit);
    if !late.is_empty() {
        findings.push(warning(
            ID,
            format!("events wait for longer than {limit} for {}", named(&late)),
            "run a worker that has the consumer's handler; seqline consumers show NAME says what fails, and whether it is paused",
        ));
    }
    let lost: Vec<String> = of(&|consumer| {
        let lost = consumer.lost.saturating_add(consumer.gone);
        (lost > 0).then(|| format!("{} {}", consumer.name, grouped(lost)))
    });
    if !lost.is_empty() {
        findings.push(warning(
            "consumers_lost",
            format!("events lost to retention, not acknowledged: {}", named(&lost)),
            "seqline.lost_ranges has which; make up for them, then seqline consumers acknowledge NAME --yes --reason TEXT",
        ));
    }
    let parked: Vec<String> = of(&|consumer| {
        (consumer.parked > 0).then(|| format!("{} {}", consumer.name, grouped(consumer.parked)))
    });
    if !parked.is_empty() {
        findings.push(warning(
            "consumers_parked",
            format!("parked events: {}", named(&parked)),
            "seqline parked list NAME says why; mend that, then seqline parked retry NAME --yes",
        ));
    }
    let paused: Vec<String> = of(&|consumer| consumer.paused_at.map(|_| consumer.name.clone()));
    if !paused.is_empty() {
        findings.push(warning(
            "consumers_paused",
            format!("paused: {}", named(&paused)),
            "seqline consumers resume NAME --yes when it shall go on",
        ));
    }
    if consumers.is_empty() {
        findings.push(ok(ID, "there are none"));
    } else if findings.is_empty() {
        let consumers = count(consumers.len().try_into().unwrap_or(i64::MAX), "consumer");
        findings.push(ok(
            ID,
            format!("{consumers}; no event waits for longer than {limit}, none is lost or parked"),
        ));
    }
    findings
}

pub(super) async fn retention(connection: &mut PgConnection, sync: &Sync) -> Found {
    let holdings = holders(connection).await?;
    let now = store::doctor::time(connection).await?;
    Ok(vec![of_holdings(&holdings, now, sync.event_retention, sync.event_retention_hold)])
}

fn of_holdings(holdings: &[Holding], now: OffsetDateTime, retention: Duration, hold: Duration) -> Finding {
    const ID: &str = "retention";
    let (mut partitions, mut names) = (Vec::new(), Vec::new());
    let mut oldest = Duration::ZERO;
    // Oldest partition first, and of each those first that are furthest behind.
    for holding in holdings {
        let age = holding.last_event_at.and_then(|at| Duration::try_from(now - at).ok()).unwrap_or_default();
        if age <= retention {
            continue;
        }
        oldest = oldest.max(age);
        if !partitions.contains(&holding.lower_bound) {
            partitions.push(holding.lower_bound);
        }
        if !names.contains(&holding.consumer) {
            names.push(holding.consumer.clone());
        }
    }
    if partitions.is_empty() {
        return ok(ID, "no expired partition is held by a consumer");
    }
    let left = retention.saturating_add(hold).saturating_sub(oldest);
    let when = match left.is_zero() {
        true => "at the next maintenance".to_owned(),
        false => format!("in {}", seconds(left.as_secs_f64())),
    };
    warning(
        ID,
        format!(
            "{} held by {}; the oldest is dropped {when}, and its events are lost to them",
            count(partitions.len().try_into().unwrap_or(i64::MAX), "expired partition"),
            named(&names),
        ),
        "help them: seqline consumers show NAME, seqline parked list NAME; or seqline consumers retire NAME --yes where nobody needs it",
    )
}

pub(super) async fn maintenance(
    connection: &mut PgConnection,
    jobs_schema: &str,
    thresholds: &Thresholds,
) -> Found {
    const ID: &str = "maintenance";
    const NO_JOBS: [&str; 2] = ["42P01", "3F000"];
    let name = match schema_name(jobs_schema) {
        Ok(name) => name,
        Err(failure) => return Ok(vec![cannot_tell(ID, &failure)]),
    };
    let age = match store::doctor::maintenance_age(connection, &name).await.map_err(DatabaseError::from) {
        Ok(age) => age,
        Err(error) if error.sqlstate().is_some_and(|code| NO_JOBS.contains(&code)) => {
            let found = format!("no jobs are in the schema {jobs_schema}, so nothing is known of runs");
            return Ok(vec![unknown(ID, found, "run seqline migrate, or correct jobs.schema")]);
        }
        Err(error) => return Err(error),
    };
    Ok(vec![match age {
        None => unknown(
            ID,
            "no run of partition maintenance by a worker is known",
            "run a worker, which maintains: seqline serve --role worker; unless seqline up does, or a program with seqline::maintenance, whose runs are not known here",
        ),
        Some(age) => {
            let found = format!("the last run was completed {} ago", seconds(age));
            match age > thresholds.maintenance_age.as_secs_f64() {
                true => warning(
                    ID,
                    found,
                    "run a worker: seqline serve --role worker; seqline jobs list --kind sync.partition_maintenance says what fails, seqline jobs retry ID runs it again",
                ),
                false => ok(ID, found),
            }
        }
    }])
}

fn cannot_tell(id: &'static str, failure: &Failure) -> Finding {
    unknown(id, failure.message().unwrap_or_default(), "correct jobs.schema")
}

pub(super) async fn read_only(connection: &mut PgConnection) -> Found {
    const ID: &str = "read_only";
    /// How much of a login is shown.
    const LOGIN_CHARS_MAX: usize = 64;
    if settings(connection).await?.maintenance == MaintenanceMode::Off {
        return Ok(vec![ok(ID, "the log takes events")]);
    }
    // It can be read only by hand too, and the audit log is not for every role.
    let since = match store::doctor::read_only_since(connection).await {
        Ok(Some((at, who))) => {
            format!(" since {}, by {}", output::seconds(at), shortened(&who, LOGIN_CHARS_MAX))
        }
        Ok(None) | Err(_) => String::new(),
    };
    Ok(vec![warning(
        ID,
        format!("the log is read only for maintenance{since}: every append is refused"),
        "when the work is done: seqline settings maintenance off",
    )])
}
