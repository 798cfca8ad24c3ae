//! What is shown of a job.

use riverqueue::jiff::Timestamp;
use riverqueue::{JobRow, JobState};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::limits::JOB_ERROR_CHARS_MAX;
use crate::output;

/// A job as JSON.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    id: i64,
    state: &'static str,
    kind: &'a str,
    queue: &'a str,
    args: &'a RawValue,
    attempt: i32,
    max_attempts: i32,
    created_at: String,
    scheduled_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempted_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finalized_at: Option<String>,
    attempted_by: &'a [String],
    errors: Vec<Failed<'a>>,
}

#[derive(Serialize)]
struct Failed<'a> {
    attempt: i32,
    at: String,
    error: &'a str,
}

impl<'a> Row<'a> {
    pub(super) fn of(job: &'a JobRow) -> Self {
        let errors = job.errors.iter().map(|failed| Failed {
            attempt: failed.attempt,
            at: failed.at.to_string(),
            error: &failed.error,
        });
        Self {
            id: job.id,
            state: job.state.as_str(),
            kind: &job.kind,
            queue: &job.queue,
            args: &job.encoded_args,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            created_at: job.created_at.to_string(),
            scheduled_at: job.scheduled_at.to_string(),
            attempted_at: job.attempted_at.map(|at| at.to_string()),
            finalized_at: job.finalized_at.map(|at| at.to_string()),
            attempted_by: &job.attempted_by,
            errors: errors.collect(),
        }
    }
}

pub(super) fn table(jobs: &[JobRow]) -> Result<(), Failure> {
    let cells = |job: &JobRow| {
        vec![
            job.id.to_string(),
            job.state.to_string(),
            job.kind.clone(),
            job.queue.clone(),
            format!("{}/{}", job.attempt, job.max_attempts),
            seconds(when(job)),
            job.errors
                .last()
                .map_or_else(String::new, |failed| output::shortened(&failed.error, JOB_ERROR_CHARS_MAX)),
        ]
    };
    output::table(
        &["id", "state", "kind", "queue", "attempt", "when", "last error"],
        &[0, 4],
        jobs.iter().map(cells).collect(),
    )
}

pub(super) fn details(job: &JobRow) -> Result<(), Failure> {
    let mut workers = job.attempted_by.clone();
    workers.dedup();
    let mut lines = vec![
        ("job", job.id.to_string()),
        ("state", job.state.to_string()),
        ("kind", job.kind.clone()),
        ("queue", job.queue.clone()),
        ("arguments", job.encoded_args.to_string()),
        ("attempt", format!("{} of {}", job.attempt, job.max_attempts)),
        ("created", seconds(job.created_at)),
        ("scheduled", seconds(job.scheduled_at)),
    ];
    lines.extend(job.attempted_at.map(|at| ("attempted", seconds(at))));
    lines.extend(job.finalized_at.map(|at| ("finished", seconds(at))));
    lines.extend(workers.into_iter().map(|worker| ("worker", worker)));
    for (name, value) in lines {
        output::line(format!("{name:<14}{value}"))?;
    }
    if job.errors.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let cells = job.errors.iter().map(|failed| {
        vec![failed.attempt.to_string(), seconds(failed.at), failed.error.replace(char::is_control, " ")]
    });
    output::table(&["attempt", "began", "error"], &[0], cells.collect())
}

/// The time that says most about a job in its state: when it is due, when it began, or when it ended.
fn when(job: &JobRow) -> Timestamp {
    match job.state {
        JobState::Running => job.attempted_at,
        _ => job.finalized_at,
    }
    .unwrap_or(job.scheduled_at)
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
