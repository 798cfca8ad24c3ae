//! A consumer that writes down what comes.

use seqline::envelope::Envelope;

use super::handler::{Context, Handler, HandlerError};

/// Logs each event, once: its id, type and space, and which attempt it is. Nothing of what it says. Its customary name is
/// [`Recorder::NAME`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Recorder;

impl Recorder {
    /// What its consumer is called.
    pub const NAME: &'static str = "recorder";
}

impl Handler for Recorder {
    async fn handle(&self, event: &Envelope, context: &mut Context<'_>) -> Result<(), HandlerError> {
        tracing::info!(
            id = %event.id,
            r#type = event.event_type.as_str(),
            space = event.scope.space_id.as_deref(),
            attempt = context.attempt(),
            "event"
        );
        Ok(())
    }
}
