//! `seqline stream info`

use seqline_nats::broker::Broker;
use seqline_nats::report::{ConsumerReport, StreamReport, report};
use seqline_nats::stream::MAX_AGE_FLOOR;
use serde::Serialize;

use crate::config::{Config, duration_text};
use crate::failure::Failure;
use crate::output::{self, grouped, rfc3339};

/// What nobody can change about a stream that is there.
const FIXED_AT_CREATION: [&str; 2] = ["retention", "storage"];

/// The stream as JSON. A bound that is null is none.
#[derive(Serialize)]
struct Report<'a> {
    stream: &'a str,
    created: String,
    messages: u64,
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    first_at: Option<String>,
    subjects: &'a [String],
    subjects_count: u64,
    retention: &'static str,
    storage: &'static str,
    fixed_at_creation: [&'static str; 2],
    replicas: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas_current: Option<usize>,
    max_age_ms: Option<u128>,
    max_age_floor_ms: u128,
    max_bytes: Option<u64>,
    max_messages: Option<u64>,
    discard: &'static str,
    duplicate_window_ms: u128,
    consumers: Vec<ConsumerRow<'a>>,
}

#[derive(Serialize)]
struct ConsumerRow<'a> {
    name: &'a str,
    filters: &'a [String],
    pending: u64,
    ack_pending: usize,
    redelivered: usize,
    max_deliver: Option<u64>,
    max_ack_pending: Option<u64>,
    ack_wait_ms: u128,
    ack_floor: u64,
}

impl<'a> Report<'a> {
    fn of(stream: &'a StreamReport) -> Self {
        let (first_seq, last_seq) = stream.sequences;
        Self {
            stream: &stream.name,
            created: rfc3339(stream.created),
            messages: stream.messages,
            bytes: stream.bytes,
            first_seq,
            last_seq,
            first_at: stream.first_at.map(rfc3339),
            subjects: &stream.subjects,
            subjects_count: stream.subjects_count,
            retention: stream.retention,
            storage: stream.storage,
            fixed_at_creation: FIXED_AT_CREATION,
            replicas: stream.replicas,
            replicas_current: stream.replicas_current,
            max_age_ms: stream.max_age.map(|age| age.as_millis()),
            max_age_floor_ms: MAX_AGE_FLOOR.as_millis(),
            max_bytes: stream.max_bytes,
            max_messages: stream.max_messages,
            discard: stream.discard,
            duplicate_window_ms: stream.duplicate_window.as_millis(),
            consumers: stream.consumers.iter().map(ConsumerRow::of).collect(),
        }
    }
}

impl<'a> ConsumerRow<'a> {
    fn of(consumer: &'a ConsumerReport) -> Self {
        Self {
            name: &consumer.name,
            filters: &consumer.filters,
            pending: consumer.pending,
            ack_pending: consumer.ack_pending,
            redelivered: consumer.redelivered,
            max_deliver: consumer.max_deliver,
            max_ack_pending: consumer.max_ack_pending,
            ack_wait_ms: consumer.ack_wait.as_millis(),
            ack_floor: consumer.ack_floor,
        }
    }
}

pub(super) async fn run(broker: &Broker, config: &Config, json: bool) -> Result<(), Failure> {
    let name = &config.stream.name;
    let stream = report(broker, name).await?.ok_or_else(|| {
        Failure::Refused(format!(
            "the broker at {} has no stream {name}: a relay makes it, as seqline serve --role relay",
            broker.place()
        ))
    })?;
    if json {
        output::json(&Report::of(&stream))?;
    } else {
        print(&stream)?;
    }
    if stream.more_consumers {
        eprintln!("seqline: there are more than {} consumers", stream.consumers.len());
    }
    Ok(())
}

fn print(stream: &StreamReport) -> Result<(), Failure> {
    let fixed = |value: &str| format!("{value} (fixed at creation)");
    let (first, last) = stream.sequences;
    let messages = match stream.messages {
        0 => "none".to_owned(),
        messages => format!("{}, from {} to {}", number(messages), number(first), number(last)),
    };
    let used = stream.max_bytes.map_or_else(String::new, |max| {
        format!(" ({}% used)", u128::from(stream.bytes) * 100 / u128::from(max))
    });
    let replicas = match stream.replicas_current {
        Some(current) if current < stream.replicas => {
            format!("{}, {current} of them current", stream.replicas)
        }
        _ => stream.replicas.to_string(),
    };
    let age = stream.max_age.map_or_else(|| UNLIMITED.to_owned(), duration_text);
    for (name, value) in [
        ("stream", stream.name.clone()),
        ("created", rfc3339(stream.created)),
        ("messages", messages),
        ("bytes", number(stream.bytes)),
        ("oldest", stream.first_at.map_or_else(|| "-".to_owned(), rfc3339)),
        ("subjects", format!("{} ({} in use)", stream.subjects.join(", "), number(stream.subjects_count))),
        ("consumers", stream.consumers.len().to_string()),
        ("retention", fixed(stream.retention)),
        ("storage", fixed(stream.storage)),
        ("replicas", replicas),
        ("max age", format!("{age} (never less than {})", duration_text(MAX_AGE_FLOOR))),
        ("max bytes", format!("{}{used}", unlimited(stream.max_bytes))),
        ("max messages", unlimited(stream.max_messages)),
        ("discard", stream.discard.to_owned()),
        ("duplicate window", duration_text(stream.duplicate_window)),
    ] {
        output::line(format!("{name:<18}{value}"))?;
    }
    if stream.consumers.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let row = |consumer: &ConsumerReport| {
        vec![
            consumer.name.clone(),
            number(consumer.pending),
            consumer.ack_pending.to_string(),
            consumer.redelivered.to_string(),
            unlimited(consumer.max_deliver),
            if consumer.filters.is_empty() { "all".to_owned() } else { consumer.filters.join(", ") },
        ]
    };
    output::table(
        &["consumer", "pending", "ack pending", "redelivered", "max deliver", "subjects"],
        &[1, 2, 3, 4],
        stream.consumers.iter().map(row).collect(),
    )
}

const UNLIMITED: &str = "unlimited";

fn unlimited(bound: Option<u64>) -> String {
    bound.map_or_else(|| UNLIMITED.to_owned(), number)
}

fn number(number: u64) -> String {
    grouped(number.try_into().unwrap_or(i64::MAX))
}
