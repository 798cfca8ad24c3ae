//! What can be typed about a restore and about the state of everything.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use seqline::identity::RestoredConsumers;

use super::{ConfigArgs, ConfirmWithReason};

/// Options of `restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: RestoreAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `restore` does.
#[derive(Debug, Subcommand)]
pub enum RestoreAction {
    /// Start a new epoch on this server, and say where consumers go on
    Finalize(FinalizeArgs),
}

/// Options of `restore finalize`.
#[derive(Debug, Args)]
pub struct FinalizeArgs {
    /// keep: where the backup had them, so they handle again what came after it; head: with new events only
    #[arg(long, value_name = "keep|head", value_parser = consumers(), hide_possible_values = true)]
    pub consumers: RestoredConsumers,
    /// Also when nothing in the database says that it was restored
    #[arg(long)]
    pub force: bool,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: ConfirmWithReason,
}

fn consumers() -> impl TypedValueParser<Value = RestoredConsumers> {
    PossibleValuesParser::new(RestoredConsumers::ALL.map(RestoredConsumers::as_str))
        .try_map(|text| text.parse::<RestoredConsumers>())
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the text of statements that are in the way; it can hold literals with payloads
    #[arg(long)]
    pub show_queries: bool,
    /// URL for the listening connection, when a pooler stands in front of the database
    #[arg(long, value_name = "URL", env = "SEQLINE_LISTEN_URL", hide_env_values = true)]
    pub listen_url: Option<String>,
    /// The schema of the jobs.
    #[command(flatten)]
    pub config: ConfigArgs,
}
