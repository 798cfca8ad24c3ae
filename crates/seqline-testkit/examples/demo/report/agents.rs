//! What an agent was given, by the journal of its instances.

use std::collections::{BTreeMap, HashMap, HashSet};

use seqline::StoredEvent;
use serde_json::Value;

use super::{Evidence, Finding};
use crate::journal::{Entry, What, fingerprint};
use crate::writers;

/// How a connection is closed that was replaced.
const REPLACED: u16 = 4015;

/// From the beginning of a connection, or of asking, to its end.
#[derive(Debug, Clone)]
struct Stretch {
    /// The highest number so far, and before the first one the acknowledgement.
    position: i64,
    /// The number that came last.
    last: i64,
    /// The acknowledgements, from the last one on that the server is known to have read. It may have read the others, or not yet.
    acks: Vec<i64>,
}

/// Where somebody was last given the consumer.
#[derive(Debug, Clone, Copy, Default)]
struct Beginning {
    acked: i64,
    window: usize,
    /// To which process.
    process: u32,
    /// Whether acknowledgements before it count only as far as they were stored.
    from_stored: bool,
}

/// What the journal says.
#[derive(Default)]
pub(super) struct Reading {
    /// The numbers that the agent may see.
    visible: Vec<i64>,
    /// Numbers in the order in which they were handled first.
    first: Vec<i64>,
    handled: HashSet<i64>,
    stretches: BTreeMap<u32, Stretch>,
    beginning: Beginning,
    begun: usize,
    /// What is stored, if nothing else counts after it.
    stored: Option<i64>,
    acknowledged: i64,
    /// What the server has said to have read of whoever has the consumer, and whether it may be told to somebody else by now.
    taken: i64,
    is_replaced: bool,
    ended: BTreeMap<u32, (u32, u16)>,
    /// How often something was handled again: because it was marked, or within the window, or because its acknowledgement was not stored.
    marked: usize,
    within: usize,
    unsaved: usize,
    of_order: Vec<String>,
    of_repetition: Vec<String>,
    of_replacement: Vec<String>,
}

impl Reading {
    pub(super) fn of(evidence: &Evidence<'_>) -> Self {
        let seen = evidence.log.iter().filter(|event| event.receive_action == writers::READ);
        let mut reading = Self { visible: seen.map(|event| event.seq).collect(), ..Self::default() };
        let log: HashMap<i64, &StoredEvent> = evidence.log.iter().map(|event| (event.seq, event)).collect();
        for entry in &evidence.agents.entries {
            reading.take(entry, &log);
        }
        let differs = (0..reading.visible.len().max(reading.first.len()))
            .find(|at| reading.visible.get(*at) != reading.first.get(*at));
        if let Some(at) = differs {
            let (handled, due) = (reading.first.get(at), reading.visible.get(at));
            let fault = format!("event {} to be handled was {handled:?}, {due:?} is due", at + 1);
            reading.of_order.insert(0, fault);
        }
        reading
    }

    fn take(&mut self, entry: &Entry, log: &HashMap<i64, &StoredEvent>) {
        let Entry { instance, process, ref what } = *entry;
        if let Some((_, code)) = self.ended.get(&process) {
            self.of_replacement.push(format!("instance {instance} goes on after {code}: {what:?}"));
        }
        match *what {
            What::Begins { acked, window, .. } => {
                let stored = self.stored.take();
                let least = stored.unwrap_or_else(|| self.beginning.acked.max(self.taken));
                if acked < least {
                    self.of_repetition
                        .push(format!("instance {instance} begins after {acked}, {least} was acknowledged"));
                }
                self.beginning = Beginning { acked, window, process, from_stored: stored.is_some() };
                self.stretches.insert(process, Stretch { position: acked, last: acked, acks: vec![acked] });
                (self.taken, self.is_replaced) = (acked, false);
                self.begun += 1;
            }
            What::Handled { seq, id, payload, redelivered } => {
                let is_due = log.get(&seq).is_some_and(|event| {
                    let stored: Value = event.payload.deserialize().unwrap_or_default();
                    event.receive_action == writers::READ && event.id == id && fingerprint(&stored) == payload
                });
                if !is_due {
                    self.of_order.push(format!("seq {seq}, {id}, was handled and is no event for the agent"));
                }
                self.handled(process, seq, redelivered);
            }
            What::Acknowledges { seq } => {
                self.acknowledged = self.acknowledged.max(seq);
                if let Some(stretch) = self.stretches.get_mut(&process) {
                    stretch.acks.push(seq);
                }
            }
            What::Taken { seq } => {
                // Whoever was replaced may acknowledge, and nothing comes of it.
                if process == self.beginning.process && !self.is_replaced {
                    self.taken = self.taken.max(seq);
                }
                if let Some(stretch) = self.stretches.get_mut(&process) {
                    stretch.acks.retain(|ack| *ack >= seq);
                }
            }
            What::Replaces => self.is_replaced = true,
            What::Ends { code } => drop(self.ended.insert(process, (instance, code))),
            What::Unsaved { stored } => self.stored = Some(stored),
        }
    }

    fn handled(&mut self, process: u32, seq: i64, redelivered: bool) {
        let Some(mut stretch) = self.stretches.remove(&process) else {
            return self.of_order.push(format!("seq {seq} came before anything was to come"));
        };
        let (position, window) = (stretch.position, self.beginning.window);
        // Not of all of this: faults are noted meanwhile.
        let visible = &self.visible;
        let up_to = |seq: i64| visible.partition_point(|visible| *visible <= seq);
        let next_after = |seq: i64| visible.get(up_to(seq)).copied();
        let next = next_after(position);
        if redelivered && seq > position {
            self.of_order.push(format!("seq {seq} is marked and comes for the first time, after {position}"));
        }
        if !redelivered && Some(seq) != next {
            self.of_order.push(format!("seq {seq} comes after {position}, {next:?} is due"));
        }
        // One after the other. After going back it goes on behind what was acknowledged, as far as the server had read that.
        if next_after(stretch.last) != Some(seq) {
            match stretch.acks.iter().position(|ack| next_after(*ack) == Some(seq)) {
                Some(read) => drop(stretch.acks.drain(..read)),
                None => self.of_order.push(format!(
                    "seq {seq} comes after {}, and not where it goes on behind an acknowledgement: {:?}",
                    stretch.last, stretch.acks
                )),
            }
        }
        // There was room for it in the window.
        let at = up_to(seq);
        stretch.acks.retain(|ack| up_to(*ack) + window >= at);
        if stretch.acks.is_empty() {
            self.of_order.push(format!("seq {seq} comes although {window} are not acknowledged"));
            stretch.acks.push(self.acknowledged);
        }
        (stretch.position, stretch.last) = (position.max(seq), seq);
        self.stretches.insert(process, stretch);
        if self.handled.insert(seq) {
            return self.first.push(seq);
        }
        let Beginning { acked, window, from_stored, .. } = self.beginning;
        let (at, within) = (self.up_to(seq), self.up_to(acked) + window);
        match () {
            () if redelivered => self.marked += 1,
            () if at <= within => self.within += 1,
            () if from_stored && at <= self.up_to(self.acknowledged) + window => self.unsaved += 1,
            () => self.of_repetition.push(format!(
                "seq {seq} comes again, unmarked, {} after what is acknowledged",
                at - self.up_to(acked)
            )),
        }
    }

    /// How many of the events that it may see have this number or a lower one.
    fn up_to(&self, seq: i64) -> usize {
        self.visible.partition_point(|visible| *visible <= seq)
    }

    /// Whether something was given again, and marked.
    pub(super) fn has_marked(&self) -> bool {
        self.marked > 0
    }
}

pub(super) fn given(reading: &mut Reading, evidence: &Evidence<'_>) -> Finding {
    let Reading { visible, first, begun, .. } = reading;
    let instances: HashSet<u32> = evidence.agents.entries.iter().map(|entry| entry.instance).collect();
    Finding {
        promise: "An agent is given each event that it may see, in order and without a gap, whichever of its instances or servers is killed",
        observed: format!(
            "{} events handled by {} instances, which began {begun} times; {} of the log are not for it",
            first.len(),
            instances.iter().filter(|instance| **instance > 0).count(),
            evidence.log.len() - visible.len()
        ),
        faults: std::mem::take(&mut reading.of_order),
    }
}

pub(super) fn given_again(reading: &mut Reading, evidence: &Evidence<'_>) -> Finding {
    let head = evidence.log.last().map_or(0, |event| event.seq);
    let Reading { marked, within, unsaved, .. } = reading;
    let observed = format!(
        "{marked} times an event came again marked, {within} times within the window, {unsaved} times because its acknowledgement was not stored; the acknowledgement at the head"
    );
    let mut faults = std::mem::take(&mut reading.of_repetition);
    if evidence.agents.acked != head {
        faults.push(format!("the acknowledgement is at {}, the head at {head}", evidence.agents.acked));
    }
    Finding {
        promise: "What an agent is given again is marked, or was not acknowledged when somebody began anew",
        observed,
        faults,
    }
}

pub(super) fn replaced(reading: &mut Reading, evidence: &Evidence<'_>) -> Finding {
    let mut faults = std::mem::take(&mut reading.of_replacement);
    let ended: Vec<(u32, u16)> = reading.ended.values().copied().collect();
    for instance in [1, 2] {
        if !ended.contains(&(instance, REPLACED)) {
            faults.push(format!("instance {instance} was not told that it was replaced: {ended:?}"));
        }
    }
    let told = ended.iter().filter(|(_, code)| *code == REPLACED).count();
    let observed = match &evidence.agents.deeds.late {
        Some(late) => {
            if late.after != late.before {
                faults.push(format!("{} was stored when it woke up, {} before", late.after, late.before));
            }
            format!(
                "{told} instances closed with {REPLACED}; one that was paused meanwhile acknowledged {}, and {} stayed stored",
                late.seq, late.after
            )
        }
        None => {
            faults.push("nobody woke up after it was replaced".to_owned());
            format!("{told} instances closed with {REPLACED}")
        }
    };
    Finding { promise: "Whoever was replaced is told so, stays away, and moves nothing", observed, faults }
}
