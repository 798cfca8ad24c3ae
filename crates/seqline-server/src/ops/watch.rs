//! Looks at the database now and then: whether it answers, takes writes, and has the history that the numbers belong to.
//!
//! It is the one place of a process that looks at the history, so what it has seen is remembered as long as the process lives.

use std::time::Duration;

use seqline::identity::{Acted, EpochError, HistoryWatch, Look, OnChange, look};
use seqline::{Clock, DatabaseError};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Health;
use super::readiness::Seen;
use crate::connect::OwnConnection;
use crate::store;

/// What looks.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) database: OwnConnection,
    pub(crate) rule: OnChange,
    pub(crate) interval: Duration,
    /// How long one look may take.
    pub(crate) limit: Duration,
}

/// What was found in the way of handing numbers out, and is said once.
#[derive(Debug, PartialEq, Eq)]
struct Obstacle(String);

impl Watch {
    /// Looks until `stop` is cancelled: every interval, and at once when somebody wants it.
    pub(crate) async fn run(mut self, health: Health, clock: Clock, stop: CancellationToken) {
        let mut history = HistoryWatch::default();
        let mut said = None;
        loop {
            tokio::select! {
                looked = clock.timeout(self.limit, self.look(&mut history, &health, &mut said)) => match looked {
                    Some(Ok((seen, epoch))) => health.saw(Some(seen), epoch),
                    // Whoever works with the database says what is wrong with it.
                    Some(Err(error)) => {
                        tracing::debug!(error = %error, "look at the database failed");
                        health.saw(None, None);
                    }
                    None => health.saw(None, None),
                },
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = clock.sleep(self.interval) => {}
                () = health.look_is_wanted() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// What was seen, and the epoch in which numbers may be handed out.
    async fn look(
        &mut self,
        history: &mut HistoryWatch,
        health: &Health,
        said: &mut Option<Obstacle>,
    ) -> Result<(Seen, Option<Uuid>), DatabaseError> {
        let rule = self.rule;
        // More than the last look saw may have been handed out since.
        if let Some((epoch, delivered)) = health.delivered()
            && history.epoch() == Some(epoch)
        {
            history.remember(epoch, delivered);
        }
        let question = async |connection: &mut PgConnection| {
            let server = store::watch::look(connection).await?;
            match look(connection, history, rule).await {
                Err(EpochError::Database(error)) => Err(error),
                looked => Ok((server, looked)),
            }
        };
        let (server, looked) = self.database.ask(question).await?;
        if !server.writable {
            self.database.forget();
        }
        let epoch = match &looked {
            Ok(Look::GoOn { epoch, .. } | Look::NewEpoch { to: epoch, .. }) => Some(*epoch),
            _ => None,
        };
        say(&looked, said);
        let seen = Seen { head: server.head, writable: server.writable, same_history: epoch.is_some() };
        Ok((seen, epoch))
    }
}

/// Each obstacle once, and its end once; and what a rule of the configuration did.
fn say(looked: &Result<Look, EpochError>, said: &mut Option<Obstacle>) {
    let obstacle = match looked {
        Ok(Look::Wait { reason, .. }) => Some(Obstacle(reason.to_string())),
        Err(error) => Some(Obstacle(error.to_string())),
        Ok(_) => None,
    };
    if let Some(Obstacle(reason)) = &obstacle
        && *said != obstacle
    {
        let recorded = matches!(looked, Ok(Look::Wait { recorded: true, .. }));
        tracing::error!(
            reason,
            recorded,
            "database is not the one to which the numbers belong, nothing is handed out until seqline restore finalize"
        );
    }
    if let Ok(Look::GoOn { acted, epoch, .. } | Look::NewEpoch { acted, to: epoch, .. }) = looked {
        match acted {
            Acted::Nothing => {}
            Acted::Accepted => tracing::warn!(%epoch, "failover was accepted, the epoch goes on"),
            Acted::Finalized(_) => tracing::warn!(%epoch, "new epoch was started, cursors were kept"),
        }
        if said.is_some() {
            tracing::info!(%epoch, "database is the one to which the numbers belong");
        }
    }
    *said = obstacle;
}
