//! What is wrong with a job, and why jobs were not inserted.

use std::error::Error;

use crate::error::DatabaseError;
use crate::limits::{
    EVENT_JOBS_MAX, JOB_ARGUMENT_NAME_CHARACTERS_MAX, JOB_ARGUMENTS_MAX, JOB_TAGS_MAX,
    RIVER_SCHEMA_BYTES_MAX, TEXT_CHARACTERS_MAX,
};

/// The rule that a job breaks. What it says in its members is not repeated, except for the name of an argument.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidJob {
    /// The kind.
    #[error(
        "the kind of a job must have 2 to 127 bytes, letters, digits and _-[]<>/.:+ only, the first a letter, a digit or _"
    )]
    Kind,
    /// The queue.
    #[error(
        "the queue of a job must have 1 to 64 lowercase letters and digits, with single _, - or | between them"
    )]
    Queue,
    /// The priority.
    #[error("the priority of a job must be from 1 to 4")]
    Priority,
    /// The attempts.
    #[error("the attempts of a job must be at least 1")]
    MaxAttempts,
    /// The time.
    #[error("the time at which a job may run must be in the years 1970 to 9998")]
    RunAt,
    /// A tag.
    #[error("a tag of a job must have 3 to 255 letters, digits, _ or -, and neither begin nor end with -")]
    Tag,
    /// The number of tags.
    #[error("a job has at most {JOB_TAGS_MAX} tags")]
    TooManyTags,
    /// The period.
    #[error("the period of a unique job must be at least a second")]
    UniquePeriod,
    /// The number of arguments.
    #[error("a job has at most {JOB_ARGUMENTS_MAX} arguments: it carries ids, not data")]
    TooManyArguments,
    /// The name of an argument.
    #[error(
        "the name of an argument must have 1 to {JOB_ARGUMENT_NAME_CHARACTERS_MAX} letters, digits or _, the first not a digit"
    )]
    ArgumentName,
    /// An id that is none.
    #[error("argument {0} of a job is empty")]
    EmptyArgument(String),
    /// More than an id.
    #[error("argument {0} of a job has more than {TEXT_CHARACTERS_MAX} characters: it carries ids, not data")]
    LongArgument(String),
    /// A character that no id has.
    #[error("argument {0} of a job contains a control character")]
    ControlCharacter(String),
    /// A value that is neither, in arguments of a type of the application.
    #[error("argument {0} of a job is neither a whole number nor a text: it carries ids, not data")]
    ArgumentType(String),
    /// Arguments without names, in arguments of a type of the application.
    #[error("the arguments of a job must be an object")]
    NoObject,
}

/// Why jobs were not inserted. Each case says whether the transaction is usable, and so does
/// [`leaves_transaction_usable`](Self::leaves_transaction_usable): then nothing was written. Otherwise it has to be rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The consumer was declared without a sink. The transaction is usable.
    #[error("the consumer has no sink for jobs: declare it with Consumer::jobs")]
    NoSink,
    /// A job breaks a rule. The transaction is usable.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
    /// A handler asked for too many for one event. The transaction is usable.
    #[error("a handler inserts at most {EVENT_JOBS_MAX} jobs for one event")]
    TooMany,
    /// There is no such queue in this schema. The transaction is usable.
    #[error("schema {schema} has no River tables: run River's migrations there{}", elsewhere(.found_in))]
    NoRiver {
        /// The schema.
        schema: String,
        /// Other schemas of the database that have them.
        found_in: Vec<String>,
    },
    /// The tables are there, and nothing says how they came there. The transaction is usable.
    #[error(
        "schema {schema} has River tables and no table river_migration, so their version is not known: run River's migrations"
    )]
    UnversionedRiver {
        /// The schema.
        schema: String,
    },
    /// The tables are too old. The transaction is usable.
    #[error(
        "River's schema {schema} is older than version {oldest}, which Seqline needs: run River's migrations"
    )]
    OldRiver {
        /// The schema.
        schema: String,
        /// The oldest that will do.
        oldest: i64,
    },
    /// The tables are newer than what is known, and what is not known is not written. The transaction is usable.
    #[error(
        "River's schema {schema} has version {found}, this Seqline knows {newest} at most: use a newer Seqline"
    )]
    NewRiver {
        /// The schema.
        schema: String,
        /// Its version.
        found: i64,
        /// The newest that is known.
        newest: i64,
    },
    /// The role may not. The transaction is usable.
    #[error(
        "role {role} may not insert jobs in schema {schema}: it needs USAGE on the schema, SELECT, INSERT and UPDATE on river_job, USAGE on the sequence river_job_id_seq, and SELECT on river_migration and river_queue"
    )]
    Privileges {
        /// The role.
        role: String,
        /// The schema.
        schema: String,
    },
    /// No schema of River has such a name. The transaction is usable.
    #[error(
        "schema {schema} has a name of more than {RIVER_SCHEMA_BYTES_MAX} bytes, which River does not take"
    )]
    SchemaName {
        /// The schema.
        schema: String,
    },
    /// The statement of a [`SqlSink`](super::SqlSink) takes something else than the jobs. The transaction is usable.
    #[error("the statement of a sink must have one parameter, $1: the jobs")]
    Statement,
    /// The queue's table took fewer rows than it was given, which a trigger can do. Roll the transaction back: the others are in it.
    #[error("{inserted} of {asked} jobs are in the queue's table: something in the database leaves rows out")]
    Incomplete {
        /// How many were to be inserted.
        asked: usize,
        /// How many were.
        inserted: usize,
    },
    /// The client of the application refused it. A hook of it can do so when the job is written, so roll the transaction back.
    #[error("the River client did not insert the job")]
    Client(#[source] Box<dyn Error + Send + Sync>),
    /// What a sink of the application reported. Roll the transaction back.
    #[error("the sink did not insert the jobs")]
    Sink(#[source] Box<dyn Error + Send + Sync>),
    /// What the database or the connection reported. The transaction has failed.
    #[error("database refused the jobs: {0}")]
    Database(#[from] DatabaseError),
}

impl JobError {
    /// Whether its sentence is made of names alone, so that it can be said in a log.
    pub(crate) fn is_sayable(&self) -> bool {
        !matches!(self, Self::Client(_) | Self::Sink(_) | Self::Database(_))
    }

    /// Whether nothing was written, so that the transaction can go on and be committed without the jobs.
    #[must_use]
    pub fn leaves_transaction_usable(&self) -> bool {
        !matches!(self, Self::Incomplete { .. } | Self::Client(_) | Self::Sink(_) | Self::Database(_))
    }

    /// Whether the same may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Database(error) if error.is_retryable())
    }
}

impl From<sqlx::Error> for JobError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

fn elsewhere(schemas: &[String]) -> String {
    match schemas {
        [] => String::new(),
        schemas => format!(", or name the schema that has them: {}", schemas.join(", ")),
    }
}
