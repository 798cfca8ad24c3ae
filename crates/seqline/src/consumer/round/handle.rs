//! Handing the events of a round to the handler.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;
use tracing::{Instrument, Span};

use super::Rounds;
use crate::consumer::error::RoundError;
use crate::consumer::handler::Round;
use crate::deadline::{Stopwatch, within};
use crate::event::StoredEvent;
use crate::store::consumers::HeldCursor;
use crate::{store, trace};

impl Rounds<'_> {
    /// Handles these events and writes their jobs, and returns how many jobs there were. `span` is from which number to which the
    /// round goes, for what cannot be blamed on one event.
    pub(super) async fn handle_all(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        events: &[StoredEvent],
        (first_seq, _): (i64, i64),
    ) -> Result<usize, RoundError> {
        let mut asked = Stopwatch::start();
        let mut jobs = 0;
        for (index, event) in events.iter().enumerate() {
            let is_last = index + 1 == events.len();
            let handled = async {
                self.keep_alive(round, &mut asked).await?;
                let span = trace::event_span(&round.span, self.name.as_str(), event);
                round.jobs.begin_event(event, trace::recorded_traceparent(&span));
                let handled = self.handle(event, round, &span).await;
                handled.inspect_err(|error| trace::failed(&span, error))?;
                // As a rule all at once, at the end.
                if round.jobs.is_full() || (is_last && round.jobs.is_any()) {
                    jobs += self.write_jobs(round, held, first_seq, event.seq).await?;
                }
                Ok(())
            };
            handled.await.map_err(|error: RoundError| match error {
                // A handler before this one is to blame, or this one.
                error if error.is_in_failed_transaction() => {
                    RoundError::TransactionFailed { first_seq, last_seq: event.seq }
                }
                error => error,
            })?;
        }
        Ok(jobs)
    }

    /// The handler runs in the span of its event and else in none of the round: what it appends is not led on from events of others.
    async fn handle(
        &self,
        event: &StoredEvent,
        round: &mut Round<'_>,
        span: &Span,
    ) -> Result<(), RoundError> {
        let seq = event.seq;
        // Whatever a panic leaves behind is rolled back, and the handler has been told to keep nothing in memory.
        let handling = self.handler.handle(event, round).instrument(span.clone());
        let mut handling = AssertUnwindSafe(handling).catch_unwind();
        let handled = self.clock.timeout(self.config.event_timeout, &mut handling).await;
        // What the handler holds is dropped here, and that is its code too.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(handling)));
        match (handled, dropped) {
            (Some(Err(panic)), _) | (_, Err(panic)) => {
                discard(panic);
                Err(RoundError::Panicked { seq })
            }
            (Some(Ok(Ok(()))), Ok(())) => Ok(()),
            (Some(Ok(Err(source))), Ok(())) => Err(RoundError::Handler { seq, source }),
            (None, Ok(())) => Err(RoundError::TimedOut { seq }),
        }
    }

    /// Writes the jobs that wait, if the transaction is still that of the round: in another one they would stay when the round fails.
    async fn write_jobs(
        &self,
        round: &mut Round<'_>,
        held: &HeldCursor,
        first_seq: i64,
        last_seq: i64,
    ) -> Result<usize, RoundError> {
        if !self.ask(store::consumers::is_in_transaction_of(&mut round.tx, held)).await? {
            return Err(RoundError::TransactionEnded { first_seq, last_seq });
        }
        let Round { tx, consumer, jobs, .. } = round;
        let written = within(self.config.deadline(), jobs.write(tx, consumer)).await;
        written.map_err(|source| RoundError::Jobs { first_seq, last_seq, source })
    }

    /// Sends a statement when the next handler could else be silent for so long, with those before it, that the server takes
    /// the round for one whose process is gone. What handlers have sent is not known.
    async fn keep_alive(&self, round: &mut Round<'_>, asked: &mut Stopwatch) -> Result<(), RoundError> {
        let slack = self.config.idle_in_tx_timeout.saturating_sub(self.config.event_timeout);
        if asked.elapsed() >= slack / 2 {
            self.ask(store::commit::touch(&mut round.tx)).await?;
            *asked = Stopwatch::start();
        }
        Ok(())
    }
}

/// Drops what a panic carried. That can panic in turn, and is then left where it is.
pub(in crate::consumer) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(panic);
    }
}
