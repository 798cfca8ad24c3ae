//! Publishing: many messages under way at once, each for one place of the stream.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::Message;
use async_nats::header::NATS_EXPECTED_LAST_SEQUENCE;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use seqline::StoredEvent;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::answer::{Answer, code};
use super::link::{Link, Ready};
use super::source::Page;
use super::walk::Settled;
use super::window::Stored;
use super::{Relay, RelayError};
use crate::limits::{STOP_PATIENCE, WATCH_INTERVAL};
use crate::store::relay as store;
use crate::store::relay::Incident;

/// The id of an atomic batch.
const BATCH_ID: &str = "Nats-Batch-Id";
/// The number of a message in its batch, from 1.
const BATCH_SEQUENCE: &str = "Nats-Batch-Sequence";
/// The last message of a batch, with which all of it is stored.
const BATCH_COMMIT: &str = "Nats-Batch-Commit";

/// Answers that are taken before anything else is done.
const ANSWERS_AT_ONCE: usize = 256;

/// One pass over the log.
struct Flight {
    buffer: VecDeque<StoredEvent>,
    /// The next message, made already.
    ready: Option<Ready>,
    reading: Option<BoxFuture<'static, Result<Page, RelayError>>>,
    /// How often the cursor was saved when that began; `None` for a page that was read before.
    reading_since: Option<u64>,
    /// The last event that was read, and which it is, if that is known.
    read_to: (i64, Option<Uuid>),
    head: i64,
    head_reached: bool,
    /// The first thing that went wrong.
    failure: Option<RelayError>,
    /// A message was there before: those behind it are for places that do not follow.
    misaligned: bool,
    /// The places of the batch that is under way.
    batch: Option<std::ops::RangeInclusive<u64>>,
    /// Events whose messages had been deleted, and that are in the stream again.
    again: Vec<i64>,
    /// When the broker was last heard, or had nothing to say.
    heard_at: Duration,
    stopping_since: Option<Duration>,
}

/// What became of waiting for the next thing to do.
enum Turn {
    Answer(Option<Message>),
    Page(Box<Result<Page, RelayError>>),
    Look,
    Stop,
}

impl Relay {
    /// Publishes all events up to the head, and gives the head. `None` when it has to be found out again where the stream is, although nothing went
    /// wrong.
    pub(super) async fn send(
        &mut self,
        mut link: Link,
        stop: &CancellationToken,
    ) -> Result<Option<i64>, RelayError> {
        let position = self.held()?.cursor.position;
        let mut flight = Flight {
            buffer: VecDeque::new(),
            ready: None,
            reading: None,
            reading_since: None,
            read_to: (position, link.last.filter(|(last, _)| *last == position).map(|(_, id)| id)),
            head: position,
            head_reached: false,
            failure: None,
            misaligned: false,
            batch: None,
            again: Vec::new(),
            heard_at: self.clock.elapsed(),
            stopping_since: None,
        };
        if let Some(page) = link.ahead.take() {
            self.take_page(&mut link, &mut flight, Ok(page));
        }
        loop {
            let sending = self.may_send(&flight);
            if sending {
                if let Err(error) = self.fill_window(&mut link, &mut flight).await {
                    flight.failure.get_or_insert(error);
                }
                self.read_ahead(&mut flight)?;
            }
            let drained = flight.buffer.is_empty() && flight.ready.is_none() && flight.reading.is_none();
            if link.unanswered == 0 && (!self.may_send(&flight) || drained) {
                break;
            }
            if let Err(error) = self.save_if_due().await {
                flight.failure.get_or_insert(error);
            }
            match self.turn(&mut link, &mut flight, stop).await {
                Turn::Answer(Some(message)) => self.take_answers(&mut link, &mut flight, &message).await,
                Turn::Answer(None) => {
                    flight.failure.get_or_insert(RelayError::ConnectionLost);
                    break;
                }
                Turn::Page(page) => self.take_page(&mut link, &mut flight, *page),
                Turn::Stop => flight.stopping_since = Some(self.clock.elapsed()),
                Turn::Look => {
                    if let Some(lost) = self.lost(&link, &flight) {
                        flight.failure.get_or_insert(lost);
                        break;
                    }
                }
            }
            // Not only when there is nothing else to do, which may be never.
            let stopping = flight.stopping_since.map(|since| self.clock.elapsed().saturating_sub(since));
            if stopping.is_some_and(|stopping| stopping >= STOP_PATIENCE) {
                flight.failure.get_or_insert(RelayError::Stopping);
                break;
            }
            if matches!(flight.failure, Some(RelayError::Replaced)) {
                break;
            }
        }
        self.land(link, flight).await
    }

    /// Whether more may be sent.
    fn may_send(&self, flight: &Flight) -> bool {
        flight.failure.is_none()
            && !flight.misaligned
            && flight.stopping_since.is_none()
            && self.held.as_ref().is_some_and(|held| !held.told.paused && held.told.rewind_to.is_none())
    }

    async fn turn(&self, link: &mut Link, flight: &mut Flight, stop: &CancellationToken) -> Turn {
        let (unanswered, stopping) = (link.unanswered > 0, flight.stopping_since.is_some());
        let reading = async {
            match &mut flight.reading {
                Some(reading) => reading.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // First: answers may come as fast as they are taken, and then nothing behind them is looked at.
            () = stop.cancelled(), if !stopping => Turn::Stop,
            page = reading => Turn::Page(Box::new(page)),
            message = link.replies.next(), if unanswered => Turn::Answer(message),
            () = self.clock.sleep(WATCH_INTERVAL) => Turn::Look,
        }
    }

    /// Whether what is under way will not be answered any more.
    fn lost(&self, link: &Link, flight: &Flight) -> Option<RelayError> {
        let now = self.clock.elapsed();
        if !link.is_connected() {
            return Some(RelayError::ConnectionLost);
        }
        let silent = now.saturating_sub(flight.heard_at) >= self.config.ack_timeout;
        (link.unanswered > 0 && silent).then_some(RelayError::Unacknowledged)
    }

    /// Begins to read the next page when the one before is half sent, or does not fill the next batch.
    fn read_ahead(&self, flight: &mut Flight) -> Result<(), RelayError> {
        let (half, batch) = (self.config.page / 2, self.config.atomic_batches.unwrap_or(0));
        let enough = flight.buffer.len() > half as usize && flight.buffer.len() >= batch as usize;
        if flight.reading.is_some() || flight.head_reached || enough {
            return Ok(());
        }
        flight.reading_since = self.held.as_ref().map(|held| held.saves);
        let store::Lease { name, holder, generation, length } = self.lease()?;
        let (source, name, after, limit) =
            (self.source.clone(), name.to_owned(), flight.read_to.0, self.config.page);
        flight.reading = Some(Box::pin(async move {
            source.page(store::Lease { name: &name, holder, generation, length }, after, limit).await
        }));
        Ok(())
    }

    fn take_page(&mut self, link: &mut Link, flight: &mut Flight, page: Result<Page, RelayError>) {
        flight.reading = None;
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                flight.failure.get_or_insert(error);
                return;
            }
        };
        // What a save has heard meanwhile may be newer.
        if let Some(held) = self.held.as_mut().filter(|held| flight.reading_since == Some(held.saves)) {
            held.told = page.told;
        }
        flight.head = page.head;
        self.tally.set_behind(page.head - self.held.as_ref().map_or(0, |held| held.cursor.position));
        // The next event is one of another history when this one has changed: nothing of it may go under the old name.
        let other = flight.read_to.1.zip(page.id_at).is_some_and(|(known, there)| known != there);
        if page.epoch != link.epoch || other {
            flight.failure.get_or_insert(RelayError::HistoryChanged);
            return;
        }
        flight.head_reached = page.events.len() < self.config.page as usize;
        if let Some(last) = page.events.last() {
            flight.read_to = (last.seq, Some(last.id));
            link.last = Some((last.seq, last.id));
        }
        flight.buffer.extend(page.events);
    }

    /// Sends as much as the window holds.
    async fn fill_window(&mut self, link: &mut Link, flight: &mut Flight) -> Result<(), RelayError> {
        if let Some(count) = self.config.atomic_batches {
            if flight.batch.is_some() {
                return Ok(());
            }
            let next = flight.buffer.front().map_or(i64::MAX, |event| event.seq);
            let enough = flight.buffer.len() >= count as usize || flight.head_reached;
            if flight.ready.is_none() && next > self.singly_to {
                if enough && flight.buffer.len() > 1 {
                    return if link.unanswered == 0 {
                        self.send_batch(link, flight, count as usize).await
                    } else {
                        Ok(())
                    };
                }
                if !enough {
                    return Ok(());
                }
            }
        }
        loop {
            let ready = match flight.ready.take() {
                Some(ready) => ready,
                None => match flight.buffer.pop_front() {
                    Some(event) => self.prepare(link, &event).await?,
                    None => return Ok(()),
                },
            };
            let (limit, bytes) = (self.adaptation.window(), self.config.window_bytes as usize);
            if !link.window.has_room(ready.size, limit, bytes) {
                flight.ready = Some(ready);
                return Ok(());
            }
            let Ready { position, size, mut outgoing } = ready;
            let place = link.window.push(position, size);
            outgoing.headers.insert(NATS_EXPECTED_LAST_SEQUENCE, (link.origin + place).to_string());
            if link.unanswered == 0 {
                flight.heard_at = self.clock.elapsed();
            }
            link.unanswered += 1;
            self.publish(link, place, outgoing).await?;
        }
    }

    /// Some events at once, all of which are stored or none.
    async fn send_batch(
        &mut self,
        link: &mut Link,
        flight: &mut Flight,
        count: usize,
    ) -> Result<(), RelayError> {
        let mut batch: Vec<Ready> = Vec::new();
        let mut bytes = 0;
        while batch.len() < count {
            let Some(event) = flight.buffer.pop_front() else { break };
            let ready = self.prepare(link, &event).await?;
            bytes += ready.size;
            if bytes > self.config.window_bytes as usize && !batch.is_empty() {
                flight.buffer.push_front(event);
                break;
            }
            batch.push(ready);
        }
        let (id, last) = (Uuid::new_v4().simple().to_string(), batch.len());
        flight.heard_at = self.clock.elapsed();
        for (number, Ready { position, size, mut outgoing }) in (1..).zip(batch) {
            let place = link.window.push(position, size);
            if number == 1 {
                outgoing.headers.insert(NATS_EXPECTED_LAST_SEQUENCE, (link.origin + place).to_string());
            }
            // One alone is no batch, and is answered as any single message.
            if last > 1 {
                let first = flight.batch.as_ref().map_or(place, |batch| *batch.start());
                flight.batch = Some(first..=place);
                outgoing.headers.insert(BATCH_ID, id.as_str());
                outgoing.headers.insert(BATCH_SEQUENCE, number.to_string());
            }
            if number == last {
                if last > 1 {
                    outgoing.headers.insert(BATCH_COMMIT, "1");
                }
                // Only the last is answered with where they are.
                link.unanswered += 1;
            }
            self.publish(link, place, outgoing).await?;
        }
        Ok(())
    }

    /// Takes an answer and those that are there already, and moves the cursor.
    async fn take_answers(&mut self, link: &mut Link, flight: &mut Flight, message: &Message) {
        flight.heard_at = self.clock.elapsed();
        self.take_answer(link, flight, message);
        for _ in 0..ANSWERS_AT_ONCE {
            match link.replies.next().now_or_never() {
                Some(Some(message)) => self.take_answer(link, flight, &message),
                Some(None) | None => break,
            }
        }
        self.advance(link).await;
    }

    fn take_answer(&mut self, link: &mut Link, flight: &mut Flight, message: &Message) {
        let place = message.subject.as_str().rsplit('.').next().and_then(|place| place.parse::<u64>().ok());
        let Some(place) = place else { return };
        let answer = Answer::read(message.status.map(|status| status.as_u16()), &message.payload);
        let batch = flight.batch.clone();
        let within = batch.as_ref().is_some_and(|batch| batch.contains(&place) && *batch.end() != place);
        if answer == Answer::Pending && batch.is_some() {
            return;
        }
        if !within {
            link.unanswered = link.unanswered.saturating_sub(1);
        }
        let failure = match answer {
            Answer::Stored(stream_seq) if stream_seq == link.origin + place + 1 => {
                // One of a batch stands for all.
                let places = batch.filter(|batch| *batch.end() == place).unwrap_or(place..=place);
                for place in places {
                    let position = link.window.acknowledge(place, Stored::At(link.origin + place + 1));
                    flight.again.extend(position.filter(|position| *position <= self.again_to));
                }
                flight.batch = None;
                return;
            }
            Answer::Duplicate if batch.is_none() => {
                link.window.acknowledge(place, Stored::Before);
                flight.misaligned = true;
                return;
            }
            // Those behind one that was there before are refused for that reason alone.
            Answer::Refused(code::WRONG_LAST_SEQUENCE) if flight.misaligned => return,
            Answer::Refused(code) => {
                if let (code::BATCH_DUPLICATE, Some(_)) = (code, &batch) {
                    // The broker has some of them: it can say of each by itself.
                    self.singly_to = flight.read_to.0;
                }
                RelayError::refused(code)
            }
            Answer::NoStream => RelayError::NoStream,
            Answer::Stored(_) | Answer::Duplicate | Answer::Pending | Answer::Unreadable => {
                RelayError::Unreadable
            }
        };
        flight.failure.get_or_insert(failure);
    }

    /// Moves the cursor over what is acknowledged without a hole.
    async fn advance(&mut self, link: &mut Link) {
        let republish_to = self.republish_to;
        let Some(held) = &mut self.held else { return };
        let cursor = &mut held.cursor;
        let before = cursor.position;
        let mut settled = Settled {
            position: before,
            stream_seq: cursor.stream_seq,
            position_at_seq: cursor.position_at_seq,
        };
        let count = link.window.advance(&mut settled);
        if count == 0 {
            return;
        }
        (cursor.position, cursor.stream_seq, cursor.position_at_seq) =
            (settled.position, settled.stream_seq, settled.position_at_seq);
        held.dirty = true;
        let republished = (settled.position.min(republish_to) - before).max(0);
        self.tally.add_published(count.into());
        self.tally.add_republished(republished.unsigned_abs());
        self.adaptation.acknowledged(count);
        let first = self.progress == 0;
        self.progress += u64::from(count);
        if first {
            self.goes_on().await;
        }
    }

    /// Tells what came of a pass, and keeps the connection if all went well.
    async fn land(&mut self, mut link: Link, mut flight: Flight) -> Result<Option<i64>, RelayError> {
        self.advance(&mut link).await;
        let told = self.tell_again(&mut flight).await;
        let dirty = self.held.as_ref().is_some_and(|held| held.dirty);
        let saved = match (&flight.failure, dirty) {
            (Some(RelayError::Database(_) | RelayError::Replaced), _) | (_, false) => {
                self.save_if_due().await
            }
            (_, true) => self.save().await,
        };
        if let Some(failure) = flight.failure {
            return Err(failure);
        }
        told.and(saved)?;
        if flight.misaligned || self.held()?.told.rewind_to.is_some() && flight.stopping_since.is_none() {
            return Ok(None);
        }
        self.link = Some(link);
        Ok(Some(flight.head))
    }

    async fn tell_again(&mut self, flight: &mut Flight) -> Result<(), RelayError> {
        let again = std::mem::take(&mut flight.again);
        let positions = again.iter().min().copied().zip(again.iter().max().copied());
        if positions.is_none() {
            return Ok(());
        }
        let count = i64::try_from(again.len()).unwrap_or(i64::MAX);
        self.to_tell.push(Incident { kind: "published_again", count, positions, stream_seq: None });
        self.tell().await
    }
}
