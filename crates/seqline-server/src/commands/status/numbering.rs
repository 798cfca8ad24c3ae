//! How events are numbered and what waits for it, in `seqline status`.

use seqline::limits::STAGED_COUNT_MAX;
use seqline::settings::{MaintenanceMode, Sequencing, Settings};
use seqline::status::Staged;
use serde::Serialize;
use time::OffsetDateTime;

use super::consumers::age;
use crate::commands::settings::is_complete;
use crate::failure::Failure;
use crate::output;
use crate::output::{age_seconds, count, grouped, rfc3339};

/// In JSON.
#[derive(Debug, Serialize)]
pub(super) struct Numbering {
    sequencing: &'static str,
    /// Whether the last change of it is.
    complete: bool,
    notification: &'static str,
    maintenance: &'static str,
    staged_transactions: i64,
    staged_transactions_max: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_staged_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_staged_age_seconds: Option<i64>,
    /// Whether any process runs one.
    sequencer: bool,
}

pub(super) fn numbering(settings: &Settings, staged: &Staged, now: OffsetDateTime) -> Numbering {
    Numbering {
        sequencing: settings.sequencing.as_str(),
        complete: is_complete(settings),
        notification: settings.notification.as_str(),
        maintenance: settings.maintenance.as_str(),
        staged_transactions: staged.transactions,
        staged_transactions_max: settings.staged_transactions_max,
        oldest_staged_at: staged.oldest_at.map(rfc3339),
        oldest_staged_age_seconds: staged.oldest_at.map(|at| age_seconds(at, now)),
        sequencer: staged.sequencer.is_some(),
    }
}

/// One line, and one more where something may wait.
pub(super) fn print(settings: &Settings, staged: &Staged, now: OffsetDateTime) -> Result<(), Failure> {
    lines(settings, staged, now)
        .into_iter()
        .try_for_each(|(name, value)| output::line(format!("{name:<14}{value}")))
}

fn lines(settings: &Settings, staged: &Staged, now: OffsetDateTime) -> Vec<(&'static str, String)> {
    let when = match settings.sequencing {
        Sequencing::AtCommit => "at commit",
        Sequencing::AfterCommit => "after commit",
    };
    let mut lines = vec![("numbering", format!("{when}, notification {}", settings.notification))];
    let may_wait = settings.sequencing == Sequencing::AfterCommit || settings.staging_open;
    if may_wait || staged.transactions > 0 {
        lines.push(("staged", waiting(settings, staged, now)));
    }
    if settings.maintenance == MaintenanceMode::ReadOnly {
        lines.push((
            "maintenance",
            "read_only, appends are refused: seqline settings maintenance off ends it".to_owned(),
        ));
    }
    lines
}

fn waiting(settings: &Settings, staged: &Staged, now: OffsetDateTime) -> String {
    let change = if is_complete(settings) { "" } else { ", the change to at_commit is not complete" };
    let what = match (staged.transactions, staged.oldest_at) {
        (0, _) => "nothing".to_owned(),
        (number, oldest_at) => {
            let number = match number {
                STAGED_COUNT_MAX.. => format!("{} or more transactions", grouped(STAGED_COUNT_MAX)),
                number => count(number, "transaction"),
            };
            let age = oldest_at
                .map_or_else(String::new, |at| format!(", the oldest {} old", age(age_seconds(at, now))));
            format!("{number}{age}")
        }
    };
    let sequencer = match (staged.sequencer, staged.transactions, settings.sequencing) {
        (Some(_), ..) => "a sequencer runs",
        (None, 0, Sequencing::AtCommit) => "no sequencer runs",
        (None, ..) => "no sequencer runs: seqline serve --role worker runs one",
    };
    format!("{what}{change}, {sequencer}")
}

/// Whether appends are refused because too much waits.
pub(super) fn refuse_backlog(settings: &Settings, staged: &Staged) -> Result<(), Failure> {
    if settings.sequencing == Sequencing::AfterCommit
        && staged.transactions >= settings.staged_transactions_max
    {
        return Err(Failure::Refused(
            "staged_transactions_max is reached, appends are refused: seqline serve --role worker numbers what waits"
                .to_owned(),
        ));
    }
    Ok(())
}
