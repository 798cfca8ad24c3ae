//! `seqline settings sequencing`, `notification` and `staged-transactions-max`.

use seqline::consumer::OperateError;
use seqline::settings::{Notification, Sequencing};
use seqline::{Clock, CommitError, DatabaseError, settings, status};
use serde::Serialize;
use sqlx::PgConnection;

use super::{Open, still_open};
use crate::commands::consumers::say;
use crate::failure::Failure;
use crate::limits::{NUMBER_POLL_INTERVAL, SEQUENCER_START_WAIT};
use crate::operate::Refusal;
use crate::output::{count, grouped};
use crate::sqlstate;
use crate::store::settings::OpenWith;

/// What gives events their numbers after commit, for whoever has none of it running.
const RUN_ONE: &str = "seqline serve --role worker runs one";

#[derive(Serialize)]
struct SequencingReport {
    sequencing: &'static str,
    changed: bool,
    drained: u64,
    complete: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    open: Vec<Open>,
    sequencer: bool,
}

pub(super) async fn sequencing(
    connection: &mut PgConnection,
    value: Sequencing,
    why: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let change = settings::set_sequencing(connection, value, why).await.map_err(failed)?;
    let open = if change.complete { Vec::new() } else { super::open(connection, OpenWith::Staged).await? };
    let sequencer = sequencer_runs(connection).await?;
    let (when, next) = match value {
        Sequencing::AfterCommit => ("after commit", ", by the sequencer".to_owned()),
        Sequencing::AtCommit => ("at commit", drained(change.drained)),
    };
    let sentence = match change.changed {
        true => format!("events are numbered {when} from now on{next}"),
        false => format!("events are numbered {when} already{}", drained(change.drained)),
    };
    let sentence = match change.complete {
        true => sentence,
        false => format!("{sentence}. The change is {}", still_open(&open)),
    };
    let report = SequencingReport {
        sequencing: value.as_str(),
        changed: change.changed,
        drained: change.drained,
        complete: change.complete,
        open,
        sequencer,
    };
    say(json, &report, sentence)?;
    if !sequencer {
        match (value, change.complete) {
            (Sequencing::AfterCommit, _) => {
                eprintln!("seqline: no sequencer runs, so events wait for their numbers: {RUN_ONE}");
            }
            (Sequencing::AtCommit, false) => {
                eprintln!(
                    "seqline: no sequencer runs that completes the change: {RUN_ONE}, or say this again"
                );
            }
            (Sequencing::AtCommit, true) => {}
        }
    }
    Ok(())
}

/// Whether one has taken up the work. As long as nothing could wait it had none, and it looks only now and then whether that has changed.
async fn sequencer_runs(connection: &mut PgConnection) -> Result<bool, DatabaseError> {
    if settings::settings(connection).await?.is_at_commit_only() {
        return Ok(false);
    }
    let clock = Clock::system();
    let started = clock.now();
    while status::staged(connection).await?.sequencer.is_none() {
        if clock.now() - started >= SEQUENCER_START_WAIT {
            return Ok(false);
        }
        clock.sleep(NUMBER_POLL_INTERVAL).await;
    }
    Ok(true)
}

fn drained(events: u64) -> String {
    match i64::try_from(events).unwrap_or(i64::MAX) {
        0 => String::new(),
        events => format!(
            "; {} that waited {} numbered",
            count(events, "event"),
            if events == 1 { "was" } else { "were" }
        ),
    }
}

#[derive(Serialize)]
struct NotificationReport {
    notification: &'static str,
    changed: bool,
}

pub(super) async fn notification(
    connection: &mut PgConnection,
    value: Notification,
    why: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let changed = settings::set_notification(connection, value, why).await.map_err(failed)?;
    let sentence = match (changed, value) {
        (false, value) => format!("notification is {value} already"),
        (true, Notification::InTransaction) => {
            "listeners are told by the transaction that numbers events from now on".to_owned()
        }
        (true, Notification::AfterCommit) => {
            "listeners are told after commit from now on: by the library and the sequencer; other writers call seqline.wake(), or listeners poll"
                .to_owned()
        }
        (true, Notification::Off) => "listeners are told nothing from now on: they poll".to_owned(),
    };
    say(json, &NotificationReport { notification: value.as_str(), changed }, sentence)
}

#[derive(Serialize)]
struct StagedTransactionsMaxReport {
    staged_transactions_max: i64,
    changed: bool,
    /// How many wait now.
    staged: i64,
}

pub(super) async fn staged_transactions_max(
    connection: &mut PgConnection,
    value: i64,
    why: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let changed = settings::set_staged_transactions_max(connection, value, why).await.map_err(failed)?;
    let staged = status::staged(connection).await?.transactions;
    let many = grouped(value);
    let sentence = match changed {
        true => format!(
            "appends are refused from now on while {many} or more transactions wait for their numbers"
        ),
        false => format!("staged_transactions_max is {many} already"),
    };
    say(json, &StagedTransactionsMaxReport { staged_transactions_max: value, changed, staged }, sentence)?;
    if staged >= value {
        eprintln!(
            "seqline: {} wait now, so appends are refused until a sequencer has numbered them",
            count(staged, "transaction")
        );
    }
    Ok(())
}

pub(super) fn failed(error: DatabaseError) -> Failure {
    // What waits is numbered on the way, as by a COMMIT.
    const CHECK_VIOLATION: &str = "23514";
    match error.sqlstate() {
        Some(sqlstate::LOCK_NOT_AVAILABLE) => {
            Failure::Unavailable(format!("{error}: try again, it goes on where this ended"))
        }
        Some(CHECK_VIOLATION) => CommitError::from(error.into_source()).into(),
        _ => Refusal::of(OperateError::from(error.into_source()), "").into(),
    }
}
