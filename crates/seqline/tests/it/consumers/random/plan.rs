//! What is chosen by chance: one seed is one plan.

use std::time::Duration;

use fastrand::Rng;
use seqline::NewEvent;
use seqline::consumer::{FailurePolicy, Filter, LaneKey};
use sha2::{Digest, Sha256};

const TYPES: [&str; 4] = ["order.created", "order.line.added", "orders.created", "invoice.paid"];
const TYPE_PATTERNS: [&str; 5] = ["order.*", "order.created", "order.line.*", "orders.created", "invoice.*"];
const KINDS: [&str; 2] = ["order", "line"];

/// What the consumer of a case is, and what happens to it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) asked: Asked,
    pub(crate) key: LaneKey,
    pub(crate) lanes: u32,
    /// How many different resources, channels, threads and spaces there are.
    values: u32,
    pub(crate) policy: FailurePolicy,
    pub(crate) batch_size: u32,
    pub(crate) scan_size: u32,
    /// Of so many events one cannot be handled.
    poison_every: u64,
    pub(crate) processes: usize,
    pub(crate) steppers: usize,
    /// How often somebody interferes.
    pub(crate) orders: usize,
    seed: u64,
}

/// What the consumer asks for; `None` is everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) types: Option<Vec<String>>,
    pub(crate) spaces: Option<Vec<String>>,
    pub(crate) channels: Option<Vec<String>>,
    pub(crate) kinds: Option<Vec<String>>,
}

/// What of an event decides who gets it.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Attributes {
    pub(crate) seq: i64,
    r#type: String,
    space_id: Option<String>,
    channel_id: Option<String>,
    thread_id: Option<String>,
    resource_kind: String,
    resource_id: Option<String>,
}

/// How an event makes its handler fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poison {
    Error,
    Panic,
    /// A statement fails, and the handler goes on.
    Breaks,
    /// The transaction of the round is given up, and another one begun.
    BeginsAnew,
    Hangs,
    /// The connection ends. That is not the event's fault and counts for nothing, so it is never for ever.
    Dies,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let random = &mut random;
        let values = random.u32(3..24);
        let park = FailurePolicy::Park {
            after_attempts: random.u32(1..=3),
            backoff: Duration::from_millis(random.u64(0..10)),
        };
        Self {
            asked: Asked::some(random, values),
            key: LaneKey::ALL[random.usize(0..4)],
            lanes: some_lanes(random),
            values,
            policy: if random.u8(0..4) == 0 { FailurePolicy::Stall } else { park },
            batch_size: random.u32(1..20),
            scan_size: random.u32(1..60),
            poison_every: random.u64(8..40),
            processes: random.usize(1..=2),
            steppers: random.usize(1..=2),
            orders: random.usize(12..20),
            seed,
        }
    }

    /// Numbers that depend on the seed, on this and on nothing else.
    pub(crate) fn random(&self, of: u64) -> Rng {
        Rng::with_seed(self.seed ^ of.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn some_event(&self, random: &mut Rng) -> NewEvent {
        let value = |random: &mut Rng, name: &str| match random.u8(0..8) {
            0 => String::new(),
            _ => format!("{name}-{}", random.u32(0..self.values)),
        };
        NewEvent::builder(TYPES[random.usize(0..4)], KINDS[random.usize(0..2)], "any")
            .space(value(random, "space"))
            .channel(value(random, "channel"))
            .thread(value(random, "thread"))
            .resource_id(value(random, "id"))
            .build()
            .expect("the event is valid")
    }

    /// Whether and how an event makes its handler fail, and how often: `None` is always.
    pub(crate) fn poison(&self, seq: i64) -> Option<(Poison, Option<u32>)> {
        let mut random = self.random(seq.unsigned_abs());
        if random.u64(0..self.poison_every) > 0 {
            return None;
        }
        let times = random.u32(1..=4);
        // One that stalls does nothing else any more.
        let for_ever = random.u8(0..8) < if self.parks() { 4 } else { 1 };
        let always = if for_ever { None } else { Some(times) };
        Some(match random.u8(0..10) {
            0..4 => (Poison::Error, always),
            4 => (Poison::Panic, always),
            5 => (Poison::Breaks, always),
            6 => (Poison::BeginsAnew, always),
            7 => (Poison::Hangs, always),
            _ => (Poison::Dies, Some(times)),
        })
    }

    pub(crate) fn parks(&self) -> bool {
        self.policy != FailurePolicy::Stall
    }

    /// After how many attempts an event is parked.
    pub(crate) fn attempts(&self) -> i32 {
        match self.policy {
            FailurePolicy::Park { after_attempts, .. } => after_attempts as i32,
            _ => 0,
        }
    }

    pub(crate) fn key_of(&self, event: &Attributes) -> Option<String> {
        match self.key {
            LaneKey::Channel => event.channel_id.clone(),
            LaneKey::Thread => event.thread_id.clone(),
            LaneKey::Space => event.space_id.clone(),
            _ => Some(format!("{}/{}", event.resource_kind, event.resource_id.as_deref()?)),
        }
    }
}

pub(crate) fn some_lanes(random: &mut Rng) -> u32 {
    [1, 1, 2, 3, 5, 8][random.usize(0..6)]
}

/// The lane of a key among so many.
pub(crate) fn lane_of(key: Option<&str>, lanes: usize) -> i32 {
    let Some(key) = key else { return 0 };
    let hash = Sha256::digest(key);
    let number = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
    (number as usize % lanes) as i32
}

impl Asked {
    fn some(random: &mut Rng, values: u32) -> Self {
        if random.u8(0..3) == 0 {
            return Self::default();
        }
        let some_of = |random: &mut Rng, all: Vec<String>| {
            let count = random.usize(1..=all.len());
            random.bool().then(|| random.choose_multiple(all.iter().cloned(), count))
        };
        let places = |name: &str| (0..values).map(|n| format!("{name}-{n}")).collect();
        Self {
            types: some_of(random, TYPE_PATTERNS.map(str::to_owned).to_vec()),
            spaces: some_of(random, places("space")).filter(|_| random.bool()),
            channels: some_of(random, places("channel")).filter(|_| random.bool()),
            kinds: some_of(random, KINDS.map(str::to_owned).to_vec()).filter(|_| random.bool()),
        }
    }

    pub(crate) fn filter(&self) -> Filter {
        let mut filter = Filter::everything();
        if let Some(types) = &self.types {
            filter = filter.types(types.clone());
        }
        if let Some(spaces) = &self.spaces {
            filter = filter.spaces(spaces.clone());
        }
        if let Some(channels) = &self.channels {
            filter = filter.channels(channels.clone());
        }
        if let Some(kinds) = &self.kinds {
            filter = filter.resource_kinds(kinds.clone());
        }
        filter
    }

    pub(crate) fn matches(&self, event: &Attributes) -> bool {
        let is_type = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => event.r#type.starts_with(beginning),
            None => event.r#type == *pattern,
        };
        let is_in = |list: &Option<Vec<String>>, value: Option<&String>| {
            list.as_ref().is_none_or(|list| value.is_some_and(|value| list.contains(value)))
        };
        self.types.as_ref().is_none_or(|types| types.iter().any(is_type))
            && is_in(&self.spaces, event.space_id.as_ref())
            && is_in(&self.channels, event.channel_id.as_ref())
            && is_in(&self.kinds, Some(&event.resource_kind))
    }
}
