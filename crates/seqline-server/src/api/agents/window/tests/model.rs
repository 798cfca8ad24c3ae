//! A window against a log, an agent and everything that can go wrong between them, at random.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::super::*;

/// Runs, and steps of each: millions together.
const RUNS: u64 = 4_000;
const STEPS: usize = 600;

/// What the window is tried against.
struct World {
    rng: Rng,
    now: Duration,
    bounds: Bounds,
    window: Window,
    /// The log: its events, and whether the agent may see each.
    visible: BTreeMap<i64, bool>,
    head: i64,
    oldest: i64,
    /// What is durable of the acknowledgement.
    saved: i64,
    /// What this window has delivered, and has not been acknowledged.
    given: BTreeMap<i64, Duration>,
    /// What it has to mark when it comes again.
    marked: BTreeSet<i64>,
    /// Pages that were asked for and did not come yet.
    pages: Vec<Looked>,
    /// What the agent has had, over all windows, or was told that it lost.
    had: BTreeSet<i64>,
    lost_up_to: i64,
    /// How far the log was ever looked at.
    looked_up_to: i64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let bounds = Bounds {
            events: rng.usize(1..8),
            bytes: rng.usize(1..200),
            ack_timeout: Duration::from_secs(rng.u64(1..20)),
        };
        Self {
            window: Window::begin(0, None, None),
            rng,
            now: Duration::from_secs(1_000),
            bounds,
            visible: BTreeMap::new(),
            head: 0,
            oldest: 1,
            saved: 0,
            given: BTreeMap::new(),
            marked: BTreeSet::new(),
            pages: Vec::new(),
            had: BTreeSet::new(),
            lost_up_to: 0,
            looked_up_to: 0,
        }
    }

    fn step(&mut self) {
        match self.rng.u8(0..100) {
            0..20 => {
                self.head += 1;
                self.visible.insert(self.head, self.rng.bool());
            }
            20..40 => self.read(),
            40..60 => self.page_comes(),
            60..80 => self.acknowledge(),
            80..88 => self.time_passes(),
            88..92 => self.saved = self.saved.max(self.window.acked()),
            92..95 => self.comes_again(),
            95..97 => self.permissions_change(),
            97 => self.retention(),
            98 => self.restored(),
            _ => self.nonsense(),
        }
        self.invariants();
    }

    fn read(&mut self) {
        let Some(wants) = self.window.wants(&self.bounds) else { return };
        if wants.after + 1 < self.oldest {
            return self.lose(LostReason::Retention);
        }
        if wants.after > self.head {
            return self.lose(LostReason::CursorAhead);
        }
        if wants.after == self.head {
            return;
        }
        // As far as it likes, and more than fits now and then.
        let up_to = self.rng.i64(wants.after + 1..=self.head);
        let most = wants.events + self.rng.usize(0..2);
        let mut seen = Vec::new();
        let mut reached = up_to;
        for (seq, visible) in self.visible.range(wants.after + 1..=up_to) {
            if seen.len() == most {
                reached = seq - 1;
                break;
            }
            if *visible {
                seen.push(Seen { seq: *seq, bytes: 1 + usize::try_from(seq % 50).unwrap() });
            }
        }
        self.looked_up_to = self.looked_up_to.max(reached);
        self.pages.push(Looked { after: wants.after, up_to: reached, seen });
    }

    fn page_comes(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.pages.len());
        let page = self.pages.swap_remove(at);
        self.does(Input::Looked(page));
    }

    fn acknowledge(&mut self) {
        let top = self.head.max(self.window.position());
        let seq = match self.rng.u8(0..10) {
            // What it has had, mostly.
            0..7 => match self.given.keys().nth(self.rng.usize(0..self.given.len().max(1))) {
                Some(seq) => *seq,
                None => return,
            },
            7 | 8 => self.window.acked(),
            _ => self.rng.i64(0..=top),
        };
        self.does(Input::Acknowledged { seq, head: self.head });
        assert!(self.window.acked() >= seq);
        self.lost_up_to = self.lost_up_to.max(seq);
        self.given.retain(|given, _| *given > seq);
        self.marked.retain(|marked| *marked > seq);
    }

    fn nonsense(&mut self) {
        let before = self.window.clone();
        let above = self.head.max(before.position()) + 1;
        let (seq, why) = if self.rng.bool() { (-1, NoAck::BelowZero) } else { (above, NoAck::AboveHead) };
        let now = self.now;
        if before.deadline(&self.bounds).is_some_and(|deadline| deadline <= now) {
            return;
        }
        let head = self.head;
        let actions = self.window.step(now, &self.bounds, Input::Acknowledged { seq, head });
        assert_eq!((actions, &self.window), (vec![Action::Refuse(why)], &before));
    }

    fn time_passes(&mut self) {
        self.now += Duration::from_millis(self.rng.u64(0..15_000));
        self.does(Input::Woken);
    }

    /// A connection was lost, or somebody else takes over: from what is durable, or from what the session had.
    fn comes_again(&mut self) {
        self.pages.clear();
        self.given.clear();
        self.marked.clear();
        let acked = if self.rng.bool() { self.saved } else { self.window.acked() };
        self.saved = acked;
        self.window = Window::begin(acked, Some(self.head), self.window.lost());
        self.does(Input::Woken);
    }

    fn permissions_change(&mut self) {
        for (seq, visible) in &mut self.visible {
            // What was looked past is not looked at again for a grant that comes later.
            if self.rng.u8(0..10) == 0 && (*visible || *seq > self.looked_up_to) {
                *visible = !*visible;
            }
        }
    }

    fn retention(&mut self) {
        self.oldest = self.rng.i64(self.oldest..=self.head + 1);
    }

    /// The log is another one, and shorter.
    fn restored(&mut self) {
        if self.rng.u8(0..4) > 0 || self.head == 0 {
            return;
        }
        self.head = self.rng.i64(0..self.head);
        self.oldest = self.oldest.min(self.head + 1);
        self.visible.split_off(&(self.head + 1));
        self.pages.clear();
        if self.window.position() > self.head {
            self.lose(LostReason::CursorAhead);
        }
    }

    fn lose(&mut self, reason: LostReason) {
        let head = self.head;
        self.pages.clear();
        self.given.clear();
        self.marked.clear();
        let before = self.window.clone();
        let position = before.position();
        let actions = self.window.step(self.now, &self.bounds, Input::Lost { reason, position, head });
        let after = before.lost().map_or_else(|| before.acked(), |lost| lost.after);
        assert_eq!(actions, [Action::Resync(Lost { reason, after, position: head })]);
        self.saved = head;
        self.lost_up_to = head;
        self.had.split_off(&(head + 1));
    }

    /// Steps, and holds what comes out to what has to.
    fn does(&mut self, input: Input) {
        if let Input::Acknowledged { seq, .. } = &input {
            // It is looked at before time is.
            self.given.retain(|given, _| given > seq);
            self.marked.retain(|marked| marked > seq);
        }
        let overdue =
            self.given.first_key_value().is_some_and(|(_, at)| *at + self.bounds.ack_timeout <= self.now);
        let backlog_end = self.window.backlog_end;
        let page_after = match &input {
            Input::Looked(looked) => Some(looked.after),
            _ => None,
        };
        let actions = self.window.step(self.now, &self.bounds, input);
        let went_back = actions.iter().any(|action| matches!(action, Action::WentBack { .. }));
        assert_eq!(went_back, overdue, "it goes back when the oldest is overdue, and only then");
        if went_back {
            self.marked.extend(self.given.keys());
            self.given.clear();
        }
        for action in actions {
            match action {
                Action::Deliver { seq, redelivered } => {
                    assert!(seq > self.window.acked(), "acknowledged events do not come again");
                    assert!(self.given.last_key_value().is_none_or(|(last, _)| *last < seq), "in order");
                    assert_eq!(redelivered, self.marked.remove(&seq), "marked are those, and only those");
                    self.given.insert(seq, self.now);
                    self.had.insert(seq);
                }
                Action::CaughtUp { head } => {
                    assert_eq!(Some(head), backlog_end);
                    assert!(self.window.position() >= head);
                }
                Action::WentBack { events } => assert!(events > 0),
                Action::Resync(_) | Action::Refuse(_) => panic!("nothing of that was asked for"),
            }
        }
        // What was not among those that came again was taken from the agent: the page had it no more.
        let position = self.window.position();
        let gone = self.marked.iter().take_while(|marked| **marked <= position);
        assert!(
            gone.copied().all(|seq| page_after.is_some_and(|after| seq > after)),
            "nothing is passed over"
        );
        self.marked.retain(|marked| *marked > position);
    }

    fn invariants(&self) {
        let window = &self.window;
        assert!(window.acked() <= window.position());
        assert!(window.in_flight() <= self.bounds.events);
        assert!(window.bytes_in_flight() <= self.bounds.bytes || window.in_flight() == 1);
        let in_flight: Vec<i64> = window.in_flight.iter().map(|event| event.seq).collect();
        assert_eq!(in_flight, self.given.keys().copied().collect::<Vec<_>>());
        let outstanding = self.given.keys().chain(&self.marked).min();
        let settled = window.settled(window.position());
        assert!(settled >= window.acked() && outstanding.is_none_or(|first| settled < *first), "{settled}");
        assert_eq!(window.backlog_end.filter(|end| *end <= window.position()), None, "it is told at once");
        let overdue: Vec<i64> = window.overdue.iter().copied().collect();
        assert!(overdue.is_sorted() && overdue.first().is_none_or(|first| *first > window.position()));
    }

    /// With an agent that answers, everything comes that it may see and has not had.
    fn runs_dry(&mut self) {
        self.pages.clear();
        for _ in 0..10_000 {
            if self.window.position() >= self.head && self.window.in_flight() == 0 {
                break;
            }
            self.read();
            while !self.pages.is_empty() {
                self.page_comes();
            }
            if let Some(last) = self.given.last_key_value().map(|(seq, _)| *seq) {
                self.does(Input::Acknowledged { seq: last, head: self.head });
                self.given.clear();
                self.marked.retain(|marked| *marked > last);
            }
            self.invariants();
        }
        assert!(self.window.position() >= self.head, "it gets to the end of the log");
    }
}

#[test]
fn nothing_is_lost_doubled_or_out_of_order_whatever_comes_in_between() {
    for seed in 0..RUNS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.runs_dry();
        let after = world.lost_up_to;
        let missing: Vec<_> = world
            .visible
            .range(after + 1..)
            .filter(|(seq, visible)| **visible && !world.had.contains(seq))
            .collect();
        assert!(missing.is_empty(), "seed {seed}: {missing:?}");
    }
}
