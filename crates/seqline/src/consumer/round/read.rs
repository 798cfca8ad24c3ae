//! What a round reads, and where that lets the cursor go.

use sqlx::PgConnection;

use super::Rounds;
use crate::consumer::error::RoundError;
use crate::consumer::plan::{LostRange, PlanError, Scan, plan_round};
use crate::error::GapError;
use crate::event::StoredEvent;
use crate::store;
use crate::store::consumers::HeldCursor;

/// What a round has read.
pub(super) struct Read {
    /// The first number that was looked at.
    pub(super) first: i64,
    /// Where the cursor goes.
    pub(super) new_last_seq: i64,
    /// How many events there are from the first to the last.
    pub(super) count: i64,
    /// Whether there may be more.
    pub(super) full: bool,
    /// What retention took before the consumer had come to it.
    pub(super) lost: Option<LostRange>,
    /// Those that are to be handled.
    pub(super) events: Vec<StoredEvent>,
}

/// What a look at the log has shown.
struct Found {
    first: i64,
    last: i64,
    count: i64,
    full: bool,
    events: Vec<StoredEvent>,
}

impl Rounds<'_> {
    /// The next events of a lane, at most so many: none when it is where it shall be.
    pub(super) async fn read(
        &self,
        connection: &mut PgConnection,
        held: &HeldCursor,
        limit: i64,
    ) -> Result<Option<Read>, RoundError> {
        // What is to be left out is left out, whether or not anything follows.
        let nothing = (held.from > held.last_seq).then(|| Read::nothing_after(held.from, None));
        if held.from >= held.stop {
            return Ok(nothing);
        }
        if let Some(found) = self.find(connection, held, held.from, limit).await? {
            return self.plan(connection, held, found).await.map(Some);
        }
        let head = self.ask(store::read::head(connection)).await?;
        if head < held.from {
            return Err(RoundError::AheadOfHead { last_seq: held.from, head });
        }
        // What there is beyond is for a round that has waited until it is durable.
        if head == held.from || self.durable.known() <= held.from {
            return Ok(nothing);
        }
        // The head has moved since, or retention took more than fits into a round. The lock on the log that the first read
        // took keeps retention from going on.
        let min_retained = self.ask(store::read::min_retained(connection)).await?;
        let after = held.from.max(min_retained - 1);
        if after >= held.stop {
            let lost = LostRange { from: held.from + 1, to: held.stop };
            return Ok(Some(Read::nothing_after(held.stop, Some(lost))));
        }
        match self.find(connection, held, after, limit).await? {
            Some(found) => self.plan(connection, held, found).await.map(Some),
            None => {
                let found = self.ask(store::read::first_after(connection, after)).await?.unwrap_or(head);
                Err(GapError { expected: after + 1, found }.into())
            }
        }
    }

    async fn plan(
        &self,
        connection: &mut PgConnection,
        held: &HeldCursor,
        found: Found,
    ) -> Result<Read, RoundError> {
        let min_retained = match held.from.checked_add(1) {
            Some(next) if next == found.first => None,
            _ => Some(self.ask(store::read::min_retained(connection)).await?),
        };
        let seqs: Vec<i64> = found.events.iter().map(|event| event.seq).collect();
        let scan = Scan { first: found.first, last: found.last, count: found.count, matching: &seqs };
        let plan = match plan_round(held.from, Some(scan), min_retained) {
            Ok(plan) => plan,
            Err(PlanError::Gap(gap)) => return Err(self.exact(connection, held, &found, gap).await?.into()),
            Err(PlanError::Empty) => unreachable!("events were looked at"),
        };
        Ok(Read {
            first: found.first,
            new_last_seq: plan.new_last_seq,
            count: found.count,
            full: found.full || plan.new_last_seq == held.stop,
            lost: plan.lost,
            events: found.events,
        })
    }

    /// Looks once, no further than what a crash cannot take back: a handler may tell others of it. With a filter or lanes it looks at
    /// more events than it gets.
    async fn find(
        &self,
        connection: &mut PgConnection,
        held: &HeldCursor,
        after: i64,
        limit: i64,
    ) -> Result<Option<Found>, RoundError> {
        let room = held.stop.saturating_sub(after);
        let durable = self.durable.known().saturating_sub(after).max(0);
        if !self.looks(held) {
            let limit = limit.min(room);
            let events = self.ask(store::read::events_after(connection, after, limit.min(durable))).await?;
            let Some((first, last)) = events.first().zip(events.last()) else { return Ok(None) };
            let count = events.len() as i64;
            return Ok(Some(Found { first: first.seq, last: last.seq, count, full: count == limit, events }));
        }
        let reach = self.reach(held).min(room);
        let looking =
            store::read::look_after(connection, after, reach.min(durable), self.filter, held, limit);
        let Some(looked) = self.ask(looking).await? else { return Ok(None) };
        let events = self.ask(store::read::events(connection, &looked.matching)).await?;
        // Read by a second statement: none of what was found may be gone by then.
        let is_there = |seq: &&i64| events.binary_search_by_key(*seq, |event| event.seq).is_ok();
        if let Some(&expected) = looked.matching.iter().find(|seq| !is_there(seq)) {
            return Err(GapError { expected, found: looked.last }.into());
        }
        let full = events.len() as i64 == limit || looked.count == reach;
        Ok(Some(Found { first: looked.first, last: looked.last, count: looked.count, full, events }))
    }

    /// The place of a gap that was found by counting.
    async fn exact(
        &self,
        connection: &mut PgConnection,
        held: &HeldCursor,
        found: &Found,
        gap: GapError,
    ) -> Result<GapError, RoundError> {
        if !self.looks(held) || gap.found == found.first {
            return Ok(gap);
        }
        let before = self.ask(store::read::before_hole(connection, found.first, found.last)).await?;
        let Some(before) = before else { return Ok(gap) };
        let after = self.ask(store::read::first_after(connection, before)).await?;
        Ok(GapError { expected: before + 1, found: after.unwrap_or(gap.found) })
    }
}

impl Read {
    /// Without any event the cursor goes here.
    fn nothing_after(last_seq: i64, lost: Option<LostRange>) -> Self {
        Self { first: last_seq, new_last_seq: last_seq, count: 0, full: true, lost, events: Vec::new() }
    }
}
