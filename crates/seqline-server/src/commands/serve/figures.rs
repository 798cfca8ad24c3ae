//! What the metrics of a process show of the parts that run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::KeyValue;
use seqline::consumer::{ConsumerName, RoundTally};
use seqline_nats::consumer::ConsumerTally;
use seqline_nats::relay::StreamFacts;
use sqlx::PgPool;
use tokio::sync::watch;

use crate::api::{Api, Counts, Tally, Waiting};
use crate::metrics::catalogue::{self, Metric};
use crate::metrics::{Metrics, Value};
use crate::ops::Health;
use crate::streaming::{RelayFigures, StreamTallies, Waits};

/// The parts that run, as far as they are shown. There are none before the start, and others after a new epoch.
#[derive(Clone, Default)]
pub(super) struct Figures(Arc<Mutex<Option<Shown>>>);

/// What is shown of them.
pub(super) struct Shown {
    pub(super) pool: PgPool,
    /// The listening connections, by name.
    pub(super) listeners: Vec<(&'static str, watch::Receiver<bool>)>,
    pub(super) tallies: Vec<(ConsumerName, Arc<RoundTally>)>,
    /// The API, where there is one.
    pub(super) api: Option<Api>,
    /// What needs a broker.
    pub(super) streaming: StreamTallies,
}

impl Figures {
    /// Shows them from now on.
    pub(super) fn new(metrics: &Metrics, health: &Health) -> Self {
        let figures = Self::default();
        figures.observe(metrics, &catalogue::POOL, pool);
        figures.observe(metrics, &catalogue::LISTENER_CONNECTED, listeners);
        figures.observe(metrics, &catalogue::CONSUMER_ROUNDS, rounds);
        figures.observe(metrics, &catalogue::CONSUMER_EVENTS, events);
        figures.observe(metrics, &catalogue::API_WAITING, api_waiting);
        figures.observe(metrics, &catalogue::HUB_EVENTS, |shown| hub(shown, |(events, _)| events));
        figures.observe(metrics, &catalogue::HUB_SIZE, |shown| hub(shown, |(_, bytes)| bytes));
        figures.observe(metrics, &catalogue::GATEWAY_CONNECTIONS, |shown| {
            counted(shown, catalogue::PRINCIPAL_KIND, Tally::connections)
        });
        figures.observe(metrics, &catalogue::GATEWAY_CLOSES, |shown| {
            counted(shown, catalogue::CLOSE_REASON, Tally::closes)
        });
        figures.observe(metrics, &catalogue::AGENT_REDELIVERIES, |shown| {
            counted(shown, catalogue::HOLDER_KIND, Tally::redelivered)
        });
        figures.observe(metrics, &catalogue::AGENT_TAKEOVERS, |shown| {
            counted(shown, catalogue::HOLDER_KIND, Tally::takeovers)
        });
        figures.observe(metrics, &catalogue::AGENT_IN_FLIGHT, |shown| {
            let in_flight = shown.api.iter().map(|api| number(api.tally.events_in_flight()));
            in_flight.map(|events| (events, Vec::new())).collect()
        });
        figures.observe_streaming(metrics);
        let health = health.clone();
        metrics.observe(&catalogue::TAIL_LAG, move || {
            let seen = health.seen().zip(health.tail_position());
            let lag = seen.map(|(seen, position)| (seen.head - position).max(0));
            lag.map(|lag| (number(lag.unsigned_abs()), Vec::new())).into_iter().collect()
        });
        figures
    }

    fn observe_streaming(&self, metrics: &Metrics) {
        // Beside what the database says: a relay that has never reached its broker is not there.
        self.observe(metrics, &catalogue::RELAY_STALLED, |shown| {
            let stalled = |relay: &RelayFigures| {
                let by = relay.tally.stalled_by().filter(|_| !relay.tally.stands_by())?;
                Some((1.0, vec![of_relay(relay), KeyValue::new(catalogue::RELAY_REASON, by)]))
            };
            shown.streaming.relay.iter().filter_map(stalled).collect()
        });
        self.observe(metrics, &catalogue::RELAY_PUBLISHED, |shown| {
            let relays = shown.streaming.relay.iter();
            relays.map(|relay| (number(relay.tally.published()), vec![of_relay(relay)])).collect()
        });
        self.observe(metrics, &catalogue::RELAY_FAILURES, |shown| {
            let failures = |relay: &RelayFigures| {
                let kind = |kind| vec![of_relay(relay), KeyValue::new(catalogue::FAILURE_KIND, kind)];
                let failures = relay.tally.failures().into_iter();
                failures.map(|(name, count)| (number(count), kind(name))).collect::<Vec<_>>()
            };
            shown.streaming.relay.iter().flat_map(failures).collect()
        });
        self.observe(metrics, &catalogue::STREAM_MESSAGES, |shown| {
            stream(shown, |_, stream| Some(number(stream.messages)))
        });
        self.observe(metrics, &catalogue::STREAM_SIZE, |shown| {
            stream(shown, |_, stream| Some(number(stream.bytes)))
        });
        self.observe(metrics, &catalogue::STREAM_FILL, |shown| {
            stream(shown, |_, stream| Some(number(stream.bytes) / number(stream.max_bytes?)))
        });
        self.observe(metrics, &catalogue::STREAM_OLDEST_AGE, |shown| {
            stream(shown, |relay, stream| {
                Some((relay.clock.now() - stream.first_at?).as_seconds_f64().max(0.0))
            })
        });
        self.observe(metrics, &catalogue::STREAM_CONSUMER_MESSAGES, |shown| {
            let outcomes = |(name, tally): &(String, Arc<ConsumerTally>)| {
                [
                    ("handled", tally.handled()),
                    ("duplicate", tally.duplicates()),
                    ("retried", tally.retried()),
                    ("terminated", tally.terminated()),
                    ("skipped", tally.skipped()),
                ]
                .map(|(outcome, count)| {
                    let outcome = KeyValue::new(catalogue::MESSAGE_OUTCOME, outcome);
                    (number(count), vec![of_stream_consumer(name), outcome])
                })
            };
            shown.streaming.consumers.iter().flat_map(outcomes).collect()
        });
        self.observe(metrics, &catalogue::STREAM_CONSUMER_REDELIVERED, |shown| {
            let consumers = shown.streaming.consumers.iter();
            consumers
                .map(|(name, tally)| (number(tally.redelivered()), vec![of_stream_consumer(name)]))
                .collect()
        });
        self.observe(metrics, &catalogue::STREAM_CONSUMER_PENDING, |shown| {
            waiting(shown, ConsumerTally::pending, |waits| waits.pending)
        });
        self.observe(metrics, &catalogue::STREAM_CONSUMER_ACK_PENDING, |shown| {
            waiting(shown, ConsumerTally::ack_pending, |waits| waits.ack_pending)
        });
    }

    pub(super) fn show(&self, shown: Option<Shown>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    fn observe(&self, metrics: &Metrics, metric: &'static Metric, values: fn(&Shown) -> Vec<Value>) {
        let shown = self.0.clone();
        metrics.observe(metric, move || {
            let shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.as_ref().map(values).unwrap_or_default()
        });
    }
}

fn pool(shown: &Shown) -> Vec<Value> {
    let (all, idle) = (shown.pool.size(), u32::try_from(shown.pool.num_idle()).unwrap_or(u32::MAX));
    let state = |state: &'static str| vec![KeyValue::new(catalogue::POOL_STATE, state)];
    vec![(f64::from(idle), state("idle")), (f64::from(all.saturating_sub(idle)), state("used"))]
}

fn listeners(shown: &Shown) -> Vec<Value> {
    let value = |up: bool| if up { 1.0 } else { 0.0 };
    let listeners = shown.listeners.iter();
    listeners
        .map(|(name, up)| (value(*up.borrow()), vec![KeyValue::new(catalogue::LISTENER, *name)]))
        .collect()
}

fn rounds(shown: &Shown) -> Vec<Value> {
    let of_consumer = |(consumer, tally): &(ConsumerName, Arc<RoundTally>)| {
        [
            ("progressed", tally.progressed()),
            ("idle", tally.idle()),
            ("locked", tally.locked()),
            ("failed", tally.failed()),
        ]
        .map(|(outcome, count)| {
            (number(count), vec![name(consumer), KeyValue::new(catalogue::OUTCOME, outcome)])
        })
    };
    shown.tallies.iter().flat_map(of_consumer).collect()
}

fn events(shown: &Shown) -> Vec<Value> {
    shown.tallies.iter().map(|(consumer, tally)| (number(tally.events()), vec![name(consumer)])).collect()
}

fn api_waiting(shown: &Shown) -> Vec<Value> {
    let of = |api: &Api| {
        [(Waiting::Request, "request"), (Waiting::Stream, "stream")].map(|(kind, name)| {
            (number(api.waiting.taken(kind) as u64), vec![KeyValue::new(catalogue::WAITING_KIND, name)])
        })
    };
    shown.api.iter().flat_map(of).collect()
}

fn hub(shown: &Shown, figure: fn((usize, usize)) -> usize) -> Vec<Value> {
    shown.api.iter().map(|api| (number(figure(api.reader.hub.size()) as u64), Vec::new())).collect()
}

fn counted(shown: &Shown, attribute: &'static str, counts: fn(&Tally) -> Counts) -> Vec<Value> {
    let counts = shown.api.iter().flat_map(|api| counts(&api.tally));
    counts.map(|(name, count)| (number(count), vec![KeyValue::new(attribute, name)])).collect()
}

fn of_relay(relay: &RelayFigures) -> KeyValue {
    KeyValue::new(catalogue::RELAY, relay.name.clone())
}

/// Of the stream, while the relay runs here: whoever stands by has old figures or none.
fn stream(shown: &Shown, figure: fn(&RelayFigures, StreamFacts) -> Option<f64>) -> Vec<Value> {
    let of_relay = |relay: &RelayFigures| {
        let facts = relay.tally.stream().filter(|_| relay.tally.active())?;
        let name = KeyValue::new(catalogue::STREAM, relay.stream.clone());
        Some((figure(relay, facts)?, vec![name]))
    };
    shown.streaming.relay.iter().filter_map(of_relay).collect()
}

/// At the broker, of consumers that run here and, where the relay runs, of all.
fn waiting(shown: &Shown, own: fn(&ConsumerTally) -> Option<u64>, asked: fn(Waits) -> u64) -> Vec<Value> {
    let StreamTallies { consumers, waiting, .. } = &shown.streaming;
    let own = consumers.iter().filter_map(|(name, tally)| Some((name.clone(), own(tally)?)));
    let mut all: BTreeMap<String, u64> = own.collect();
    for (name, waits) in waiting.all() {
        all.entry(name).or_insert_with(|| asked(waits));
    }
    all.into_iter().map(|(name, count)| (number(count), vec![of_stream_consumer(&name)])).collect()
}

fn of_stream_consumer(name: &str) -> KeyValue {
    KeyValue::new(catalogue::STREAM_CONSUMER, name.to_owned())
}

fn name(consumer: &ConsumerName) -> KeyValue {
    KeyValue::new(catalogue::CONSUMER, consumer.as_str().to_owned())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a figure for people: beyond 2^53 its last digits do not matter"
)]
fn number(count: u64) -> f64 {
    count as f64
}
