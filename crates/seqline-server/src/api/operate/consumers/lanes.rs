//! Another number of lanes.
//!
//! Lanes in front wait for those behind, so this can take a while. Each look at them is a transaction of its own, and none is open in
//! between.

use std::time::Duration;

use axum::Json;
use seqline::consumer::{LaneKey, Mode, OperateError, gather_lanes, lane_behind, release_lanes};
use seqline::limits::{LANES_GATHER_PAUSE, LANES_MAX};
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::{Operator, invalid, mode};
use crate::api::{JsonBody, PathParams, Problem};
use crate::limits::API_LANES_WAIT;
use crate::operate::Refusal;
use crate::operate::consumers::{self, Lanes, LanesWanted, name_of, not_divided};

/// How a consumer is divided.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LanesRequest)]
pub(super) struct LanesBody {
    /// How many lanes it shall have.
    #[schema(minimum = 1, maximum = 64, example = 4)]
    lanes: u32,
    /// What the events have in common that stay in order: `resource`, `channel`, `thread` or `space`. Without it as it is.
    #[schema(nullable = false, example = "resource")]
    key: Option<String>,
    /// How many seconds lanes in front wait for those behind, 5 if not given.
    #[schema(nullable = false, minimum = 0, maximum = 60)]
    wait_seconds: Option<u32>,
    /// Why, for the audit log: at most 1000 characters.
    #[schema(nullable = false, max_length = 1000, example = "one lane is too slow")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

impl LanesBody {
    fn wanted(&self) -> Result<LanesWanted, Problem> {
        let (most, usual) = API_LANES_WAIT;
        let wait = self.wait_seconds.map_or(usual, |seconds| Duration::from_secs(seconds.into()));
        let key = match self.key.as_deref() {
            None => None,
            Some(text) => {
                let key = LaneKey::ALL.into_iter().find(|key| key.as_str() == text);
                Some(key.ok_or_else(|| {
                    wrong("/key", format!("expected one of {}", LaneKey::ALL.map(LaneKey::as_str).join(", ")))
                })?)
            }
        };
        if !(1..=LANES_MAX).contains(&self.lanes) {
            return Err(wrong("/lanes", format!("expected 1 to {LANES_MAX}")));
        }
        if wait > most {
            return Err(wrong("/wait_seconds", format!("expected {} at most", most.as_secs())));
        }
        Ok(LanesWanted { lanes: self.lanes, key, wait })
    }
}

fn wrong(pointer: &str, message: String) -> Problem {
    invalid("a member of the body is not as expected").at(pointer, message)
}

/// Divide a consumer
///
/// Into another number of lanes. All of them have to be at the same place for that: those in front wait there for the others. When one
/// does not come in time, nothing is changed.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/lanes",
    operation_id = "divide_consumer",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    request_body = LanesBody,
    responses((status = 200, description = "What was done, or would be.", body = Lanes))
)]
pub(super) async fn divide(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(body): JsonBody<LanesBody>,
) -> Result<Json<Lanes>, Problem> {
    let (wanted, mode) = (body.wanted()?, mode(body.dry_run, body.reason.as_deref())?);
    let plan = operator.look(async |work| consumers::lanes(work, &name, wanted, Mode::Plan).await).await?;
    if mode == Mode::Plan {
        return Ok(Json(plan));
    }
    let gathers = plan.changed && plan.lanes_before > 1;
    let gathered = if gathers { gather(&operator, &name, wanted.wait).await } else { Ok(()) };
    let divided = match gathered {
        Ok(()) => apply(&operator, &name, wanted, mode).await,
        Err(problem) => Err(problem),
    };
    if divided.is_err() && gathers {
        // The reason is why it was not divided. Without this they would wait a little longer.
        drop(release(&operator, &name).await);
    }
    divided?;
    Ok(Json(Lanes { done: true, ..plan }))
}

/// Divides lanes that are at the same place.
async fn apply(operator: &Operator, name: &str, wanted: LanesWanted, mode: Mode<'_>) -> Result<(), Problem> {
    let wanted = LanesWanted { wait: Duration::ZERO, ..wanted };
    operator.act(async |work| consumers::lanes(work, name, wanted, mode).await.map(drop)).await
}

/// Waits until all lanes are at the same place, where they stay for a while.
async fn gather(operator: &Operator, name: &str, wait: Duration) -> Result<(), Problem> {
    let consumer = name_of(name)?;
    let refused = |error: OperateError| Refusal::of(error, name);
    let gathered = operator.look(async |work| gather_lanes(work, &consumer, wait).await.map_err(refused));
    let furthest = gathered.await?;
    let begun = operator.api.clock.elapsed();
    loop {
        let behind =
            operator.look(async |work| lane_behind(work, &consumer, furthest).await.map_err(refused));
        match behind.await? {
            None => return Ok(()),
            Some(behind) if operator.api.clock.elapsed().saturating_sub(begun) >= wait => {
                return Err(not_divided(behind.into(), name, wait).into());
            }
            Some(_) => {}
        }
        tokio::select! {
            () = operator.api.clock.sleep(LANES_GATHER_PAUSE) => {}
            () = operator.api.stop.cancelled() => {
                return Err(Problem::unavailable("this server is stopping: nothing was changed"));
            }
        }
    }
}

async fn release(operator: &Operator, name: &str) -> Result<(), Problem> {
    let consumer = name_of(name)?;
    let refused = |error: OperateError| Refusal::of(error, name);
    operator.look(async |work| release_lanes(work, &consumer).await.map_err(refused)).await
}
