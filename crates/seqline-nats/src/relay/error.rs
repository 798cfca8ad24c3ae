//! Why a relay does not go on, by name.

use seqline::{DatabaseError, ReadError};

use super::answer::code;
use crate::broker::BrokerError;
use crate::stream::StreamError;

/// All that can keep a relay from going on, and not only for a moment, by [name](RelayError::kind).
pub const STALLED_BY: [&str; 23] = [
    "broker_unreachable",
    "login_refused",
    "settings",
    "stream_refused",
    "stream_mismatch",
    "stream_full",
    "broker_storage",
    "refused",
    "broker_limit_too_low",
    "atomic_batches_unsupported",
    "history_unsettled",
    "histories_differ",
    "no_stream",
    "unacknowledged",
    "connection_lost",
    "unread",
    "unreadable",
    "conflict",
    "batch_refused",
    "too_many",
    "too_large",
    "history_changed",
    "log",
];

/// Those of them that are over as a rule when the relay has looked again: another leader is there, the limit that was changed is known, a batch goes
/// singly. They count when they are all there is for long.
const OVER_SOON: [&str; 11] = [
    "no_stream",
    "unacknowledged",
    "connection_lost",
    "unread",
    "unreadable",
    "conflict",
    "batch_refused",
    "too_many",
    "too_large",
    "history_changed",
    "log",
];

/// Why a pass of a relay ended before everything was published. Nothing is lost by it: the next pass looks where the stream is, and goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The database cannot be asked.
    #[error("the database cannot be asked: {0}")]
    Database(#[from] DatabaseError),
    /// The log cannot be read where the relay is.
    #[error("the log cannot be read: {0}")]
    Log(ReadError),
    /// The stream cannot be used, or its broker.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The connection was lost with messages under way.
    #[error("the connection to the broker was lost with messages under way")]
    ConnectionLost,
    /// A message was not acknowledged in time.
    #[error("the broker did not acknowledge a message in time")]
    Unacknowledged,
    /// Nobody stores messages of the subject: the stream is gone, or its cluster chooses who leads it.
    #[error("no stream takes the messages at present")]
    NoStream,
    /// Somebody else writes into the stream.
    #[error("somebody else has written into the stream")]
    Conflict,
    /// The stream is full and refuses what is new, or the broker's storage is.
    #[error("the broker has no room for messages: code {0}")]
    NoRoom(u64),
    /// The broker refuses a message.
    #[error("the broker refuses a message: code {0}")]
    Refused(u64),
    /// What the broker answers is no answer to a message.
    #[error("what the broker answers cannot be read")]
    Unreadable,
    /// The broker does not give the messages of the stream.
    #[error("the broker does not give a message of the stream")]
    Unread,
    /// Another process runs the relay.
    #[error("another process runs the relay")]
    HeldElsewhere,
    /// Another process has taken the relay over.
    #[error("another process has taken the relay over")]
    Replaced,
    /// The stream holds an event of the present history that the log does not have there. Two databases go by one history: nothing is
    /// published until there is a new epoch, or somebody rewinds the relay.
    #[error(
        "the stream holds at {stream_seq} another event {position} than the log: two histories have one name"
    )]
    HistoriesDiffer {
        /// The position that the message says.
        position: i64,
        /// Where in the stream it is.
        stream_seq: u64,
    },
    /// It is not settled whether this is the server and the history that the positions belong to.
    #[error("it is not settled whether the positions of the log are of this history: {0}")]
    HistoryUnsettled(String),
    /// The log has changed its history under the relay, which looks again.
    #[error("the log has another history than a moment ago")]
    HistoryChanged,
    /// Not even what says which event it is fits into a message.
    #[error(
        "event {position} does not fit into the {limit} bytes that the broker allows, not even without its payload"
    )]
    LimitTooLow {
        /// The event.
        position: i64,
        /// What the broker allows.
        limit: usize,
    },
    /// The server is older than 2.12.1, or the stream does not allow batches.
    #[error("atomic batches need nats-server 2.12.1 and a stream that allows them; the server is {0}")]
    AtomicBatchesUnsupported(String),
    /// It is to stop.
    #[error("the relay is to stop")]
    Stopping,
}

impl RelayError {
    /// What an answer of the broker with this code means.
    pub(super) fn refused(code: u64) -> Self {
        match code {
            code::WRONG_LAST_SEQUENCE | code::LAST_SEQUENCE_NOT_READY | code::DUPLICATE_IN_PROCESS => {
                Self::Conflict
            }
            code::INSUFFICIENT_RESOURCES | code::NO_STORAGE | code::STORE_FAILED => Self::NoRoom(code),
            code => Self::Refused(code),
        }
    }

    /// Its name: for metrics, and where it is [what keeps the relay from going on](Self::stalls).
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Database(_) => "database",
            Self::Log(_) => "log",
            Self::Stream(error) => stream_kind(error),
            Self::ConnectionLost => "connection_lost",
            Self::Unacknowledged => "unacknowledged",
            Self::NoStream => "no_stream",
            Self::Conflict => "conflict",
            Self::NoRoom(code::STORE_FAILED) => "stream_full",
            Self::NoRoom(_) => "broker_storage",
            Self::Refused(code::TOO_MANY) => "too_many",
            Self::Refused(code::TOO_LARGE) => "too_large",
            Self::Refused(code::WRONG_STREAM) => "stream_mismatch",
            Self::Refused(
                code::BATCH_DUPLICATE | code::BATCH_INCOMPLETE | code::BATCHES_TOO_MANY | code::BATCHES_OFF,
            ) => "batch_refused",
            Self::Refused(_) => "refused",
            Self::Unreadable => "unreadable",
            Self::Unread => "unread",
            Self::HeldElsewhere => "held_elsewhere",
            Self::Replaced => "replaced",
            Self::HistoriesDiffer { .. } => "histories_differ",
            Self::HistoryUnsettled(_) => "history_unsettled",
            Self::HistoryChanged => "history_changed",
            Self::LimitTooLow { .. } => "broker_limit_too_low",
            Self::AtomicBatchesUnsupported(_) => "atomic_batches_unsupported",
            Self::Stopping => "stopping",
        }
    }

    /// Whether it keeps the relay from going on, and not only for a moment: what is recorded as `stalled_by` at once. What is over as a rule when
    /// the relay has looked again is recorded when it is not; a database that is away cannot be told.
    #[must_use]
    pub fn stalls(&self) -> bool {
        let kind = self.kind();
        STALLED_BY.contains(&kind) && !OVER_SOON.contains(&kind)
    }

    /// Whether time may mend it, and not only somebody.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Stream(_) | Self::NoRoom(_)) || !self.stalls() && !matches!(self, Self::Log(_))
    }

    /// Whether another process may reach the broker where this one cannot.
    pub(super) fn is_of_the_connection(&self) -> bool {
        matches!(self, Self::Stream(StreamError::Broker(_) | StreamError::Silent(_)))
    }

    /// Whether it says that less should be under way at once.
    pub(super) fn asks_for_less(&self) -> bool {
        matches!(self, Self::Conflict | Self::Unacknowledged | Self::Refused(code::TOO_MANY))
    }
}

fn stream_kind(error: &StreamError) -> &'static str {
    match error {
        StreamError::Broker(BrokerError::LoginRefused { .. }) => "login_refused",
        StreamError::Broker(BrokerError::Unreachable { .. } | BrokerError::Tls { .. })
        | StreamError::Silent(_) => "broker_unreachable",
        StreamError::Broker(_) | StreamError::Settings(_) => "settings",
        StreamError::Mismatch { .. } | StreamError::DuplicateWindow(_) => "stream_mismatch",
        StreamError::Refused { code: code::INSUFFICIENT_RESOURCES | code::NO_STORAGE, .. } => {
            "broker_storage"
        }
        StreamError::Refused { .. } => "stream_refused",
    }
}

impl From<BrokerError> for RelayError {
    fn from(error: BrokerError) -> Self {
        Self::Stream(error.into())
    }
}

impl From<sqlx::Error> for RelayError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<ReadError> for RelayError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Database(error) => Self::Database(error),
            // It was there a moment ago.
            ReadError::AheadOfHead { .. } => Self::HistoryChanged,
            error => Self::Log(error),
        }
    }
}
