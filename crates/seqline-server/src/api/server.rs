//! The connections of the API.
//!
//! Whatever a client does or does not do, its connection costs one place, and those are counted. One that says nothing, or takes nothing
//! of its answer, loses it after a while. At the end each client gets the answer to what it has asked, and no more. What is around each
//! answer is in `answer`.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Version;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use seqline::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::gateway::ConnectionPlace;
use super::{Door, Problem, routes};
use crate::failure::Failure;
use crate::limits::{ACCEPT_PAUSE, API_HEAD_BYTES_MAX, API_PING_INTERVAL, API_STREAMS_MAX};

mod answer;
mod taken;
mod unread;

pub(super) use answer::REQUEST_ID;
use answer::answer;
use taken::{Answers, Taken};
use unread::Unread;

/// The address, open but not answering yet.
#[derive(Debug)]
pub(crate) struct ApiServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl ApiServer {
    /// Opens the address. `named` is who gave it.
    pub(crate) async fn bind(address: SocketAddr, named: &str) -> Result<Self, Failure> {
        let (listener, address) = crate::address::open(address, named).await?;
        Ok(Self { listener, address })
    }

    /// Where it is, with the port that it got.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is cancelled, and returns when all that was asked by then is answered.
    pub(crate) async fn run(self, door: Door, stop: CancellationToken) {
        let router = router(door.clone());
        let most = usize::try_from(door.config.api.connections_max).unwrap_or(usize::MAX);
        let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let mut connections = JoinSet::new();
        loop {
            // A place first: who waits for one waits in the queue of the system, which is bounded.
            let place = tokio::select! {
                place = places.clone().acquire_owned() => place,
                () = stop.cancelled() => break,
            };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            while connections.try_join_next().is_some() {}
            match (accepted, place) {
                (Ok((stream, _)), Ok(place)) => {
                    let (router, door, stop) = (router.clone(), door.clone(), stop.clone());
                    connections.spawn(async move {
                        serve(stream, router, &door, &stop, ConnectionPlace(Arc::new(place))).await;
                    });
                }
                _ => door.clock.sleep(ACCEPT_PAUSE).await,
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }
}

/// One connection, until its client has nothing more to say. What goes wrong with it is the client's affair.
async fn serve(
    stream: TcpStream,
    router: Router,
    door: &Door,
    stop: &CancellationToken,
    place: ConnectionPlace,
) {
    // An event is small and wanted at once.
    let _ = stream.set_nodelay(true);
    let keys = &door.config.api;
    let stream = Unread::new(stream, keys.write_timeout, door.clock.clone());
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(keys.request_timeout)
        .max_buf_size(API_HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(API_STREAMS_MAX)
        .max_header_list_size(u32::try_from(API_HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .keep_alive_interval(API_PING_INTERVAL)
        .keep_alive_timeout(keys.request_timeout);
    let (asked, answers) = (Arc::new(Activity::default()), Answers::new(door.clock.clone()));
    let (counted, watched) = (asked.clone(), answers.clone());
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let (router, under_way) = (router.clone(), UnderWay::begin(&counted));
        // With an older version nothing but the connection holds an answer up, and that is watched itself.
        let answers = (request.version() == Version::HTTP_2).then(|| watched.clone());
        let mut request = request.map(Body::new);
        // A connection that becomes one of the gateway keeps its place.
        request.extensions_mut().insert(place.clone());
        async move {
            let Ok(response) = router.oneshot(request).await;
            let watched = |body| match &answers {
                Some(answers) => Body::new(Taken::new(body, answers)),
                None => body,
            };
            let counted = |body| Counted { body: watched(body), _under_way: under_way };
            Ok::<_, std::convert::Infallible>(response.map(counted))
        }
    });
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        // Whoever takes nothing is not told that this ends, which it would not take either.
        () = answers.untaken(keys.write_timeout) => return,
        () = stop.cancelled() => {}
        () = asked.ends(&door.clock, keys.request_timeout) => {}
    }
    connection.as_mut().graceful_shutdown();
    // What is being answered is answered; one that was silent has nothing to wait for.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = answers.untaken(keys.write_timeout) => {}
        () = asked.ends(&door.clock, keys.request_timeout) => {}
    }
}

/// What was asked on one connection.
#[derive(Debug, Default)]
struct Activity {
    ever: AtomicUsize,
    under_way: AtomicUsize,
}

impl Activity {
    /// Returns when nothing was asked, and nothing was under way, for about `limit`.
    async fn ends(&self, clock: &Clock, limit: Duration) {
        loop {
            let before = self.ever.load(Ordering::Relaxed);
            let busy = self.under_way.load(Ordering::Relaxed) > 0;
            clock.sleep(limit).await;
            let silent = self.ever.load(Ordering::Relaxed) == before;
            if !busy && silent && self.under_way.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

/// A request, until its answer was sent or given up.
struct UnderWay(Arc<Activity>);

impl UnderWay {
    fn begin(asked: &Arc<Activity>) -> Self {
        asked.ever.fetch_add(1, Ordering::Relaxed);
        asked.under_way.fetch_add(1, Ordering::Relaxed);
        Self(asked.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer on its way.
struct Counted {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn router(door: Door) -> Router {
    let (router, _) = routes::all();
    router
        .fallback(async || Problem::not_found("there is nothing at this path"))
        .method_not_allowed_fallback(async || {
            Problem::new(super::Code::MethodNotAllowed, "what is at this path does not know this method")
        })
        .layer(axum::middleware::from_fn_with_state(door.clone(), answer))
        .with_state(door)
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use axum::routing::get;

    use super::*;
    use crate::config::Config;
    use crate::ops::{self, Health};
    use crate::telemetry::Telemetry;

    /// Nobody has looked at a database yet.
    fn door() -> Door {
        let (config, clock) = (Config::default(), Clock::system());
        let telemetry = Telemetry::new(&config, clock.clone()).unwrap();
        let health = Health::new(clock.clone(), ops::limits(&config));
        Door::new(&config, &clock, &health, &telemetry.metrics, None)
    }

    async fn ask(router: Router, path: &str) -> (u16, String) {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 10_000_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_request_that_panics_is_answered_without_what_the_panic_says() {
        let door = door();
        let router = Router::new()
            .route("/panics", get(async || -> &'static str { panic!("hunter2") }))
            .layer(axum::middleware::from_fn_with_state(door.clone(), answer))
            .with_state(door);
        let (status, body) = ask(router, "/panics").await;
        assert_eq!(status, 500);
        assert!(body.contains("\"code\":\"internal\"") && !body.contains("hunter2"), "{body}");
    }

    #[tokio::test]
    async fn before_a_database_was_seen_everything_but_the_document_is_to_come_again() {
        for (path, status) in
            [("/v1/me", 503), ("/v1/log", 503), ("/v1/openapi.json", 200), ("/v1/docs/", 200)]
        {
            assert_eq!(ask(router(door()), path).await.0, status, "{path}");
        }
    }
}
