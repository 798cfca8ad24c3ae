//! Whether what is sent arrives: said once when it does not, and once when it does again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// What sends something, and tells how that goes.
#[derive(Debug)]
pub(crate) struct Delivery<E> {
    exporter: E,
    /// What is sent.
    signal: &'static str,
    failing: AtomicBool,
    /// Whether the process ends: who would be told then has heard its last line.
    silent: Arc<AtomicBool>,
}

impl<E> Delivery<E> {
    pub(super) fn new(exporter: E, signal: &'static str, silent: Arc<AtomicBool>) -> Self {
        Self { exporter, signal, failing: AtomicBool::new(false), silent }
    }

    /// Without what the exporter says: it could repeat a header, which can be a token.
    fn note(&self, sent: OTelSdkResult) -> OTelSdkResult {
        let (signal, failed) = (self.signal, sent.is_err());
        if !self.silent.load(Ordering::Relaxed) && self.failing.swap(failed, Ordering::Relaxed) != failed {
            match failed {
                true => tracing::warn!(signal, "telemetry does not arrive, it is lost meanwhile"),
                false => tracing::info!(signal, "telemetry arrives again"),
            }
        }
        sent
    }
}

impl<E: SpanExporter> SpanExporter for Delivery<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.note(self.exporter.export(batch).await)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Delivery<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.note(self.exporter.export(metrics).await)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}
