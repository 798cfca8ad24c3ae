//! The end of a restore: a new epoch.

use std::fmt;
use std::str::FromStr;

use sqlx::PgConnection;
use uuid::Uuid;

use super::EpochError;
use crate::consumer::Mode;
use crate::{pool, store};

/// Where consumers go on in a new epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoredConsumers {
    /// Where the backup had them: what they did after it they do again. Those above the head go to the head.
    Keep,
    /// At the head: they get new events only. One that gets a piece of the log again has come to its end, and what is parked is
    /// tried again only when somebody asks for it.
    Head,
}

impl RestoredConsumers {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Keep, Self::Head];

    /// Its name in the database and in commands.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Head => "head",
        }
    }
}

impl fmt::Display for RestoredConsumers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for RestoredConsumers {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Self, UnknownChoice> {
        Self::ALL.into_iter().find(|choice| choice.as_str() == text).ok_or(UnknownChoice)
    }
}

/// A text that is none of the choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected one of keep, head")]
pub struct UnknownChoice;

/// Whether a new epoch is started also when nothing speaks for a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It is refused then.
    Found,
    /// It is: a backup that was restored in place cannot be told from inside.
    Stated,
}

/// What the end of a restore does to a lane of a consumer, or to a consumer of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The consumer; for one of an agent the agent's id, a slash and its name.
    pub consumer: String,
    /// `worker`, `poll` or `agent`.
    pub kind: String,
    /// Which of its lanes. Those of agents have one.
    pub lane: u32,
    /// Where it was.
    pub from: i64,
    /// Where it is, or would be.
    pub to: i64,
}

/// What the end of a restore did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finalized {
    /// The epoch before.
    pub old_epoch: Uuid,
    /// The epoch from now on; none when it was only looked at.
    pub new_epoch: Option<Uuid>,
    /// The highest number: the next event gets the one after it.
    pub head: i64,
    /// Transactions that wait for their numbers, which they get in the new epoch.
    pub staged: i64,
    /// What consumers had parked or were to leave out above the head: those numbers will be other events.
    pub forgotten: i64,
    /// Every lane of every consumer, by name; then every consumer of an agent.
    pub moves: Vec<Move>,
}

/// Starts a new epoch on this server and sets every cursor by an explicit choice, in one transaction. Positions of the old epoch mean nothing
/// from then on: whoever holds one outside the database starts anew. Consumers of agents are set as well, taken from whoever holds them, and told
/// [`EpochChanged`](crate::agent::LostReason::EpochChanged) until they acknowledge where they go on.
///
/// It waits for rounds that are under way and for numbering, for each as long as the session's `lock_timeout` allows and at most ten seconds; what it could
/// not get in time is an error, and nothing was changed. Paused, retired and polled consumers are set like the others. What was done is in `seqline.audit_log`.
///
/// # Errors
///
/// [`EpochError`]: nothing was changed. It is refused when nothing speaks for a restore and [`Need::Found`] asks for that.
pub async fn finalize(
    connection: &mut PgConnection,
    consumers: RestoredConsumers,
    need: Need,
    mode: Mode<'_>,
) -> Result<Finalized, EpochError> {
    let (apply, why) = mode.parts();
    let force = need == Need::Stated;
    let row = pool::alone(connection, super::keeps_none(connection), async |connection| {
        store::identity::finalize(connection, consumers.as_str(), force, apply, why).await
    })
    .await?;
    Ok(Finalized {
        old_epoch: row.old_epoch,
        new_epoch: row.new_epoch,
        head: row.head,
        staged: row.staged,
        forgotten: row.forgotten,
        moves: row
            .moves
            .into_iter()
            .map(|row| Move {
                consumer: row.consumer,
                kind: row.kind,
                lane: row.lane,
                from: row.from,
                to: row.to,
            })
            .collect(),
    })
}
