//! `seqline consumers rewind`, `skip` and `replay`: where consumers go on, and what they leave out.

use seqline::consumer::{self, ConsumerName};
use serde::Serialize;
use sqlx::PgConnection;

use super::{ADD_YES, failed, find, say};
use crate::cli::{ReplayArgs, RewindArgs, SkipArgs};
use crate::failure::Failure;
use crate::output::{count, grouped};

#[derive(Serialize)]
struct RewindReport<'a> {
    consumer: &'a str,
    from: i64,
    to: i64,
    events: i64,
    parked: i64,
    skipped: i64,
    done: bool,
}

pub(super) async fn rewind(
    connection: &mut PgConnection,
    args: &RewindArgs,
    json: bool,
) -> Result<(), Failure> {
    let (name, _) = find(connection, &args.name).await?;
    let rewind = consumer::rewind(connection, &name, args.to, args.confirm.mode())
        .await
        .map_err(|error| failed(error, &args.name))?;
    let consumer::Rewind { to, from, events, parked, skipped } = rewind;
    let done = args.confirm.yes;
    let (to_text, from_text) = (grouped(to), grouped(from));
    let among = |number: i64, what: &str| match number {
        0 => String::new(),
        number => format!(", {} of them {what}", grouped(number)),
    };
    let again = format!(
        "{} of the log again{}{}",
        count(events, "event"),
        among(parked, "parked now"),
        among(skipped, "left out so far")
    );
    let sentence = match done {
        false => format!(
            "would take consumer {name} back from seq {from_text}, so that seq {to_text} is its next event: it gets {again}. What it has made of them is still there{ADD_YES}"
        ),
        true => format!("consumer {name} is back: seq {to_text} is its next event, and it gets {again}"),
    };
    say(json, &RewindReport { consumer: &args.name, from, to, events, parked, skipped, done }, sentence)
}

#[derive(Serialize)]
struct SkipReport<'a> {
    consumer: &'a str,
    seq: i64,
    in_log: bool,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    event_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
    ahead: i64,
    done: bool,
}

pub(super) async fn skip(connection: &mut PgConnection, args: &SkipArgs, json: bool) -> Result<(), Failure> {
    let (name, _) = find(connection, &args.name).await?;
    let skip = consumer::skip(connection, &name, args.seq, args.confirm.mode())
        .await
        .map_err(|error| failed(error, &args.name))?;
    let seq = grouped(args.seq);
    let what = match (&skip.event_type, &skip.resource) {
        (Some(event_type), Some(resource)) => format!("{event_type} about {resource}"),
        (Some(event_type), None) => event_type.clone(),
        (None, _) => "which is missing from the log".to_owned(),
    };
    let when = match skip.ahead {
        0 => "it is its next".to_owned(),
        ahead => format!("it comes to it after {}", count(ahead, "event")),
    };
    let sentence = match args.confirm.yes {
        false => format!("would have consumer {name} leave out seq {seq}, {what}: {when}{ADD_YES}"),
        true => format!("consumer {name} leaves out seq {seq}, {what}: {when}"),
    };
    let report = SkipReport {
        consumer: &args.name,
        seq: args.seq,
        in_log: skip.event_type.is_some(),
        event_type: skip.event_type.as_deref(),
        resource: skip.resource.as_deref(),
        ahead: skip.ahead,
        done: args.confirm.yes,
    };
    say(json, &report, sentence)
}

#[derive(Serialize)]
struct ReplayReport<'a> {
    consumer: &'a str,
    into: &'a str,
    kind: &'a str,
    from: i64,
    to: i64,
    events: i64,
    done: bool,
}

pub(super) async fn replay(
    connection: &mut PgConnection,
    args: &ReplayArgs,
    json: bool,
) -> Result<(), Failure> {
    let (name, _) = find(connection, &args.name).await?;
    let into = ConsumerName::new(args.into.as_str())
        .map_err(|error| Failure::Refused(format!("{} is no name for a consumer: {error}", args.into)))?;
    let replay = consumer::replay(connection, &name, &into, (args.from, args.to), args.confirm.mode())
        .await
        .map_err(|error| failed(error, &args.name))?;
    let events = count(replay.events, "event");
    let piece = format!("seq {} to {} of the log, {events}", grouped(replay.from), grouped(replay.to));
    let who = match replay.kind.as_str() {
        "poll" => format!("It asks for the same as {name}, and somebody has to poll it"),
        // A worker says at each start what it asks for.
        _ => "A program has to handle them under that name, and says itself what it asks for".to_owned(),
    };
    let sentence = match args.confirm.yes {
        false => format!("would make consumer {into}, which gets {piece}. {who}{ADD_YES}"),
        true => format!("consumer {into} gets {piece}. {who}"),
    };
    let report = ReplayReport {
        consumer: &args.name,
        into: &args.into,
        kind: &replay.kind,
        from: replay.from,
        to: replay.to,
        events: replay.events,
        done: args.confirm.yes,
    };
    say(json, &report, sentence)
}
