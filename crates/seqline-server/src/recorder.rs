//! A consumer that shows that consumers work.

use seqline::StoredEvent;
use seqline::consumer::{Handler, HandlerError, Round};

/// Logs one line per event: which consumer, its number and its id, and nothing of what it says.
///
/// A line is no effect of the kind that happens once. It is written before the round commits, so it comes again when the
/// round is rolled back: after a kill, or when the connection is lost.
#[derive(Debug)]
pub(crate) struct Recorder;

impl Recorder {
    pub(crate) const NAME: &str = "recorder";
}

impl Handler for Recorder {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        tracing::info!(
            consumer = round.consumer().as_str(),
            seq = event.seq,
            event_id = %event.id,
            "event recorded"
        );
        Ok(())
    }
}
