//! What is said about events: counts and names, once.

use std::time::Duration;

use uuid::Uuid;

use super::decide::Reason;
use super::runtime::{Runtime, State};
use super::tally::Pass;

/// How long nothing has to fail until a failure is news again.
const FAILURE_QUIET: Duration = Duration::from_secs(60);

impl Runtime {
    pub(super) fn say_dead_letter(&self, (event_id, position): (Uuid, i64), reason: Reason) {
        tracing::warn!(
            consumer = self.shared.name(),
            reason = reason.as_str(),
            %event_id,
            position,
            "stream consumer gave an event up"
        );
    }

    /// Messages that cannot be read: somebody besides the relay publishes, or a later version does. Where one of them is in the stream leads to it.
    pub(super) fn say_unreadable(&self, count: u64, stream_seq: Option<i64>) {
        if count > 0 {
            tracing::error!(
                consumer = self.shared.name(),
                reason = Reason::Unreadable.as_str(),
                count,
                stream_seq,
                "stream consumer gave messages up"
            );
        }
    }

    /// Events that nobody has any more.
    pub(super) fn say_gone(&self, count: u64) {
        if count > 0 {
            tracing::warn!(
                consumer = self.shared.name(),
                reason = Reason::Gone.as_str(),
                count,
                "stream consumer gave messages up"
            );
        }
    }

    /// Says once that a handler fails, and once that it has not for a while.
    pub(super) fn say_failing(&self, state: &mut State, pass: &Pass) {
        let (consumer, now) = (self.shared.name(), self.shared.clock.elapsed());
        if pass.retried > 0 {
            let until = now.saturating_add(FAILURE_QUIET);
            if state.failing_until.replace(until).is_none() {
                tracing::warn!(
                    consumer,
                    count = pass.retried,
                    "handler of a stream consumer fails, its events are tried again"
                );
            }
        } else if state.failing_until.is_some_and(|until| until <= now) {
            state.failing_until = None;
            tracing::info!(consumer, "handler of a stream consumer fails no longer");
        }
    }
}
