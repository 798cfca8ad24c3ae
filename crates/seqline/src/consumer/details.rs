//! Everything that is known of one consumer.

use sqlx::PgConnection;
use time::OffsetDateTime;

use super::filter::Filter;
use super::name::ConsumerName;
use super::state::{ConsumerState, states};
use crate::audit::AuditEntry;
use crate::error::DatabaseError;
use crate::limits::{AUDIT_CHARACTERS_MAX, DETAILS_AUDIT_MAX, DETAILS_ROWS_MAX};
use crate::store;
use crate::store::consumer_views::{LaneRow, LossRow};

/// Everything that is known of one consumer, for whoever wants to know what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerDetails {
    /// Where it stands.
    pub state: ConsumerState,
    /// What it asks for.
    pub filter: Filter,
    /// By what it is divided into lanes, one or more: see [`LaneKey::as_str`](super::LaneKey::as_str).
    pub lane_key: String,
    /// Each of its lanes.
    pub lanes: Vec<LaneState>,
    /// The first events that it is to leave out and has not come to.
    pub skipped: Vec<i64>,
    /// How many those are altogether.
    pub skipped_count: i64,
    /// What retention took before the consumer had come to it and nobody has acknowledged, the highest first.
    pub losses: Vec<Loss>,
    /// How many ranges those are altogether.
    pub losses_count: i64,
    /// What people did to it last, the last first.
    pub audit: Vec<AuditEntry>,
}

/// Where a lane stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneState {
    /// Its number, from 0.
    pub lane: u32,
    /// The last event that it has passed.
    pub last_seq: i64,
    /// When it was moved last.
    pub updated_at: OffsetDateTime,
    /// What it tries, if it belongs to a consumer that [parks](super::FailurePolicy::Park) and a round has begun there.
    pub trying: Option<Trying>,
}

/// A round that has begun, and has not succeeded so far. It may be under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trying {
    /// The last event of the round that took many. Until the lane is there, rounds take one.
    pub until_seq: i64,
    /// The event that is tried alone, if one was.
    pub seq: Option<i64>,
    /// How often it was; 0 when none was.
    pub attempts: u32,
    /// When it is tried again.
    pub next_attempt_at: OffsetDateTime,
    /// How the last of these attempts ended: [`RoundError::error_type`](super::RoundError::error_type), or `aborted` for one that is under
    /// way, or whose process has died.
    pub error_type: Option<String>,
}

/// A piece of the log that retention took before a consumer had come to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The first event.
    pub from: i64,
    /// The last event.
    pub to: i64,
    /// When the consumer found out.
    pub at: OffsetDateTime,
}

/// Everything that is known of a consumer; `None` when there is none of this name. It is put together from several looks, between which
/// the consumer goes on.
///
/// ```no_run
/// # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// use seqline::consumer::{ConsumerName, details};
///
/// if let Some(details) = details(connection, &ConsumerName::new("order_totals")?).await? {
///     for lane in details.lanes {
///         println!("lane {} is at seq {}", lane.lane, lane.last_seq);
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn details(
    connection: &mut PgConnection,
    name: &ConsumerName,
) -> Result<Option<ConsumerDetails>, DatabaseError> {
    use store::consumer_views as views;

    let name = name.as_str();
    let Some(state) = states(connection).await?.into_iter().find(|state| state.name == name) else {
        return Ok(None);
    };
    let Some((filter, lane_key)) = views::definition(connection, name).await? else { return Ok(None) };
    let lanes = views::lanes(connection, name).await?;
    let skipped = views::skipped_after(connection, name, state.last_seq, DETAILS_ROWS_MAX).await?;
    let losses = views::losses(connection, name, DETAILS_ROWS_MAX).await?;
    let audit = store::audit::of_consumer(connection, name, DETAILS_AUDIT_MAX, AUDIT_CHARACTERS_MAX).await?;
    Ok(Some(ConsumerDetails {
        state,
        filter,
        lane_key,
        lanes: lanes.into_iter().map(lane).collect(),
        skipped_count: skipped.first().map_or(0, |(_, count)| *count),
        skipped: skipped.into_iter().map(|(seq, _)| seq).collect(),
        losses_count: losses.first().map_or(0, |row| row.ranges),
        losses: losses.into_iter().map(loss).collect(),
        audit: audit.into_iter().map(AuditEntry::of).collect(),
    }))
}

fn lane(row: LaneRow) -> LaneState {
    let trying = match (row.until_seq, row.attempts, row.next_attempt_at) {
        (Some(until_seq), Some(attempts), Some(next_attempt_at)) => {
            let error_type = row.error_type.filter(|_| attempts > 0);
            Some(Trying {
                until_seq,
                seq: row.tried_seq,
                attempts: attempts.unsigned_abs(),
                next_attempt_at,
                error_type,
            })
        }
        _ => None,
    };
    LaneState { lane: row.lane.unsigned_abs(), last_seq: row.last_seq, updated_at: row.updated_at, trying }
}

fn loss(row: LossRow) -> Loss {
    Loss { from: row.lost_from, to: row.lost_to, at: row.recorded_at }
}
