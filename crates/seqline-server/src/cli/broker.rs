//! What can be typed about the broker: the stream, relays, and what consumers of the stream gave up.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::{ConfigArgs, Confirm, ConfirmWithReason};

/// Which broker.
#[derive(Debug, Args)]
pub struct BrokerArgs {
    /// URL of the broker, several of a cluster separated by commas; without it nats://localhost:4222
    #[arg(long, global = true, value_name = "URL", env = "SEQLINE_NATS_URL", hide_env_values = true)]
    pub nats_url: Option<String>,
}

/// Options of `stream`.
#[derive(Debug, Args)]
pub struct StreamArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: StreamAction,
    /// Which broker.
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// The stream, and how the broker is reached.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// What `stream` does.
#[derive(Debug, Subcommand)]
pub enum StreamAction {
    /// Show what the broker really has: the stream, its bounds, and its consumers
    Info {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget a consumer that is out of use, at the broker and in the database
    Forget {
        /// Its name
        consumer: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
    /// Consume some events, and die at the worst moment if asked to: shows that each is handled once
    Walk(WalkArgs),
}

/// Options of `stream walk`.
#[derive(Debug, Args)]
pub struct WalkArgs {
    /// Die between the commit and the acknowledgement of the last event
    #[arg(long)]
    pub kill_before_ack: bool,
    /// Go on as this consumer, which an earlier walk has named, and wait up to 45s for what it had not acknowledged; without it a new one is made
    #[arg(long, value_name = "NAME")]
    pub resume: Option<String>,
    /// Where a new one begins: with all that the stream holds, or with what comes
    #[arg(long, value_enum, default_value = "all")]
    pub from: WalkFrom,
    /// How many events
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// How long it takes for each
    #[arg(long, default_value = "400ms", value_name = "DURATION", value_parser = pause)]
    pub pause: Duration,
}

/// Where a walk begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WalkFrom {
    /// With the oldest message.
    All,
    /// With what is published from then on.
    New,
}

/// Less than a handler may take.
fn pause(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(pause) if pause > Duration::from_secs(5) => Err("a walk pauses for 5s at most".to_owned()),
        Ok(pause) => Ok(pause),
        Err(error) => Err(error.to_string()),
    }
}

/// Options of `relay`.
#[derive(Debug, Args)]
pub struct RelayArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: RelayAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `relay` does. No broker is needed.
#[derive(Debug, Subcommand)]
pub enum RelayAction {
    /// Show how far relays are, what keeps them from going on, and what they met
    Status,
    /// Let a relay send nothing more
    Pause {
        /// Which one.
        #[command(flatten)]
        relay: OneRelay,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Let a paused relay go on where it stands
    Resume {
        /// Which one.
        #[command(flatten)]
        relay: OneRelay,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Have a relay publish again what comes after an event, at the end of the stream
    Rewind {
        /// Which one.
        #[command(flatten)]
        relay: OneRelay,
        /// The number of the last event that is not published again
        #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
        to: i64,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
    /// Forget a relay that is out of use, for which retention does not wait any more then
    Delete {
        /// Which one.
        #[command(flatten)]
        relay: OneRelay,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
    /// Say that somebody knows what a relay met
    Acknowledge {
        /// Which one.
        #[command(flatten)]
        relay: OneRelay,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
}

/// A relay.
#[derive(Debug, Args)]
pub struct OneRelay {
    /// Its name: relay.name of the processes that run it
    #[arg(default_value = "jetstream")]
    pub name: String,
}

/// Options of `dead-letters`.
#[derive(Debug, Args)]
pub struct DeadLettersArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: DeadLettersAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `dead-letters` does.
#[derive(Debug, Subcommand)]
pub enum DeadLettersAction {
    /// List dead letters by their numbers
    List {
        /// Only those of this consumer
        consumer: Option<String>,
        /// Only those with a higher number
        #[arg(long, value_name = "ID", default_value_t = 0, hide_default_value = true)]
        after: i64,
        /// How many at most, up to 999
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=999))]
        limit: u32,
    },
    /// Show a dead letter
    Show {
        /// Its number
        id: i64,
        /// What the event says as well: from the log, else the message from the stream
        #[arg(long)]
        payload: bool,
        /// Which broker.
        #[command(flatten)]
        broker: BrokerArgs,
        /// How the broker is reached.
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Have the consumer try events again, as if they had never failed
    Replay {
        /// Name of the consumer
        consumer: String,
        /// Numbers of dead letters; without any all of the consumer whose event is known
        ids: Vec<i64>,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Forget dead letters: the consumer never handles those events
    #[command(group = ArgGroup::new("which").args(["ids", "all"]).required(true))]
    Discard {
        /// Name of the consumer
        consumer: String,
        /// Numbers of dead letters
        ids: Vec<i64>,
        /// All of the consumer
        #[arg(long)]
        all: bool,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
}
