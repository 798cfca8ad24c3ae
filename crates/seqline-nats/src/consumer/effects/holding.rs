//! What a transaction takes in hand, and what of it is new.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{Effects, Held, Source, Work};
use crate::consumer::decide::{Came, History, LogFacts, history, is_shared};
use crate::consumer::error::PassError;
use crate::limits::CLIENT_CHECK_INTERVAL;
use crate::store;
use crate::store::effects::{Bounds, Found};

impl Effects<'_> {
    /// Takes events in hand, and finds out which of them are of the log's history. Those that remain undecided can be claimed, unless they are
    /// ahead of the log: these are marked as busy until the claim is made.
    pub(super) async fn hold(
        &self,
        tx: &mut PgConnection,
        source: Source,
        works: &[Work],
    ) -> Result<Vec<Held>, PassError> {
        let shared = self.shared;
        let ids: Vec<Uuid> = works.iter().map(|work| work.event_id).collect();
        let held = shared.ask(store::effects::hold(tx, shared.name(), &ids, self.bounds())).await?;
        let mut free = held.free;
        if source == Source::Retries {
            let due = shared.ask(store::retries::hold_due(tx, shared.name(), &ids)).await?;
            for (work, free) in works.iter().zip(&mut free) {
                let unchanged = |(id, attempts): &(Uuid, i32)| {
                    *id == work.event_id && attempts.unsigned_abs() == work.failures
                };
                *free &= due.iter().any(unchanged);
            }
        }
        let log = LogFacts { epoch: held.epoch, head: held.head };
        let histories: Vec<History> = works
            .iter()
            .map(|work| work.identity.as_ref().map_or(History::Ours, |identity| history(identity, &log)))
            .collect();
        let elsewhere: Vec<i64> = works
            .iter()
            .zip(&histories)
            .filter(|(_, history)| **history == History::Elsewhere)
            .map(|(work, _)| work.position)
            .collect();
        let (mut at, mut min_retained) = (Vec::new(), i64::MAX);
        if !elsewhere.is_empty() {
            at = shared.ask(store::consumers::ids_at(tx, &elsewhere)).await?;
            min_retained = shared.ask(store::consumers::bounds(tx)).await?.min_retained;
        }
        let standing = works.iter().zip(histories).zip(free).map(|((work, history), free)| {
            let id_at = at.iter().find(|(seq, _)| *seq == work.position).map(|(_, id)| *id);
            match (free, history, &work.identity) {
                (false, ..) => Held::Not(Came::Busy),
                (true, History::Ahead, _) => Held::Not(Came::Undecided),
                (true, History::Elsewhere, Some(identity)) if !is_shared(identity, id_at, min_retained) => {
                    Held::Not(Came::OtherHistory)
                }
                _ => Held::Yes,
            }
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
