//! `seqline stream forget`: a consumer of the stream that is out of use.

use seqline::Clock;
use seqline::consumer::Mode;
use seqline_nats::broker::Broker;
use seqline_nats::report::consumer_report;
use seqline_nats::retire::{self, Handled, RetireError};
use serde::Serialize;

use crate::cli::{ConfirmWithReason, DatabaseArgs};
use crate::commands::access::{connect, say};
use crate::commands::consumers::ADD_YES;
use crate::commands::refused;
use crate::failure::Failure;
use crate::limits::{FORGET_LOOK_PAUSE, FORGET_LOOKS};
use crate::output::count;

/// A change as JSON.
#[derive(Serialize)]
struct Report<'a> {
    consumer: &'a str,
    stream: &'a str,
    /// Whether the broker has it, or had it.
    at_broker: bool,
    retries: i64,
    dead_letters: i64,
    done: bool,
}

pub(super) async fn run(
    database: &DatabaseArgs,
    broker: &Broker,
    consumer: &str,
    confirm: &ConfirmWithReason,
    json: bool,
) -> Result<(), Failure> {
    let mut connection = connect(database).await?;
    // Only what the database knows: whatever else the broker has is somebody else's.
    let known = retire::forget(&mut connection, consumer, Handled::Stays, Mode::Plan).await;
    let known = known.map_err(failed)?;
    let mut at_broker = refuse_running(broker, &known.stream, consumer).await?;
    if let mode @ Mode::Apply { .. } = confirm.mode() {
        // First at the broker: when the database fails then, it can be said again.
        at_broker = retire::delete(broker, &known.stream, consumer).await?;
        retire::forget(&mut connection, consumer, Handled::Stays, mode).await.map_err(failed)?;
    }
    let (retries, dead_letters) = (known.retries, known.dead_letters);
    let with = format!("with {} and {}", events(retries), count(dead_letters, "dead letter"));
    let place = if at_broker { "at the broker and in the database" } else { "in the database" };
    let sentence = match confirm.yes {
        false => format!("would forget consumer {consumer} {place}, {with}{ADD_YES}"),
        true => format!("consumer {consumer} is forgotten {place}, {with}"),
    };
    let stream = known.stream.as_str();
    say(json, &Report { consumer, stream, at_broker, retries, dead_letters, done: confirm.yes }, sentence)
}

fn events(retries: i64) -> String {
    format!("{} to be tried again", count(retries, "event"))
}

/// Whether the broker has it. Looks more than once: between two questions of a process nobody waits.
async fn refuse_running(broker: &Broker, stream: &str, consumer: &str) -> Result<bool, Failure> {
    let clock = Clock::system();
    for _ in 0..FORGET_LOOKS {
        let Some(at_broker) = consumer_report(broker, stream, consumer).await? else { return Ok(false) };
        if at_broker.waiting > 0 {
            return Err(Failure::Refused(format!("a process runs consumer {consumer}: stop it first")));
        }
        clock.sleep(FORGET_LOOK_PAUSE).await;
    }
    Ok(true)
}

pub(super) fn failed(error: RetireError) -> Failure {
    match error {
        RetireError::Database(error) => error.into(),
        RetireError::Refused(refusal) => refused(refusal),
        error => Failure::Refused(error.to_string()),
    }
}
