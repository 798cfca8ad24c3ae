//! Where consumers go on, and what they leave out.

use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{Mode, OperateError};
use crate::consumer::name::ConsumerName;
use crate::store;

/// A place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The event with this number.
    Seq(i64),
    /// The event with the smallest number of those that were appended at this time or later. Times are not in the order of the log:
    /// some events before it can be later, none after it is left out.
    Time(OffsetDateTime),
}

impl Target {
    /// The number of the event.
    ///
    /// # Errors
    ///
    /// [`OperateError::NothingSince`] when no event is as late as that, [`OperateError`] when the database cannot be asked.
    pub async fn seq(self, connection: &mut PgConnection) -> Result<i64, OperateError> {
        match self {
            Self::Seq(seq) => Ok(seq),
            Self::Time(time) => {
                store::operate::seq_at(connection, time).await?.ok_or(OperateError::NothingSince)
            }
        }
    }
}

/// What a rewind does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewind {
    /// The event that comes next.
    pub to: i64,
    /// The last event that the consumer has passed.
    pub from: i64,
    /// How many events of the log come again; those that it does not ask for among them.
    pub events: i64,
    /// How many parked events are among them. They are no longer parked.
    pub parked: i64,
    /// How many are among them that were skipped. They are no longer.
    pub skipped: i64,
}

/// Takes a consumer back, so that the event at `to` is its next. No lane goes forward.
///
/// Its handler gets the events from there on again, and what it has made of them is still there: so it is for a handler that may do so
/// twice, or whose results were taken back too. It is also the way out when a cursor is above the head, in a database that was
/// restored.
///
/// ```no_run
/// # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// use seqline::consumer::{ConsumerName, Mode, Target, rewind};
///
/// let totals = ConsumerName::new("order_totals")?;
/// let plan = rewind(connection, &totals, Target::Seq(1200), Mode::Plan).await?;
/// if plan.events < 1_000_000 {
///     rewind(connection, &totals, Target::Seq(1200), Mode::Apply { why: Some("totals were wrong") }).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer, the log does not hold the event, or the consumer has not come to it yet. Nothing
/// was changed then.
pub async fn rewind(
    connection: &mut PgConnection,
    name: &ConsumerName,
    to: Target,
    mode: Mode<'_>,
) -> Result<Rewind, OperateError> {
    let to = to.seq(connection).await?;
    let (apply, why) = mode.parts();
    let row = store::operate::rewind(connection, name.as_str(), to, apply, why).await?;
    Ok(Rewind { to, from: row.furthest, events: row.events, parked: row.parked, skipped: row.skipped })
}

/// What a skip does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// Type of the event; `None` when it is missing from the log.
    pub event_type: Option<String>,
    /// Kind and id of its resource.
    pub resource: Option<String>,
    /// How many events the consumer comes to before.
    pub ahead: i64,
}

/// Lets a consumer leave out one event that it has not passed: rounds end before it and step over it. The event may be missing from the
/// log, for whoever has found out why and lets the consumer go on. [`rewind`] to it brings it back.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer, it has passed the event, the log does not reach so far, or the reason is missing.
/// Nothing was changed then.
pub async fn skip(
    connection: &mut PgConnection,
    name: &ConsumerName,
    seq: i64,
    mode: Mode<'_>,
) -> Result<Skip, OperateError> {
    let (apply, why) = mode.parts();
    let row = store::operate::skip(connection, name.as_str(), seq, apply, why).await?;
    Ok(Skip { event_type: row.r#type.filter(|_| row.in_log), resource: row.resource, ahead: row.ahead })
}

/// What a retirement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retirement {
    /// Where the consumer stands.
    pub last_seq: i64,
    /// How many events it has not handled.
    pub events: i64,
    /// How many events it has parked.
    pub parked: i64,
}

/// Takes a consumer out of use: no round of it begins, whoever runs it, and retention does not wait for it. [`resume`](super::resume)
/// brings it back where it stands.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer or it was retired before. Nothing was changed then.
pub async fn retire(
    connection: &mut PgConnection,
    name: &ConsumerName,
    mode: Mode<'_>,
) -> Result<Retirement, OperateError> {
    let (apply, why) = mode.parts();
    let row = store::operate::retire(connection, name.as_str(), apply, why).await?;
    Ok(Retirement { last_seq: row.last_seq, events: row.events, parked: row.parked })
}

/// What a replay does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The first event.
    pub from: i64,
    /// The last event.
    pub to: i64,
    /// How many events that are; those that the consumer does not ask for among them.
    pub events: i64,
    /// Of which kind the new consumer is: `worker` or `poll`.
    pub kind: String,
}

/// Makes a new consumer that gets a piece of the log again, from one event up to another, with the lanes of `name`, which is
/// not touched. It works when a program handles it under the new name, ends at the last of them, and is then to be
/// [retired](retire()). One that is polled asks for what `name` asks for; a worker's program says that itself.
///
/// `to` as a time is the last event before the first that was appended then or later.
///
/// # Errors
///
/// [`OperateError`] when there is no consumer `name`, there is one `into`, or the log does not hold the piece. Nothing was changed then.
pub async fn replay(
    connection: &mut PgConnection,
    name: &ConsumerName,
    into: &ConsumerName,
    (from, to): (Target, Target),
    mode: Mode<'_>,
) -> Result<Replay, OperateError> {
    let between_times = matches!((from, to), (Target::Time(_), Target::Time(_)));
    let from = from.seq(connection).await?;
    let to = match to {
        Target::Seq(seq) => seq,
        Target::Time(time) => match store::operate::seq_at(connection, time).await? {
            Some(seq) => seq - 1,
            None => store::read::head(connection).await?,
        },
    };
    if between_times && from > to {
        return Err(OperateError::NothingBetween);
    }
    let (apply, why) = mode.parts();
    let names = (name.as_str(), into.as_str());
    let row = store::operate::replay(connection, names, (from, to), apply, why).await?;
    Ok(Replay { from, to, events: row.events, kind: row.kind })
}

/// What is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// How many times the consumer has lost events.
    pub ranges: i64,
    /// How many events that were.
    pub events: i64,
}

/// Says that somebody knows what a consumer has lost to retention, so that it is no longer shown. The rows of `seqline.lost_ranges`
/// stay.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer. Nothing was changed then.
pub async fn acknowledge(
    connection: &mut PgConnection,
    name: &ConsumerName,
    mode: Mode<'_>,
) -> Result<Acknowledged, OperateError> {
    let (apply, why) = mode.parts();
    let row = store::operate::acknowledge(connection, name.as_str(), apply, why).await?;
    Ok(Acknowledged { ranges: row.ranges, events: row.events })
}
