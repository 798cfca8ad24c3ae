//! Another number of lanes.

use std::time::Duration;

use sqlx::PgConnection;

use super::{Mode, OperateError};
use crate::clock::Clock;
use crate::consumer::lane::LaneKey;
use crate::consumer::name::ConsumerName;
use crate::limits::{LANES_GATHER_MARGIN, LANES_GATHER_MAX, LANES_GATHER_PAUSE};
use crate::store;
use crate::store::consumers::Standing;

/// What another division does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Division {
    /// How many lanes there were.
    pub lanes_before: u32,
    /// The key there was: see [`LaneKey::as_str`].
    pub key_before: String,
    /// The place at which all lanes are, or will be.
    pub last_seq: i64,
    /// How many lanes have to come there first.
    pub behind: u32,
}

/// Gives a consumer another number of lanes, and another key if one is given.
///
/// All lanes have to be at the same place for that. Those in front wait there for the others, for at most `wait`; when a lane does not
/// come, nothing is changed and they go on. A process that dies in between holds them up for
/// [`LANES_GATHER_MARGIN`] longer than that. Workers have tasks
/// for new lanes within their poll interval.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer, a lane is behind for longer than `wait`, or the key is to be another and events are
/// parked. Nothing was changed then.
pub async fn divide(
    connection: &mut PgConnection,
    clock: &Clock,
    name: &ConsumerName,
    (lanes, key): (u32, Option<LaneKey>),
    wait: Duration,
    mode: Mode<'_>,
) -> Result<Division, OperateError> {
    let (apply, why) = mode.parts();
    let wanted = (lanes, key.map(LaneKey::as_str));
    let plan = store::operate::set_lanes(connection, name.as_str(), wanted, false, why).await?;
    if apply {
        let key_wanted = wanted.1.unwrap_or(&plan.key_before);
        let changes = (lanes, key_wanted) != (plan.lanes_before.unsigned_abs(), &plan.key_before);
        // Also when none is behind: they go on until they are held. One is always at the same place.
        let gathered = match changes && plan.lanes_before > 1 {
            true => gather(connection, clock, name, wait).await,
            false => Ok(()),
        };
        let divided = match gathered {
            Ok(()) => store::operate::set_lanes(connection, name.as_str(), wanted, true, why)
                .await
                .map_err(OperateError::from),
            Err(error) => Err(error),
        };
        if divided.is_err() {
            // The reason is why it was not divided. Without this they would wait a little longer.
            drop(release_lanes(connection, name).await);
        }
        divided?;
    }
    Ok(Division {
        lanes_before: plan.lanes_before.unsigned_abs(),
        key_before: plan.key_before,
        last_seq: plan.last_seq,
        behind: plan.behind.unsigned_abs(),
    })
}

/// Waits until all lanes are at the same place, where they stay for a while.
async fn gather(
    connection: &mut PgConnection,
    clock: &Clock,
    name: &ConsumerName,
    wait: Duration,
) -> Result<(), OperateError> {
    let furthest = gather_lanes(connection, name, wait).await?;
    let mut waited = Duration::ZERO;
    while let Some(behind) = lane_behind(connection, name, furthest).await? {
        if waited >= wait {
            return Err(behind.into());
        }
        clock.sleep(LANES_GATHER_PAUSE).await;
        waited += LANES_GATHER_PAUSE;
    }
    Ok(())
}

/// A lane that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneBehind {
    /// Its number.
    pub lane: u32,
    /// The last event that it has passed.
    pub last_seq: i64,
    /// Where the lane is that is furthest.
    pub furthest: i64,
}

impl From<LaneBehind> for OperateError {
    fn from(LaneBehind { lane, last_seq, furthest }: LaneBehind) -> Self {
        Self::LaneBehind { lane, last_seq, furthest }
    }
}

/// Lets no lane go further than the one that is furthest, and returns where that is: for `wait` and [`LANES_GATHER_MARGIN`], or until
/// [`release_lanes`]. For whoever waits for [`lane_behind`] in their own way, with a transaction for each look, and then calls [`divide`]
/// without waiting.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer, or the database refuses it.
pub async fn gather_lanes(
    connection: &mut PgConnection,
    name: &ConsumerName,
    wait: Duration,
) -> Result<i64, OperateError> {
    let hold = wait.saturating_add(LANES_GATHER_MARGIN).min(LANES_GATHER_MAX);
    Ok(store::operate::gather_lanes(connection, name.as_str(), Some(hold)).await?)
}

/// The lane that is furthest behind `furthest`, if one is.
///
/// # Errors
///
/// [`OperateError`] when no round of the consumer begins, so that it will not come there, or the database refuses it.
pub async fn lane_behind(
    connection: &mut PgConnection,
    name: &ConsumerName,
    furthest: i64,
) -> Result<Option<LaneBehind>, OperateError> {
    let positions = store::consumers::positions(connection, &[name.as_str()]).await?;
    let standing = positions.first().map_or(Standing::Active, |at| at.standing);
    let behind = positions.iter().filter(|lane| lane.last_seq < furthest).min_by_key(|lane| lane.last_seq);
    let Some(last) = behind else { return Ok(None) };
    if standing != Standing::Active {
        return Err(OperateError::Refused {
            rule: "consumer_lanes".to_owned(),
            message: format!(
                "no round of consumer {name} begins, so its lanes do not come to the same place"
            ),
            hint: Some("Let it go on first: seqline consumers resume.".to_owned()),
        });
    }
    Ok(Some(LaneBehind { lane: last.lane, last_seq: last.last_seq, furthest }))
}

/// Lets lanes go on that were gathered and are not divided.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer, or the database refuses it.
pub async fn release_lanes(connection: &mut PgConnection, name: &ConsumerName) -> Result<(), OperateError> {
    store::operate::gather_lanes(connection, name.as_str(), None).await?;
    Ok(())
}
