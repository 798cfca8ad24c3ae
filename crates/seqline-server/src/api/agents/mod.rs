//! Events for agents: each consumer of an agent gets them in order, says how far it has them, and is given again what it did not.
//!
//! Whoever may be given how much, and what again, is decided by the [`window`], which is pure. A consumer has one holder at a time; the row
//! of its cursor says which. `holding` is the window of a holder over REST in that row, so that any process can answer the next request,
//! and `poll` is such a request; `state` tells how a consumer stands and takes acknowledgements. `bounds` is what is set for all of them.

mod bounds;
mod caller;
mod delivery;
mod holding;
mod poll;
mod state;
mod window;

pub(super) use self::bounds::bounds;
pub(super) use self::delivery::envelope as agents_envelope;
pub(super) use self::holding::{log_takeover, replaced, went_back};
pub(crate) use self::state::Holder;
pub(super) use self::state::{Resync, acknowledged_seq, any_seq};
pub(super) use self::window::{Action, Bounds, Input, Looked, NoAck, Seen, Window};

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Door;

/// All of it.
pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new()
        .routes(routes!(state::show))
        .routes(routes!(poll::events))
        .routes(routes!(state::acknowledge))
}
