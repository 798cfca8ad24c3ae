//! What the passes of a consumer share: what it was made with, and what it remembers of events.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use seqline::Clock;
use seqline::pool::Lease;
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

use super::config::StreamConsumerConfig;
use super::definition::StreamConsumer;
use super::effects::{Ended, Unrecorded};
use super::error::PassError;
use super::tally::ConsumerTally;
use crate::broker::Broker;
use crate::limits::{BAD_LUCK_MAX, CONSUMER_BATCH_MAX, NETWORK_MARGIN, OWED_MAX};
use crate::stream::StreamSettings;

/// What a consumer needs in each pass.
pub(super) struct Shared {
    pub(super) pool: PgPool,
    pub(super) broker: Broker,
    pub(super) stream: StreamSettings,
    pub(super) consumer: StreamConsumer,
    pub(super) config: StreamConsumerConfig,
    pub(super) clock: Clock,
    pub(super) tally: Arc<ConsumerTally>,
    /// Whether this process has recorded what it asks for.
    pub(super) has_said: AtomicBool,
    /// Called when effects are committed and the broker does not know yet.
    pub(super) before_ack: Option<Box<dyn Fn() + Send + Sync>>,
    /// Transactions that handlers have ended, and that may have to be taken back.
    pub(super) ended: StdMutex<Vec<Ended>>,
    /// Failures that are not recorded yet, because another process has the event.
    pub(super) owed: StdMutex<BTreeMap<Uuid, Unrecorded>>,
    /// How often events in hand, or due, lost a conflict.
    pub(super) bad_luck: StdMutex<BTreeMap<Uuid, u32>>,
}

impl Shared {
    pub(super) fn name(&self) -> &str {
        &self.consumer.name
    }

    /// How many events are in one transaction at most.
    pub(super) fn batch(&self) -> u32 {
        self.config.batch.clamp(1, CONSUMER_BATCH_MAX)
    }

    pub(super) async fn lease(&self) -> Result<Lease, PassError> {
        self.ask(Lease::acquire(&self.pool)).await
    }

    /// One statement, within its time.
    pub(super) async fn ask<T, E: Into<PassError>>(
        &self,
        statement: impl Future<Output = Result<T, E>>,
    ) -> Result<T, PassError> {
        let limit = self.config.statement_timeout.saturating_add(NETWORK_MARGIN);
        match self.clock.timeout(limit, statement).await {
            Some(result) => result.map_err(Into::into),
            None => Err(PassError::DatabaseLate),
        }
    }

    pub(super) async fn commit(&self, tx: PgTransaction<'_>) -> Result<(), PassError> {
        let committed = async { Box::pin(seqline::commit(tx)).await.map_err(PassError::Commit) };
        self.ask(committed).await
    }

    /// An event lost a conflict. How often it has by now.
    pub(super) fn note_bad_luck(&self, event_id: Uuid) -> u32 {
        let mut bad_luck = self.bad_luck.lock().unwrap_or_else(PoisonError::into_inner);
        if bad_luck.len() >= BAD_LUCK_MAX && !bad_luck.contains_key(&event_id) {
            // Some went to another process. The others have a little more luck.
            bad_luck.clear();
        }
        let times = bad_luck.entry(event_id).or_default();
        *times += 1;
        *times
    }

    pub(super) fn forget_bad_luck(&self, event_id: Uuid) {
        self.bad_luck.lock().unwrap_or_else(PoisonError::into_inner).remove(&event_id);
    }

    /// Keeps a failure to be recorded later. Whether there is room.
    pub(super) fn owe(&self, unrecorded: Unrecorded) -> bool {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = owed.get_mut(&unrecorded.event_id) {
            before.add(&unrecorded);
            return true;
        }
        let has_room = owed.len() < OWED_MAX;
        if has_room {
            owed.insert(unrecorded.event_id, unrecorded);
        }
        has_room
    }

    pub(super) fn owed(&self) -> Vec<Unrecorded> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn note_ended(&self, ended: Ended) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
    }

    /// The transactions that are to be taken back, with the events of each.
    pub(super) fn ended(&self) -> Vec<(String, Vec<Uuid>)> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.iter().map(Ended::parts).collect()
    }

    /// The first so many are taken back.
    pub(super) fn forget_ended(&self, count: usize) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).drain(..count);
    }
}
