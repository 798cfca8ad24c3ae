//! What a transaction takes in hand, and what of it is new.

use seqline::pool::Lease;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Effects, Held, Source, Work};
use crate::consumer::decide::{Came, History, LogFacts, history};
use crate::consumer::error::PassError;
use crate::limits::CLIENT_CHECK_INTERVAL;
use crate::message::Identity;
use crate::store;
use crate::store::effects::{Bounds, Found};

impl Effects<'_> {
    /// Finds out which events are of the log's history. Before the transaction: who has read the log in one keeps retention waiting until its end.
    pub(super) async fn histories(
        &self,
        lease: &mut Lease,
        works: &[Work],
    ) -> Result<Vec<History>, PassError> {
        let shared = self.shared;
        let identities: Vec<&Identity> = works.iter().filter_map(|work| work.identity.as_ref()).collect();
        if identities.is_empty() {
            return Ok(vec![History::Ours; works.len()]);
        }
        let positions: Vec<i64> = identities.iter().map(|identity| identity.position).collect();
        let found = shared.ask(store::consumers::log_at(lease.connection(), &positions)).await?;
        let log = LogFacts { epoch: found.epoch, head: found.head };
        let is_retained =
            identities.iter().all(|it| it.epoch == log.epoch || found.ids.contains_key(&it.position));
        let min_retained = match is_retained {
            // Nobody needs to know.
            true => i64::MIN,
            false => {
                let bounds = lease.alone(async |connection| store::consumers::bounds(connection).await);
                shared.ask(bounds).await?.min_retained
            }
        };
        let of = |identity: &Identity| {
            history(identity, &log, found.ids.get(&identity.position).copied(), min_retained)
        };
        Ok(works.iter().map(|work| work.identity.as_ref().map_or(History::Ours, of)).collect())
    }

    /// Takes events in hand. Those that remain undecided can be claimed, unless they are ahead of the log.
    pub(super) async fn hold(
        &self,
        tx: &mut PgConnection,
        source: Source,
        works: &[Work],
        histories: &[History],
    ) -> Result<Vec<Held>, PassError> {
        let shared = self.shared;
        let ids: Vec<Uuid> = works.iter().map(|work| work.event_id).collect();
        let mut free = shared.ask(store::effects::hold(tx, shared.name(), &ids, self.bounds())).await?;
        if source == Source::Retries {
            let due = shared.ask(store::retries::hold_due(tx, shared.name(), &ids)).await?;
            for (work, free) in works.iter().zip(&mut free) {
                let unchanged = |(id, attempts): &(Uuid, i32)| {
                    *id == work.event_id && attempts.unsigned_abs() == work.failures
                };
                *free &= due.iter().any(unchanged);
            }
        }
        let standing = free.into_iter().zip(histories).map(|(free, history)| match (free, history) {
            (false, _) => Held::Not(Came::Busy),
            (true, History::Ours) => Held::Yes,
            (true, History::Ahead) => Held::Not(Came::Undecided),
            (true, History::Differs) => Held::Not(Came::HistoriesDiffer),
            (true, History::Elsewhere) => Held::Not(Came::OtherHistory),
        });
        Ok(standing.collect())
    }

    fn bounds(&self) -> Bounds {
        let config = &self.shared.config;
        Bounds {
            statement: config.statement_timeout.min(config.handler_timeout),
            idle: config.handler_timeout.saturating_add(config.statement_timeout),
            client_check: CLIENT_CHECK_INTERVAL,
        }
    }

    /// Claims what is in hand, and returns the transaction.
    pub(super) async fn claim(
        &self,
        tx: &mut PgConnection,
        source: Source,
        works: &[Work],
        held: &mut [Held],
    ) -> Result<String, PassError> {
        let shared = self.shared;
        let asked: Vec<Uuid> = works
            .iter()
            .zip(held.iter())
            .filter(|(_, held)| **held == Held::Yes)
            .map(|(work, _)| work.event_id)
            .collect();
        if asked.is_empty() {
            return Ok(String::new());
        }
        let again = source == Source::Retries;
        let claims = shared.ask(store::effects::claim(tx, shared.name(), &asked, again)).await?;
        let mut new = Vec::with_capacity(asked.len());
        for (work, held) in works.iter().zip(held.iter_mut()).filter(|(_, held)| **held == Held::Yes) {
            let found = claims.found.iter().find(|(id, _)| *id == work.event_id).map(|(_, found)| *found);
            match found {
                Some(Found::New) if !new.contains(&work.event_id) => new.push(work.event_id),
                // A second message of an event that this transaction has in hand: what came of it shows when it comes again.
                Some(Found::New) => *held = Held::Not(Came::Busy),
                Some(Found::Duplicate) | None => *held = Held::Not(Came::Duplicate),
                Some(Found::Settled) => *held = Held::Not(Came::Settled),
            }
        }
        if new.is_empty() {
            // What others have committed may be visible and not on the disk yet.
            shared.ask(store::effects::wait_for_disk(tx)).await?;
        }
        Ok(claims.transaction)
    }
}
