//! What can be typed about agents.

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use seqline::agent::AgentConsumer;

use super::Confirm;
use crate::limits::ACCESS_LIST_MAX;

/// Options of `agents`.
#[derive(Debug, Args)]
pub struct AgentsArgs {
    /// What of them.
    #[command(subcommand)]
    pub part: AgentsPart,
}

/// What of agents.
#[derive(Debug, Subcommand)]
pub enum AgentsPart {
    /// Show how far the consumers of agents are and who holds them, and release or delete one
    Consumers(AgentConsumersArgs),
}

/// Options of `agents consumers`.
#[derive(Debug, Args)]
pub struct AgentConsumersArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: AgentConsumersAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `agents consumers` does.
#[derive(Debug, Subcommand)]
pub enum AgentConsumersAction {
    /// List consumers by their agents and names
    List {
        /// Only those of this agent
        agent: Option<String>,
        /// Only those that come after this one
        #[arg(long, value_name = "AGENT/CONSUMER", value_parser = after)]
        after: Option<AgentConsumer>,
        /// How many at most, up to 1000
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = limit())]
        limit: u32,
    },
    /// Show one consumer
    Show(OneConsumer),
    /// Set up to where a consumer has acknowledged, to a lower or a higher number
    Reset {
        /// Which one.
        #[command(flatten)]
        consumer: OneConsumer,
        /// The number of the last event that it is to have
        #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
        to: i64,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Take a consumer from whoever holds it
    Release {
        /// Which one.
        #[command(flatten)]
        consumer: OneConsumer,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Delete a consumer that is out of use
    Delete {
        /// Which one.
        #[command(flatten)]
        consumer: OneConsumer,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// A consumer of an agent.
#[derive(Debug, Args)]
pub struct OneConsumer {
    /// Id of the agent
    pub agent: String,
    /// Name of the consumer
    pub consumer: String,
}

/// An id can have a slash, a name cannot.
fn after(text: &str) -> Result<AgentConsumer, String> {
    let (agent, name) = text.rsplit_once('/').ok_or("expected an agent, a slash and a consumer")?;
    AgentConsumer::new(agent, name).map_err(|error| error.to_string())
}

fn limit() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=i64::from(ACCESS_LIST_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slash_divides() {
        assert_eq!(after("a/b/c"), Ok(AgentConsumer::new("a/b", "c").unwrap()));
        for wrong in ["a", "a/", "a/B"] {
            assert!(after(wrong).is_err(), "{wrong}");
        }
    }
}
