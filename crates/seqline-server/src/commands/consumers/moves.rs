//! `seqline consumers rewind`, `skip` and `replay`: where consumers go on, and what they leave out.

use sqlx::PgConnection;

use super::{ADD_YES, say};
use crate::cli::{ReplayArgs, RewindArgs, SkipArgs};
use crate::failure::Failure;
use crate::operate::consumers::{self, Replay, Rewind, Skip};
use crate::output::{count, grouped};

pub(super) async fn rewind(
    connection: &mut PgConnection,
    args: &RewindArgs,
    json: bool,
) -> Result<(), Failure> {
    let report = consumers::rewind(connection, &args.name, args.to, args.confirm.mode()).await?;
    let Rewind { consumer, from, to, events, parked, skipped, done } = &report;
    let (to, from) = (grouped(*to), grouped(*from));
    let among = |number: i64, what: &str| match number {
        0 => String::new(),
        number => format!(", {} of them {what}", grouped(number)),
    };
    let again = format!(
        "{} of the log again{}{}",
        count(*events, "event"),
        among(*parked, "parked now"),
        among(*skipped, "left out so far")
    );
    let sentence = match done {
        false => format!(
            "would take consumer {consumer} back from seq {from}, so that seq {to} is its next event: it gets {again}. What it has made of them is still there{ADD_YES}"
        ),
        true => format!("consumer {consumer} is back: seq {to} is its next event, and it gets {again}"),
    };
    say(json, &report, sentence)
}

pub(super) async fn skip(connection: &mut PgConnection, args: &SkipArgs, json: bool) -> Result<(), Failure> {
    let report = consumers::skip(connection, &args.name, args.seq, args.confirm.mode()).await?;
    let Skip { consumer, seq, event_type, resource, ahead, done, .. } = &report;
    let seq = grouped(*seq);
    let what = match (event_type, resource) {
        (Some(event_type), Some(resource)) => format!("{event_type} about {resource}"),
        (Some(event_type), None) => event_type.clone(),
        (None, _) => "which is missing from the log".to_owned(),
    };
    let when = match ahead {
        0 => "it is its next".to_owned(),
        ahead => format!("it comes to it after {}", count(*ahead, "event")),
    };
    let sentence = match done {
        false => format!("would have consumer {consumer} leave out seq {seq}, {what}: {when}{ADD_YES}"),
        true => format!("consumer {consumer} leaves out seq {seq}, {what}: {when}"),
    };
    say(json, &report, sentence)
}

pub(super) async fn replay(
    connection: &mut PgConnection,
    args: &ReplayArgs,
    json: bool,
) -> Result<(), Failure> {
    let (piece, mode) = ((args.from, args.to), args.confirm.mode());
    let report = consumers::replay(connection, &args.name, &args.into, piece, mode).await?;
    let Replay { consumer, into, kind, from, to, events, done } = &report;
    let events = count(*events, "event");
    let piece = format!("seq {} to {} of the log, {events}", grouped(*from), grouped(*to));
    let who = match kind.as_str() {
        "poll" => format!("It asks for the same as {consumer}, and somebody has to poll it"),
        // A worker says at each start what it asks for.
        _ => "A program has to handle them under that name, and says itself what it asks for".to_owned(),
    };
    let sentence = match done {
        false => format!("would make consumer {into}, which gets {piece}. {who}{ADD_YES}"),
        true => format!("consumer {into} gets {piece}. {who}"),
    };
    say(json, &report, sentence)
}
