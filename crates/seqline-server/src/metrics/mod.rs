//! The figures of a process: what they are called (`catalogue`), what they are made of (`facts`, `points`), and who reads them.
//!
//! Instruments are OpenTelemetry's, so the same figures go to `/metrics` and, where an endpoint is set, over OTLP. What comes from the
//! database is read by a task now and then and remembered: a scrape waits for nothing, and shows nothing that is too old.

pub mod catalogue;

mod facts;
mod points;
mod refresh;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Encoder, Registry, TextEncoder};
use seqline::Clock;

use self::catalogue::{Kind, METRICS, Metric};
use self::points::Point;
pub(crate) use self::points::Retention;
pub(crate) use self::refresh::{Reading, run as refresh};
use crate::failure::Failure;
use crate::telemetry::{self, MetricSender};

/// Upper bounds of the buckets of times, in seconds: from what a notification takes to what is an outage.
const SECONDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// One figure: its value, and the values of its attributes.
pub(crate) type Value = (f64, Vec<KeyValue>);

/// The figures of this process. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    meter: Meter,
    provider: SdkMeterProvider,
    registry: Registry,
    latest: Latest,
}

/// What the database showed when it was read last.
#[derive(Debug, Clone)]
pub(crate) struct Latest {
    clock: Clock,
    age_max: Duration,
    points: Arc<Mutex<Option<Read>>>,
}

/// When they were read, and what.
type Read = (Duration, Vec<Point>);

impl Metrics {
    /// Figures that go to `/metrics`, and out of the process if there is something that sends them. What the database showed counts for `age_max`.
    ///
    /// Not on a thread of the runtime: what sends has a thread of its own, which waits.
    pub(crate) fn new(
        sender: Option<MetricSender>,
        clock: Clock,
        age_max: Duration,
    ) -> Result<Self, Failure> {
        let unexpected = |error: &dyn std::fmt::Display| Failure::Unexpected(error.to_string());
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .map_err(|error| unexpected(&error))?;
        let mut builder =
            SdkMeterProvider::builder().with_reader(exporter).with_resource(telemetry::resource());
        if let Some(sender) = sender {
            builder = builder.with_periodic_exporter(sender);
        }
        let provider = builder.build();
        let meter = provider.meter("seqline");
        let latest = Latest { clock, age_max, points: Arc::default() };
        let metrics = Self { meter, provider, registry, latest };
        for metric in METRICS.iter().filter(|metric| metric.shared) {
            let latest = metrics.latest.clone();
            metrics.observe(metric, move || latest.values(metric));
        }
        Ok(metrics)
    }

    /// Shows what `values` says whenever somebody reads. It must not wait for anything.
    pub(crate) fn observe(
        &self,
        metric: &'static Metric,
        values: impl Fn() -> Vec<Value> + Send + Sync + 'static,
    ) {
        match metric.kind {
            Kind::Gauge => {
                let builder = self.meter.f64_observable_gauge(metric.name).with_unit(metric.unit);
                let builder = builder.with_description(metric.doc).with_callback(move |observer| {
                    values().iter().for_each(|(value, attributes)| observer.observe(*value, attributes));
                });
                let _registered = builder.build();
            }
            Kind::Counter | Kind::Histogram => {
                let builder = self.meter.f64_observable_counter(metric.name).with_unit(metric.unit);
                let builder = builder.with_description(metric.doc).with_callback(move |observer| {
                    values().iter().for_each(|(value, attributes)| observer.observe(*value, attributes));
                });
                let _registered = builder.build();
            }
        }
    }

    /// What counts single things.
    pub(crate) fn count(&self, metric: &'static Metric) -> Counter<f64> {
        self.meter.f64_counter(metric.name).with_unit(metric.unit).with_description(metric.doc).build()
    }

    /// What takes the values of a histogram of seconds.
    pub(crate) fn seconds(&self, metric: &'static Metric) -> Histogram<f64> {
        let builder = self.meter.f64_histogram(metric.name).with_unit(metric.unit);
        builder.with_description(metric.doc).with_boundaries(SECONDS.to_vec()).build()
    }

    /// All figures as Prometheus reads them.
    pub(crate) fn text(&self) -> Result<String, String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text).map_err(|error| error.to_string())?;
        String::from_utf8(text).map_err(|error| error.to_string())
    }

    /// Sends what is left. Not on a thread of the runtime.
    pub(crate) fn shutdown(&self, limit: Duration) {
        // What nobody received is lost, and so is what says so.
        let _ = self.provider.shutdown_with_timeout(limit);
    }
}

impl Latest {
    fn set(&self, points: Option<Vec<Point>>) {
        let now = self.clock.elapsed();
        *self.points.lock().unwrap_or_else(PoisonError::into_inner) = points.map(|points| (now, points));
    }

    /// What was read of a metric; nothing when it is too old.
    fn values(&self, metric: &Metric) -> Vec<Value> {
        let now = self.clock.elapsed();
        let latest = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, points)) = latest.as_ref().filter(|(at, _)| now.saturating_sub(*at) <= self.age_max)
        else {
            return Vec::new();
        };
        let of_metric = points.iter().filter(|point| point.metric.name == metric.name);
        of_metric.map(|point| (point.value, point.attributes())).collect()
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    const AGE_MAX: Duration = Duration::from_secs(30);

    fn metrics() -> (Metrics, seqline::clock::ClockHand) {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        (Metrics::new(None, clock, AGE_MAX).unwrap(), hand)
    }

    /// The names under which something is shown.
    fn shown(metrics: &Metrics) -> Vec<String> {
        let text = metrics.text().unwrap();
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect()
    }

    #[test]
    fn every_metric_is_shown_under_the_name_and_as_the_kind_that_the_catalogue_says() {
        let (metrics, _hand) = metrics();
        let points = METRICS.iter().filter(|metric| metric.shared).map(|metric| Point::new(metric, 1.0));
        metrics.latest.set(Some(points.collect()));
        for metric in METRICS.iter().filter(|metric| !metric.shared) {
            match metric.kind {
                Kind::Histogram => metrics.seconds(metric).record(0.1, &[]),
                _ => metrics.observe(metric, || vec![(1.0, Vec::new())]),
            }
        }
        let expected = METRICS.iter().map(|metric| {
            let kind = format!("{:?}", metric.kind).to_lowercase();
            format!("{} {kind}", metric.prometheus_name())
        });
        let mut expected: Vec<String> = expected.collect();
        expected.sort();
        assert_eq!(shown(&metrics), expected);
    }

    #[test]
    fn what_the_database_showed_is_not_shown_when_it_is_old_or_the_last_look_failed() {
        let (metrics, hand) = metrics();
        let points = || Some(vec![Point::new(&catalogue::LOG_HEAD, 7.0)]);
        metrics.latest.set(points());
        hand.advance(AGE_MAX);
        assert!(metrics.text().unwrap().contains("\nseqline_log_head 7\n"), "{}", metrics.text().unwrap());
        hand.advance(Duration::from_millis(1));
        assert_eq!(metrics.text().unwrap(), "");
        metrics.latest.set(points());
        assert_ne!(metrics.text().unwrap(), "");
        metrics.latest.set(None);
        assert_eq!(metrics.text().unwrap(), "");
    }
}
