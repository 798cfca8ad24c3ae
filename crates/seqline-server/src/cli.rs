//! What can be typed.

mod access;
mod agents;
mod audit;
mod broker;
mod consumers;
mod jobs;
mod redact;
mod restore;
mod serve;
mod settings;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use access::{
    GrantArgs, GrantsAction, GrantsArgs, NewPrincipalArgs, PrincipalChange, PrincipalsAction, PrincipalsArgs,
    RightsArgs, TokensAction, TokensArgs,
};
pub use agents::{AgentConsumersAction, AgentConsumersArgs, AgentsArgs, AgentsPart, OneConsumer};
pub use audit::AuditArgs;
pub use broker::{
    BrokerArgs, DeadLettersAction, DeadLettersArgs, OneRelay, RelayAction, RelayArgs, StreamAction,
    StreamArgs, WalkArgs, WalkFrom,
};
pub use consumers::{
    Confirm, ConfirmWithReason, ConsumerChange, ConsumersAction, ConsumersArgs, LanesArgs, ParkedAction,
    ParkedArgs, ReplayArgs, RewindArgs, SkipArgs,
};
pub use jobs::{JobChange, JobsAction, JobsArgs, JobsListArgs};
pub use redact::{RedactArgs, RedactWhat};
pub use restore::{DoctorArgs, FinalizeArgs, RestoreAction, RestoreArgs};
pub use serve::{ServeArgs, ServeRole};
pub use settings::{SettingsAction, SettingsArgs};

/// A durable, gapless, commit-ordered event log inside your PostgreSQL database.
#[derive(Debug, Parser)]
#[command(name = "seqline", version, disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    /// Which database.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How to reach the database.
#[derive(Debug, Args)]
pub struct DatabaseArgs {
    /// URL of the database; without it SEQLINE_DATABASE_URL, then DATABASE_URL is used
    #[arg(long, global = true, value_name = "URL")]
    pub database_url: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run Seqline here: on a PostgreSQL server of its own, or on the given database
    Up(UpArgs),
    /// Create or update the schemas, and make sure that partitions exist
    Migrate(MigrateArgs),
    /// Append one event
    Append(Box<AppendArgs>),
    /// Append the lines of a file of newline-delimited JSON
    Import(Box<ImportArgs>),
    /// Show the newest events, or all after a number, and follow the log
    Tail(TailArgs),
    /// Show head, retention, partitions, versions and consumers
    Status(StatusArgs),
    /// Show settings of the database, and change when events are numbered and who tells listeners
    Settings(SettingsArgs),
    /// Show partitions, create missing ones, apply retention
    Partitions(PartitionsArgs),
    /// Show consumers, and pause, move, divide, replay or retire one
    Consumers(ConsumersArgs),
    /// Show events that consumers have put aside, try them again, give them up
    Parked(ParkedArgs),
    /// Show the server's own jobs, try one again, discard one
    Jobs(JobsArgs),
    /// Take out of the log what an event says, or all about a resource
    Redact(RedactArgs),
    /// Show users, agents and apps, create one, change what it may do
    Principals(PrincipalsArgs),
    /// Make tokens with which principals use the API, show them, end them
    Tokens(TokensArgs),
    /// Say which events a principal receives
    Grants(GrantsArgs),
    /// Show the consumers of agents, and take one from its holder
    Agents(AgentsArgs),
    /// Show the stream into which a relay copies the log, and consume from it
    Stream(StreamArgs),
    /// Show relays, which copy the log into a stream, and pause, rewind or delete one
    Relay(RelayArgs),
    /// Show what consumers of the stream gave up, try it again, forget it
    DeadLetters(DeadLettersArgs),
    /// Show who did what, and why
    Audit(AuditArgs),
    /// After a restore: start a new epoch, and say where consumers go on
    Restore(RestoreArgs),
    /// Look for what is wrong or about to be, and say what to do
    Doctor(DoctorArgs),
    /// Run the server, or a part of it, until interrupted
    Serve(ServeArgs),
    /// Ask a running server whether it lives and is ready
    Healthcheck(HealthcheckArgs),
    /// Check the settings of a server, or show all there are
    Config(ConfigCommandArgs),
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Folder with the binaries of PostgreSQL 14 or newer; without it they are searched
    #[arg(long, value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,
    /// Folder for the data of the embedded server, kept when it stops
    #[arg(long, value_name = "DIR", env = "SEQLINE_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Port on 127.0.0.1 for the embedded server; without it a free one is taken
    #[arg(long)]
    pub port: Option<u16>,
    /// Where to answer /livez, /readyz and /metrics; without it on a free port of 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub ops_listen: std::net::SocketAddr,
    /// Where to answer the API; without it on a free port of 127.0.0.1
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub api_listen: std::net::SocketAddr,
    /// Write a JSON file with database_url, api_url, api_token, ops_url and pid once ready, removed at the end
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// URL of a broker, several of a cluster separated by commas; with one the log is copied into its stream
    #[arg(long, value_name = "URL", env = "SEQLINE_NATS_URL", hide_env_values = true)]
    pub nats_url: Option<String>,
    /// Which events retention keeps
    #[command(flatten)]
    pub retention: RetentionOverrides,
    /// All settings.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Options of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Print the SQL for somebody else to run, and do nothing
    #[arg(long)]
    pub print: bool,
    /// With --print: of the log's schema only what comes after this version; that of the jobs is printed whole
    #[arg(long, value_name = "VERSION", requires = "print", default_value_t = 0)]
    pub after: i32,
    /// The schema of the jobs.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `append`.
#[derive(Debug, Args)]
pub struct AppendArgs {
    /// Two or more lowercase words joined by dots, such as order.created
    pub event_type: String,
    /// JSON object, or - to read it from standard input
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub payload: String,
    /// Leave out null members and elements of the payload
    #[arg(long)]
    pub strip_nulls: bool,
    /// Kind of the resource that the event is about
    #[arg(long, value_name = "KIND")]
    pub resource_kind: Option<String>,
    /// Everything else about the event
    #[command(flatten)]
    pub members: MemberArgs,
    /// Id of the resource
    #[arg(long, value_name = "ID")]
    pub resource_id: Option<String>,
    /// Version of the resource after the event
    #[arg(long, value_name = "N")]
    pub resource_version: Option<i64>,
    /// UUID of the event; one that is in the log already is refused
    #[arg(long, value_name = "UUID")]
    pub id: Option<uuid::Uuid>,
    /// Id that the sender gave the triggering command
    #[arg(long, value_name = "ID")]
    pub client_msg_id: Option<String>,
    /// W3C traceparent of the triggering request
    #[arg(long)]
    pub traceparent: Option<String>,
    /// Say that the payload is a reduced one
    #[arg(long)]
    pub truncated: bool,
    /// Print id and number as JSON
    #[arg(long)]
    pub json: bool,
}

/// Members that `append` and `import` share.
#[derive(Debug, Args)]
pub struct MemberArgs {
    /// Permission that receivers need; any for none, self for one principal
    #[arg(long, default_value = "any", value_name = "ACTION")]
    pub receive_action: String,
    /// Version of the payload's shape
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub schema_version: i32,
    /// Tenant or environment
    #[arg(long, value_name = "ID")]
    pub space: Option<String>,
    /// Scope inside the space
    #[arg(long, value_name = "ID")]
    pub channel: Option<String>,
    /// Scope inside the channel
    #[arg(long, value_name = "ID")]
    pub thread: Option<String>,
    /// Who caused it: user, agent, app or system
    #[arg(long, value_name = "KIND")]
    pub actor_kind: Option<String>,
    /// Which user, agent or app
    #[arg(long, value_name = "ID", requires = "actor_kind")]
    pub actor_id: Option<String>,
    /// The one principal that may receive it
    #[arg(long, value_name = "ID")]
    pub audience: Option<String>,
}

/// Options of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// File of newline-delimited JSON, or - for standard input
    pub file: String,
    /// Type of every event
    #[arg(
        long = "type",
        value_name = "TYPE",
        conflicts_with = "type_pointer",
        required_unless_present = "type_pointer"
    )]
    pub event_type: Option<String>,
    /// JSON pointer to the type in each line, such as /event
    #[arg(long, value_name = "POINTER")]
    pub type_pointer: Option<String>,
    /// Text before the type that a pointer finds ("github." makes push github.push)
    #[arg(long, value_name = "TEXT", requires = "type_pointer", conflicts_with = "event_type")]
    pub type_prefix: Option<String>,
    /// JSON pointer to the resource's kind in each line
    #[arg(long, value_name = "POINTER", conflicts_with = "resource_kind")]
    pub resource_kind_pointer: Option<String>,
    /// JSON pointer to the resource's id in each line; lines without it have none
    #[arg(long, value_name = "POINTER")]
    pub resource_id_pointer: Option<String>,
    /// JSON pointer to the payload in each line; without it the whole line is the payload
    #[arg(long, value_name = "POINTER")]
    pub payload_pointer: Option<String>,
    /// Kind of the resource that the event is about
    #[arg(long, value_name = "KIND", required_unless_present = "resource_kind_pointer")]
    pub resource_kind: Option<String>,
    /// Everything else about the events
    #[command(flatten)]
    pub members: MemberArgs,
    /// Leave out null members and elements of payloads
    #[arg(long)]
    pub strip_nulls: bool,
    /// Transactions at the same time; with more than one, events are not in the order of the lines
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub writers: u16,
    /// Lines in one transaction
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub batch: u32,
    /// Longest line in bytes; a longer one is rejected
    #[arg(long, default_value_t = 16 * 1024 * 1024, value_name = "BYTES")]
    pub line_max_bytes: usize,
    /// Where rejected lines go, with their number and the reason; without it beside the file
    #[arg(long, value_name = "FILE")]
    pub rejects: Option<PathBuf>,
    /// Name under which progress is kept, so that the import can be resumed; without it the path of the file
    #[arg(long)]
    pub name: Option<String>,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    /// Show every event with a larger number
    #[arg(long, value_name = "SEQ", conflicts_with = "last", value_parser = clap::value_parser!(i64).range(0..))]
    pub after: Option<i64>,
    /// Show this many of the newest events
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    pub last: i64,
    /// Go on with what is committed from now on, until interrupted
    #[arg(long, short)]
    pub follow: bool,
    /// Print each event as one line of JSON, the envelope
    #[arg(long)]
    pub json: bool,
    /// Longest time between two looks at the log when notifications are lost
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub poll_interval: std::time::Duration,
    /// URL for the listening connection, when a pooler stands in front of the database
    #[arg(long, value_name = "URL", env = "SEQLINE_LISTEN_URL", hide_env_values = true)]
    pub listen_url: Option<String>,
    /// With --follow, do not listen for notifications: look every poll interval and make no connection but those that read
    #[arg(long)]
    pub no_listen: bool,
}

/// Options of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The schema of the jobs.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Options of `partitions`.
#[derive(Debug, Args)]
pub struct PartitionsArgs {
    /// What to do; without it partitions are listed
    #[command(subcommand)]
    pub action: Option<PartitionsAction>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `partitions` does.
#[derive(Debug, Subcommand)]
pub enum PartitionsAction {
    /// Create the partitions that are missing ahead of the head
    Ensure,
    /// Create missing partitions, close an old one, drop expired ones
    Maintain(RetentionArgs),
}

/// Which events retention keeps.
#[derive(Debug, Args)]
pub struct RetentionArgs {
    /// How long events stay in the log
    #[arg(long, default_value = "30d", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub retention: std::time::Duration,
    /// How much longer expired events stay because a consumer has not passed them; 0s is not at all
    #[arg(long, default_value = "30d", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub retention_hold: std::time::Duration,
    /// After which time a partition with few events is closed although it is not full
    #[arg(long, default_value = "7d", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub partition_max_age: std::time::Duration,
}

impl RetentionArgs {
    /// The configuration of the maintenance operation.
    #[must_use]
    pub fn config(&self) -> seqline::maintenance::MaintenanceConfig {
        seqline::maintenance::MaintenanceConfig {
            retention: self.retention,
            retention_hold: self.retention_hold,
            partition_max_age: self.partition_max_age,
            ..Default::default()
        }
    }
}

/// Which events retention keeps, where that is not what the settings say.
#[derive(Debug, Args)]
pub struct RetentionOverrides {
    /// How long events stay in the log; without it sync.event_retention
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub retention: Option<std::time::Duration>,
    /// How much longer expired events stay because a consumer has not passed them; 0s is not at all; without it
    /// sync.event_retention_hold
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub retention_hold: Option<std::time::Duration>,
    /// After which time a partition with few events is closed although it is not full; without it
    /// sync.event_log_partition_max_age
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub partition_max_age: Option<std::time::Duration>,
}

impl RetentionOverrides {
    /// The settings with these in their place.
    pub(crate) fn apply(&self, config: &mut crate::config::Config) {
        let sync = &mut config.sync;
        sync.event_retention = self.retention.unwrap_or(sync.event_retention);
        sync.event_retention_hold = self.retention_hold.unwrap_or(sync.event_retention_hold);
        sync.event_log_partition_max_age = self.partition_max_age.unwrap_or(sync.event_log_partition_max_age);
    }
}

/// Where settings come from.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// File with settings (TOML), which variables SEQLINE_SECTION__KEY override
    #[arg(long, global = true, value_name = "FILE", env = "SEQLINE_CONFIG")]
    pub config: Option<OsString>,
    /// One setting, stronger than file and variables; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Options of `config`.
#[derive(Debug, Args)]
pub struct ConfigCommandArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ConfigAction,
    /// All settings.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// What `config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigAction {
    /// Tell everything that is wrong with the settings, or what they set and where
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show all settings with defaults, bounds and reasons, as Markdown
    Reference {
        /// As a file of settings in which everything is commented out
        #[arg(long)]
        toml: bool,
    },
    /// Show the JSON Schema of the file with settings, for editors
    Schema,
}

/// Options of `healthcheck`.
#[derive(Debug, Args)]
pub struct HealthcheckArgs {
    /// Only whether it lives, as /livez tells; without it whether it is ready, as /readyz tells
    #[arg(long)]
    pub live: bool,
    /// Where it answers; without it the address of ops.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub address: Option<std::net::SocketAddr>,
    /// How long the answer may take
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub timeout: std::time::Duration,
    /// All settings.
    #[command(flatten)]
    pub config: ConfigArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
