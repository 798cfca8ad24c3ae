//! `seqline dead-letters`: what consumers of the stream gave up.
//!
//! What changes something says first what it would do. Whatever the database refuses is said in its words. What an event says is shown only to
//! who asks for it.

use seqline::ReadError;
use seqline::envelope::{Delivery, Envelope};
use seqline_nats::dead_letter::{self, DeadLetter, DeadLetterError, Settle};
use seqline_nats::report;
use serde::Serialize;
use sqlx::PgConnection;

use super::access::{connect, more, say};
use super::configuration;
use super::consumers::ADD_YES;
use crate::broker;
use crate::cli::{BrokerArgs, ConfigArgs, DatabaseArgs, DeadLettersAction, DeadLettersArgs};
use crate::failure::Failure;
use crate::output::{self, count, grouped, rfc3339, seconds};

pub(crate) async fn run(database: &DatabaseArgs, args: DeadLettersArgs) -> Result<(), Failure> {
    let json = args.json;
    match args.action {
        DeadLettersAction::List { consumer, after, limit } => {
            list(&mut connect(database).await?, consumer.as_deref(), after, limit, json).await
        }
        DeadLettersAction::Show { id, payload, broker, config } => {
            let mut connection = connect(database).await?;
            let letter = dead_letter::show(&mut connection, id).await?.ok_or_else(|| {
                Failure::Refused(format!(
                    "there is no dead letter {id}: seqline dead-letters list shows those that there are"
                ))
            })?;
            let content = match payload {
                true => Some(content(&mut connection, &letter, &broker, &config).await?),
                false => None,
            };
            show(&letter, content, json)
        }
        DeadLettersAction::Replay { consumer, ids, confirm } => {
            let change =
                Change { consumer: &consumer, ids: (!ids.is_empty()).then_some(&ids), done: confirm.yes };
            let mut connection = connect(database).await?;
            let settled =
                dead_letter::settle(&mut connection, &consumer, change.ids, Settle::Replay, confirm.mode());
            replayed(&change, settled.await.map_err(failed)?, json)
        }
        DeadLettersAction::Discard { consumer, ids, all: _, confirm } => {
            let change =
                Change { consumer: &consumer, ids: (!ids.is_empty()).then_some(&ids), done: confirm.yes };
            let mut connection = connect(database).await?;
            let settled =
                dead_letter::settle(&mut connection, &consumer, change.ids, Settle::Discard, confirm.mode());
            discarded(&change, settled.await.map_err(failed)?, json)
        }
    }
}

/// A dead letter as JSON.
#[derive(Serialize)]
struct Row<'a> {
    id: i64,
    consumer: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<i64>,
    stream: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<i64>,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    recorded_at: String,
    /// What it says, for who asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Content>,
}

/// What a dead letter is about.
#[derive(Serialize)]
struct Content {
    /// `log`, `stream`, or `nowhere` when neither has it any more.
    from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl<'a> Row<'a> {
    fn of(letter: &'a DeadLetter, content: Option<Content>) -> Self {
        Self {
            id: letter.id,
            consumer: &letter.consumer,
            reason: &letter.reason,
            event_id: letter.event_id.map(|id| id.to_string()),
            position: letter.position,
            stream: &letter.stream,
            stream_seq: letter.stream_seq,
            subject: letter.subject.as_deref(),
            size: letter.size,
            attempts: letter.attempts,
            error_type: letter.error_type.as_deref(),
            recorded_at: rfc3339(letter.recorded_at),
            content,
        }
    }
}

async fn list(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    after: i64,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    let mut letters = dead_letter::list(connection, consumer, after, limit + 1).await?;
    let more = more(&mut letters, limit);
    match (json, letters.is_empty()) {
        (true, _) => output::json(&letters.iter().map(|letter| Row::of(letter, None)).collect::<Vec<_>>())?,
        (false, true) => eprintln!("seqline: no dead letters found"),
        (false, false) => {
            let or_none = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), grouped);
            let cells = |letter: &DeadLetter| {
                vec![
                    letter.id.to_string(),
                    letter.consumer.clone(),
                    letter.reason.clone(),
                    or_none(letter.position),
                    or_none(letter.stream_seq),
                    letter.attempts.to_string(),
                    letter.error_type.clone().unwrap_or_default(),
                    seconds(letter.recorded_at),
                ]
            };
            output::table(
                &["id", "consumer", "reason", "position", "stream seq", "attempts", "last error", "given up"],
                &[0, 3, 4, 5],
                letters.iter().map(cells).collect(),
            )?;
        }
    }
    if let (true, Some(last)) = (more, letters.last()) {
        eprintln!("seqline: there are more: --after {} goes on", last.id);
    }
    Ok(())
}

/// The event of the log, if it is there still; else the message, if the stream is the same and has it.
async fn content(
    connection: &mut PgConnection,
    letter: &DeadLetter,
    broker: &BrokerArgs,
    config: &ConfigArgs,
) -> Result<Content, Failure> {
    if let (Some(id), Some(position)) = (letter.event_id, letter.position) {
        let events = match seqline::read::events_after(connection, position - 1, 1).await {
            Err(ReadError::Database(error)) => return Err(error.into()),
            // Retention took it.
            Err(_) => Vec::new(),
            Ok(events) => events,
        };
        if let Some(event) = events.first().filter(|event| event.seq == position && event.id == id) {
            let text = Envelope::new(event, &Delivery::default()).to_json();
            return Ok(Content { from: "log", text: Some(text) });
        }
    }
    let Some(place) = letter.stream_created.zip(letter.stream_seq) else {
        return Ok(Content { from: "nowhere", text: None });
    };
    let broker = broker::at(broker.nats_url.as_deref(), &configuration(config)?);
    let message = report::stored_message(&broker, &letter.stream, place).await;
    broker.close().await;
    // What nobody could read need not be text.
    let text = message?.map(|payload| String::from_utf8_lossy(&payload).into_owned());
    Ok(Content { from: if text.is_some() { "stream" } else { "nowhere" }, text })
}

fn show(letter: &DeadLetter, content: Option<Content>, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&Row::of(letter, content));
    }
    let mut lines = vec![
        ("dead letter", letter.id.to_string()),
        ("consumer", letter.consumer.clone()),
        ("reason", letter.reason.clone()),
        ("given up", rfc3339(letter.recorded_at)),
        ("attempts", letter.attempts.to_string()),
    ];
    let others = [
        ("last error", letter.error_type.clone()),
        ("event", letter.event_id.map(|id| id.to_string())),
        ("position", letter.position.map(grouped)),
        ("stream", Some(letter.stream.clone())),
        ("stream seq", letter.stream_seq.map(grouped)),
        ("subject", letter.subject.clone()),
        ("size", letter.size.map(|size| format!("{} bytes", grouped(size)))),
    ];
    lines.extend(others.into_iter().filter_map(|(name, value)| Some((name, value?))));
    for (name, value) in lines {
        output::line(format!("{name:<14}{}", output::shortened(&value, usize::MAX)))?;
    }
    match content {
        None => Ok(()),
        Some(Content { text: None, .. }) => {
            eprintln!("seqline: neither the log nor the stream has it any more");
            Ok(())
        }
        Some(Content { from, text: Some(text) }) => {
            output::line(format!("{:<14}of the {from}", "content"))?;
            output::line(text)
        }
    }
}

/// What is to become of which.
struct Change<'a> {
    consumer: &'a str,
    ids: Option<&'a [i64]>,
    done: bool,
}

/// A change as JSON.
#[derive(Serialize)]
struct Report<'a> {
    consumer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<&'a [i64]>,
    letters: i64,
    done: bool,
}

fn report<'a>(change: &Change<'a>, letters: i64) -> Report<'a> {
    Report { consumer: change.consumer, ids: change.ids, letters, done: change.done }
}

fn replayed(change: &Change<'_>, letters: i64, json: bool) -> Result<(), Failure> {
    let (consumer, what) = (change.consumer, count(letters, "dead letter"));
    let sentence = match (letters, change.done) {
        (0, _) => format!("consumer {consumer} has no dead letters that can be tried again"),
        (_, false) => format!("would have consumer {consumer} try {what} again{ADD_YES}"),
        (_, true) => format!("consumer {consumer} tries {what} again"),
    };
    say(json, &report(change, letters), sentence)
}

fn discarded(change: &Change<'_>, letters: i64, json: bool) -> Result<(), Failure> {
    let (consumer, what) = (change.consumer, count(letters, "dead letter"));
    let sentence = match (letters, change.done) {
        (0, _) => format!("consumer {consumer} has no dead letters"),
        (_, false) => {
            format!("would forget {what} of consumer {consumer}, which it never handles then{ADD_YES}")
        }
        (_, true) => format!("forgot {what} of consumer {consumer}"),
    };
    say(json, &report(change, letters), sentence)
}

fn failed(error: DeadLetterError) -> Failure {
    match error {
        DeadLetterError::Database(error) => error.into(),
        DeadLetterError::Refused(refusal) => super::refused(refusal),
        error => Failure::Refused(error.to_string()),
    }
}
