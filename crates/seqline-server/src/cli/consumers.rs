//! What can be typed about consumers and what they have parked.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};
use seqline::consumer::{LaneKey, Mode, Target};
use seqline::limits::LANES_MAX;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::limits::{LANES_WAIT_MAX, PARKED_LIST_MAX};
use crate::output::grouped;

/// Options of `consumers`.
#[derive(Debug, Args)]
pub struct ConsumersArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ConsumersAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `consumers` does.
#[derive(Debug, Subcommand)]
pub enum ConsumersAction {
    /// List consumers, where they stand and how they are
    List {
        /// Also those that were retired
        #[arg(long)]
        all: bool,
    },
    /// Show everything about a consumer: lanes, errors, losses, what was done to it
    Show {
        /// Its name
        name: String,
    },
    /// Let no round of a consumer begin, on all workers and for seqline.poll
    Pause(ConsumerChange),
    /// Let a paused or retired consumer go on where it stands
    Resume(ConsumerChange),
    /// Take a consumer back, so that it gets events again
    Rewind(RewindArgs),
    /// Have a consumer leave out one event that it has not passed
    Skip(SkipArgs),
    /// Take a consumer out of use: no round of it begins, and nothing waits for it
    Retire(ConsumerChange),
    /// Divide a consumer into another number of lanes
    Lanes(LanesArgs),
    /// Make a new consumer that gets a piece of the log again
    Replay(ReplayArgs),
    /// Say that somebody knows what a consumer has lost to retention
    Acknowledge(ConsumerChange),
}

/// A change of a consumer.
#[derive(Debug, Args)]
pub struct ConsumerChange {
    /// Its name
    pub name: String,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: Confirm,
}

/// Whether something is done, and why.
#[derive(Debug, Args)]
pub struct Confirm {
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do it; without this it is only said what would be done
    #[arg(long)]
    pub yes: bool,
}

impl Confirm {
    /// The same for the library.
    #[must_use]
    pub fn mode(&self) -> Mode<'_> {
        if self.yes { Mode::Apply { why: self.reason.as_deref() } } else { Mode::Plan }
    }
}

/// Whether something is done that takes an event away from a consumer, and why.
#[derive(Debug, Args)]
pub struct ConfirmWithReason {
    /// Why, for the audit log; --yes needs it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do it; without this it is only said what would be done
    #[arg(long, requires = "reason")]
    pub yes: bool,
}

impl ConfirmWithReason {
    /// The same for the library.
    #[must_use]
    pub fn mode(&self) -> Mode<'_> {
        if self.yes { Mode::Apply { why: self.reason.as_deref() } } else { Mode::Plan }
    }
}

/// Options of `consumers rewind`.
#[derive(Debug, Args)]
pub struct RewindArgs {
    /// Its name
    pub name: String,
    /// Its next event: a number, or a time (RFC 3339) for the first event that was appended then or later
    #[arg(long, value_name = "SEQ|TIME", value_parser = target)]
    pub to: Target,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: Confirm,
}

/// Options of `consumers skip`.
#[derive(Debug, Args)]
pub struct SkipArgs {
    /// Its name
    pub name: String,
    /// Number of the event
    #[arg(long, value_name = "N", value_parser = seq)]
    pub seq: i64,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: ConfirmWithReason,
}

/// Options of `consumers lanes`.
#[derive(Debug, Args)]
pub struct LanesArgs {
    /// Its name
    pub name: String,
    /// How many lanes it shall have, 1 to 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(LANES_MAX)))]
    pub to: u32,
    /// What the events have in common that stay in order; without it as it is
    #[arg(long, value_parser = lane_key())]
    pub key: Option<LaneKey>,
    /// How long the lanes in front wait for those behind, up to 5m
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = lanes_wait)]
    pub wait: Duration,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: Confirm,
}

/// Options of `consumers replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The consumer after which the new one is made; it is not touched
    pub name: String,
    /// Name of the new consumer
    #[arg(long, value_name = "NEW")]
    pub into: String,
    /// First event: a number, or a time (RFC 3339) for the first event that was appended then or later
    #[arg(long, value_name = "SEQ|TIME", value_parser = target)]
    pub from: Target,
    /// Last event: a number, or a time for the last event before the first that was appended then or later
    #[arg(long, value_name = "SEQ|TIME", value_parser = target)]
    pub to: Target,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: Confirm,
}

/// Options of `parked`.
#[derive(Debug, Args)]
pub struct ParkedArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ParkedAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `parked` does.
#[derive(Debug, Subcommand)]
pub enum ParkedAction {
    /// List parked events, with their errors and what they wait for
    List {
        /// Only those of this consumer
        consumer: Option<String>,
        /// How many at most, up to 1000
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PARKED_LIST_MAX)))]
        limit: u32,
    },
    /// Show a parked event, without its payload
    Show {
        /// Name of the consumer
        consumer: String,
        /// Number of the event
        #[arg(long, value_name = "N", value_parser = seq)]
        seq: i64,
    },
    /// Have parked events tried again; those behind them follow in order
    Retry {
        /// Name of the consumer
        consumer: String,
        /// Only this one
        #[arg(long, value_name = "N", value_parser = seq)]
        seq: Option<i64>,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Give parked events up: the consumer never handles them
    #[command(group = ArgGroup::new("which").args(["seq", "all"]).required(true))]
    Discard {
        /// Name of the consumer
        consumer: String,
        /// Number of the event
        #[arg(long, value_name = "N", value_parser = seq)]
        seq: Option<i64>,
        /// All of the consumer
        #[arg(long)]
        all: bool,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
}

/// The number of an event, also as the commands print it: `1,017`.
fn seq(text: &str) -> Result<i64, &'static str> {
    let number = text.replace(',', "").parse().ok();
    number
        .filter(|number| !text.contains(',') || grouped(*number) == text)
        .ok_or("not the number of an event")
}

fn target(text: &str) -> Result<Target, &'static str> {
    if let Ok(seq) = seq(text) {
        return Ok(Target::Seq(seq));
    }
    OffsetDateTime::parse(text, &Rfc3339)
        .map(Target::Time)
        .map_err(|_| "neither the number of an event nor a time such as 2026-11-30T08:00:00Z")
}

fn lane_key() -> impl TypedValueParser<Value = LaneKey> {
    let find = |text: String| LaneKey::ALL.into_iter().find(|key| key.as_str() == text).ok_or("no such key");
    PossibleValuesParser::new(LaneKey::ALL.map(LaneKey::as_str)).try_map(find)
}

fn lanes_wait(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(wait) if wait > LANES_WAIT_MAX => Err("lanes wait for each other for 5m at most".to_owned()),
        Ok(wait) => Ok(wait),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_log_is_a_number_or_a_time() {
        assert_eq!(target("1017"), Ok(Target::Seq(1017)));
        assert_eq!(target("1,017"), Ok(Target::Seq(1017)));
        assert_eq!(target("1970-01-01T01:00:00+01:00"), Ok(Target::Time(OffsetDateTime::UNIX_EPOCH)));
        for text in [
            "",
            "yesterday",
            "2026-11-30",
            "2026-11-30T08:00:00",
            "1.5",
            "10,17",
            ",",
            "99999999999999999999",
        ] {
            assert!(target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lanes_wait_for_a_bounded_time() {
        assert_eq!(lanes_wait("5m"), Ok(LANES_WAIT_MAX));
        assert!(lanes_wait("301s").is_err() && lanes_wait("soon").is_err());
    }
}
