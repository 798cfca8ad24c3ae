//! What can be typed about the server.

use clap::{Args, ValueEnum};

use super::ConfigArgs;
use crate::config::Runs;

/// Options of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// api: answer the API; worker: hand every event to the consumers, exactly once, and run the server's own
    /// jobs; all: both; relay: copy the log into a stream of a broker, and run the built-in consumer of it, both of
    /// which worker and all do too where a broker is given
    #[arg(long, value_enum, default_value = "all", hide_possible_values = true)]
    pub role: ServeRole,
    /// All settings.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// URL for the listening connection, when a pooler stands in front of the database
    #[arg(long, value_name = "URL", env = "SEQLINE_LISTEN_URL", hide_env_values = true)]
    pub listen_url: Option<String>,
    /// URL of the broker, several of a cluster separated by commas; with one the log is copied into its stream, unless relay.mode is off
    #[arg(long, value_name = "URL", env = "SEQLINE_NATS_URL", hide_env_values = true)]
    pub nats_url: Option<String>,
}

/// Parts of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServeRole {
    /// The tail, from which events are delivered live; as many of them as one likes.
    Api,
    /// Consumers and the server's own jobs; as many of them as one likes.
    Worker,
    /// Both.
    All,
    /// What copies the log into a stream, and the built-in consumer of it; of several one works and the others stand by.
    Relay,
}

impl ServeRole {
    /// Its name, as it is typed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Worker => "worker",
            Self::All => "all",
            Self::Relay => "relay",
        }
    }

    /// Whether it has the tail.
    #[must_use]
    pub fn delivers(self) -> bool {
        matches!(self, Self::Api | Self::All)
    }

    /// Whether it has consumers, jobs and the sequencer.
    #[must_use]
    pub fn works(self) -> bool {
        matches!(self, Self::Worker | Self::All)
    }

    /// Whether a part runs here that needs a broker, and that is set so. Nothing else is the purpose of the role relay.
    pub(crate) fn runs(self, part: Runs, url_is_given: bool) -> bool {
        match self {
            Self::Api => false,
            Self::Worker | Self::All => part.is_on(url_is_given),
            Self::Relay => part.is_on(true),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_needs_a_broker_runs_where_one_was_named_and_in_its_own_role() {
        use super::ServeRole::{All, Api, Relay, Worker};
        use crate::config::Runs::{Auto, Off, On};
        for (role, part, expected) in [
            (Api, On, [false, false]),
            (Worker, Auto, [false, true]),
            (All, Auto, [false, true]),
            (All, On, [true, true]),
            (All, Off, [false, false]),
            (Relay, Auto, [true, true]),
            (Relay, Off, [false, false]),
        ] {
            assert_eq!([false, true].map(|url_is_given| role.runs(part, url_is_given)), expected, "{role:?}");
        }
    }
}
