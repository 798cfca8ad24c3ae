//! `seqline consumers pause`, `resume`, `retire` and `acknowledge`.

use sqlx::PgConnection;

use super::{ADD_YES, say};
use crate::cli::ConsumerChange;
use crate::failure::Failure;
use crate::operate::consumers::{self, Acknowledged, Pause, Retirement};
use crate::output::{count, grouped};

pub(super) async fn pause(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let report = consumers::pause(connection, &change.name, change.confirm.mode()).await?;
    let Pause { consumer, last_seq, lag, done, changed } = &report;
    let (seq, behind) = (grouped(*last_seq), count(*lag, "event"));
    let sentence = match (changed, done) {
        (false, _) => format!("consumer {consumer} is paused already, at seq {seq}"),
        (true, false) => format!(
            "would pause consumer {consumer} at seq {seq}, {behind} behind: no round of it begins then{ADD_YES}"
        ),
        (true, true) => format!("consumer {consumer} is paused"),
    };
    say(json, &report, sentence)
}

pub(super) async fn resume(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let report = consumers::resume(connection, &change.name, change.confirm.mode()).await?;
    let Pause { consumer, last_seq, lag, done, changed } = &report;
    let (seq, behind) = (grouped(*last_seq), count(*lag, "event"));
    let sentence = match (changed, done) {
        (false, _) => format!("consumer {consumer} is not paused"),
        (true, false) => {
            format!("would let consumer {consumer} go on at seq {seq}, {behind} behind{ADD_YES}")
        }
        (true, true) => format!("consumer {consumer} goes on"),
    };
    say(json, &report, sentence)
}

pub(super) async fn retire(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let report = consumers::retire(connection, &change.name, change.confirm.mode()).await?;
    let Retirement { consumer, last_seq, events, parked, done } = &report;
    let seq = grouped(*last_seq);
    let left = match (*events, *parked) {
        (0, 0) => "it has handled all of its events".to_owned(),
        (0, parked) => format!("it has come to the end, and {} parked", are(parked)),
        (events, 0) => format!("{} not handled", are(events)),
        (events, parked) => format!("{} not handled, and {} parked", are(events), are(parked)),
    };
    let sentence = match done {
        false => format!(
            "would retire consumer {consumer} at seq {seq}, where {left}: no round of it begins then, and retention does not wait for it{ADD_YES}"
        ),
        true => format!("consumer {consumer} is retired at seq {seq}, where {left}"),
    };
    say(json, &report, sentence)
}

fn are(events: i64) -> String {
    format!("{} {}", count(events, "event"), if events == 1 { "is" } else { "are" })
}

pub(super) async fn acknowledge(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    json: bool,
) -> Result<(), Failure> {
    let report = consumers::acknowledge(connection, &change.name, change.confirm.mode()).await?;
    let Acknowledged { consumer, ranges, events, done } = &report;
    let what =
        format!("consumer {consumer} has lost {} in {}", count(*events, "event"), count(*ranges, "range"));
    let sentence = match (ranges, done) {
        (0, _) => format!("consumer {consumer} has lost nothing that is not acknowledged"),
        (_, false) => format!("would acknowledge that {what}: they are not shown any more then{ADD_YES}"),
        (_, true) => format!("acknowledged that {what}"),
    };
    say(json, &report, sentence)
}
