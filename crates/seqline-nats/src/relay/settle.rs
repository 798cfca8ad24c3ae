//! Whether the log is the one that the positions belong to.

use seqline::identity::{Look, OnChange, look};

use super::{Relay, RelayError};
use crate::limits::HISTORY_LOOK_INTERVAL;

impl Relay {
    /// Looks whether this is the server and the history that the positions belong to: nothing is handed out while that is open.
    pub(super) async fn settle_history(&mut self) -> Result<(), RelayError> {
        let (source, watch) = (self.source.clone(), &mut self.watch);
        let looked = source
            .within(async {
                let mut connection = seqline::pool::Lease::acquire(&source.pool).await?;
                let looked = look(connection.connection(), watch, OnChange::Refuse).await;
                connection.done();
                match looked {
                    Ok(looked) => Ok(looked),
                    Err(seqline::identity::EpochError::Database(error)) => Err(error.into()),
                    Err(error) => Err(RelayError::HistoryUnsettled(error.to_string())),
                }
            })
            .await?;
        match looked {
            Look::GoOn { .. } | Look::NewEpoch { .. } => {
                self.settled_at = Some(self.clock.elapsed());
                Ok(())
            }
            Look::Wait { reason, .. } => Err(RelayError::HistoryUnsettled(reason.to_string())),
            _ => {
                Err(RelayError::HistoryUnsettled("it says something that this version does not know".into()))
            }
        }
    }

    pub(super) async fn look_now_and_then(&mut self) -> Result<(), RelayError> {
        let now = self.clock.elapsed();
        match self.settled_at {
            Some(at) if now.saturating_sub(at) < HISTORY_LOOK_INTERVAL => Ok(()),
            _ => self.settle_history().await,
        }
    }
}
