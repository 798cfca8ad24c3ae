//! What one consumer of an agent has been given, what it has acknowledged, and what comes next.
//!
//! Nothing here reads, sends, waits or knows the time. Whoever runs a window, over a connection or in the database, tells it what happened
//! with [`Window::step`] and does what that returns, in that order; [`Window::wants`] says what to read next and [`Window::deadline`] when
//! time has to be told again.
//!
//! The log is looked at in order. An event that the agent may not see moves the position and nothing else, so it never blocks. One that it
//! may see is delivered and stays in flight until an acknowledgement covers it: an acknowledgement is a number, and covers everything up to
//! there. When the oldest event in flight was not acknowledged in time, the window goes back to the acknowledgement and delivers everything
//! after it again, in order; what is delivered for that reason is marked.

use std::collections::VecDeque;
use std::time::Duration;

use seqline::agent::{Lost, LostReason};
use serde::{Deserialize, Serialize};

/// How much may be in flight, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Events, at least one.
    pub(crate) events: usize,
    /// Bytes of them. One event may be larger, if it is the only one.
    pub(crate) bytes: usize,
    /// After its delivery, until everything is delivered again.
    pub(crate) ack_timeout: Duration,
}

/// The window of one consumer. It is stored as it is where no process keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Everything up to here is acknowledged.
    #[serde(skip)]
    acked: i64,
    /// Everything up to here is acknowledged, in flight, or not for the agent.
    position: i64,
    /// Ascending, all of them after `acked` and not after `position`.
    in_flight: VecDeque<InFlight>,
    /// Numbers of events that were not acknowledged in time and were not delivered again yet: ascending, all after `position`.
    overdue: VecDeque<i64>,
    /// The size of the next event, if it is known not to have fit beside those in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    too_large: Option<usize>,
    /// Where the log ended when the consumer came, until the position gets there.
    backlog_end: Option<i64>,
    /// What the agent has to be told until it acknowledges that. It is stored beside the window, like the acknowledgement.
    #[serde(skip)]
    lost: Option<Lost>,
}

/// An event that was delivered and not acknowledged. Stored as three numbers: the last one are milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(i64, usize, u64)", into = "(i64, usize, u64)")]
struct InFlight {
    seq: i64,
    bytes: usize,
    at: Duration,
}

impl From<(i64, usize, u64)> for InFlight {
    fn from((seq, bytes, at): (i64, usize, u64)) -> Self {
        Self { seq, bytes, at: Duration::from_millis(at) }
    }
}

impl From<InFlight> for (i64, usize, u64) {
    fn from(event: InFlight) -> Self {
        (event.seq, event.bytes, u64::try_from(event.at.as_millis()).unwrap_or(u64::MAX))
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// The log was looked at. Without a gap if that began at the position; what has been overtaken since counts as far as it can.
    Looked(Looked),
    /// The agent acknowledges, and the log ends here.
    Acknowledged { seq: i64, head: i64 },
    /// The log cannot be read from this position, if it still is that of the window. It ends at the head.
    Lost { reason: LostReason, position: i64, head: i64 },
    /// Nothing but time has passed.
    Woken,
}

/// A part of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Looked {
    /// It begins with the next number.
    pub(crate) after: i64,
    /// Its last number.
    pub(crate) up_to: i64,
    /// The events in it that the agent may see, in order.
    pub(crate) seen: Vec<Seen>,
}

/// An event that the agent may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) seq: i64,
    /// What it takes on its way.
    pub(crate) bytes: usize,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The event is given to the agent.
    Deliver { seq: i64, redelivered: bool },
    /// The agent is told that it has everything up to where the log ended when it came.
    CaughtUp { head: i64 },
    /// The agent is told what it lost, and the durable cursor moves to the position where it goes on.
    Resync(Lost),
    /// So many events were not acknowledged in time, and are delivered again.
    WentBack { events: usize },
    /// The acknowledgement is not one.
    Refuse(NoAck),
}

/// Why a number cannot be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAck {
    BelowZero,
    /// The log has not come that far.
    AboveHead,
}

/// What to read for a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wants {
    /// From the next number on.
    pub(crate) after: i64,
    /// So many events at most.
    pub(crate) events: usize,
    /// About so many bytes at most; one event in any case.
    pub(crate) bytes: usize,
}

impl Window {
    /// Of a consumer that comes, or comes again: it gets what it has not acknowledged. With an end of the backlog it is told when it
    /// has everything up to there.
    pub(crate) fn begin(acked: i64, backlog_end: Option<i64>, lost: Option<Lost>) -> Self {
        let (in_flight, overdue) = (VecDeque::new(), VecDeque::new());
        Self { acked, position: acked, in_flight, overdue, too_large: None, backlog_end, lost }
    }

    /// One that was stored, with what is stored beside it. What was acknowledged meanwhile counts.
    pub(crate) fn resumed(mut self, acked: i64, lost: Option<Lost>) -> Self {
        if acked > self.position {
            return Self::begin(acked, None, lost);
        }
        (self.acked, self.lost) = (acked, lost);
        self.forget_done();
        self
    }

    /// The number up to which everything is acknowledged.
    pub(crate) fn acked(&self) -> i64 {
        self.acked
    }

    /// The number up to which the log was looked at for it.
    pub(crate) fn position(&self) -> i64 {
        self.position
    }

    /// What the agent has to be told.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lost
    }

    /// Whether there is an end of the backlog that was not reached yet.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog_end.is_some()
    }

    /// Up to where everything is acknowledged or not for the agent, when the log was looked at up to `looked`: what may be stored as
    /// acknowledged, so that a consumer whose events are rare does not stay behind until they have expired.
    pub(crate) fn settled(&self, looked: i64) -> i64 {
        let first = self.in_flight.front().map(|event| event.seq).or_else(|| self.overdue.front().copied());
        match first {
            Some(first) => self.acked.max(first - 1),
            None => self.acked.max(looked),
        }
    }

    /// How many events are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// How far an agent that was just given the events from `first` on may acknowledge without having looked at anything else: not to an
    /// event that it was given before, in an answer that may have been lost.
    pub(crate) fn safe_position(&self, first: Option<i64>) -> i64 {
        let oldest = self.in_flight.front().map(|event| event.seq);
        match oldest.filter(|oldest| first.is_none_or(|first| *oldest < first)) {
            Some(oldest) => oldest - 1,
            None => self.position,
        }
    }

    /// When the oldest event in flight is overdue.
    pub(crate) fn deadline(&self, bounds: &Bounds) -> Option<Duration> {
        self.in_flight.front().map(|event| event.at.saturating_add(bounds.ack_timeout))
    }

    /// What may be delivered now, if it is there; `None` while nothing fits.
    pub(crate) fn wants(&self, bounds: &Bounds) -> Option<Wants> {
        let events = bounds.events.max(1).saturating_sub(self.in_flight.len());
        let bytes = bounds.bytes.saturating_sub(self.bytes_in_flight());
        let needed = self.too_large.unwrap_or(1);
        let fits = events > 0 && (bytes >= needed || self.in_flight.is_empty());
        fits.then_some(Wants { after: self.position, events, bytes })
    }

    /// Takes what happened, and returns what is to be done.
    pub(crate) fn step(&mut self, now: Duration, bounds: &Bounds, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            // An acknowledgement that comes late is one: it is looked at before what is overdue.
            Input::Acknowledged { seq, head } => self.acknowledge(seq, head, &mut actions),
            Input::Lost { reason, position, head } if position == self.position => {
                self.lose(reason, head, &mut actions);
            }
            Input::Looked(_) | Input::Lost { .. } | Input::Woken => {}
        }
        self.go_back_if_overdue(now, bounds, &mut actions);
        if let Input::Looked(looked) = input {
            self.deliver(now, bounds, &looked, &mut actions);
        }
        if let Some(head) = self.backlog_end.take_if(|head| *head <= self.position) {
            actions.push(Action::CaughtUp { head });
        }
        actions
    }

    fn acknowledge(&mut self, seq: i64, head: i64, actions: &mut Vec<Action>) {
        if seq < 0 {
            return actions.push(Action::Refuse(NoAck::BelowZero));
        }
        // The window may have been filled by somebody who saw more of the log.
        if seq > head.max(self.position) {
            return actions.push(Action::Refuse(NoAck::AboveHead));
        }
        self.lost.take_if(|lost| seq >= lost.position);
        self.acked = self.acked.max(seq);
        // What is acknowledged before it was delivered is not delivered.
        self.look_past(self.acked);
        self.forget_done();
    }

    fn lose(&mut self, reason: LostReason, head: i64, actions: &mut Vec<Action>) {
        // What was lost before, and not acknowledged, is lost as well.
        let after = self.lost.map_or(self.acked, |lost| lost.after);
        let lost = Lost { reason, after, position: head };
        *self = Self::begin(head, None, Some(lost));
        actions.push(Action::Resync(lost));
    }

    fn go_back_if_overdue(&mut self, now: Duration, bounds: &Bounds, actions: &mut Vec<Action>) {
        if self.deadline(bounds).is_none_or(|deadline| now < deadline) {
            return;
        }
        actions.push(Action::WentBack { events: self.in_flight.len() });
        // What is still overdue comes after everything that is in flight.
        for event in self.in_flight.drain(..).rev() {
            self.overdue.push_front(event.seq);
        }
        (self.position, self.too_large) = (self.acked, None);
    }

    fn deliver(&mut self, now: Duration, bounds: &Bounds, looked: &Looked, actions: &mut Vec<Action>) {
        if looked.after > self.position {
            // The window went back meanwhile: what lies between has to come first.
            return;
        }
        let mut bytes = self.bytes_in_flight();
        for event in &looked.seen {
            if event.seq <= self.position {
                continue;
            }
            let (at_bound, too_large) =
                (self.in_flight.len() >= bounds.events.max(1), bytes + event.bytes > bounds.bytes);
            self.look_past(event.seq - 1);
            if at_bound || too_large && !self.in_flight.is_empty() {
                self.too_large = too_large.then_some(event.bytes);
                return;
            }
            let redelivered = self.overdue.front() == Some(&event.seq);
            self.look_past(event.seq);
            bytes += event.bytes;
            self.in_flight.push_back(InFlight { seq: event.seq, bytes: event.bytes, at: now });
            actions.push(Action::Deliver { seq: event.seq, redelivered });
        }
        self.look_past(looked.up_to);
    }

    /// Everything up to here was looked at. What is overdue up to there was delivered, or is not for the agent any more.
    fn look_past(&mut self, seq: i64) {
        if seq > self.position {
            (self.position, self.too_large) = (seq, None);
        }
        let done = self.overdue.partition_point(|overdue| *overdue <= self.position);
        self.overdue.drain(..done);
    }

    /// What is acknowledged is neither in flight nor overdue.
    fn forget_done(&mut self) {
        let acked = self.acked;
        let done = self.in_flight.partition_point(|event| event.seq <= acked);
        self.in_flight.drain(..done);
        let done = self.overdue.partition_point(|overdue| *overdue <= acked);
        self.overdue.drain(..done);
    }

    fn bytes_in_flight(&self) -> usize {
        self.in_flight.iter().map(|event| event.bytes).sum()
    }
}

#[cfg(test)]
mod tests;
