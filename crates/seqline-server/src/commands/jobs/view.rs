//! What is shown of a job.

use riverqueue::jiff::Timestamp;
use riverqueue::{JobRow, JobState};

use crate::failure::Failure;
use crate::limits::JOB_ERROR_CHARS_MAX;
use crate::output;

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
