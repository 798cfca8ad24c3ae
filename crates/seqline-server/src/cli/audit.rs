//! What can be typed about the audit log.

use clap::Args;

use crate::limits::AUDIT_LIST_MAX;

/// Options of `audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// How many rows at most, up to 1000
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(AUDIT_LIST_MAX)))]
    pub limit: u32,
    /// Only rows that are older than the one of this number
    #[arg(long, value_name = "ID")]
    pub before: Option<i64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
