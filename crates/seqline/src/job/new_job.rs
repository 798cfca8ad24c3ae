//! A job before it is in a queue, and the rules for it.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::args::JobArgs;
use super::error::InvalidJob;
use super::unique;
use crate::event::StoredEvent;
use crate::limits::JOB_TAGS_MAX;
use crate::trace;

/// A job that shall be done. The names and bounds are those of River, so that any sink can take it.
///
/// ```
/// use seqline::job::{JobArgs, NewJob};
///
/// let job = NewJob {
///     queue: "mail".into(),
///     max_attempts: 5,
///     ..NewJob::new("invoice.send", JobArgs::new().with("order_id", "a-4711"))
/// };
/// assert!(job.check().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    /// Which kind of work: 2 to 127 bytes, letters, digits and `_-[]<>/.·:+`, the first a letter, a digit or `_`.
    pub kind: String,
    /// What it is about.
    pub args: JobArgs,
    /// The queue: 1 to 64 lowercase letters and digits, with single `_`, `-` or `|` between them.
    pub queue: String,
    /// When it may be worked at the earliest. At once if not given.
    pub run_at: Option<OffsetDateTime>,
    /// From 1, which is worked first, to 4.
    pub priority: i16,
    /// How often it is tried before it is given up, at least once.
    pub max_attempts: i16,
    /// Whether there may be another like it.
    pub unique: Option<Unique>,
    /// Labels: 3 to 255 letters, digits, `_` or `-`, neither beginning nor ending with `-`. At most
    /// [`JOB_TAGS_MAX`].
    pub tags: Vec<String>,
}

/// Which jobs of the same kind are the same job: then one is enough, and the second is left out without an error. Each member makes
/// fewer of them the same: with the default, one job of the kind is all there can be.
///
/// Transactions that insert the same jobs in different orders can deadlock. A round is tried again then; whoever inserts in a
/// transaction of their own does it themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unique {
    /// Those with the same arguments.
    pub by_args: bool,
    /// Those in the same queue.
    pub by_queue: bool,
    /// Those of the same period, by [`NewJob::run_at`] or else by the time at which it is inserted. Periods of this length, at least a second,
    /// follow each other since the beginning of the year 1 in UTC.
    pub by_period: Option<Duration>,
    /// For how long a job stands in the way of another.
    pub until: UniqueUntil,
}

/// For how long a job stands in the way of another. A job that was cancelled or discarded never does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UniqueUntil {
    /// Also when it is done, until the queue deletes it.
    #[default]
    Deleted,
    /// Until it is done.
    Completed,
}

/// A job that passed the rules, and the event that it is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    new: NewJob,
    origin: Option<JobOrigin>,
    traceparent: Option<String>,
}

/// The event that a job is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobOrigin {
    /// Its number.
    pub seq: i64,
    /// Its id, which stays its own when numbers are given anew after a restore: a good key for whoever has to notice that
    /// a job runs twice.
    pub event_id: Uuid,
    /// What links it to the request that caused it.
    pub correlation_id: Option<Uuid>,
}

impl NewJob {
    /// A job for the queue `default`, as soon as possible, with River's defaults: priority 1 and 25 attempts.
    pub fn new(kind: impl Into<String>, args: JobArgs) -> Self {
        Self {
            kind: kind.into(),
            args,
            queue: "default".to_owned(),
            run_at: None,
            priority: 1,
            max_attempts: 25,
            unique: None,
            tags: Vec::new(),
        }
    }

    /// Checks the job.
    ///
    /// # Errors
    ///
    /// [`InvalidJob`], the first rule that is broken.
    pub fn check(self) -> Result<Job, InvalidJob> {
        if !is_kind(&self.kind) {
            return Err(InvalidJob::Kind);
        }
        if !is_queue(&self.queue) {
            return Err(InvalidJob::Queue);
        }
        if !(1..=4).contains(&self.priority) {
            return Err(InvalidJob::Priority);
        }
        if self.max_attempts < 1 {
            return Err(InvalidJob::MaxAttempts);
        }
        if self.run_at.is_some_and(|at| !(1970..=9998).contains(&at.year())) {
            return Err(InvalidJob::RunAt);
        }
        if self.tags.len() > JOB_TAGS_MAX {
            return Err(InvalidJob::TooManyTags);
        }
        if !self.tags.iter().all(|tag| is_tag(tag)) {
            return Err(InvalidJob::Tag);
        }
        let period = self.unique.and_then(|unique| unique.by_period);
        if period.is_some_and(|period| period < Duration::from_secs(1)) {
            return Err(InvalidJob::UniquePeriod);
        }
        self.args.check()?;
        Ok(Job { new: self, origin: None, traceparent: None })
    }
}

impl Job {
    /// The same, made for this event. With the feature `opentelemetry` it goes on with the trace of the current span, if that and the
    /// request that appended the event are recorded.
    #[must_use]
    pub fn of(self, event: &StoredEvent) -> Self {
        self.with_origin(JobOrigin::of(event), trace::traceparent_for(event))
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        let NewJob { kind, args, queue, tags, .. } = &self.new;
        kind.len() + args.bytes() + queue.len() + tags.iter().map(String::len).sum::<usize>()
    }

    pub(crate) fn with_origin(self, origin: JobOrigin, traceparent: Option<String>) -> Self {
        Self { origin: Some(origin), traceparent, ..self }
    }

    /// What was asked for.
    #[must_use]
    pub fn new_job(&self) -> &NewJob {
        &self.new
    }

    /// The event that it is made for.
    #[must_use]
    pub fn origin(&self) -> Option<JobOrigin> {
        self.origin
    }

    /// The span that whoever works it goes on from, as a W3C `traceparent`: that of the event in its round, if its trace is recorded. A
    /// sink writes it where its queue keeps such things.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// What the jobs have in common that are the same job, if it is unique: the key that River's clients compute too. `now` is
    /// the time at which it is inserted.
    #[must_use]
    pub fn unique_key(&self, now: OffsetDateTime) -> Option<[u8; 32]> {
        self.new.unique.map(|unique| unique::key(&self.new, unique, now))
    }
}

impl JobOrigin {
    pub(crate) fn of(event: &StoredEvent) -> Self {
        Self { seq: event.seq, event_id: event.id, correlation_id: event.correlation_id }
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

fn is_kind(kind: &str) -> bool {
    (2..128).contains(&kind.len())
        && kind.starts_with(is_word)
        && kind.chars().all(|c| is_word(c) || "-[]<>/.·:+".contains(c))
}

fn is_queue(queue: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    queue.len() <= 64 && queue.split(['_', '|', '-']).all(is_part)
}

fn is_tag(tag: &str) -> bool {
    (3..=255).contains(&tag.len())
        && tag.chars().all(|c| is_word(c) || c == '-')
        && !tag.starts_with('-')
        && !tag.ends_with('-')
}

#[cfg(test)]
mod tests;
