//! What makes a consumer: its name, its handler, and what it may do.

use std::fmt;
use std::sync::Arc;

use super::filter::{Filter, InvalidFilter};
use super::handler::{AnyHandler, Handler};
use super::jobs::Outlet;
use super::lane::LaneKey;
use super::name::ConsumerName;
use super::policy::FailurePolicy;
use super::tally::RoundTally;
use crate::job::JobSink;

/// Where a consumer starts that does not exist yet. It says nothing to one that does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// At the head: only what is committed from then on.
    #[default]
    Head,
    /// At the oldest event that the log still has: for a projection of everything.
    Oldest,
    /// At the event with this number, which has to be in the log or the next.
    Seq(i64),
}

impl fmt::Display for StartAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head => f.write_str("head"),
            Self::Oldest => f.write_str("oldest"),
            Self::Seq(seq) => write!(f, "{seq}"),
        }
    }
}

/// A consumer: its name and what it does with an event.
pub struct Consumer {
    pub(super) name: ConsumerName,
    pub(super) handler: Box<dyn AnyHandler>,
    pub(super) start_at: StartAt,
    pub(super) may_append: bool,
    pub(super) outlet: Option<Outlet>,
    pub(super) filter: Filter,
    pub(super) lanes: u32,
    pub(super) lane_key: LaneKey,
    pub(super) policy: FailurePolicy,
    pub(super) tally: Arc<RoundTally>,
}

impl Consumer {
    /// A consumer that starts at the head and appends nothing.
    pub fn new(name: ConsumerName, handler: impl Handler) -> Self {
        Self {
            name,
            handler: Box::new(handler),
            start_at: StartAt::Head,
            may_append: false,
            outlet: None,
            filter: Filter::everything(),
            lanes: 1,
            lane_key: LaneKey::default(),
            policy: FailurePolicy::default(),
            tally: Arc::default(),
        }
    }

    /// Where it starts when it does not exist yet.
    #[must_use]
    pub fn start_at(mut self, start_at: StartAt) -> Self {
        self.start_at = start_at;
        self
    }

    /// Lets the handler append events in its rounds. It will get them too, like all others, so it has to leave out its own
    /// or it goes on for ever. Committing the round then takes the numbering lock.
    #[must_use]
    pub fn may_append(mut self) -> Self {
        self.may_append = true;
        self
    }

    /// Which events the handler gets. See [`Filter`].
    ///
    /// # Errors
    ///
    /// [`InvalidFilter`] when no event could match it.
    pub fn filter(mut self, filter: Filter) -> Result<Self, InvalidFilter> {
        filter.check()?;
        self.filter = filter;
        Ok(self)
    }

    /// What becomes of an event that cannot be handled.
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Into how many lanes the consumer is divided when it does not exist yet, 1 to [`LANES_MAX`](crate::limits::LANES_MAX), and by what.
    /// Rounds of different lanes run at the same time, also in one process, and events of one key stay in order. Each lane looks at the
    /// whole log, and keeps a connection of the pool busy while it works.
    ///
    /// It says nothing to a consumer that exists: `seqline consumers lanes` divides that anew, because it takes a moment at which all
    /// lanes are at the same place.
    #[must_use]
    pub fn lanes(mut self, key: LaneKey, lanes: u32) -> Self {
        self.lane_key = key;
        self.lanes = lanes;
        self
    }

    /// Where the jobs go that the handler inserts with [`Round::jobs`](super::Round::jobs).
    #[must_use]
    pub fn jobs(mut self, sink: impl JobSink) -> Self {
        self.outlet = Some(Outlet::new(sink));
        self
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("name", &self.name)
            .field("start_at", &self.start_at)
            .field("may_append", &self.may_append)
            .field("filter", &self.filter)
            .field("lanes", &self.lanes)
            .field("lane_key", &self.lane_key)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
