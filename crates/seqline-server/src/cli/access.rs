//! What can be typed about principals, tokens and grants.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use seqline::access::{Grant, PrincipalKind, Rights};
use uuid::Uuid;

use super::Confirm;
use crate::limits::ACCESS_LIST_MAX;

/// Options of `principals`.
#[derive(Debug, Args)]
pub struct PrincipalsArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: PrincipalsAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `principals` does.
#[derive(Debug, Subcommand)]
pub enum PrincipalsAction {
    /// Create a user, an agent or an app
    Create(NewPrincipalArgs),
    /// List principals by their ids
    List {
        /// Only those whose ids come after this one
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// How many at most, up to 1000
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = limit())]
        limit: u32,
    },
    /// Show a principal with its tokens and grants
    Show {
        /// Its id
        id: String,
    },
    /// Set what a principal may do
    Rights(RightsArgs),
    /// Take everything from a principal until it is enabled again: its tokens open nothing, and it sees nothing
    Disable(PrincipalChange),
    /// Give a disabled principal back what it had
    Enable(PrincipalChange),
    /// Remove a principal with its tokens and grants
    Delete(PrincipalChange),
}

/// A principal that is to be.
#[derive(Debug, Args)]
pub struct NewPrincipalArgs {
    /// Its id, as events name it
    pub id: String,
    /// user, agent or app
    #[arg(long, value_name = "KIND", value_parser = kind(), hide_possible_values = true)]
    pub kind: PrincipalKind,
    /// What people call it
    #[arg(long)]
    pub name: Option<String>,
    /// What it may do: append, operate, or both with a comma in between; without it nothing but read
    #[arg(long, value_name = "RIGHTS", value_parser = rights)]
    pub rights: Option<Rights>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Options of `principals rights`.
#[derive(Debug, Args)]
pub struct RightsArgs {
    /// Its id
    pub id: String,
    /// append, operate, both with a comma in between, or none
    #[arg(long, value_name = "RIGHTS", value_parser = rights)]
    pub to: Rights,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: Confirm,
}

/// A change of a principal.
#[derive(Debug, Args)]
pub struct PrincipalChange {
    /// Its id
    pub id: String,
    /// Whether, and why.
    #[command(flatten)]
    pub confirm: Confirm,
}

/// Options of `tokens`.
#[derive(Debug, Args)]
pub struct TokensArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: TokensAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `tokens` does.
#[derive(Debug, Subcommand)]
pub enum TokensAction {
    /// Make a token for a principal and print it, which nothing can do again
    Create {
        /// Id of the principal
        principal: String,
        /// What people tell it by
        #[arg(long)]
        label: Option<String>,
        /// For how long it is good, such as 90d; without it until it is revoked
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        expires_in: Option<Duration>,
        /// Why, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List tokens, of which only the beginning is known
    List {
        /// Only those of this principal
        principal: Option<String>,
        /// Only those whose ids come after this one
        #[arg(long, value_name = "UUID")]
        after: Option<Uuid>,
        /// How many at most, up to 1000
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = limit())]
        limit: u32,
    },
    /// End a token for good
    Revoke {
        /// Its id, as the list shows it
        id: Uuid,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// Options of `grants`.
#[derive(Debug, Args)]
pub struct GrantsArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: GrantsAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `grants` does.
#[derive(Debug, Subcommand)]
pub enum GrantsAction {
    /// Let a principal receive events
    Add {
        /// Which events, and whose.
        #[command(flatten)]
        grant: GrantArgs,
        /// Why, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List grants in the order in which they were made
    List {
        /// Only those of this principal
        principal: Option<String>,
        /// Only those whose numbers come after this one
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        after: i64,
        /// How many at most, up to 1000
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = limit())]
        limit: u32,
    },
    /// Take back exactly this grant; others that cover the same events stay
    Remove {
        /// Which events, and whose.
        #[command(flatten)]
        grant: GrantArgs,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// A grant.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// Id of the principal
    pub principal: String,
    /// Receive action of the events
    pub action: String,
    /// Only those of this space
    #[arg(long, value_name = "ID")]
    pub space: Option<String>,
    /// Only those of this channel
    #[arg(long, value_name = "ID")]
    pub channel: Option<String>,
    /// Only those of this thread
    #[arg(long, value_name = "ID")]
    pub thread: Option<String>,
}

impl GrantArgs {
    /// The same for the library.
    #[must_use]
    pub fn grant(&self) -> Grant {
        Grant {
            action: self.action.clone(),
            space_id: self.space.clone(),
            channel_id: self.channel.clone(),
            thread_id: self.thread.clone(),
        }
    }
}

fn limit() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=i64::from(ACCESS_LIST_MAX))
}

fn kind() -> impl TypedValueParser<Value = PrincipalKind> {
    PossibleValuesParser::new(PrincipalKind::ALL.map(PrincipalKind::as_str))
        .try_map(|text| text.parse::<PrincipalKind>())
}

fn rights(text: &str) -> Result<Rights, &'static str> {
    if text == "none" {
        return Ok(Rights::default());
    }
    text.split(',').try_fold(Rights::default(), |rights, name| match name {
        "append" => Ok(Rights { append: true, ..rights }),
        "operate" => Ok(Rights { operate: true, ..rights }),
        _ => Err("rights are append, operate, both with a comma in between, or none"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_named() {
        let of = |append, operate| Ok(Rights { append, operate });
        assert_eq!(rights("none"), of(false, false));
        assert_eq!(rights("append"), of(true, false));
        assert_eq!(rights("operate,append"), of(true, true));
        for text in ["", "read", "append,none", "append,", "append operate"] {
            assert!(rights(text).is_err(), "{text}");
        }
    }
}
