//! The log: where it begins and ends.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::{Api, Caller, Problem};

/// The two ends of the log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Log {
    /// The history that positions belong to; another one begins with a restore.
    epoch: Uuid,
    /// The position before the oldest event that is there: reading from it on gives all of them.
    #[schema(example = "0198c8f2-7a4b-7000-8000-00000000abcd:0")]
    oldest: String,
    /// The position of the newest event.
    #[schema(example = "0198c8f2-7a4b-7000-8000-00000000abcd:1042")]
    head: String,
}

/// Where the log begins and ends
///
/// Positions are the same for everybody, whatever they may see.
#[utoipa::path(
    get,
    path = "/v1/log",
    operation_id = "get_log",
    tag = "log",
    security(("token" = [])),
    responses((status = 200, description = "The two ends of the log.", body = Log))
)]
pub(super) async fn show(api: Api, _: Caller) -> Result<Json<Log>, Problem> {
    let (oldest, head) = api.ends().await?;
    let [oldest, head] = [oldest, head].map(|seq| api.position(seq).to_string());
    Ok(Json(Log { epoch: api.epoch, oldest, head }))
}
