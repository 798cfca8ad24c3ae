//! What is told of how a pass ended: to whoever looks at the row, to metrics, and once to the log of the process.

use super::{Drained, Relay, RelayError};
use crate::limits::{CROWDED_BELOW, STALLED_AFTER, STOP_PATIENCE};
use crate::store::relay as store;
use crate::store::relay::Incident;

impl Relay {
    /// Records how a pass ended.
    pub(super) async fn conclude(&mut self, done: &Result<Drained, RelayError>) {
        let progress = std::mem::take(&mut self.progress);
        self.progressed = progress > 0;
        self.squeezed = matches!(done, Err(RelayError::Conflict)) && progress < CROWDED_BELOW;
        if !self.squeezed {
            self.crowded = 0;
        }
        match done {
            Ok(_) => {
                self.fruitless = 0;
                self.goes_on().await;
            }
            Err(RelayError::Stopping) => {}
            Err(RelayError::HeldElsewhere) => self.tally.set_standing_by(true),
            Err(error) => {
                self.link = None;
                // A server that answers again need not be the same.
                self.settled_at = self.settled_at.filter(|_| !matches!(error, RelayError::Database(_)));
                self.tally.add_failure(error.kind());
                if error.asks_for_less() {
                    self.adaptation.halve();
                }
                self.fruitless = if self.progressed { 0 } else { self.fruitless.saturating_add(1) };
                match error {
                    RelayError::Replaced => {
                        self.fruitless = 0;
                        self.lose();
                    }
                    RelayError::Database(error) => {
                        self.fruitless = 0;
                        if !std::mem::replace(&mut self.database_away, true) {
                            tracing::warn!(relay = %self.config.name, error = %error, "the relay cannot ask the database, trying again");
                        }
                    }
                    error if error.stalls() || self.fruitless >= STALLED_AFTER => {
                        // Those that take turns are not each told of.
                        self.fruitless = 0;
                        self.stall(error).await;
                    }
                    error => {
                        tracing::debug!(relay = %self.config.name, kind = error.kind(), "the relay looks again where the stream is");
                    }
                }
            }
        }
    }

    /// Tells that nothing keeps it from going on, if something did.
    pub(super) async fn goes_on(&mut self) {
        if std::mem::take(&mut self.database_away) {
            tracing::info!(relay = %self.config.name, "the relay can ask the database again");
        }
        let position = self.held.as_ref().map(|held| held.cursor.position);
        if let Some(kind) = self.tally.set_stalled(None) {
            tracing::info!(relay = %self.config.name, kind, position, "the relay goes on");
        }
        if self.held.as_ref().is_some_and(|held| held.stalled) {
            // One that cannot be written is written after the next pass.
            let _ = self.record_stall(None).await;
        }
    }

    /// Says what keeps it from going on, once, and lets another process try where it may be only this one that cannot.
    async fn stall(&mut self, error: &RelayError) {
        let position = self.held.as_ref().map(|held| held.cursor.position);
        let kind = error.kind();
        self.tally.set_standing_by(false);
        if self.tally.set_stalled(Some(kind)) != Some(kind) {
            let name = &self.config.name;
            match error {
                error if error.may_pass() => {
                    tracing::warn!(relay = %name, kind, position, error = %error, "the relay stands still, trying again");
                }
                _ => {
                    tracing::error!(relay = %name, kind, position, error = %error, "the relay stands still until somebody looks");
                }
            }
            if let RelayError::HistoriesDiffer { position, stream_seq } = *error {
                let positions = Some((position, position));
                let incident =
                    Incident { kind: "histories_differ", count: 1, positions, stream_seq: Some(stream_seq) };
                self.to_tell.push(incident);
                // A database that is away is told when it is back.
                let _ = self.tell().await;
            }
        }
        if self.record_stall(Some(kind)).await.is_ok() && error.is_of_the_connection() {
            self.release().await;
        }
    }

    /// Writes it into the row, where a database that is away is not told.
    pub(super) async fn record_stall(&mut self, by: Option<&'static str>) -> Result<(), RelayError> {
        let Ok(lease) = self.lease() else { return Ok(()) };
        self.source.ask(async |connection| store::set_stalled(connection, lease, by).await).await?;
        self.held.iter_mut().for_each(|held| held.stalled = by.is_some());
        Ok(())
    }

    /// Gives the lease back. A database that is away is not told: then the lease runs out.
    pub(super) async fn release(&mut self) {
        if let Ok(lease) = self.lease() {
            let released = self.source.ask(async |connection| store::release(connection, lease).await).await;
            if let Err(error) = released {
                tracing::debug!(relay = %self.config.name, error = %error, "the lease of the relay was not given back");
            }
        }
        self.lose();
    }

    /// The end: saves and gives back what it holds, as far as that can be done in a moment.
    pub(super) async fn give_back(&mut self) {
        let clock = self.clock.clone();
        let giving_back = async {
            if self.held.as_ref().is_some_and(|held| held.dirty || !self.to_tell.is_empty()) {
                // Whoever comes next walks a little further.
                let _ = self.save().await;
            }
            self.release().await;
        };
        clock.timeout(STOP_PATIENCE, Box::pin(giving_back)).await;
        self.lose();
    }
}
