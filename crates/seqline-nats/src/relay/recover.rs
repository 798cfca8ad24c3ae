//! Finding out where the stream is. Asked of its leader only: what a replica answers may be old.

use std::collections::BTreeMap;

use async_nats::jetstream;
use async_nats::jetstream::stream::{Info, RawMessageErrorKind};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio_util::sync::CancellationToken;

use super::cursor::{Cursor, NOT_LOOKED_AT, Told};
use super::link::Link;
use super::walk::{Anchor, Differ, LookBack, Met, Standing, Walk, judge};
use super::{Relay, RelayError, RelayStart, StreamFacts};
use crate::limits::{CROWDED_AFTER, LOOK_BACK_MAX, SINGLY_AT_ONCE, STREAM_FACTS_INTERVAL, WALK_CHUNK};
use crate::message::Identity;
use crate::store::relay as store;
use crate::store::relay::Incident;
use crate::stream::{self as streams, StreamError};
use crate::subject::ALL;

/// What has to be known of the stream to walk over it.
pub(super) struct Place {
    created: i64,
    first: u64,
    pub(super) last: u64,
    stream: jetstream::stream::Stream<()>,
}

/// Why the place that the cursor names says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Astray {
    /// The relay has just begun.
    NotLookedAt,
    /// It is another stream of the same name.
    Recreated,
    /// The stream has lost its end.
    LostTail,
    /// The log is another one than the cursor's.
    OtherHistory,
}

/// In nanoseconds since 1970.
fn created_at(info: &Info) -> i64 {
    i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(i64::MAX)
}

impl From<Differ> for RelayError {
    fn from(Differ { position, stream_seq }: Differ) -> Self {
        Self::HistoriesDiffer { position, stream_seq }
    }
}

impl Relay {
    /// Finds out where the stream is, fills what is missing in it, and connects for going on behind its end. `None` when it is to stand still and
    /// something is missing.
    pub(super) async fn recover(&mut self, stop: &CancellationToken) -> Result<Option<Link>, RelayError> {
        let client = self.connected().await?;
        if self.held.is_some() {
            // It may have stood still for long: whether it is still this process's, and what an operator wants by now.
            self.save().await?;
        }
        let mut ahead = None;
        self.again_to = 0;
        loop {
            let info = self.look_at_stream().await?;
            let place = self.place(&info).await?;
            if self.held.is_none() {
                self.begin(&place).await?;
            }
            if self.held()?.told.rewind_to.is_some() {
                self.rewind(&place).await?;
                ahead = None;
            }
            let log = match &ahead {
                Some((log, _)) => *log,
                None => self.standing().await?,
            };
            let walk = self.walk_from_cursor(&place, &log, stop).await?;
            if stop.is_cancelled() {
                return Err(RelayError::Stopping);
            }
            // Another relay of the same log is no reason: nothing but their places keeps the two apart.
            if std::mem::take(&mut self.squeezed) {
                self.crowded = if walk.foreign.count > 0 { self.crowded + 1 } else { 0 };
            }
            let missing = walk.missing();
            if !missing.is_empty() {
                if self.held()?.told.paused {
                    return Ok(None);
                }
                let link = self.link(client.clone(), &info, &place, log.epoch).await?;
                let why = if walk.deleted() > 0 { "published_again" } else { "hole_filled_late" };
                self.fill(link, &missing, Some(why), stop).await?;
                if stop.is_cancelled() {
                    return Err(RelayError::Stopping);
                }
                ahead = None;
                continue;
            }
            self.assumed.clear();
            let behind = (log.head - walk.position()).max(0);
            self.again_to = self.again_to.max(walk.position() + walk.gone_at_end().min(behind));
            let crowded = self.crowded >= CROWDED_AFTER && behind > 0 && !self.held()?.told.paused;
            match ahead {
                // What comes next is read before the stream is looked at for the last time, so that little can get in between.
                None if crowded || behind > 0 => {
                    let page = self.source.page(self.lease()?, walk.position(), self.config.page).await?;
                    self.held()?.told = page.told;
                    ahead = Some((log, page));
                }
                Some((_, page)) if crowded => {
                    // Whoever names a place comes too late each time. In order they are all the same, since there is one at a time.
                    let link = self.link(client.clone(), &info, &place, log.epoch).await?;
                    let next: Vec<i64> =
                        page.events.iter().take(SINGLY_AT_ONCE).map(|event| event.seq).collect();
                    self.fill(link, &next, None, stop).await?;
                    self.crowded = CROWDED_AFTER - 1;
                    ahead = None;
                }
                ahead => {
                    let mut link = self.link(client, &info, &place, log.epoch).await?;
                    // Not when what was walked over meanwhile is part of it.
                    let page = ahead.map(|(_, page)| page);
                    link.ahead = page.filter(|page| {
                        page.events.first().is_some_and(|event| event.seq == walk.position() + 1)
                    });
                    return Ok(Some(link));
                }
            }
        }
    }

    async fn connected(&self) -> Result<async_nats::Client, RelayError> {
        let client = self.broker.client().await?;
        if client.connection_state() != async_nats::connection::State::Connected {
            // It is being opened again in the background. Not to wait for that says sooner what is the matter.
            return Err(StreamError::Silent(self.config.stream.name.clone()).into());
        }
        if self.config.atomic_batches.is_some() && !client.is_server_compatible(2, 12, 1) {
            return Err(RelayError::AtomicBatchesUnsupported(client.server_info().version));
        }
        Ok(client)
    }

    /// Makes the stream where there is none. One that is there is adjusted once only: what an operator changes later stays, as long as it takes
    /// the messages.
    async fn look_at_stream(&mut self) -> Result<Info, RelayError> {
        if self.ensured
            && let Some(info) = streams::info(&self.broker, &self.config.stream.name).await?
            && self.takes_messages(&info)?
        {
            self.remember_facts(&info);
            return Ok(info);
        }
        let (info, left) = streams::ensure_stream(&self.broker, &self.config.stream).await?;
        for left in left {
            tracing::warn!(relay = %self.config.name, left = ?left, "the stream is left as it is in a setting that differs");
        }
        self.ensured = true;
        self.remember_facts(&info);
        Ok(info)
    }

    /// Whether the stream still takes all that the relay publishes, and as it publishes it. An error when it became another kind of stream.
    fn takes_messages(&self, info: &Info) -> Result<bool, RelayError> {
        let config = &info.config;
        if let Err(error @ StreamError::Mismatch { .. }) = streams::plan(Some(config), &self.config.stream) {
            return Err(error.into());
        }
        let batches = config.allow_atomic_publish || self.config.atomic_batches.is_none();
        Ok(batches && config.subjects.iter().any(|subject| subject == ALL))
    }

    async fn place(&self, info: &Info) -> Result<Place, RelayError> {
        let context = self.broker.jetstream().await?;
        let name = &self.config.stream.name;
        let stream = context.get_stream_no_info(name).await;
        Ok(Place {
            created: created_at(info),
            first: info.state.first_sequence,
            last: info.state.last_sequence,
            stream: stream.map_err(|_| StreamError::Silent(name.clone()))?,
        })
    }

    /// Looks at the stream now and then while nothing is under way: whether it still ends where this relay's last message is. So what happens to it
    /// is found also when there is nothing to publish.
    pub(super) async fn is_where_it_was(&mut self, link: &Link) -> Result<bool, RelayError> {
        let now = self.clock.elapsed();
        if self.facts_at.is_some_and(|at| now.saturating_sub(at) < STREAM_FACTS_INTERVAL) {
            return Ok(true);
        }
        let Some(info) = streams::info(&self.broker, &self.config.stream.name).await? else {
            return Ok(false);
        };
        self.remember_facts(&info);
        let created = self.held()?.cursor.stream_created;
        Ok(self.takes_messages(&info)?
            && created_at(&info) == created
            && info.state.last_sequence == link.end())
    }

    fn remember_facts(&mut self, info: &Info) {
        self.facts_at = Some(self.clock.elapsed());
        self.tally.set_stream(StreamFacts {
            messages: info.state.messages,
            bytes: info.state.bytes,
            max_bytes: u64::try_from(info.config.max_bytes).ok().filter(|bytes| *bytes > 0),
            first_at: (info.state.messages > 0).then_some(info.state.first_timestamp),
            last_seq: info.state.last_sequence,
        });
    }

    pub(super) async fn standing(&self) -> Result<Standing, RelayError> {
        let compared = self.source.ask(async |connection| store::compare(connection, &[]).await).await?;
        let store::Compared { epoch, head, min_retained, .. } = compared;
        Ok(Standing { epoch, head, min_retained })
    }

    /// The first start of all: makes the row. Where the stream is follows from walking over it, as after a loss.
    async fn begin(&mut self, place: &Place) -> Result<(), RelayError> {
        let log = self.standing().await?;
        let start = match self.config.start {
            RelayStart::Oldest => log.min_retained - 1,
            RelayStart::Head => log.head,
        };
        let cursor = Cursor {
            epoch: log.epoch,
            position: start,
            stream_created: NOT_LOOKED_AT,
            stream_seq: place.last,
            position_at_seq: None,
            base_stream_seq: place.last,
            base_position: start,
            rewinds: 0,
        };
        let (config, holder) = (&self.config, self.holder);
        let generation = self
            .source
            .ask(async |connection| {
                store::create(connection, &config.name, &config.stream.name, &cursor, holder, config.lease)
                    .await
            })
            .await?;
        self.take(
            generation.ok_or(RelayError::HeldElsewhere)?,
            cursor,
            Told { paused: false, rewind_to: None },
        );
        Ok(())
    }

    async fn rewind(&mut self, place: &Place) -> Result<(), RelayError> {
        let lease = self.lease()?;
        let (created, last) = (place.created, place.last);
        let row = self
            .source
            .ask(async |connection| store::rewind(connection, lease, created, last).await)
            .await?
            .ok_or(RelayError::Replaced)?;
        let held = self.held()?;
        let before = held.cursor.position;
        (held.cursor, held.told) = (row.cursor, Told { paused: row.paused, rewind_to: row.rewind_to });
        self.noted_to = self.noted_to.max(last);
        self.republish_to = self.republish_to.max(before);
        tracing::info!(relay = %self.config.name, position = row.cursor.position, "the relay was rewound");
        Ok(())
    }

    /// Walks from the cursor, or from wherever else it can be done, to the end of the stream. Leaves the cursor where nothing is missing. One that
    /// is to stop before the end leaves all as it was.
    async fn walk_from_cursor(
        &mut self,
        place: &Place,
        log: &Standing,
        stop: &CancellationToken,
    ) -> Result<Walk, RelayError> {
        let before = self.held()?.cursor;
        let astray = self.astray(place, log, &before).await?;
        // The relay's own cursor stays until all is known that has to be told: whoever goes on from the new one would not find it again.
        let cursor = match astray {
            Some(why) => self.find_again(place, log, &before, why, stop).await?,
            None => before,
        };
        let mut walk = Walk::from(&cursor, place.first, self.noted_to);
        self.assumed.iter().for_each(|position| walk.assume(*position));
        let mut next = place.first.max(cursor.stream_seq + 1);
        let mut log = *log;
        while next <= place.last {
            let end = place.last.min(next + WALK_CHUNK - 1);
            let (met, now) = self.read(place, next, end, Some(log)).await?;
            for (stream_seq, met) in met {
                walk.meet(stream_seq, met)?;
            }
            (log, next) = (now, end + 1);
            self.save_if_due().await?;
            if stop.is_cancelled() {
                return Err(RelayError::Stopping);
            }
        }
        self.conclude_walk(place, &log, (&before, &cursor), astray, &mut walk).await?;
        Ok(walk)
    }

    /// Tells what was met, and moves the cursor from where it was, or the one that was found for it, as far as nothing is missing.
    async fn conclude_walk(
        &mut self,
        place: &Place,
        log: &Standing,
        (before, found): (&Cursor, &Cursor),
        astray: Option<Astray>,
        walk: &mut Walk,
    ) -> Result<(), RelayError> {
        let mut incident = |kind, count, positions, stream_seq| {
            self.to_tell.push(Incident { kind, count, positions, stream_seq });
        };
        let lost = before.position > walk.position() && astray != Some(Astray::NotLookedAt);
        let again = lost.then(|| (walk.position() + 1, before.position));
        match astray {
            Some(Astray::Recreated) => incident("stream_recreated", 1, again, Some(place.last)),
            Some(Astray::LostTail) => {
                let count = again.map_or(1, |(first, last)| last - first + 1);
                incident("stream_lost_messages", count, again, Some(place.last));
            }
            Some(Astray::OtherHistory | Astray::NotLookedAt) | None => {}
        }
        if walk.foreign.count > 0 {
            incident("foreign_messages", walk.foreign.count, None, Some(walk.foreign.stream_seq));
        }
        if walk.orphans.count > 0 {
            incident("orphaned_messages", walk.orphans.count, None, Some(walk.orphans.stream_seq));
        }
        if walk.position() < log.min_retained - 1 {
            let (first, last) = (walk.position() + 1, log.min_retained - 1);
            incident("behind_retention", last - first + 1, Some((first, last)), None);
            walk.skip_to_retained(log.min_retained);
        }
        let settled = walk.settled();
        let held = self.held()?;
        held.cursor = Cursor {
            epoch: log.epoch,
            position: settled.position,
            stream_seq: settled.stream_seq,
            position_at_seq: settled.position_at_seq,
            ..*found
        };
        held.dirty = true;
        self.republish_to = self.republish_to.max(again.map_or(0, |(_, last)| last));
        self.noted_to = place.last;
        if astray.is_some() { self.save().await } else { self.save_if_due().await }
    }

    /// Whether the place that the cursor names holds what the cursor says.
    async fn astray(
        &self,
        place: &Place,
        log: &Standing,
        cursor: &Cursor,
    ) -> Result<Option<Astray>, RelayError> {
        if cursor.stream_created == NOT_LOOKED_AT {
            return Ok(Some(Astray::NotLookedAt));
        }
        if place.created != cursor.stream_created {
            return Ok(Some(Astray::Recreated));
        }
        if place.last < cursor.stream_seq {
            return Ok(Some(Astray::LostTail));
        }
        if cursor.position > log.head {
            return Ok(Some(Astray::OtherHistory));
        }
        let Some(position) = cursor.position_at_seq.filter(|_| cursor.stream_seq >= place.first) else {
            return Ok(None);
        };
        let (met, _) = self.read(place, cursor.stream_seq, cursor.stream_seq, None).await?;
        match met.first() {
            // That somebody deleted it says nothing of those before.
            Some((_, Met::Deleted)) | None => Ok(None),
            Some((_, Met::Ours(there))) if *there == position => Ok(None),
            Some((stream_seq, Met::Differs(position))) => {
                Err(RelayError::HistoriesDiffer { position: *position, stream_seq: *stream_seq })
            }
            Some(_) if cursor.epoch != log.epoch => Ok(Some(Astray::OtherHistory)),
            Some(_) => Ok(Some(Astray::LostTail)),
        }
    }

    /// A cursor from which the stream can be walked, for one from which it cannot.
    async fn find_again(
        &mut self,
        place: &Place,
        log: &Standing,
        before: &Cursor,
        why: Astray,
        stop: &CancellationToken,
    ) -> Result<Cursor, RelayError> {
        let edge = log.min_retained - 1;
        let mut cursor = Cursor { position_at_seq: None, stream_created: place.created, ..*before };
        let another = matches!(why, Astray::Recreated | Astray::NotLookedAt);
        self.noted_to = match why {
            // What was there before it began is nothing to tell of.
            Astray::NotLookedAt => place.last,
            Astray::Recreated => 0,
            Astray::LostTail | Astray::OtherHistory => self.noted_to.min(place.last),
        };
        let base = Anchor { stream_seq: before.base_stream_seq, position: before.base_position };
        if !another && place.last < base.stream_seq {
            // All that it has published since it began there is lost.
            (cursor.base_stream_seq, cursor.stream_seq, cursor.position) =
                (place.last, place.last, base.position);
            return Ok(cursor);
        }
        let bound = (!another).then_some(base);
        let found = self.look_back(place, bound, stop).await?;
        let whole = bound.filter(|base| base.stream_seq + 1 >= place.first);
        let Anchor { stream_seq, position } = match (found, whole) {
            (Some(found), _) => found,
            (None, Some(base)) => base,
            (None, None) => {
                // Of another stream it says nothing, unless it is where the relay is to begin.
                let kept = if why == Astray::Recreated { 0 } else { base.position };
                Anchor { stream_seq: place.last, position: edge.max(kept) }
            }
        };
        (cursor.stream_seq, cursor.position) = (stream_seq, position);
        if whole.is_none() {
            (cursor.base_stream_seq, cursor.base_position) = (stream_seq, position);
        }
        Ok(cursor)
    }

    /// Looks from the end of the stream backward, as far as the base, for where a walk can begin.
    async fn look_back(
        &mut self,
        place: &Place,
        base: Option<Anchor>,
        stop: &CancellationToken,
    ) -> Result<Option<Anchor>, RelayError> {
        let first = place.first.max(1);
        let reach = place.last.saturating_sub(LOOK_BACK_MAX) + 1;
        let bottom = first.max(base.map_or(0, |base| base.stream_seq + 1)).max(reach);
        let mut look = LookBack::default();
        let mut end = place.last;
        while end >= bottom && end > 0 {
            let start = bottom.max(end.saturating_sub(WALK_CHUNK - 1));
            let (met, _) = self.read(place, start, end, None).await?;
            for (stream_seq, met) in met.into_iter().rev() {
                if look.meet(stream_seq, met)? {
                    return Ok(look.anchor(None, bottom));
                }
            }
            end = start - 1;
            self.save_if_due().await?;
            if stop.is_cancelled() {
                return Err(RelayError::Stopping);
            }
        }
        let base = base.filter(|base| base.stream_seq + 1 == bottom);
        Ok(look.anchor(base, bottom))
    }

    /// Reads some places of the stream, and compares them with the log as it is after that: what another relay has published meanwhile is in it.
    async fn read(
        &self,
        place: &Place,
        from: u64,
        to: u64,
        known: Option<Standing>,
    ) -> Result<(Vec<(u64, Met)>, Standing), RelayError> {
        let reading = stream::iter(from..=to).map(|stream_seq| async move {
            match place.stream.get_raw_message(stream_seq).await {
                Ok(message) => Ok((stream_seq, Some(Identity::of(Some(&message.headers))))),
                Err(error) if matches!(error.kind(), RawMessageErrorKind::NoMessageFound) => {
                    Ok((stream_seq, None))
                }
                Err(_) => Err(RelayError::Unread),
            }
        });
        let read: Vec<_> = reading.buffered(WALK_CHUNK as usize).try_collect().await?;
        let positions: Vec<i64> =
            read.iter().filter_map(|(_, identity)| Some((*identity)??.position)).collect();
        let (log, ids) = match known.filter(|_| positions.is_empty()) {
            Some(log) => (log, BTreeMap::new()),
            None => {
                let compared =
                    self.source.ask(async |connection| store::compare(connection, &positions).await).await?;
                let store::Compared { epoch, head, min_retained, ids } = compared;
                (Standing { epoch, head, min_retained }, BTreeMap::from_iter(ids))
            }
        };
        let met = read.into_iter().map(|(stream_seq, identity)| {
            let met = match identity {
                None => Met::Deleted,
                Some(identity) => {
                    let id = identity.and_then(|identity| ids.get(&identity.position)).copied();
                    judge(identity, &log, id)
                }
            };
            (stream_seq, met)
        });
        Ok((met.collect(), log))
    }
}
