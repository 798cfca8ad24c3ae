//! Saves the acknowledgements of all connections of the process, together, now and then.

use std::time::Duration;

use seqline::agent::{self, Save, Saved};
use seqline::{Clock, DatabaseError};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;

use super::close::Close;
use super::sessions::{Sessions, Writing};
use crate::api::database::Database;
use crate::limits::AGENT_SEEN_INTERVAL;

/// What it works with.
pub(crate) struct Saver {
    pub(crate) sessions: Sessions,
    pub(crate) database: Database,
    pub(crate) clock: Clock,
    /// `agent.ack_persist_interval`.
    pub(crate) interval: Duration,
    /// `sync.resume_window`.
    pub(crate) resume_window: Duration,
}

impl Saver {
    /// Goes on until `stop` is cancelled. Connections that end save themselves.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut seen_at = self.clock.elapsed();
        let mut failing = false;
        loop {
            tokio::select! {
                () = self.clock.sleep(self.interval) => {}
                () = stop.cancelled() => return,
            }
            let now = self.clock.elapsed();
            // Now and then all of them: so it is known of each that it lives, and each learns when it was replaced.
            let all = now.saturating_sub(seen_at) >= AGENT_SEEN_INTERVAL;
            let done = match self.save(all).await {
                Ok(complete) => {
                    if all && complete {
                        seen_at = now;
                    }
                    self.release().await
                }
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => failing = false,
                // They stay what they are, and are tried again.
                Err(error) if !failing => {
                    tracing::warn!(error = %error, "acknowledgements of agents not saved");
                    failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Says whether none was left out because somebody has its row locked.
    async fn save(&self, all: bool) -> Result<bool, DatabaseError> {
        let writing = self.sessions.holders(all);
        let mut complete = true;
        for (writing, saved) in writing.iter().zip(self.write(&writing, agent::save_all).await?) {
            match saved.map(Close::of_holder) {
                Some(None) => writing.held.saved(&writing.save),
                Some(Some(why)) => self.sessions.lost(writing.session, why),
                None => complete = false,
            }
        }
        Ok(complete)
    }

    /// Those whose clients did not come back hold nothing any more.
    async fn release(&self) -> Result<(), DatabaseError> {
        let writing = self.sessions.sweep(self.resume_window);
        for (writing, released) in writing.iter().zip(self.write(&writing, agent::release_all).await?) {
            // One whose row somebody has locked is tried again.
            if released.is_some() {
                self.sessions.forget(writing.session);
            }
        }
        Ok(())
    }

    async fn write(
        &self,
        writing: &[Writing],
        statement: impl AsyncFnOnce(&mut PgConnection, &[Save]) -> Result<Vec<Option<Saved>>, DatabaseError>,
    ) -> Result<Vec<Option<Saved>>, DatabaseError> {
        if writing.is_empty() {
            return Ok(Vec::new());
        }
        let saves: Vec<Save> = writing.iter().map(|writing| writing.save.clone()).collect();
        self.database.ask(async |connection| statement(connection, &saves).await).await
    }
}
