//! What can be typed about the server's own jobs.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use riverqueue::JobState;

use super::ConfigArgs;
use crate::limits::JOBS_LIST_MAX;

/// Options of `jobs`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: JobsAction,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// The schema of the jobs.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// What `jobs` does.
#[derive(Debug, Subcommand)]
pub enum JobsAction {
    /// List jobs, the newest first
    List(JobsListArgs),
    /// Show a job with the error of each of its attempts
    Show {
        /// Its number
        #[arg(allow_negative_numbers = true)]
        id: i64,
    },
    /// Make a job that does not run available now; one that has used up its attempts gets another
    Retry(JobChange),
    /// Discard a job that waits; it is kept to be looked at
    Discard(JobChange),
}

/// A change of a job.
#[derive(Debug, Args)]
pub struct JobChange {
    /// Its number
    #[arg(allow_negative_numbers = true)]
    pub id: i64,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Which jobs to list.
#[derive(Debug, Args)]
pub struct JobsListArgs {
    /// Only those in this state
    #[arg(long, value_parser = job_state())]
    pub state: Option<JobState>,
    /// Only those of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Only those of this queue
    #[arg(long)]
    pub queue: Option<String>,
    /// How many at most, up to 1000
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(JOBS_LIST_MAX)))]
    pub limit: u32,
}

fn job_state() -> impl TypedValueParser<Value = JobState> {
    PossibleValuesParser::new(JobState::ALL.iter().map(|state| state.as_str()))
        .try_map(|text| JobState::try_from(text.as_str()))
}
