//! What leaves the process by itself: metrics and traces over OTLP, where an endpoint is set.
//!
//! Traces hold what logs hold: names, numbers and ids, and never what an event says. That something cannot be sent never reaches the data
//! path: it waits in a bounded queue and is dropped when that is full, and it is said once.

mod delivery;
mod sampling;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use seqline::Clock;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use self::delivery::Delivery;
use self::sampling::Linked;
use crate::config::Config;
use crate::failure::Failure;
use crate::limits::{LOOKS_MISSED_MAX, TELEMETRY_SEND_TIMEOUT};
use crate::metrics::Metrics;

/// The figures and traces of a server process.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    traces: Option<SdkTracerProvider>,
    /// Whether it is no longer said that nothing arrives.
    silent: Arc<AtomicBool>,
}

impl Telemetry {
    /// Not on a thread of the runtime: what sends has threads of its own, which wait.
    pub(crate) fn new(config: &Config, clock: Clock) -> Result<Self, Failure> {
        let keys = &config.telemetry;
        let endpoint = Some(keys.otlp_endpoint.as_str()).filter(|endpoint| !endpoint.is_empty());
        let silent = Arc::new(AtomicBool::new(false));
        let sender = endpoint.map(|endpoint| metric_sender(endpoint, &silent)).transpose()?;
        let metrics = Metrics::new(sender, clock, keys.refresh_interval * LOOKS_MISSED_MAX)?;
        let traces = endpoint.map(|endpoint| traces(endpoint, keys.trace_sample_percent, &silent));
        Ok(Self { metrics, traces: traces.transpose()?, silent })
    }

    /// What makes traces of the product's own spans, whatever the filter of the logs says. Not of what is logged below `info`: an error of a
    /// handler, which is logged at `debug`, can hold anything.
    pub(crate) fn layer<S>(&self) -> Option<impl Layer<S>>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer = self.traces.as_ref()?.tracer("seqline");
        let layer =
            tracing_opentelemetry::layer().with_tracer(tracer).with_location(false).with_threads(false);
        Some(layer.with_filter(Targets::new().with_target("seqline", LevelFilter::INFO)))
    }

    /// Sends what is left, figures and traces at the same time. Not on a thread of the runtime.
    pub(crate) fn shutdown(&self) {
        self.silent.store(true, Ordering::Relaxed);
        // Nothing comes through it: it breaks when both have ended. They are not waited for in another way, because what sends metrics
        // takes longer than it is told.
        let (ending, ended) = mpsc::channel::<()>();
        if let Some(traces) = self.traces.clone() {
            let ending = ending.clone();
            beside(move || {
                let _ending = ending;
                // What nobody received is lost, and so is what says so.
                let _ = traces.shutdown_with_timeout(TELEMETRY_SEND_TIMEOUT);
            });
        }
        let metrics = self.metrics.clone();
        beside(move || {
            let _ending = ending;
            metrics.shutdown(TELEMETRY_SEND_TIMEOUT);
        });
        let _ = ended.recv_timeout(TELEMETRY_SEND_TIMEOUT);
    }
}

/// On a thread of its own, which the end of the process does not wait for. Where none can be had, what is left is lost.
fn beside(work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().spawn(work);
}

/// What sends metrics.
pub(crate) type MetricSender = Delivery<MetricExporter>;

fn metric_sender(endpoint: &str, silent: &Arc<AtomicBool>) -> Result<MetricSender, Failure> {
    let builder = MetricExporter::builder().with_http().with_endpoint(path(endpoint, "metrics"));
    let exporter = builder.with_timeout(TELEMETRY_SEND_TIMEOUT).build().map_err(|_| unusable())?;
    Ok(Delivery::new(exporter, "metrics", silent.clone()))
}

/// Who sends them.
pub(crate) fn resource() -> Resource {
    Resource::builder().with_service_name("seqline").build()
}

fn traces(
    endpoint: &str,
    sample_percent: u32,
    silent: &Arc<AtomicBool>,
) -> Result<SdkTracerProvider, Failure> {
    let builder = SpanExporter::builder().with_http().with_endpoint(path(endpoint, "traces"));
    let exporter = builder.with_timeout(TELEMETRY_SEND_TIMEOUT).build().map_err(|_| unusable())?;
    let part = Sampler::TraceIdRatioBased(f64::from(sample_percent) / 100.0);
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(Delivery::new(exporter, "traces", silent.clone()))
        .with_sampler(Sampler::ParentBased(Box::new(Linked(part))))
        .with_resource(resource())
        .build())
}

/// Where a signal goes below the endpoint.
fn path(endpoint: &str, signal: &str) -> String {
    format!("{}/v1/{signal}", endpoint.trim_end_matches('/'))
}

/// Without what the library says: it could repeat a header, which can be a token.
fn unusable() -> Failure {
    Failure::Usage("telemetry.otlp_endpoint, or a variable OTEL_EXPORTER_OTLP_..., is not usable".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_path_below_the_endpoint() {
        for endpoint in ["http://127.0.0.1:4318", "http://127.0.0.1:4318/"] {
            assert_eq!(path(endpoint, "traces"), "http://127.0.0.1:4318/v1/traces");
        }
    }

    #[test]
    fn without_an_endpoint_nothing_is_traced() {
        let telemetry = Telemetry::new(&Config::default(), Clock::system()).unwrap();
        assert!(telemetry.layer::<tracing_subscriber::Registry>().is_none());
    }
}
