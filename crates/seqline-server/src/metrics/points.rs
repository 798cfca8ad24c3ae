//! From facts to figures. No I/O and no clock.

use std::time::Duration;

use opentelemetry::KeyValue;
use time::OffsetDateTime;

use super::catalogue::{self as of, Metric};
use super::facts::Facts;

/// One figure of a metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(super) metric: &'static Metric,
    pub(super) value: f64,
    /// The values of its attributes, in their order.
    pub(super) attributes: Vec<String>,
}

impl Point {
    pub(super) fn new(metric: &'static Metric, value: f64) -> Self {
        Self::of(metric, &[], value)
    }

    fn of(metric: &'static Metric, attributes: &[&str], value: f64) -> Self {
        Self { metric, value, attributes: attributes.iter().map(|value| (*value).to_owned()).collect() }
    }

    pub(super) fn attributes(&self) -> Vec<KeyValue> {
        let attributes = self.metric.attributes.iter().zip(&self.attributes);
        attributes.map(|(name, value)| KeyValue::new(*name, value.clone())).collect()
    }
}

impl PartialEq for Metric {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// How long expired events stay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    pub(crate) retention: Duration,
    pub(crate) hold: Duration,
}

/// All figures that come from the database, as of `now`. What cannot be known is left out, and never a zero.
pub(super) fn points(facts: &Facts, retention: Retention, now: OffsetDateTime) -> Vec<Point> {
    let mut points = Vec::new();
    log(facts, &mut points);
    consumers(facts, now, &mut points);
    agents(facts, now, &mut points);
    relays(facts, now, &mut points);
    stream_consumers(facts, &mut points);
    held(facts, retention, now, &mut points);
    numbering(facts, now, &mut points);
    let database = &facts.database;
    points.push(Point::new(&of::NOTIFICATION_QUEUE, database.notification_queue_usage));
    points.push(Point::new(&of::OLDEST_TRANSACTION, database.oldest_transaction_age.unwrap_or_default()));
    if let Some(jobs) = &facts.jobs {
        points
            .extend(jobs.counts.iter().map(|(state, count)| Point::of(&of::JOBS, &[state], number(*count))));
        points.push(Point::new(&of::JOBS_OVERDUE, jobs.overdue_age.unwrap_or_default()));
        points.extend(jobs.maintenance_age.map(|age| Point::new(&of::MAINTENANCE_AGE, age)));
    }
    points
}

fn log(facts: &Facts, points: &mut Vec<Point>) {
    let log = &facts.log;
    let flag = |on: bool| if on { 1.0 } else { 0.0 };
    points.extend([
        Point::new(&of::LOG_HEAD, number(log.head)),
        Point::new(&of::EVENTS_APPENDED, number(log.head)),
        Point::new(&of::LOG_RETAINED, number(log.retained)),
        Point::new(&of::LOG_SIZE, number(log.bytes)),
        Point::new(&of::PARTITIONS, number(log.partitions)),
        Point::new(&of::HEADROOM, number(log.headroom)),
        Point::new(&of::READ_ONLY, flag(facts.read_only)),
    ]);
}

fn consumers(facts: &Facts, now: OffsetDateTime, points: &mut Vec<Point>) {
    // One that is out of use is nobody's worry, and its figures end with it.
    for consumer in facts.consumers.iter().filter(|consumer| consumer.retired_at.is_none()) {
        let mut add = |metric, value| points.push(Point::of(metric, &[&consumer.name], value));
        let flag = |on: bool| if on { 1.0 } else { 0.0 };
        let pending = if consumer.lag() > 0 { consumer.oldest_pending_at } else { None };
        add(&of::CONSUMER_LAG, number(consumer.lag()));
        add(&of::CONSUMER_PENDING_AGE, pending.map_or(0.0, |at| age(at, now)));
        add(&of::CONSUMER_PAUSED, flag(consumer.paused_at.is_some()));
        add(&of::CONSUMER_PARKED, number(consumer.parked));
        add(&of::CONSUMER_LOST, number(consumer.lost.saturating_add(consumer.gone)));
        add(&of::CONSUMER_ABOVE_HEAD, flag(consumer.is_ahead_of_head()));
    }
}

fn agents(facts: &Facts, now: OffsetDateTime, points: &mut Vec<Point>) {
    let Some(agents) = &facts.agents else { return };
    points.push(Point::of(&of::AGENT_CONSUMERS, &["held"], number(agents.held)));
    points.push(Point::of(&of::AGENT_CONSUMERS, &["free"], number(agents.free)));
    for consumer in &agents.behind {
        let of_consumer = [consumer.agent.as_str(), consumer.consumer.as_str()];
        points.push(Point::of(&of::AGENT_LAG, &of_consumer, number(consumer.lag)));
        let pending = match consumer.lag {
            0 => Some(0.0),
            // Retention may have taken it since the cursor was read: then it is not known now.
            _ => consumer.pending_at.map(|at| age(at, now)),
        };
        points.extend(pending.map(|age| Point::of(&of::AGENT_PENDING_AGE, &of_consumer, age)));
    }
}

fn relays(facts: &Facts, now: OffsetDateTime, points: &mut Vec<Point>) {
    for relay in facts.relays.iter().flatten() {
        let mut add = |metric, more: Option<&str>, value| {
            let attributes: Vec<&str> = [relay.relay.as_str()].into_iter().chain(more).collect();
            points.push(Point::of(metric, &attributes, value));
        };
        let flag = |on: bool| if on { 1.0 } else { 0.0 };
        add(&of::RELAY_BACKLOG, None, number(relay.behind));
        match (relay.behind, relay.oldest_at) {
            (0, _) => add(&of::RELAY_BACKLOG_AGE, None, 0.0),
            (_, Some(at)) => add(&of::RELAY_BACKLOG_AGE, None, age(at, now)),
            // Retention may have taken it since: then it is not known now.
            (_, None) => {}
        }
        add(&of::RELAY_RUNNING, None, flag(relay.active));
        add(&of::RELAY_PAUSED, None, flag(relay.paused));
        if let Some(by) = &relay.stalled_by {
            add(&of::RELAY_STALLED, Some(by), 1.0);
        }
        for (kind, count) in &relay.incidents {
            add(&of::RELAY_INCIDENTS, Some(kind), number(*count));
        }
    }
}

fn stream_consumers(facts: &Facts, points: &mut Vec<Point>) {
    for consumer in facts.stream_consumers.iter().flatten() {
        let of_consumer = [consumer.consumer.as_str()];
        points.push(Point::of(&of::STREAM_CONSUMER_RETRIES, &of_consumer, number(consumer.retries)));
        points.push(Point::of(&of::STREAM_CONSUMER_DROPPED, &of_consumer, number(consumer.dropped)));
        points.push(Point::of(&of::STREAM_CONSUMER_DEAD, &of_consumer, number(consumer.dead_letters)));
    }
}

fn held(facts: &Facts, retention: Retention, now: OffsetDateTime, points: &mut Vec<Point>) {
    // Who may not see it does not know.
    let Some(holdings) = &facts.holdings else { return };
    let mut expired: Vec<(i64, f64)> = holdings
        .iter()
        .filter_map(|holding| Some((holding.lower_bound, age(holding.last_event_at?, now))))
        .filter(|(_, age)| *age > retention.retention.as_secs_f64())
        .collect();
    expired.sort_by_key(|(lower_bound, _)| *lower_bound);
    expired.dedup_by_key(|(lower_bound, _)| *lower_bound);
    points.push(Point::new(&of::HELD_PARTITIONS, number(expired.len().try_into().unwrap_or(i64::MAX))));
    let until = (retention.retention + retention.hold).as_secs_f64();
    let remaining = expired.iter().map(|(_, age)| (until - age).max(0.0)).min_by(f64::total_cmp);
    points.extend(remaining.map(|remaining| Point::new(&of::HOLD_REMAINING, remaining)));
}

fn numbering(facts: &Facts, now: OffsetDateTime, points: &mut Vec<Point>) {
    let staged = &facts.log.staged;
    points.extend([
        Point::new(&of::SEQUENCER_RUNNING, if staged.sequencer.is_some() { 1.0 } else { 0.0 }),
        Point::new(&of::STAGED, number(staged.transactions)),
        Point::new(&of::STAGED_AGE, staged.oldest_at.map_or(0.0, |at| age(at, now))),
        Point::new(&of::LOCK_WAITERS, number(facts.database.lock_waiters)),
        Point::new(&of::LOCK_WAIT, facts.database.lock_wait.unwrap_or_default()),
    ]);
}

/// In seconds; nothing is younger than new, whatever the clocks say.
fn age(at: OffsetDateTime, now: OffsetDateTime) -> f64 {
    (now - at).as_seconds_f64().max(0.0)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a figure for people: beyond 2^53 its last digits do not matter"
)]
fn number(value: i64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests;
