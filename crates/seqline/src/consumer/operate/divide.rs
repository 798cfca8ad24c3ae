//! Another number of lanes.

use std::time::Duration;

use sqlx::PgConnection;

use super::{Mode, OperateError};
use crate::clock::Clock;
use crate::consumer::lane::LaneKey;
use crate::consumer::name::ConsumerName;
use crate::limits::{LANES_GATHER_MARGIN, LANES_GATHER_PAUSE};
use crate::store;

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
/// come, nothing is changed and they go on. A process that dies in between holds them up no longer than that either. Workers have tasks
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
        if plan.behind > 0 {
            gather(connection, clock, name, wait).await?;
        }
        let divided = store::operate::set_lanes(connection, name.as_str(), wanted, true, why).await;
        if divided.is_err() {
            // The reason is why it was not divided. Without this they would wait a little longer.
            drop(store::operate::gather_lanes(connection, name.as_str(), None).await);
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

/// Waits until all lanes are at the same place, or not for longer than that.
async fn gather(
    connection: &mut PgConnection,
    clock: &Clock,
    name: &ConsumerName,
    wait: Duration,
) -> Result<(), OperateError> {
    let hold = wait.saturating_add(LANES_GATHER_MARGIN);
    store::operate::gather_lanes(connection, name.as_str(), Some(hold)).await?;
    let mut waited = Duration::ZERO;
    while waited < wait {
        let positions = store::consumers::positions(connection, &[name.as_str()]).await?;
        if positions.windows(2).all(|pair| pair[0].last_seq == pair[1].last_seq) {
            break;
        }
        clock.sleep(LANES_GATHER_PAUSE).await;
        waited += LANES_GATHER_PAUSE;
    }
    Ok(())
}
