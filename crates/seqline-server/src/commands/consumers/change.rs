//! `seqline consumers pause`, `resume`, `retire` and `acknowledge`.

use seqline::consumer::{self, ConsumerState};
use serde::Serialize;
use sqlx::PgConnection;

use super::{ADD_YES, failed, find, say};
use crate::cli::ConsumerChange;
use crate::failure::Failure;
use crate::output::{count, grouped};

#[derive(Serialize)]
struct PauseReport<'a> {
    consumer: &'a str,
    last_seq: i64,
    lag: i64,
    done: bool,
    changed: bool,
}

pub(super) async fn pause(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let (name, state) = find(connection, &change.name).await?;
    if state.retired_at.is_some() {
        return Err(Failure::Refused(format!(
            "consumer {name} was retired. No round of it begins as it is. seqline consumers resume brings it back"
        )));
    }
    let changed = match change.confirm.yes {
        false => state.paused_at.is_none(),
        true => consumer::pause(connection, &name, change.confirm.reason.as_deref())
            .await
            .map_err(|error| failed(error, &change.name))?,
    };
    let (seq, behind) = (grouped(state.last_seq), count(state.lag(), "event"));
    let sentence = match (changed, change.confirm.yes) {
        (false, _) => format!("consumer {name} is paused already, at seq {seq}"),
        (true, false) => format!(
            "would pause consumer {name} at seq {seq}, {behind} behind: no round of it begins then{ADD_YES}"
        ),
        (true, true) => format!("consumer {name} is paused"),
    };
    say(json, &report(&state, change, changed), sentence)
}

pub(super) async fn resume(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let (name, state) = find(connection, &change.name).await?;
    let changed = match change.confirm.yes {
        false => state.paused_at.is_some() || state.retired_at.is_some(),
        true => consumer::resume(connection, &name, change.confirm.reason.as_deref())
            .await
            .map_err(|error| failed(error, &change.name))?,
    };
    let (seq, behind) = (grouped(state.last_seq), count(state.lag(), "event"));
    let sentence = match (changed, change.confirm.yes) {
        (false, _) => format!("consumer {name} is not paused"),
        (true, false) => format!("would let consumer {name} go on at seq {seq}, {behind} behind{ADD_YES}"),
        (true, true) => format!("consumer {name} goes on"),
    };
    say(json, &report(&state, change, changed), sentence)
}

fn report<'a>(state: &'a ConsumerState, change: &ConsumerChange, changed: bool) -> PauseReport<'a> {
    let (last_seq, lag) = (state.last_seq, state.lag());
    PauseReport { consumer: &state.name, last_seq, lag, done: change.confirm.yes, changed }
}

#[derive(Serialize)]
struct RetireReport<'a> {
    consumer: &'a str,
    last_seq: i64,
    events: i64,
    parked: i64,
    done: bool,
}

pub(super) async fn retire(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let (name, _) = find(connection, &change.name).await?;
    let retired = consumer::retire(connection, &name, change.confirm.mode())
        .await
        .map_err(|error| failed(error, &change.name))?;
    let (last_seq, events, parked, done) =
        (retired.last_seq, retired.events, retired.parked, change.confirm.yes);
    let seq = grouped(last_seq);
    let left = match (events, parked) {
        (0, 0) => "it has handled all of its events".to_owned(),
        (0, parked) => format!("it has come to the end, and {} parked", are(parked)),
        (events, 0) => format!("{} not handled", are(events)),
        (events, parked) => format!("{} not handled, and {} parked", are(events), are(parked)),
    };
    let sentence = match done {
        false => format!(
            "would retire consumer {name} at seq {seq}, where {left}: no round of it begins then, and retention does not wait for it{ADD_YES}"
        ),
        true => format!("consumer {name} is retired at seq {seq}, where {left}"),
    };
    say(json, &RetireReport { consumer: &change.name, last_seq, events, parked, done }, sentence)
}

fn are(events: i64) -> String {
    format!("{} {}", count(events, "event"), if events == 1 { "is" } else { "are" })
}

#[derive(Serialize)]
struct AcknowledgeReport<'a> {
    consumer: &'a str,
    ranges: i64,
    events: i64,
    done: bool,
}

pub(super) async fn acknowledge(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let (name, _) = find(connection, &change.name).await?;
    let lost = consumer::acknowledge(connection, &name, change.confirm.mode())
        .await
        .map_err(|error| failed(error, &change.name))?;
    let (ranges, events, done) = (lost.ranges, lost.events, change.confirm.yes);
    let what = format!("consumer {name} has lost {} in {}", count(events, "event"), count(ranges, "range"));
    let sentence = match (ranges, done) {
        (0, _) => format!("consumer {name} has lost nothing that is not acknowledged"),
        (_, false) => format!("would acknowledge that {what}: they are not shown any more then{ADD_YES}"),
        (_, true) => format!("acknowledged that {what}"),
    };
    say(json, &AcknowledgeReport { consumer: &change.name, ranges, events, done }, sentence)
}
