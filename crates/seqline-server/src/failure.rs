//! What the user is told when a command does not succeed: one clear sentence and an exit code.

use std::fmt::Display;

use seqline::migrate::MigrateError;
use seqline::tail::TailError;
use seqline::{AppendError, CommitError, DatabaseError, ErrorKind, InvalidEvent, ReadError, Rule};

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub enum Failure {
    /// Something unexpected.
    Unexpected(String),
    /// Something that is in the log already, with its exit code.
    Logged(u8),
    /// The command line is wrong in a way that its grammar cannot tell.
    Usage(String),
    /// The database or a file is not available now.
    Unavailable(String),
    /// An event breaks a rule, a right is missing, or versions do not fit.
    Refused(String),
    /// The role may not do it.
    MissingRights {
        /// What the database said.
        error: String,
        /// The roles that have the right.
        roles: &'static str,
    },
    /// Some of it was done.
    Partly(String),
    /// The user stopped it.
    Interrupted(String),
    /// Nobody reads the output any more. Not worth a word.
    OutputClosed,
}

impl Failure {
    /// The exit code. See the table at the [crate].
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unexpected(_) => 1,
            Self::Logged(code) => *code,
            Self::Usage(_) => 2,
            Self::Unavailable(_) => 3,
            Self::Refused(_) | Self::MissingRights { .. } => 4,
            Self::Partly(_) => 5,
            Self::Interrupted(_) => 130,
            Self::OutputClosed => 0,
        }
    }

    /// What to say.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        match self {
            Self::MissingRights { error, roles } => Some(format!("{error}: grant this role {roles}")),
            Self::Unexpected(message)
            | Self::Usage(message)
            | Self::Unavailable(message)
            | Self::Refused(message)
            | Self::Partly(message)
            | Self::Interrupted(message) => Some(message.clone()),
            Self::Logged(_) | Self::OutputClosed => None,
        }
    }

    /// The same with the roles that have the right when it is one that is missing.
    pub(crate) fn granted_by(self, roles: &'static str) -> Self {
        match self {
            Self::MissingRights { error, .. } => Self::MissingRights { error, roles },
            other => other,
        }
    }

    /// The same with something added to what is said. A refusal stays as it is: nothing that could be done now helps.
    pub(crate) fn and(self, addition: &str) -> Self {
        match self {
            Self::Unexpected(message) => Self::Unexpected(format!("{message}; {addition}")),
            Self::Unavailable(message) => Self::Unavailable(format!("{message}; {addition}")),
            other => other,
        }
    }

    fn of_kind(kind: ErrorKind, message: impl Display) -> Self {
        let message = message.to_string();
        match kind {
            ErrorKind::Unavailable => Self::Unavailable(message),
            ErrorKind::ValidationFailed | ErrorKind::Forbidden | ErrorKind::ResyncRequired => {
                Self::Refused(message)
            }
            _ => Self::Unexpected(message),
        }
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        match error.sqlstate() {
            // Undefined table, schema, function or column.
            Some("42P01" | "3F000" | "42883" | "42703") => Self::Refused(
                "this database has no Seqline schema, or an older one: run seqline migrate".to_owned(),
            ),
            Some("42501") => Self::MissingRights { error: error.to_string(), roles: "seqline_app" },
            Some("53400") if is_backlog(&error) => Self::Unavailable(format!(
                "{error}: seqline serve --role worker numbers what waits, try again then"
            )),
            _ if error.is_retryable() => Self::Unavailable(format!("the database is not available: {error}")),
            _ => Self::Unexpected(error.to_string()),
        }
    }
}

/// Whether too many transactions wait for the sequencer. Others have a limit with this code too.
fn is_backlog(error: &DatabaseError) -> bool {
    error.to_string().starts_with("append refused: ")
}

impl From<InvalidEvent> for Failure {
    fn from(error: InvalidEvent) -> Self {
        match error.rule() {
            Rule::PayloadNull => Self::Refused(format!("{error}; leave it out, or use --strip-nulls")),
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// What to say when the payload is of a kind that PostgreSQL cannot store, a number with too many digits for example.
pub(crate) fn unstorable(error: &AppendError) -> Option<String> {
    match error {
        // Class 22: data exceptions. All other members have been checked.
        AppendError::Database(error) if error.sqlstate().is_some_and(|code| code.starts_with("22")) => {
            Some(format!("member payload cannot be stored: {error}"))
        }
        _ => None,
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        if let Some(message) = unstorable(&error) {
            return Self::Refused(message);
        }
        match error {
            AppendError::Database(error) => error.into(),
            AppendError::Invalid(error) => error.into(),
            error => Self::of_kind(error.kind(), error),
        }
    }
}

impl From<CommitError> for Failure {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Database(error) => error.into(),
            CommitError::NoPartition { first_seq, last_seq } => Self::Unavailable(format!(
                "no partition of the event log for seq {first_seq} to {last_seq}: run seqline partitions ensure and try again"
            )),
            error => Self::of_kind(error.kind(), error),
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Database(error) => error.into(),
            error => Self::of_kind(error.kind(), error),
        }
    }
}

impl From<TailError> for Failure {
    fn from(error: TailError) -> Self {
        match error {
            TailError::Sink { source, .. } => match source.downcast::<std::io::Error>() {
                Ok(error) => (*error).into(),
                Err(source) => Self::Unexpected(source.to_string()),
            },
            TailError::Expired { .. } | TailError::AheadOfHead { .. } | TailError::OtherHistory { .. } => {
                Self::Refused(error.to_string())
            }
            error => Self::Unexpected(error.to_string()),
        }
    }
}

impl From<MigrateError> for Failure {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Database(error) => error.into(),
            error if error.is_retryable() => Self::Unavailable(error.to_string()),
            error => Self::Refused(error.to_string()),
        }
    }
}

/// Writing to standard output.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Unavailable(format!("cannot write the output: {error}")),
        }
    }
}
