//! Where consumers stand.

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::error::DatabaseError;
use crate::store;
use crate::store::consumer_views::{ConsumerRow, FailureRow};

/// Where a consumer stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerState {
    /// Its name.
    pub name: String,
    /// `worker`: a program runs a handler for it. `poll`: somebody calls `seqline.poll`.
    pub kind: String,
    /// The last event that it has passed; with lanes, that of the lane that is furthest behind.
    pub last_seq: i64,
    /// How many lanes it has.
    pub lanes: u32,
    /// The highest number in the log.
    pub head_seq: i64,
    /// When the oldest event was appended that it has not handled, if there is one. That is when the appending transaction
    /// began, so an event of a long transaction is old when it appears.
    pub oldest_pending_at: Option<OffsetDateTime>,
    /// When its cursor was moved last.
    pub updated_at: OffsetDateTime,
    /// Since when no round of it begins, if somebody has paused it.
    pub paused_at: Option<OffsetDateTime>,
    /// Since when it is out of use, if somebody has retired it.
    pub retired_at: Option<OffsetDateTime>,
    /// The last event that it gets, if it handles a piece of the log only.
    pub until_seq: Option<i64>,
    /// How many events it has parked.
    pub parked: i64,
    /// The first of them.
    pub first_parked: Option<i64>,
    /// Its last failure, also when it has recovered from it.
    pub last_failure: Option<Failure>,
    /// How many events retention took before the consumer had come to them, as far as nobody has acknowledged it.
    pub lost: i64,
    /// How many events retention has taken that the consumer has not come to yet: it records them as lost when it does.
    pub gone: i64,
}

/// A failure of a worker's rounds. Those of `seqline.poll` are the caller's and not known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One word: [`RoundError::error_type`](super::RoundError::error_type).
    pub error_type: String,
    /// The event that could not be passed, if it was one.
    pub seq: Option<i64>,
    /// When the consumer began to fail in this way.
    pub failed_at: OffsetDateTime,
    /// Whether it still does, as far as is known.
    pub current: bool,
}

impl ConsumerState {
    /// How many events are still to be handled; 0 also for a cursor above the head.
    #[must_use]
    pub fn lag(&self) -> i64 {
        let goal = self.until_seq.map_or(self.head_seq, |until| until.min(self.head_seq));
        goal.saturating_sub(self.last_seq).max(0)
    }

    /// Whether it has handled all that it shall: only one that handles a piece of the log is ever done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.until_seq.is_some_and(|until| self.last_seq >= until)
    }

    /// Whether the cursor is above the head: the database was taken back to an earlier state.
    #[must_use]
    pub fn is_ahead_of_head(&self) -> bool {
        self.last_seq > self.head_seq
    }
}

/// The state of every consumer, by name.
///
/// ```no_run
/// # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), seqline::DatabaseError> {
/// for consumer in seqline::consumer::states(connection).await? {
///     println!("{} is {} events behind", consumer.name, consumer.lag());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn states(connection: &mut PgConnection) -> Result<Vec<ConsumerState>, DatabaseError> {
    let mut states = Vec::new();
    for row in store::consumer_views::list(connection).await? {
        states.push(state(row));
    }
    for state in states.iter_mut().filter(|state| state.lag() > 0) {
        state.oldest_pending_at = oldest_pending_at(connection, state.last_seq).await?;
    }
    if !store::consumer_views::knows_parking(connection).await? {
        return Ok(states);
    }
    for (name, parked, first) in store::consumer_views::parked_counts(connection).await? {
        if let Some(state) = states.iter_mut().find(|state| state.name == name) {
            (state.parked, state.first_parked) = (parked, Some(first));
        }
    }
    Ok(states)
}

/// The oldest by number, not by time: times are not in the order of the log.
async fn oldest_pending_at(
    connection: &mut PgConnection,
    last_seq: i64,
) -> Result<Option<OffsetDateTime>, DatabaseError> {
    if let Some(at) = store::read::occurred_at(connection, last_seq + 1).await? {
        return Ok(Some(at));
    }
    // Retention took it. What is left begins here.
    let min_retained = store::read::min_retained(connection).await?;
    Ok(store::read::occurred_at(connection, min_retained).await?)
}

fn state(row: ConsumerRow) -> ConsumerState {
    ConsumerState {
        last_failure: row.failure.map(|failure| Failure {
            current: is_current(&failure),
            error_type: failure.error_type,
            seq: failure.seq,
            failed_at: failure.failed_at,
        }),
        name: row.name,
        kind: row.kind,
        last_seq: row.last_seq,
        lanes: row.lanes,
        head_seq: row.head_seq,
        oldest_pending_at: None,
        updated_at: row.updated_at,
        paused_at: row.paused_at,
        retired_at: row.retired_at,
        until_seq: row.until_seq,
        parked: 0,
        first_parked: None,
        lost: row.lost,
        gone: match row.retired_at {
            None => (row.min_retained - 1)
                .min(row.until_seq.unwrap_or(i64::MAX))
                .saturating_sub(row.last_seq)
                .max(0),
            Some(_) => 0,
        },
    }
}

/// A failure is over when who had it says so, when somebody else has passed the event or any other since, and when its lane is gone.
fn is_current(failure: &FailureRow) -> bool {
    failure.recovered_at.is_none()
        && failure.lane.is_some_and(|(last_seq, moved_at)| match failure.seq {
            Some(seq) => seq > last_seq,
            None => moved_at <= failure.failed_at,
        })
}
