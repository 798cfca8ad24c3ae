//! What a connection is given next: to people and apps everything from their position on, to agents what fits into their window.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use seqline::agent::{self, HolderKind, Lost, LostReason};
use uuid::Uuid;

use super::close::Close;
use super::frame::{self, ResyncRequired, ServerFrame};
use super::outgoing::Outgoing;
use super::sessions::Held;
use crate::api::agents::{Action, Bounds, Input, Looked, NoAck, Seen, Window, agents_envelope, went_back};
use crate::api::hub::page::{Page, PageLimits};
use crate::api::hub::rendered::Rendered;
use crate::api::problem::{Resync, ResyncReason};
use crate::api::tally::CountedInFlight;
use crate::api::{Api, Code, Problem};
use crate::limits::{GATEWAY_PAGE_BYTES, GATEWAY_PAGE_EVENTS};

/// Where a connection is in the log.
pub(super) enum Delivery {
    Reader(Reading),
    Agent(Box<Consuming>),
}

/// A person or an app.
pub(super) struct Reading {
    pub(super) position: i64,
    /// Where the log ended when it came, until the position gets there.
    pub(super) backlog_end: Option<i64>,
}

/// An agent.
pub(super) struct Consuming {
    pub(super) session: Uuid,
    pub(super) held: Held,
    pub(super) window: Window,
    pub(super) bounds: Bounds,
    /// There is nothing for the agent between the position of the window and this.
    pub(super) looked: i64,
    pub(super) in_flight: CountedInFlight,
}

impl Delivery {
    /// Where the next page begins.
    pub(super) fn looked(&self) -> i64 {
        match self {
            Self::Reader(reading) => reading.position,
            Self::Agent(consuming) => consuming.looked,
        }
    }

    /// The next page to fill, if anything may be sent that has so many bytes.
    pub(super) fn next_page(&self, room: usize) -> Option<Page> {
        let mut limits = PageLimits { events: GATEWAY_PAGE_EVENTS, bytes: GATEWAY_PAGE_BYTES };
        if let Self::Agent(consuming) = self {
            let wants = consuming.window.wants(&consuming.bounds)?;
            limits = PageLimits {
                events: limits.events.min(wants.events),
                bytes: limits.bytes.min(wants.bytes.max(1)),
            };
        }
        (room > 0).then(|| Page::new(self.looked(), PageLimits { bytes: limits.bytes.min(room), ..limits }))
    }

    /// When it has to be woken, by the clock's elapsed time.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Reader(_) => None,
            Self::Agent(consuming) => consuming.window.deadline(&consuming.bounds),
        }
    }

    /// Sends a page.
    pub(super) fn took(&mut self, api: &Api, now: Duration, page: &Page, outgoing: &Outgoing) {
        match self {
            Self::Reader(reading) => {
                for event in &page.events {
                    outgoing.text(frame::event(&event.envelope()));
                }
                reading.position = page.position;
                if let Some(head) = reading.backlog_end.take_if(|head| *head <= page.position) {
                    caught_up(api, head, outgoing);
                }
            }
            Self::Agent(consuming) => {
                consuming.looked = page.position;
                // Positions alone are nothing that the window has to know at once, unless they end the backlog.
                if page.events.is_empty() && !consuming.window.has_backlog() {
                    return consuming.tell();
                }
                let seen =
                    page.events.iter().map(|event| Seen { seq: event.seq(), bytes: event.envelope().len() });
                let after = consuming.window.position();
                let looked = Looked { after, up_to: page.position, seen: seen.collect() };
                let actions = consuming.step(now, Input::Looked(looked));
                consuming.act(api, &actions, &page.events, outgoing);
            }
        }
    }

    /// Time has passed.
    pub(super) fn wake(&mut self, api: &Api, now: Duration, outgoing: &Outgoing) {
        if let Self::Agent(consuming) = self {
            let actions = consuming.step(now, Input::Woken);
            consuming.act(api, &actions, &[], outgoing);
        }
    }

    /// So much was acknowledged over REST, and is stored.
    pub(super) fn acknowledged(&mut self, api: &Api, now: Duration, seq: i64, outgoing: &Outgoing) {
        if let Self::Agent(consuming) = self {
            let actions = consuming.step(now, Input::Acknowledged { seq, head: seq });
            consuming.act(api, &actions, &[], outgoing);
        }
    }

    /// The position cannot be read from: it goes on at the head. Returns why the connection has to end, if it has to.
    pub(super) async fn lost(
        &mut self,
        api: &Api,
        now: Duration,
        resync: &Resync,
        outgoing: &Outgoing,
    ) -> Option<Close> {
        match self {
            Self::Reader(reading) => {
                (reading.position, reading.backlog_end) = (resync.head, None);
                outgoing.frame(&resync_of_reader(api, resync));
                None
            }
            Self::Agent(consuming) => consuming.lost(api, now, resync, outgoing).await,
        }
    }
}

impl Consuming {
    /// Takes an acknowledgement, or says why it is none.
    pub(super) fn acknowledge(
        &mut self,
        api: &Api,
        now: Duration,
        (seq, head): (i64, i64),
        outgoing: &Outgoing,
    ) -> Result<(), Problem> {
        let actions = self.step(now, Input::Acknowledged { seq, head });
        self.act(api, &actions, &[], outgoing);
        let refused = actions.iter().find_map(|action| match action {
            Action::Refuse(NoAck::BelowZero) => Some("expected 0 or more"),
            Action::Refuse(NoAck::AboveHead) => Some("it is above the head of the log"),
            _ => None,
        });
        match refused {
            None => Ok(()),
            Some(what) => Err(Problem::new(Code::ValidationFailed, "the acknowledgement is not as expected")
                .at("/seq", what)),
        }
    }

    fn step(&mut self, now: Duration, input: Input) -> Vec<Action> {
        let actions = self.window.step(now, &self.bounds, input);
        let went_back = actions.iter().any(|action| matches!(action, Action::WentBack { .. }));
        let position = self.window.position();
        self.looked = if went_back { position } else { self.looked.max(position) };
        self.tell();
        actions
    }

    /// Whoever saves for this is told how far it is, and whoever counts.
    fn tell(&mut self) {
        let window = &self.window;
        self.in_flight.set(window.in_flight());
        self.held.state.set(window.acked(), window.settled(self.looked), window.lost().is_some());
    }

    fn act(&mut self, api: &Api, actions: &[Action], events: &[Arc<Rendered>], outgoing: &Outgoing) {
        let events: HashMap<i64, _> = events.iter().map(|event| (event.seq(), event)).collect();
        for action in actions {
            match action {
                Action::Deliver { seq, redelivered } => {
                    if let Some(event) = events.get(seq) {
                        outgoing.text(frame::event(agents_envelope(event.event(), *redelivered).as_bytes()));
                    }
                }
                Action::CaughtUp { head } => caught_up(api, *head, outgoing),
                Action::Resync(lost) => outgoing.frame(&ServerFrame::ResyncRequired(told(api, lost))),
                Action::WentBack { events } => {
                    went_back(api, &self.held.consumer, HolderKind::Gateway, *events)
                }
                Action::Refuse(_) => {}
            }
        }
        // What was not delivered of a page is looked at again.
        if !events.is_empty() {
            self.looked = self.window.position();
            self.tell();
        }
    }

    async fn lost(
        &mut self,
        api: &Api,
        now: Duration,
        resync: &Resync,
        outgoing: &Outgoing,
    ) -> Option<Close> {
        let reason = match resync.reason {
            ResyncReason::Retention => LostReason::Retention,
            ResyncReason::CursorAhead => LostReason::CursorAhead,
            // Neither is asked of a consumer, and whoever starts an epoch tells it.
            ResyncReason::TooFarBehind | ResyncReason::EpochChanged => return Some(Close::Internal),
        };
        // Nobody else writes what was so before.
        let writing = self.held.writing.clone();
        let _alone = writing.lock().await;
        // The row first: what the agent is told to have is what is stored.
        let after = self.window.lost().map_or_else(|| self.window.acked(), |lost| lost.after);
        let lost = Lost { reason, after, position: resync.head };
        let (consumer, session) = (&self.held.consumer, self.session);
        let moved = api
            .database
            .ask(async |connection| agent::lose(connection, consumer, session, &lost).await)
            .await;
        match moved.map(Close::of_holder) {
            Ok(None) => {
                let position = self.window.position();
                let actions = self.step(now, Input::Lost { reason, position, head: resync.head });
                self.looked = self.window.position();
                self.tell();
                self.act(api, &actions, &[], outgoing);
                self.held.saved(&self.held.save(session));
                None
            }
            Ok(Some(why)) => Some(why),
            // It is tried again with the next page.
            Err(_) => None,
        }
    }
}

fn caught_up(api: &Api, head: i64, outgoing: &Outgoing) {
    outgoing.frame(&ServerFrame::CatchupComplete { head: api.position(head).to_string(), head_seq: head });
}

/// What a person or an app is told that goes on at the head.
pub(super) fn resync_of_reader(api: &Api, resync: &Resync) -> ServerFrame<'static> {
    ServerFrame::ResyncRequired(ResyncRequired {
        reason: reason(resync.reason),
        head: api.position(resync.head).to_string(),
        oldest: resync.oldest.map(|oldest| api.position(oldest).to_string()),
        after: None,
        position: None,
    })
}

fn told(api: &Api, lost: &Lost) -> ResyncRequired {
    ResyncRequired {
        reason: lost.reason.as_str(),
        head: api.position(lost.position).to_string(),
        oldest: None,
        after: Some(api.position(lost.after).to_string()),
        position: Some(api.position(lost.position).to_string()),
    }
}

fn reason(reason: ResyncReason) -> &'static str {
    match reason {
        ResyncReason::Retention => "retention",
        ResyncReason::CursorAhead => "cursor_ahead",
        ResyncReason::TooFarBehind => "too_far_behind",
        ResyncReason::EpochChanged => "epoch_changed",
    }
}
