//! What the broker dropped silently: found by comparing the log with what was handled.
//!
//! A message can go before it was delivered: at a bound of the stream, by a purge, with a server that lost its disk. The broker goes on with the
//! next one and says nothing. But everything in the stream up to the acknowledged floor was delivered and settled. So the log up to the position
//! there has to be in the ledger, among the retries or among the dead letters; what is not is tried from the log.

use async_nats::jetstream::stream::Stream;

use super::durable::{self, Stored};
use super::error::PassError;
use super::place::{Link, is_beyond};
use super::runtime::{Runtime, State};
use crate::store;
use crate::store::consumers::{Bounds, Registration};

/// Batches that are compared before messages get their turn.
const BATCHES_MAX: usize = 20;

/// Up to where the log can be compared, by what was found in the stream.
#[derive(Debug)]
struct Floor {
    stream_seq: u64,
    stream_created: i64,
    /// The message there.
    at: Option<Stored>,
    /// The one behind it, when there is none.
    behind: Option<Stored>,
}

/// What comparing has found.
#[derive(Debug)]
struct Compared {
    /// Where the consumer stands.
    registration: Registration,
    /// How many events the broker had dropped.
    dropped: u64,
    /// The first and the last position that retention took before.
    lost: Option<(i64, i64)>,
    /// Whether that was all.
    is_done: bool,
}

impl Runtime {
    /// Compares, if it is time to.
    pub(super) async fn reconcile(&self, state: &mut State) -> Result<(), PassError> {
        let shared = &*self.shared;
        let now = shared.clock.elapsed();
        let (Some(link), Some(registration)) = (&state.link, state.registration) else { return Ok(()) };
        if now < state.reconcile_at {
            return Ok(());
        }
        // If it cannot be done now, not at once again.
        state.reconcile_at = now.saturating_add(shared.config.failure_backoff_cap);
        let Some(floor) = self.floor(link).await? else {
            state.reconcile_at = now;
            // It has to be made again, which is done where it is connected.
            state.link = None;
            return Ok(());
        };
        let Compared { registration, dropped, lost, is_done } = self.compare(registration, &floor).await?;
        state.registration = Some(registration);
        if let Some((first, last)) = lost {
            let count = (last - first + 1).unsigned_abs();
            shared.tally.count_lost(count);
            tracing::warn!(
                consumer = shared.name(),
                count,
                first,
                last,
                "retention took events before they were compared, those that the broker had dropped are lost"
            );
        }
        if !is_done {
            state.reconcile_at = now;
        } else {
            state.reconcile_at = now.saturating_add(shared.config.reconcile_interval);
        }
        if dropped > 0 {
            state.retry_at = std::time::Duration::ZERO;
            shared.tally.count_dropped(dropped);
            tracing::warn!(
                consumer = shared.name(),
                count = dropped,
                "broker dropped events before it delivered them, they are handled from the log"
            );
        }
        Ok(())
    }

    /// How far the consumer is in the stream; none when it has to begin anew.
    async fn floor(&self, link: &Link) -> Result<Option<Floor>, PassError> {
        let Some(info) = durable::info(&link.stream, self.shared.name()).await? else { return Ok(None) };
        self.note_waiting(&info);
        if is_beyond(&info, &link.stream).await? {
            return Ok(None);
        }
        // With nothing in hand all that was delivered is settled, also where the floor stays behind messages that the broker gave up.
        let stream_seq = match info.num_ack_pending {
            0 => info.delivered.stream_sequence.max(info.ack_floor.stream_sequence),
            _ => info.ack_floor.stream_sequence,
        };
        let (at, behind) = around(&link.stream, stream_seq).await?;
        Ok(Some(Floor { stream_seq, stream_created: link.stream_created, at, behind }))
    }

    /// Compares up to a floor.
    async fn compare(&self, registration: Registration, floor: &Floor) -> Result<Compared, PassError> {
        let shared = &*self.shared;
        let asking = shared.asking();
        let mut lease = shared.lease().await?;
        let mut compared = Compared { registration, dropped: 0, lost: None, is_done: false };
        for _ in 0..BATCHES_MAX {
            let mut tx = shared.ask(lease.begin()).await?;
            let found = shared.ask(store::consumers::registration(&mut tx, &asking)).await?;
            compared.registration = found.unwrap_or(compared.registration);
            if !found.is_some_and(|found| found.is_same) {
                // Somebody has removed it; or a process that asks for something else compares, and knows what was not asked for here.
                shared.commit(tx).await?;
                lease.done();
                return Ok(Compared { is_done: true, ..compared });
            }
            let log = shared.ask(store::consumers::bounds(&mut tx)).await?;
            let mut until = shared.ask(position_of(&mut tx, shared, floor, &log)).await?;
            let from = compared.registration.reconciled_to;
            // A log that was restored can end before it, and gives those positions again.
            let after = from.min(log.head).max(log.min_retained - 1);
            until = until
                .min(log.head)
                .min(after.saturating_add(i64::from(shared.config.reconcile_batch.max(1))));
            if until <= after && from <= log.head {
                shared.commit(tx).await?;
                lease.done();
                return Ok(Compared { is_done: true, ..compared });
            }
            let to = until.max(after);
            let lost = (from < after).then_some((from + 1, after));
            if lost.is_some() {
                shared.ask(store::consumers::add_lost(&mut tx, shared.name(), after - from)).await?;
            }
            let put = store::consumers::put_dropped(&mut tx, shared.name(), after, to);
            let put = shared.ask(put).await?;
            let moved = store::consumers::set_reconciled(&mut tx, shared.name(), (from, to), put);
            if shared.ask(moved).await? {
                shared.commit(tx).await?;
                compared.registration.reconciled_to = to;
                compared.dropped += put;
                compared.lost = compared.lost.or(lost);
                continue;
            }
            // Another process was faster, or somebody has removed the consumer.
            shared.ask(async { tx.rollback().await }).await?;
            lease.done();
            return Ok(Compared { is_done: true, ..compared });
        }
        lease.done();
        Ok(compared)
    }
}

/// The message at a number, or else the first one behind it.
async fn around(stream: &Stream, stream_seq: u64) -> Result<(Option<Stored>, Option<Stored>), PassError> {
    let of_ours = |stored: Option<Stored>| stored.filter(|stored| stored.identity.is_some());
    let at = match stream_seq {
        0 => None,
        seq => of_ours(durable::message_at(stream, seq).await?),
    };
    if at.is_some() {
        return Ok((at, None));
    }
    Ok((None, of_ours(durable::message_from(stream, stream_seq + 1).await?)))
}

/// Up to which position everything that is in the stream was settled: what the message at the floor says, or the one behind it, or a relay. 0
/// when nobody can say.
async fn position_of(
    tx: &mut sqlx::PgConnection,
    shared: &super::shared::Shared,
    floor: &Floor,
    log: &Bounds,
) -> Result<i64, sqlx::Error> {
    let seq = i64::try_from(floor.stream_seq).unwrap_or(i64::MAX);
    let relayed = store::consumers::relayed_to(tx, &shared.stream.name, floor.stream_created, seq).await?;
    let mut position = relayed.unwrap_or(0);
    for (stored, less) in [(&floor.at, 0), (&floor.behind, 1)] {
        let Some(identity) = stored.as_ref().and_then(|stored| stored.identity) else { continue };
        let is_ours = identity.epoch == log.epoch
            || store::consumers::ids_at(tx, &[identity.position])
                .await?
                .contains(&(identity.position, identity.event_id));
        if is_ours {
            position = position.max(identity.position - less);
        }
    }
    Ok(position)
}
