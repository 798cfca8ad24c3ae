//! The gateway: connections over which events come as they are committed, to people, apps and agents.
//!
//! Everybody is given pages of the log by the same reader as over HTTP, with the permissions of that moment, and woken by the same hub; a
//! connection holds up nobody but itself. To an agent a [window](super::agents) decides what it is given and what again. `frame` is what is
//! sent, `close` how it ends, `outgoing` the way out with its bound, `identify` how a session begins or goes on, `connection` what happens
//! until it ends; `sessions` are those of the process, and `saver` keeps what agents acknowledged.

mod close;
mod connection;
mod delivery;
mod frame;
mod identify;
mod outgoing;
pub(crate) mod saver;
mod schema;
pub(crate) mod sessions;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;

pub(super) use self::close::reasons;
pub(super) use self::schema::schema;
use super::{Api, Door, Problem};
use crate::limits::{GATEWAY_BUFFER_BYTES, GATEWAY_FRAME_SLACK};

/// The place of a connection among all of the process.
#[derive(Clone)]
pub(super) struct ConnectionPlace(
    #[expect(dead_code, reason = "it is held")] pub(super) Arc<OwnedSemaphorePermit>,
);

/// Begins a connection.
pub(super) async fn connect(
    State(door): State<Door>,
    api: Api,
    place: Option<Extension<ConnectionPlace>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = upgrade.map_err(|_| Problem::malformed("this is for WebSockets, over HTTP/1.1"))?;
    let frame_bytes_max = usize::try_from(door.config.gateway.frame_bytes_max).unwrap_or(usize::MAX);
    // One that is a little too large is told so; of others the connection just ends.
    let most = frame_bytes_max.saturating_mul(GATEWAY_FRAME_SLACK);
    let upgrade = upgrade
        .read_buffer_size(GATEWAY_BUFFER_BYTES)
        .write_buffer_size(GATEWAY_BUFFER_BYTES)
        .max_frame_size(most)
        .max_message_size(most);
    let under_way = api.under_way();
    Ok(upgrade.on_upgrade(async move |socket| {
        // One that panics ends alone.
        if AssertUnwindSafe(connection::run(socket, api, door)).catch_unwind().await.is_err() {
            tracing::error!("a connection to the gateway panicked");
        }
        drop((under_way, place));
    }))
}
