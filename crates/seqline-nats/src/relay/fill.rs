//! Publishing what is missing although later events are in the stream.

use std::collections::VecDeque;

use async_nats::header::NATS_EXPECTED_LAST_SEQUENCE;
use futures_util::StreamExt;
use seqline::StoredEvent;
use tokio_util::sync::CancellationToken;

use super::answer::Answer;
use super::link::{Link, Ready};
use super::{Relay, RelayError};
use crate::limits::CROWDED_AFTER;
use crate::store::relay::Incident;

impl Relay {
    /// Publishes some events one at a time, behind the end of the stream. Where somebody else leaves no room for that, for no place: they only
    /// have to be there, and the broker's memory of ids drops those that are. `why` is what is told of them. Those that are left when somebody wants
    /// the relay to stand still, or to stop, are missing as before.
    pub(super) async fn fill(
        &mut self,
        mut link: Link,
        positions: &[i64],
        why: Option<&'static str>,
        stop: &CancellationToken,
    ) -> Result<(), RelayError> {
        let mut left = VecDeque::from_iter(positions.iter().copied());
        while let Some(first) = left.pop_front() {
            let mut run: u32 = 1;
            while left.front() == Some(&(first + i64::from(run))) && run < self.config.page {
                left.pop_front();
                run += 1;
            }
            let filled = self.fill_run(&mut link, first, run, why, stop).await;
            // Nobody can find out later that it was missing: it is told page by page, also when not all of a page went well.
            filled.and(self.tell().await)?;
            if self.is_to_rest(stop) {
                break;
            }
        }
        Ok(())
    }

    async fn fill_run(
        &mut self,
        link: &mut Link,
        first: i64,
        count: u32,
        why: Option<&'static str>,
        stop: &CancellationToken,
    ) -> Result<(), RelayError> {
        let page = self.source.page(self.lease()?, first - 1, count).await?;
        if page.epoch != link.epoch || page.events.len() < count as usize {
            return Err(RelayError::HistoryChanged);
        }
        self.held()?.told = page.told;
        for event in &page.events {
            self.save_if_due().await?;
            if self.is_to_rest(stop) {
                break;
            }
            if self.fill_one(link, event).await? {
                self.tally.add_published(1);
                self.progress += 1;
                if let Some(kind) = why {
                    self.has_filled(kind, event.seq);
                }
            } else {
                self.assumed.insert(event.seq);
            }
        }
        Ok(())
    }

    /// Adds to what is told next.
    fn has_filled(&mut self, kind: &'static str, position: i64) {
        let told = self.to_tell.iter_mut().find(|incident| incident.kind == kind);
        match told.map(|incident| (&mut incident.count, &mut incident.positions)) {
            Some((count, Some((first, last)))) => {
                *count += 1;
                (*first, *last) = (position.min(*first), position.max(*last));
            }
            _ => {
                let positions = Some((position, position));
                self.to_tell.push(Incident { kind, count: 1, positions, stream_seq: None });
            }
        }
    }

    fn is_to_rest(&self, stop: &CancellationToken) -> bool {
        stop.is_cancelled() || self.held.as_ref().is_none_or(|held| held.told.paused)
    }

    /// Whether it was not there before.
    async fn fill_one(&mut self, link: &mut Link, event: &StoredEvent) -> Result<bool, RelayError> {
        let Ready { position, size, mut outgoing } = self.prepare(link, event).await?;
        let place = link.window.next_place();
        if self.crowded < CROWDED_AFTER {
            outgoing.headers.insert(NATS_EXPECTED_LAST_SEQUENCE, link.end().to_string());
        }
        self.publish(link, place, outgoing).await?;
        let wanted = format!("{}.{place}", link.inbox);
        let answering = async {
            while let Some(message) = link.replies.next().await {
                if message.subject.as_str() == wanted {
                    return Some(Answer::read(
                        message.status.map(|status| status.as_u16()),
                        &message.payload,
                    ));
                }
            }
            None
        };
        match self.clock.timeout(self.config.ack_timeout, answering).await {
            Some(Some(Answer::Stored(_))) => {
                link.window.push(position, size);
                Ok(true)
            }
            Some(Some(Answer::Duplicate)) => Ok(false),
            Some(Some(Answer::Refused(code))) => Err(RelayError::refused(code)),
            Some(Some(Answer::NoStream)) => Err(RelayError::NoStream),
            Some(Some(Answer::Pending | Answer::Unreadable)) => Err(RelayError::Unreadable),
            Some(None) => Err(RelayError::ConnectionLost),
            None => Err(RelayError::Unacknowledged),
        }
    }
}
