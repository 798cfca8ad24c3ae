//! What leaves the process by itself: metrics and traces over OTLP, where an endpoint is set.
//!
//! Traces hold what logs hold: names, numbers and ids, and never what an event says. That something cannot be sent never reaches the data
//! path: it waits in a bounded queue and is dropped when that is full.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use seqline::Clock;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::config::Config;
use crate::failure::Failure;
use crate::limits::{LOOKS_MISSED_MAX, TELEMETRY_SEND_TIMEOUT};
use crate::metrics::Metrics;

/// The figures and traces of a server process.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Not on a thread of the runtime: what sends has threads of its own, which wait.
    pub(crate) fn new(config: &Config, clock: Clock) -> Result<Self, Failure> {
        let keys = &config.telemetry;
        let endpoint = Some(keys.otlp_endpoint.as_str()).filter(|endpoint| !endpoint.is_empty());
        let metrics = Metrics::new(endpoint, clock, keys.refresh_interval * LOOKS_MISSED_MAX)?;
        let traces = endpoint.map(|endpoint| traces(endpoint, keys.trace_sample_percent)).transpose()?;
        Ok(Self { metrics, traces })
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

    /// Sends what is left. Not on a thread of the runtime.
    pub(crate) fn shutdown(&self) {
        if let Some(traces) = &self.traces {
            // What nobody received is lost, and so is what says so.
            let _ = traces.shutdown_with_timeout(TELEMETRY_SEND_TIMEOUT);
        }
        self.metrics.shutdown(TELEMETRY_SEND_TIMEOUT);
    }
}

/// What sends metrics.
pub(crate) fn metric_exporter(endpoint: &str) -> Result<MetricExporter, Failure> {
    let builder = MetricExporter::builder().with_http().with_endpoint(path(endpoint, "metrics"));
    builder.with_timeout(TELEMETRY_SEND_TIMEOUT).build().map_err(|_| unusable())
}

/// Who sends them.
pub(crate) fn resource() -> Resource {
    Resource::builder().with_service_name("seqline").build()
}

fn traces(endpoint: &str, sample_percent: u32) -> Result<SdkTracerProvider, Failure> {
    let builder = SpanExporter::builder().with_http().with_endpoint(path(endpoint, "traces"));
    let exporter = builder.with_timeout(TELEMETRY_SEND_TIMEOUT).build().map_err(|_| unusable())?;
    let sampler =
        Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(f64::from(sample_percent) / 100.0)));
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(sampler)
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
