//! `seqline redact`: what events say is taken out of the log.

use seqline::consumer::Mode;
use seqline::redact::{self, RedactError, Redaction};
use seqline::{Clock, CommitError, DatabaseError};
use serde::Serialize;
use sqlx::PgPool;

use super::consumers::ADD_YES;
use crate::cli::{DatabaseArgs, RedactArgs, RedactWhat};
use crate::failure::Failure;
use crate::limits::{NUMBER_POLL_INTERVAL, NUMBER_WAIT_MAX, ROUND_WAIT_MAX};
use crate::output::count;
use crate::{connect, output};

pub(crate) async fn run(database: &DatabaseArgs, args: RedactArgs) -> Result<(), Failure> {
    // Somebody else who redacts the same is waited for, and not for ever.
    let wait = format!("{}ms", ROUND_WAIT_MAX.as_millis());
    let pool = connect::pool(&connect::options(database)?.options([("lock_timeout", wait)]), 1).await?;
    connect::refuse_older_schema(&mut *pool.acquire().await.map_err(DatabaseError::from)?).await?;
    let mode = args.what.confirm().mode();
    if mode != Mode::Plan {
        until_numbered(&pool, &args.what).await?;
    }
    let redaction = redact(&pool, &args.what, mode).await?;
    if let RedactWhat::Event { id, .. } = &args.what
        && !redaction.is_about_any()
    {
        return Err(Failure::Refused(format!(
            "the log has no event {id}: retention has dropped it, or its transaction has not committed"
        )));
    }
    let done = mode != Mode::Plan;
    if args.json {
        output::json(&Report::of(&args.what, &redaction, done))?;
    } else {
        print(&args.what, &redaction, done)?;
    }
    if done && redaction.waiting > 0 {
        return Err(Failure::Partly(format!(
            "not redacted, because without a number yet: {}; seqline serve --role worker numbers what waits, run this again then",
            count(redaction.waiting, "event")
        )));
    }
    Ok(())
}

/// In a transaction of its own.
async fn redact(pool: &PgPool, what: &RedactWhat, mode: Mode<'_>) -> Result<Redaction, Failure> {
    let mut tx = seqline::begin(pool).await?;
    let redaction = match what {
        RedactWhat::Event { id, .. } => redact::event(&mut tx, *id, mode).await,
        RedactWhat::Resource { kind, id, .. } => redact::resource(&mut tx, kind, id, None, mode).await,
    };
    let redaction = redaction.map_err(failed)?;
    seqline::commit(tx).await.map_err(|error| match error {
        CommitError::Unknown(_) | CommitError::NotKnownDurable(_) => {
            Failure::Unavailable(format!("{error}; run the same command again: it redacts nothing twice"))
        }
        error => error.into(),
    })?;
    Ok(redaction)
}

/// Waits a little for events that have no number yet: a sequencer that runs takes milliseconds.
async fn until_numbered(pool: &PgPool, what: &RedactWhat) -> Result<(), Failure> {
    let clock = Clock::system();
    let numbered = async {
        while redact(pool, what, Mode::Plan).await?.waiting > 0 {
            clock.sleep(NUMBER_POLL_INTERVAL).await;
        }
        Ok(())
    };
    clock.timeout(NUMBER_WAIT_MAX, numbered).await.unwrap_or(Ok(()))
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_id: Option<&'a str>,
    done: bool,
    events: i64,
    already: i64,
    waiting: i64,
    partitions: &'a [String],
}

impl<'a> Report<'a> {
    fn of(what: &'a RedactWhat, redaction: &'a Redaction, done: bool) -> Self {
        let (event_id, resource_kind, resource_id) = match what {
            RedactWhat::Event { id, .. } => (Some(id.to_string()), None, None),
            RedactWhat::Resource { kind, id, .. } => (None, Some(kind.as_str()), Some(id.as_str())),
        };
        Self {
            event_id,
            resource_kind,
            resource_id,
            done,
            events: redaction.events,
            already: redaction.already,
            waiting: redaction.waiting,
            partitions: &redaction.partitions,
        }
    }
}

fn print(what: &RedactWhat, redaction: &Redaction, done: bool) -> Result<(), Failure> {
    output::line(sentence(what, redaction, done))?;
    let mut lines = Vec::new();
    if redaction.already > 0 {
        lines.push(("before", format!("{} redacted already", count(redaction.already, "event"))));
    }
    if redaction.waiting > 0 {
        lines.push(("waiting", format!("{} without a number yet", count(redaction.waiting, "event"))));
    }
    lines.extend(redaction.partitions.iter().map(|name| ("partition", name.clone())));
    lines.into_iter().try_for_each(|(name, value)| output::line(format!("{name:<14}{value}")))
}

fn sentence(what: &RedactWhat, redaction: &Redaction, done: bool) -> String {
    let events = match what {
        RedactWhat::Event { id, .. } => format!("event {id}"),
        RedactWhat::Resource { kind, id, .. } if redaction.is_about_any() => {
            format!("{} about {kind}/{id}", count(redaction.events, "event"))
        }
        RedactWhat::Resource { kind, id, .. } => return format!("the log has no events about {kind}/{id}"),
    };
    match (redaction.events, done) {
        (0, _) => format!("nothing to redact now: {events}"),
        (_, false) => format!(
            "would redact {events}: what that says is removed from the log, and nothing brings it back{ADD_YES}"
        ),
        (_, true) => format!("redacted {events}"),
    }
}

fn failed(error: RedactError) -> Failure {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    match error {
        RedactError::Refused { message, hint: Some(hint) } => {
            Failure::Refused(format!("{message}. {}", hint.trim_end_matches('.')))
        }
        RedactError::ReadOnly { message } => Failure::Unavailable(message),
        RedactError::Database(error) if error.sqlstate() == Some(LOCK_NOT_AVAILABLE) => {
            Failure::Unavailable(format!(
                "somebody else redacts the same for {}s: nothing was changed, try again",
                ROUND_WAIT_MAX.as_secs()
            ))
        }
        RedactError::Database(error) => error.into(),
        error => Failure::Refused(error.to_string()),
    }
}
