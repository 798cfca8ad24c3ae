//! `seqline redact`: what events say is taken out of the log.

use seqline::consumer::Mode;
use seqline::{Clock, CommitError, DatabaseError};
use sqlx::PgPool;

use super::consumers::ADD_YES;
use crate::cli::{DatabaseArgs, RedactArgs, RedactWhat};
use crate::failure::Failure;
use crate::limits::{NUMBER_POLL_INTERVAL, NUMBER_WAIT_MAX, ROUND_WAIT_MAX};
use crate::operate::redact::{self, Report, What};
use crate::output::count;
use crate::{connect, output};

pub(crate) async fn run(database: &DatabaseArgs, args: RedactArgs) -> Result<(), Failure> {
    // Somebody else who redacts the same is waited for, and not for ever.
    let wait = format!("{}ms", ROUND_WAIT_MAX.as_millis());
    let pool = connect::pool(&connect::options(database)?.options([("lock_timeout", wait)]), 1).await?;
    connect::refuse_older_schema(&mut *pool.acquire().await.map_err(DatabaseError::from)?).await?;
    let (what, mode) = match &args.what {
        RedactWhat::Event { id, confirm } => (What::Event(*id), confirm.mode()),
        RedactWhat::Resource { kind, id, confirm } => {
            (What::Resource { kind: kind.clone(), id: id.clone() }, confirm.mode())
        }
    };
    if mode != Mode::Plan {
        until_numbered(&pool, &what).await?;
    }
    let report = redact(&pool, &what, mode).await?;
    if args.json {
        output::json(&report)?;
    } else {
        print(&what, &report)?;
    }
    if report.done && report.waiting > 0 {
        return Err(Failure::Partly(format!(
            "not redacted, because without a number yet: {}; seqline serve --role worker numbers what waits, run this again then",
            count(report.waiting, "event")
        )));
    }
    Ok(())
}

/// In a transaction of its own.
async fn redact(pool: &PgPool, what: &What, mode: Mode<'_>) -> Result<Report, Failure> {
    let mut transaction = seqline::begin(pool).await?;
    let report = redact::redact(&mut transaction, what, None, mode).await?;
    seqline::commit(transaction).await.map_err(|error| match error {
        CommitError::Unknown(_) | CommitError::NotKnownDurable(_) => {
            Failure::Unavailable(format!("{error}; run the same command again: it redacts nothing twice"))
        }
        error => error.into(),
    })?;
    Ok(report)
}

/// Waits a little for events that have no number yet: a sequencer that runs takes milliseconds.
async fn until_numbered(pool: &PgPool, what: &What) -> Result<(), Failure> {
    let clock = Clock::system();
    let numbered = async {
        while redact(pool, what, Mode::Plan).await?.waiting > 0 {
            clock.sleep(NUMBER_POLL_INTERVAL).await;
        }
        Ok(())
    };
    clock.timeout(NUMBER_WAIT_MAX, numbered).await.unwrap_or(Ok(()))
}

fn print(what: &What, report: &Report) -> Result<(), Failure> {
    output::line(sentence(what, report))?;
    let mut lines = Vec::new();
    if report.already > 0 {
        lines.push(("before", format!("{} redacted already", count(report.already, "event"))));
    }
    if report.waiting > 0 {
        lines.push(("waiting", format!("{} without a number yet", count(report.waiting, "event"))));
    }
    lines.extend(report.partitions.iter().map(|name| ("partition", name.clone())));
    lines.into_iter().try_for_each(|(name, value)| output::line(format!("{name:<14}{value}")))
}

fn sentence(what: &What, report: &Report) -> String {
    let events = match what {
        What::Event(id) => format!("event {id}"),
        What::Resource { kind, id } if report.is_about_any() => {
            format!("{} about {kind}/{id}", count(report.events, "event"))
        }
        What::Resource { kind, id } => return format!("the log has no events about {kind}/{id}"),
    };
    match (report.events, report.done) {
        (0, _) => format!("nothing to redact now: {events}"),
        (_, false) => format!(
            "would redact {events}: what that says is removed from the log, and nothing brings it back{ADD_YES}"
        ),
        (_, true) => format!("redacted {events}"),
    }
}
