//! Saves the acknowledgements of all connections of the process, together, now and then.

use std::time::Duration;

use seqline::agent::{self, Save};
use seqline::{Clock, DatabaseError};
use tokio_util::sync::CancellationToken;

use super::close::Close;
use super::sessions::Sessions;
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
            let mut done = self.release(self.sessions.sweep(self.resume_window)).await;
            // Now and then all of them: so it is known of each that it lives, and each learns when it was replaced.
            let all = now.saturating_sub(seen_at) >= AGENT_SEEN_INTERVAL;
            if done.is_ok() {
                done = self.save(all).await;
            }
            match done {
                Ok(()) => {
                    if all {
                        seen_at = now;
                    }
                    failing = false;
                }
                // They stay what they are, and are tried again.
                Err(error) if !failing => {
                    tracing::warn!(error = %error, "acknowledgements of agents not saved");
                    failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Those whose clients did not come back hold nothing any more.
    async fn release(&self, saves: Vec<Save>) -> Result<(), DatabaseError> {
        for save in saves {
            self.database.ask(async |connection| agent::release(connection, &save).await).await?;
        }
        Ok(())
    }

    async fn save(&self, all: bool) -> Result<(), DatabaseError> {
        let holders = self.sessions.holders(all).into_iter();
        // One that writes itself at this moment has its turn the next time.
        let writing = holders.filter_map(|(id, held)| {
            held.writing.clone().try_lock_owned().ok().map(|alone| (id, held, alone))
        });
        let writing: Vec<_> = writing.collect();
        if writing.is_empty() {
            return Ok(());
        }
        let saves: Vec<Save> = writing.iter().map(|(id, held, _)| held.save(*id)).collect();
        let saved = self.database.ask(async |connection| agent::save_all(connection, &saves).await).await?;
        for (((id, held, _), save), saved) in writing.iter().zip(&saves).zip(saved) {
            match saved.map(Close::of_holder) {
                Some(None) => held.saved(save),
                Some(Some(why)) => self.sessions.lost(*id, why),
                // Somebody has its row locked. It stays what it is, and is tried again.
                None => {}
            }
        }
        Ok(())
    }
}
