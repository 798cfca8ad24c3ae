use seqline::consumer::ConsumerState;
use seqline::maintenance::Holding;
use seqline::status::Staged;
use uuid::Uuid;

use super::*;
use crate::metrics::facts::{LogFacts, RelayFacts, StreamConsumerFacts};
use crate::store::metrics::{AgentFacts, AgentLag, DatabaseFacts, JobFacts};

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-30 12:00 UTC);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const RETENTION: Retention = Retention { retention: DAY, hold: DAY };

fn facts() -> Facts {
    Facts {
        log: LogFacts {
            head: 10,
            retained: 7,
            bytes: 8192,
            partitions: 3,
            headroom: 20,
            staged: Staged { transactions: 0, oldest_at: None, sequencer: None },
        },
        read_only: false,
        consumers: Vec::new(),
        agents: None,
        relays: None,
        stream_consumers: None,
        holdings: Some(Vec::new()),
        database: DatabaseFacts {
            follows: false,
            notification_queue_usage: 0.25,
            oldest_transaction_age: None,
            lock_waiters: 0,
            lock_wait: None,
        },
        jobs: None,
    }
}

fn consumer(last_seq: i64, pending_seconds: Option<u32>) -> ConsumerState {
    ConsumerState {
        name: "totals".to_owned(),
        kind: "worker".to_owned(),
        last_seq,
        lanes: 1,
        head_seq: 10,
        oldest_pending_at: pending_seconds.map(|seconds| NOW - Duration::from_secs(seconds.into())),
        updated_at: NOW,
        paused_at: None,
        retired_at: None,
        until_seq: None,
        parked: 0,
        first_parked: None,
        last_failure: None,
        lost: 0,
        gone: 0,
    }
}

/// The values of a metric, with their first attribute.
fn values(facts: &Facts, metric: &Metric) -> Vec<(f64, Option<String>)> {
    let points = points(facts, RETENTION, NOW);
    let of_metric = points.into_iter().filter(|point| point.metric == metric);
    of_metric.map(|point| (point.value, point.attributes.into_iter().next())).collect()
}

fn value(facts: &Facts, metric: &Metric) -> f64 {
    let values = values(facts, metric);
    assert_eq!(values.len(), 1, "{}: {values:?}", metric.name);
    values[0].0
}

#[test]
fn every_metric_of_the_database_has_a_value_and_no_other_has() {
    let mut facts = facts();
    facts.consumers = vec![consumer(8, Some(5))];
    facts.agents = Some(AgentFacts { held: 1, free: 0, behind: vec![agent_lag(2, Some(5))] });
    facts.relays = Some(vec![relay(2, Some(5))]);
    facts.stream_consumers = Some(vec![StreamConsumerFacts {
        consumer: "mail".to_owned(),
        dropped: 3,
        retries: 1,
        dead_letters: 2,
    }]);
    facts.holdings = Some(vec![holding(1, 30)]);
    facts.jobs = Some(JobFacts {
        counts: vec![("available".to_owned(), 1)],
        overdue_age: None,
        maintenance_age: Some(9.0),
    });
    let points = points(&facts, RETENTION, NOW);
    for metric in of::METRICS {
        let count = points.iter().filter(|point| point.metric == metric).count();
        // One for each state that it has.
        let expected = if metric.name == of::AGENT_CONSUMERS.name { 2 } else { usize::from(metric.shared) };
        assert_eq!(count, expected, "{}", metric.name);
    }
    // Attributes exactly where the catalogue has some.
    for point in &points {
        assert_eq!(point.attributes.len(), point.metric.attributes.len(), "{}", point.metric.name);
        assert_eq!(point.attributes().len(), point.attributes.len(), "{}", point.metric.name);
    }
}

fn relay(behind: i64, oldest_seconds: Option<u32>) -> RelayFacts {
    RelayFacts {
        relay: "jetstream".to_owned(),
        behind,
        oldest_at: oldest_seconds.map(|seconds| NOW - Duration::from_secs(seconds.into())),
        active: true,
        paused: false,
        stalled_by: Some("stream_full".to_owned()),
        incidents: vec![("foreign_messages".to_owned(), 3)],
    }
}

#[test]
fn a_relay_has_a_backlog_also_while_nobody_runs_it() {
    let mut facts = facts();
    facts.relays = Some(vec![RelayFacts { active: false, paused: true, ..relay(2, Some(5)) }]);
    assert_eq!(value(&facts, &of::RELAY_BACKLOG), 2.0);
    assert_eq!(value(&facts, &of::RELAY_BACKLOG_AGE), 5.0);
    assert_eq!([value(&facts, &of::RELAY_RUNNING), value(&facts, &of::RELAY_PAUSED)], [0.0, 1.0]);
    let points_of = |metric: &Metric| {
        let points = points(&facts, RETENTION, NOW).into_iter().filter(|point| point.metric == metric);
        points.map(|point| (point.value, point.attributes)).collect::<Vec<_>>()
    };
    let with = |more: &str| vec!["jetstream".to_owned(), more.to_owned()];
    assert_eq!(points_of(&of::RELAY_STALLED), [(1.0, with("stream_full"))]);
    assert_eq!(points_of(&of::RELAY_INCIDENTS), [(3.0, with("foreign_messages"))]);
    // At the head an event that is being copied is no backlog, and what retention took has no age.
    facts.relays = Some(vec![RelayFacts { stalled_by: None, incidents: Vec::new(), ..relay(0, Some(5)) }]);
    assert_eq!(value(&facts, &of::RELAY_BACKLOG_AGE), 0.0);
    assert_eq!(values(&facts, &of::RELAY_STALLED), []);
    assert_eq!(values(&facts, &of::RELAY_INCIDENTS), []);
    facts.relays = Some(vec![relay(2, None)]);
    assert_eq!(values(&facts, &of::RELAY_BACKLOG_AGE), []);
}

#[test]
fn what_waits_for_a_consumer_of_the_stream_is_told_also_when_it_is_nothing() {
    let mut facts = facts();
    let consumer = "mail".to_owned();
    facts.stream_consumers =
        Some(vec![StreamConsumerFacts { consumer, dropped: 0, retries: 0, dead_letters: 2 }]);
    let mail = Some("mail".to_owned());
    assert_eq!(values(&facts, &of::STREAM_CONSUMER_RETRIES), [(0.0, mail.clone())]);
    assert_eq!(values(&facts, &of::STREAM_CONSUMER_DEAD), [(2.0, mail)]);
}

#[test]
fn lag_and_age_of_a_consumer_are_zero_at_the_head_and_above_it() {
    for (last_seq, pending, lag, age) in
        [(8, Some(5), 2.0, 5.0), (10, None, 0.0, 0.0), (10, Some(5), 0.0, 0.0), (12, Some(5), 0.0, 0.0)]
    {
        let mut facts = facts();
        facts.consumers = vec![consumer(last_seq, pending)];
        assert_eq!(value(&facts, &of::CONSUMER_LAG), lag);
        assert_eq!(value(&facts, &of::CONSUMER_PENDING_AGE), age);
        assert_eq!(value(&facts, &of::CONSUMER_ABOVE_HEAD), if last_seq > 10 { 1.0 } else { 0.0 });
        assert_eq!(values(&facts, &of::CONSUMER_LAG)[0].1.as_deref(), Some("totals"));
    }
}

#[test]
fn an_event_from_the_future_is_no_negative_age() {
    let mut facts = facts();
    facts.consumers =
        vec![ConsumerState { oldest_pending_at: Some(NOW + Duration::from_secs(60)), ..consumer(8, None) }];
    assert_eq!(value(&facts, &of::CONSUMER_PENDING_AGE), 0.0);
}

#[test]
fn a_retired_consumer_has_no_figures() {
    let mut facts = facts();
    facts.consumers = vec![ConsumerState { retired_at: Some(NOW), ..consumer(1, Some(5)) }];
    assert_eq!(values(&facts, &of::CONSUMER_LAG), []);
}

fn agent_lag(lag: i64, pending_seconds: Option<i64>) -> AgentLag {
    AgentLag {
        agent: "billing".to_owned(),
        consumer: "invoices".to_owned(),
        lag,
        pending_at: pending_seconds.map(|seconds| NOW - time::Duration::seconds(seconds)),
    }
}

#[test]
fn lag_and_age_of_a_consumer_of_an_agent_are_zero_at_the_head_and_never_less() {
    for (lag, pending, age) in [(2, Some(5), 5.0), (0, None, 0.0), (0, Some(5), 0.0), (1, Some(-60), 0.0)] {
        let mut facts = facts();
        facts.agents = Some(AgentFacts { held: 3, free: 4, behind: vec![agent_lag(lag, pending)] });
        assert_eq!(value(&facts, &of::AGENT_LAG), lag as f64);
        assert_eq!(value(&facts, &of::AGENT_PENDING_AGE), age);
        assert_eq!(
            values(&facts, &of::AGENT_CONSUMERS),
            [(3.0, Some("held".to_owned())), (4.0, Some("free".to_owned()))]
        );
    }
    let mut facts = facts();
    facts.agents = Some(AgentFacts { held: 1, free: 0, behind: vec![agent_lag(2, None)] });
    assert_eq!(values(&facts, &of::AGENT_PENDING_AGE), [], "what is not known is not zero");
    let of_both = points(&facts, RETENTION, NOW).into_iter().find(|point| point.metric == &of::AGENT_LAG);
    assert_eq!(of_both.unwrap().attributes, ["billing", "invoices"]);
}

#[test]
fn where_agents_are_not_known_nothing_is_said_of_them() {
    for metric in [&of::AGENT_LAG, &of::AGENT_PENDING_AGE, &of::AGENT_CONSUMERS] {
        assert_eq!(values(&facts(), metric), [], "{}", metric.name);
    }
}

fn holding(lower_bound: i64, age_hours: u32) -> Holding {
    Holding {
        partition: format!("event_log_from_{lower_bound}"),
        lower_bound,
        last_event_at: Some(NOW - Duration::from_secs(3600 * u64::from(age_hours))),
        consumer: "totals".to_owned(),
        last_seq: 0,
        parked: 0,
    }
}

#[test]
fn a_partition_that_several_keep_counts_once_and_only_when_it_has_expired() {
    let mut facts = facts();
    facts.holdings =
        Some(vec![holding(1, 30), holding(1, 30), holding(3, 25), holding(5, 24), holding(7, 1)]);
    assert_eq!(value(&facts, &of::HELD_PARTITIONS), 2.0);
    // Of the oldest: two days less thirty hours.
    assert_eq!(value(&facts, &of::HOLD_REMAINING), 18.0 * 3600.0);
    facts.holdings = Some(vec![holding(1, 60)]);
    assert_eq!(value(&facts, &of::HOLD_REMAINING), 0.0);
    facts.holdings = Some(vec![holding(5, 24)]);
    assert_eq!(value(&facts, &of::HELD_PARTITIONS), 0.0);
    assert_eq!(values(&facts, &of::HOLD_REMAINING), []);
    facts.holdings = None;
    assert_eq!(values(&facts, &of::HELD_PARTITIONS), []);
}

#[test]
fn what_waits_for_a_number_has_an_age() {
    let mut facts = facts();
    facts.log.staged = Staged {
        transactions: 3,
        oldest_at: Some(NOW - Duration::from_secs(4)),
        sequencer: Some(Uuid::nil()),
    };
    let staged = [&of::STAGED, &of::STAGED_AGE, &of::SEQUENCER_RUNNING].map(|metric| value(&facts, metric));
    assert_eq!(staged, [3.0, 4.0, 1.0]);
}
