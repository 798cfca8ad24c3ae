//! The operators' address: `/livez`, `/readyz` and `/metrics`.
//!
//! Every answer comes from memory. Connections are bounded in number and time, so nobody can keep others out for long.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use seqline::Clock;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Health;
use crate::failure::Failure;
use crate::limits::{ACCEPT_PAUSE, OPS_REQUEST_BYTES_MAX};
use crate::metrics::Metrics;

/// The address, open but not answering yet.
#[derive(Debug)]
pub(crate) struct OpsServer {
    listener: TcpListener,
    address: SocketAddr,
}

/// What bounds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) connections: u32,
    pub(crate) request_timeout: Duration,
}

#[derive(Clone)]
struct Told {
    health: Health,
    metrics: Metrics,
    role: &'static str,
}

impl OpsServer {
    /// Opens the address, so that one that cannot be had is told before anything runs. `named` is who gave it.
    pub(crate) async fn bind(address: SocketAddr, named: &str) -> Result<Self, Failure> {
        let (listener, address) = crate::address::open(address, named).await?;
        Ok(Self { listener, address })
    }

    /// Where it is, with the port that it got.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is cancelled.
    pub(crate) async fn run(
        self,
        bounds: Bounds,
        health: Health,
        metrics: Metrics,
        role: &'static str,
        clock: Clock,
        stop: CancellationToken,
    ) {
        let service = router(Told { health, metrics, role });
        let places = Arc::new(Semaphore::new(usize::try_from(bounds.connections).unwrap_or(usize::MAX)));
        let mut connections = JoinSet::new();
        loop {
            // A place first: who waits for one waits in the queue of the system, which is bounded.
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place,
                () = stop.cancelled() => return,
            };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            while connections.try_join_next().is_some() {}
            match (accepted, place) {
                (Ok((stream, _)), Ok(place)) => {
                    let service = service.clone();
                    let clock = clock.clone();
                    connections.spawn(async move {
                        // One that does not take its answer keeps no place either.
                        let serving = serve(stream, service, bounds.request_timeout);
                        clock.timeout(bounds.request_timeout * 2, serving).await;
                        drop(place);
                    });
                }
                _ => clock.sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// One connection, until its client has nothing more to say. What goes wrong with it is the client's affair.
async fn serve(stream: TcpStream, service: Router, request_timeout: Duration) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(request_timeout)
        .max_buf_size(OPS_REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let _ = connection.await;
}

fn router(told: Told) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(told)
}

async fn livez(State(told): State<Told>) -> Response {
    document(
        StatusCode::OK,
        &json!({ "alive": true, "role": told.role, "version": env!("CARGO_PKG_VERSION") }),
    )
}

async fn readyz(State(told): State<Told>) -> Response {
    let checks = told.health.checks();
    let ready = checks.iter().all(|check| check.ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    document(status, &json!({ "ready": ready, "role": told.role, "checks": checks }))
}

async fn metrics(State(told): State<Told>) -> Response {
    match told.metrics.text() {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => {
            tracing::error!(error, "metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn document(status: StatusCode, value: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}
