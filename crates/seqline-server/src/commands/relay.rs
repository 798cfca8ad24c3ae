//! `seqline relay`: how far relays are, and what people decide about them. None of it needs the broker.
//!
//! What changes something says first what it would do. Whatever the database refuses is said in its words.

use seqline::Clock;
use seqline::consumer::Mode;
use seqline_nats::relay::operate::{self, Incident, RelayOperateError, RelayStatus};
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::access::{connect, say};
use super::consumers::ADD_YES;
use super::status::consumers::age;
use crate::cli::{Confirm, ConfirmWithReason, DatabaseArgs, RelayAction, RelayArgs};
use crate::failure::Failure;
use crate::output::{self, age_seconds, count, grouped, rfc3339, seconds};

pub(crate) async fn run(database: &DatabaseArgs, args: RelayArgs) -> Result<(), Failure> {
    let (mut connection, json) = (connect(database).await?, args.json);
    let connection = &mut connection;
    match args.action {
        RelayAction::Status => status(connection, json).await,
        RelayAction::Pause { relay, confirm } => pause(connection, &relay.name, &confirm, json).await,
        RelayAction::Resume { relay, confirm } => resume(connection, &relay.name, &confirm, json).await,
        RelayAction::Rewind { relay, to, confirm } => {
            rewind(connection, &relay.name, to, &confirm, json).await
        }
        RelayAction::Delete { relay, confirm } => delete(connection, &relay.name, &confirm, json).await,
        RelayAction::Acknowledge { relay, confirm } => {
            acknowledge(connection, &relay.name, &confirm, json).await
        }
    }
}

/// A relay as JSON.
#[derive(Serialize)]
pub(in crate::commands) struct Row<'a> {
    relay: &'a str,
    stream: &'a str,
    epoch: String,
    position: i64,
    head: i64,
    behind: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_unpublished_at: Option<String>,
    stream_seq: i64,
    /// Whether a process runs it.
    active: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rewind_to: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stalled_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stalled_since: Option<String>,
    updated_at: String,
    incidents: Vec<IncidentRow<'a>>,
}

#[derive(Serialize)]
struct IncidentRow<'a> {
    kind: &'a str,
    count: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_position: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_position: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_seq: Option<i64>,
    first_at: String,
    last_at: String,
}

impl<'a> Row<'a> {
    pub(in crate::commands) fn of(status: &'a RelayStatus) -> Self {
        let stalled = status.stalled_by.as_ref();
        Self {
            relay: &status.name,
            stream: &status.stream,
            epoch: status.epoch.to_string(),
            position: status.position,
            head: status.head,
            behind: status.behind(),
            oldest_unpublished_at: status.oldest_unpublished_at.map(rfc3339),
            stream_seq: status.stream_seq,
            active: status.active,
            paused_since: status.paused_since.map(rfc3339),
            rewind_to: status.rewind_to,
            stalled_by: stalled.map(|(by, _)| by.as_str()),
            stalled_since: stalled.map(|(_, since)| rfc3339(*since)),
            updated_at: rfc3339(status.updated_at),
            incidents: status.incidents.iter().map(IncidentRow::of).collect(),
        }
    }
}

impl<'a> IncidentRow<'a> {
    fn of(incident: &'a Incident) -> Self {
        Self {
            kind: &incident.kind,
            count: incident.count,
            first_position: incident.first_position,
            last_position: incident.last_position,
            stream_seq: incident.stream_seq,
            first_at: rfc3339(incident.first_at),
            last_at: rfc3339(incident.last_at),
        }
    }
}

async fn status(connection: &mut PgConnection, json: bool) -> Result<(), Failure> {
    let relays = operate::statuses(connection).await?;
    if json {
        return output::json(&relays.iter().map(Row::of).collect::<Vec<_>>());
    }
    if relays.is_empty() {
        eprintln!("seqline: there is no relay: one is there once it has reached its broker");
    }
    let now = Clock::system().now();
    for (place, relay) in relays.iter().enumerate() {
        if place > 0 {
            output::line("")?;
        }
        details(relay, now)?;
    }
    Ok(())
}

fn details(relay: &RelayStatus, now: OffsetDateTime) -> Result<(), Failure> {
    let mut lines = vec![
        ("relay", format!("{}, into the stream {}", relay.name, relay.stream)),
        (
            "position",
            format!("{} of {}, {}", grouped(relay.position), grouped(relay.head), behind(relay, now)),
        ),
        ("state", state(relay)),
        ("stream", format!("known up to {}", grouped(relay.stream_seq))),
        ("epoch", relay.epoch.to_string()),
    ];
    lines.extend(
        relay.rewind_to.map(|to| ("rewind", format!("goes on after {} when it looks next", grouped(to)))),
    );
    lines.extend(relay.incidents.iter().map(|incident| ("incident", incident_text(incident))));
    lines.push(("changed", rfc3339(relay.updated_at)));
    lines.into_iter().try_for_each(|(name, value)| output::line(format!("{name:<14}{value}")))
}

/// How far it is behind.
pub(in crate::commands) fn behind(relay: &RelayStatus, now: OffsetDateTime) -> String {
    let oldest = relay
        .oldest_unpublished_at
        .map_or_else(String::new, |at| format!(", the oldest of them {} old", age(age_seconds(at, now))));
    format!("{} behind{oldest}", count(relay.behind(), "event"))
}

/// What it does.
pub(in crate::commands) fn state(relay: &RelayStatus) -> String {
    let stalled = relay.stalled_by.as_ref();
    let stalled = stalled.map(|(by, since)| format!("stalled by {by} since {}", seconds(*since)));
    match (&relay.paused_since, stalled, relay.active) {
        (Some(since), _, _) => format!("paused since {}", seconds(*since)),
        (None, Some(stalled), true) => stalled,
        (None, Some(stalled), false) => format!("no process runs it, {stalled}"),
        (None, None, true) => "runs".to_owned(),
        (None, None, false) => "no process runs it".to_owned(),
    }
}

fn incident_text(incident: &Incident) -> String {
    let positions = match (incident.first_position, incident.last_position) {
        (Some(first), Some(last)) => format!(", from {} to {}", grouped(first), grouped(last)),
        _ => String::new(),
    };
    let at = incident
        .stream_seq
        .map_or_else(String::new, |seq| format!(", last at {} of the stream", grouped(seq)));
    format!(
        "{}: {}{positions}{at}, since {}",
        incident.kind,
        grouped(incident.count),
        seconds(incident.first_at)
    )
}

/// A change as JSON.
#[derive(Serialize)]
struct Report<'a> {
    relay: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    incidents: Option<i64>,
    done: bool,
    changed: bool,
}

impl<'a> Report<'a> {
    fn of(relay: &'a str, done: bool, changed: bool) -> Self {
        Self { relay, position: None, to: None, incidents: None, done, changed }
    }
}

async fn is_paused(connection: &mut PgConnection, name: &str) -> Result<bool, Failure> {
    let relays = operate::statuses(connection).await?;
    let relay = relays.iter().find(|relay| relay.name == name).ok_or_else(|| {
        Failure::Refused(format!("there is no relay {name}: seqline relay status shows those that there are"))
    })?;
    Ok(relay.paused_since.is_some())
}

async fn pause(
    connection: &mut PgConnection,
    name: &str,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    let changed = match confirm.mode() {
        Mode::Plan => !is_paused(connection, name).await?,
        Mode::Apply { why } => operate::pause(connection, name, why).await.map_err(failed)?,
    };
    let sentence = match (changed, confirm.yes) {
        (false, _) => format!("relay {name} is paused already"),
        (true, false) => format!("would pause relay {name}: nothing more gets into its stream then{ADD_YES}"),
        (true, true) => format!("relay {name} is paused"),
    };
    say(json, &Report::of(name, confirm.yes, changed), sentence)
}

async fn resume(
    connection: &mut PgConnection,
    name: &str,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    let changed = match confirm.mode() {
        Mode::Plan => is_paused(connection, name).await?,
        Mode::Apply { why } => operate::resume(connection, name, why).await.map_err(failed)?,
    };
    let sentence = match (changed, confirm.yes) {
        (false, _) => format!("relay {name} is not paused"),
        (true, false) => format!("would let relay {name} go on{ADD_YES}"),
        (true, true) => format!("relay {name} goes on"),
    };
    say(json, &Report::of(name, confirm.yes, changed), sentence)
}

async fn rewind(
    connection: &mut PgConnection,
    name: &str,
    to: i64,
    confirm: &ConfirmWithReason,
    json: bool,
) -> Result<(), Failure> {
    let before = operate::rewind(connection, name, to, confirm.mode()).await.map_err(failed)?;
    let from = before.position;
    let what = match from - to {
        0 => "nothing is published again and nothing left out".to_owned(),
        again if again > 0 => format!("{} again, at the end of the stream", are_published(again)),
        out => format!("{} not published at all", are(-out)),
    };
    let (at, place) = (grouped(from), grouped(to));
    let sentence = match confirm.yes {
        false => format!("would set relay {name} from {at} to {place}: {what} then{ADD_YES}"),
        true => format!("relay {name}, which is at {at}, goes on after {place} when it looks next: {what}"),
    };
    let report = Report { position: Some(from), to: Some(to), ..Report::of(name, confirm.yes, true) };
    say(json, &report, sentence)
}

fn are(events: i64) -> String {
    format!("{} {}", count(events, "event"), if events == 1 { "is" } else { "are" })
}

fn are_published(events: i64) -> String {
    format!("{} published", are(events))
}

async fn delete(
    connection: &mut PgConnection,
    name: &str,
    confirm: &ConfirmWithReason,
    json: bool,
) -> Result<(), Failure> {
    let before = operate::delete(connection, name, confirm.mode()).await.map_err(failed)?;
    let at = grouped(before.position);
    let sentence = match confirm.yes {
        false => format!(
            "would forget relay {name}, which is at {at}: retention does not wait for it then, and its stream stays as it is{ADD_YES}"
        ),
        true => format!("relay {name} is forgotten, which was at {at}: its stream stays as it is"),
    };
    let report = Report { position: Some(before.position), ..Report::of(name, confirm.yes, true) };
    say(json, &report, sentence)
}

async fn acknowledge(
    connection: &mut PgConnection,
    name: &str,
    confirm: &ConfirmWithReason,
    json: bool,
) -> Result<(), Failure> {
    let kinds = operate::acknowledge(connection, name, confirm.mode()).await.map_err(failed)?;
    let what = count(kinds, "kind of incident");
    let sentence = match (kinds, confirm.yes) {
        (0, _) => format!("relay {name} has met nothing that is not acknowledged"),
        (_, false) => {
            format!("would acknowledge what relay {name} met, {what}: it is not shown any more then{ADD_YES}")
        }
        (_, true) => format!("acknowledged what relay {name} met, {what}"),
    };
    let report = Report { incidents: Some(kinds), ..Report::of(name, confirm.yes, kinds > 0) };
    say(json, &report, sentence)
}

fn failed(error: RelayOperateError) -> Failure {
    match error {
        RelayOperateError::Database(error) => error.into(),
        RelayOperateError::Refused(refusal) => super::refused(refusal),
        error => Failure::Refused(error.to_string()),
    }
}
