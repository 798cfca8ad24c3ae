//! What can be typed about a redaction.

use clap::{Args, Subcommand};
use uuid::Uuid;

use super::ConfirmWithReason;

/// Options of `redact`.
#[derive(Debug, Args)]
pub struct RedactArgs {
    /// Of which events.
    #[command(subcommand)]
    pub what: RedactWhat,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// Of which events `redact` takes out what they say.
#[derive(Debug, Subcommand)]
pub enum RedactWhat {
    /// Take out what one event says
    Event {
        /// Its id, a UUID
        id: Uuid,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
    /// Take out what all events about a resource say that are in the log now
    Resource {
        /// Its kind, such as customer
        kind: String,
        /// Its id
        id: String,
        /// Whether, and why.
        #[command(flatten)]
        confirm: ConfirmWithReason,
    },
}
