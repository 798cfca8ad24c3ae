//! What can be typed about the settings of a database.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use seqline::settings::{MaintenanceMode, Notification, Sequencing};

use super::consumers::Confirm;
use crate::limits::STAGED_TRANSACTIONS_MAX_MAX;
use crate::output::grouped;

/// Options of `settings`.
#[derive(Debug, Args)]
pub struct SettingsArgs {
    /// What to change; without it they are shown
    #[command(subcommand)]
    pub action: Option<SettingsAction>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// What `settings` changes.
#[derive(Debug, Subcommand)]
pub enum SettingsAction {
    /// When events get their numbers: inside COMMIT, or soon after it by a sequencer
    Sequencing {
        /// For transactions that come to their COMMIT from now on
        #[arg(value_parser = sequencing())]
        value: Sequencing,
        /// Why, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// What tells listeners of new events: the transaction that numbers them, whoever has committed, or nobody
    Notification {
        /// From the next event on
        #[arg(value_parser = notification())]
        value: Notification,
        /// Why, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Refuse every append for a while, or take events again; reading, consumers and retention go on
    Maintenance {
        /// From the next append on
        #[arg(value_parser = maintenance())]
        value: MaintenanceMode,
        /// Whether, and why.
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Refuse appends when so many transactions wait for their numbers
    StagedTransactionsMax {
        /// How many
        #[arg(value_name = "N", value_parser = transactions)]
        value: i64,
        /// Why, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

fn sequencing() -> impl TypedValueParser<Value = Sequencing> {
    PossibleValuesParser::new(Sequencing::ALL.map(Sequencing::as_str))
        .try_map(|text| text.parse::<Sequencing>())
}

fn notification() -> impl TypedValueParser<Value = Notification> {
    PossibleValuesParser::new(Notification::ALL.map(Notification::as_str))
        .try_map(|text| text.parse::<Notification>())
}

fn maintenance() -> impl TypedValueParser<Value = MaintenanceMode> {
    PossibleValuesParser::new(MaintenanceMode::ALL.map(MaintenanceMode::as_str))
        .try_map(|text| text.parse::<MaintenanceMode>())
}

/// A number of transactions, also as the command prints it: `1,000,000`.
fn transactions(text: &str) -> Result<i64, String> {
    let number = text.replace(',', "").parse().ok();
    number
        .filter(|number| !text.contains(',') || grouped(*number) == text)
        .filter(|number| (1..=STAGED_TRANSACTIONS_MAX_MAX).contains(number))
        .ok_or_else(|| format!("expected a number from 1 to {STAGED_TRANSACTIONS_MAX_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_transactions_is_within_its_bounds_and_may_be_typed_as_it_is_printed() {
        for (text, number) in [("1", 1), ("1000", 1000), ("1,000", 1000), ("1000000000", 1_000_000_000)] {
            assert_eq!(transactions(text), Ok(number));
        }
        for text in ["", "0", "-1", "1000000001", "1,00", ",", "many", "1.5", "99999999999999999999"] {
            assert!(transactions(text).is_err(), "{text}");
        }
    }
}
