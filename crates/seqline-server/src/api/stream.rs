//! The log as a stream of server-sent events: what a reader may see, as it comes, until it goes away.
//!
//! Each event has its position as its id, so that a client that comes back goes on where it was: browsers do that on their own, with the
//! header `Last-Event-ID`. A stream starts with what was appended since the position and goes over to what comes live, through the same
//! [`Reader`](super::hub::reader::Reader) as pages do. When there is nothing to send, a heartbeat says that the stream lives and how far it
//! has looked, so that a client whose filter matches nothing comes back with a new position as well.
//!
//! Who reads is looked up again for each page and each heartbeat: a token that was revoked ends the stream, a grant that was taken back
//! changes it. While the database is away nothing is handed out, and the stream goes on when it is back. A client that takes
//! nothing holds up nobody: one piece waits for it, nothing is read for it, and its connection is closed after `api.write_timeout`.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::task::task_tracker::TaskTrackerToken;
use utoipa::IntoParams;

use super::events::{SelectingParams, take_place};
use super::hub::page::{Page, PageLimits};
use super::hub::rendered::Rendered;
use super::hub::waiting::{Kind, WaitingPlace};
use super::query::{self, After, SELECTING, Selection};
use super::{Api, Caller, Code, Credential, Params, Problem};
use crate::limits::{
    API_RETRY_PAUSE, API_STREAM_PAGE_BYTES, API_STREAM_PAGE_EVENTS, API_STREAM_RETRY_MAX,
    API_STREAM_RETRY_MIN,
};

/// Where a client says up to which event it has had a stream before.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The name of the one event that is not of the log: it says why the stream ends. Those of the log have none, so a client gets all of them
/// as messages; their types are in their envelopes.
const PROBLEM_EVENT: &str = "problem";

/// The position of a stream, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "queries are read by another module, which names all that is wrong; this describes them"
)]
pub(super) struct StreamParams {
    /// The position up to which you have read, or `oldest`, or `head`. Not needed with `Last-Event-ID`, which goes before it.
    #[param(
        nullable = false,
        example = "head",
        pattern = r"^(oldest|head|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:(0|[1-9][0-9]{0,17}))$"
    )]
    after: Option<String>,
}

/// Events as they come
///
/// A stream of server-sent events: what you may see of the log after a position, then what is appended from now on. Each message is an
/// event, with its envelope as data and its position as id. Give the last id back as `Last-Event-ID`, or as `after`, to go on. Comments and
/// messages without data are heartbeats. An event named `problem` says why the stream ends, in the form of a refusal.
#[utoipa::path(
    get,
    path = "/v1/events/stream",
    operation_id = "stream_events",
    tag = "events",
    security(("token" = [])),
    params(
        StreamParams,
        SelectingParams,
        ("Last-Event-ID" = Option<String>, Header, nullable = false, description = "The position up to which you have read."),
    ),
    responses(
        (status = 200, description = "The stream, which has no end.", body = String, content_type = "text/event-stream"),
        (status = 410, description = "The position cannot be read from: start anew.", body = super::problem::Document<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A parameter is not as expected.", body = super::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn follow(
    api: Api,
    caller: Caller,
    headers: HeaderMap,
    Params(pairs): Params<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let known: Vec<&str> = ["after"].into_iter().chain(SELECTING).collect();
    let asked = query::parse(&pairs, &known)?;
    let after = match last_event_id(&headers)? {
        Some(after) => after,
        None => query::required(asked.after)?,
    };
    let place = take_place(&api, &caller, Kind::Stream)?;
    let position = api.reader.begin(after).await?;
    // What cannot be read from is said now, while the answer can still be a refusal.
    let mut first = Page::new(position, LIMITS);
    api.reader.fill(&mut first, &caller.credential, &asked.selection).await?;
    let (sender, receiver) = mpsc::channel(1);
    let under_way = api.under_way();
    let streaming = Streaming {
        sender,
        sent_at: api.clock.elapsed(),
        api,
        credential: caller.credential,
        selection: asked.selection,
        _place: place,
        _under_way: under_way,
    };
    tokio::spawn(streaming.run(first));
    let pieces = stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|piece: Bytes| (Ok::<_, Infallible>(piece), receiver))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // A proxy that collects an answer before it passes it on would keep it for ever.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// What one page of a stream holds.
const LIMITS: PageLimits = PageLimits { events: API_STREAM_PAGE_EVENTS, bytes: API_STREAM_PAGE_BYTES };

/// An empty one, which browsers send for a stream that had no event, is none.
fn last_event_id(headers: &HeaderMap) -> Result<Option<After>, Problem> {
    let Some(given) = headers.get(LAST_EVENT_ID).filter(|given| !given.is_empty()) else { return Ok(None) };
    let position = given.to_str().ok().and_then(|text| text.parse().ok());
    let position = position.ok_or_else(|| {
        Problem::new(Code::ValidationFailed, "the header Last-Event-ID is not the id of an event of a stream")
    })?;
    Ok(Some(After::At(position)))
}

/// A stream while it runs.
struct Streaming {
    api: Api,
    credential: Credential,
    selection: Selection,
    /// One piece at a time: whoever does not take it is not read for.
    sender: mpsc::Sender<Bytes>,
    /// When the last piece was sent, by the clock's elapsed time.
    sent_at: Duration,
    _place: WaitingPlace,
    /// The end of the epoch waits for it.
    _under_way: TaskTrackerToken,
}

/// A stream is over: its client went away or takes nothing, the server stops, or it was said why.
struct Over;

impl Streaming {
    async fn run(mut self, first: Page) {
        let stop = self.api.stop.clone();
        tokio::select! {
            // Whichever it is, there is nothing to do any more.
            _ = self.follow(first) => {}
            () = stop.cancelled() => {}
        }
    }

    async fn follow(&mut self, first: Page) -> Result<(), Over> {
        // Before the first event, so that a client that loses the connection now comes back to this place.
        let retry_ms = fastrand::u128(API_STREAM_RETRY_MIN.as_millis()..=API_STREAM_RETRY_MAX.as_millis());
        self.send(format!("retry: {retry_ms}\n\n").into()).await?;
        let mut page = first;
        let mut caught_up = false;
        loop {
            let position = page.position;
            // What comes from memory waits for nothing, and others have a turn too.
            tokio::task::yield_now().await;
            if !page.events.is_empty() {
                for piece in pieces(&page.events) {
                    self.send(piece).await?;
                }
            } else if caught_up {
                let heartbeat_in = self.heartbeat_in();
                tokio::select! {
                    () = self.api.reader.hub.passes(position) => {}
                    () = self.api.clock.sleep(heartbeat_in) => self.heartbeat(position).await?,
                    () = self.sender.closed() => return Err(Over),
                }
            } else if self.heartbeat_in().is_zero() {
                self.heartbeat(position).await?;
            }
            page = Page::new(position, LIMITS);
            caught_up = self.next(&mut page).await?;
        }
    }

    /// Fills a page, however long that takes, and says whether it has caught up.
    async fn next(&mut self, page: &mut Page) -> Result<bool, Over> {
        loop {
            let position = page.position;
            let filled = {
                let (reader, credential, selection) =
                    (self.api.reader.clone(), self.credential.clone(), self.selection.clone());
                self.while_it_lives(position, reader.fill(page, &credential, &selection)).await?
            };
            match filled {
                Ok(head) => return Ok(page.position >= head),
                // Nobody is given anything meanwhile, and nobody has to come anew.
                Err(refused) if refused.is_outage() => {
                    if self.heartbeat_in().is_zero() {
                        self.beat(position).await?;
                    }
                    tokio::select! {
                        () = self.api.clock.sleep(API_RETRY_PAUSE) => {}
                        () = self.sender.closed() => return Err(Over),
                    }
                }
                Err(refused) => return self.end(&refused.into()).await,
            }
        }
    }

    /// Does some work and lets the stream live meanwhile. The work may hold what others wait for, a connection or a place of theirs, so it
    /// never stands still because a client takes nothing.
    async fn while_it_lives<T>(&mut self, position: i64, work: impl Future<Output = T>) -> Result<T, Over> {
        let mut work = pin!(work);
        loop {
            let heartbeat_in = self.heartbeat_in();
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = self.sender.closed() => return Err(Over),
                () = self.api.clock.sleep(heartbeat_in) => self.beat_if_taken(position)?,
            }
        }
    }

    /// A heartbeat of a stream that waits. It ends if its token is no longer good.
    async fn heartbeat(&mut self, position: i64) -> Result<(), Over> {
        let (reader, credential) = (self.api.reader.clone(), self.credential.clone());
        match self.while_it_lives(position, reader.access(&credential)).await? {
            Err(refused) if !refused.is_outage() => self.end(&refused.into()).await,
            _ if self.heartbeat_in().is_zero() => self.beat(position).await,
            _ => Ok(()),
        }
    }

    /// A comment for those who look at the connection, and a message without data, which moves the id that the client comes back with and
    /// is not shown to it.
    async fn beat(&mut self, position: i64) -> Result<(), Over> {
        self.send(self.heartbeat_text(position)).await
    }

    /// The same where nothing may wait: while a piece is on its way to the client, that says that the stream lives.
    fn beat_if_taken(&mut self, position: i64) -> Result<(), Over> {
        self.sent_at = self.api.clock.elapsed();
        match self.sender.try_send(self.heartbeat_text(position)) {
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(Over),
        }
    }

    fn heartbeat_text(&self, position: i64) -> Bytes {
        format!(": heartbeat\nid: {}\n\n", self.api.position(position)).into()
    }

    fn heartbeat_in(&self) -> Duration {
        let due = self.sent_at + self.api.config.api.stream_heartbeat_interval;
        due.saturating_sub(self.api.clock.elapsed())
    }

    /// Says why the stream ends, and ends it.
    async fn end<T>(&mut self, problem: &Problem) -> Result<T, Over> {
        let document = serde_json::to_string(&problem.document()).unwrap_or_default();
        self.send(format!("event: {PROBLEM_EVENT}\ndata: {document}\n\n").into()).await?;
        Err(Over)
    }

    /// Gives a piece to the connection, when that has taken the one before. The connection is closed by others when it takes nothing; here
    /// it is given up, for those that go on with other streams.
    async fn send(&mut self, piece: Bytes) -> Result<(), Over> {
        let sent = self.api.clock.timeout(self.api.config.api.write_timeout, self.sender.send(piece)).await;
        self.sent_at = self.api.clock.elapsed();
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(Over),
        }
    }
}

/// Few pieces for many small events, and no copy of a large one.
fn pieces(events: &[Arc<Rendered>]) -> Vec<Bytes> {
    if let [event] = events {
        return vec![event.frame()];
    }
    let mut pieces = Vec::new();
    let mut small = Vec::new();
    for event in events {
        let frame = event.frame();
        if frame.len() >= API_STREAM_PAGE_BYTES / 2 {
            if !small.is_empty() {
                pieces.push(std::mem::take(&mut small).into());
            }
            pieces.push(frame);
        } else {
            small.extend_from_slice(&frame);
        }
    }
    if !small.is_empty() {
        pieces.push(small.into());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use futures_util::poll;
    use seqline::Clock;
    use seqline::clock::ClockHand;
    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
    use time::OffsetDateTime;
    use tokio::sync::oneshot;
    use uuid::Uuid;

    use super::super::hub::rendered::tests::{EPOCH, stored};
    use super::super::{Hub, Position};
    use super::*;
    use crate::config::Config;
    use crate::ops::{self, Health};

    /// A stream whose client has taken nothing yet, and what it would take.
    fn streaming() -> (Streaming, mpsc::Receiver<Bytes>, ClockHand) {
        streaming_on(PgConnectOptions::new().host("/nowhere"))
    }

    /// The same with this database.
    fn streaming_on(database: PgConnectOptions) -> (Streaming, mpsc::Receiver<Bytes>, ClockHand) {
        let (config, (clock, hand)) = (Config::default(), Clock::manual(OffsetDateTime::UNIX_EPOCH));
        let pool = PgPoolOptions::new().connect_lazy_with(database);
        let health = Health::new(clock.clone(), ops::limits(&config));
        let api = Api::new(pool, &config, &clock, &Hub::for_config(EPOCH, 7, &config), &health);
        let (sender, receiver) = mpsc::channel(1);
        let streaming = Streaming {
            sender,
            sent_at: clock.elapsed(),
            credential: Credential::Token([7; 32]),
            selection: Selection::default(),
            _place: api.waiting.enter("alex", Kind::Stream).unwrap(),
            _under_way: api.under_way(),
            api,
        };
        (streaming, receiver, hand)
    }

    #[tokio::test]
    async fn what_a_stream_asks_goes_on_although_its_client_takes_nothing() {
        let (mut streaming, mut taken, hand) = streaming();
        let interval = streaming.api.config.api.stream_heartbeat_interval;
        streaming.send(Bytes::from_static(b"first")).await.ok().unwrap();
        let (answer, asked) = oneshot::channel();
        let mut working = Box::pin(streaming.while_it_lives(7, asked));
        for _ in 0..3 {
            assert!(poll!(&mut working).is_pending());
            hand.advance(interval);
        }
        assert!(poll!(&mut working).is_pending());
        answer.send("answer").unwrap();
        let std::task::Poll::Ready(Ok(done)) = poll!(&mut working) else { panic!("it goes on") };
        assert_eq!(done, Ok("answer"));
        drop(working);
        // What waited for it says that the stream lives: nothing was put behind that.
        assert_eq!(taken.try_recv().unwrap(), "first");
        assert!(taken.try_recv().is_err());
    }

    #[tokio::test]
    async fn an_idle_stream_beats_although_the_database_does_not_say_who_reads() {
        let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = silent.local_addr().unwrap().port();
        let (mut streaming, mut taken, hand) =
            streaming_on(PgConnectOptions::new().host("127.0.0.1").port(port));
        hand.advance(streaming.api.config.api.stream_heartbeat_interval);
        let mut beating = Box::pin(streaming.heartbeat(7));
        assert!(poll!(&mut beating).is_pending());
        assert_eq!(taken.try_recv().unwrap(), format!(": heartbeat\nid: {EPOCH}:7\n\n"));
    }

    #[tokio::test]
    async fn a_stream_beats_while_it_asks_and_ends_with_its_client() {
        let (mut streaming, mut taken, hand) = streaming();
        let interval = streaming.api.config.api.stream_heartbeat_interval;
        let mut working = Box::pin(streaming.while_it_lives(7, std::future::pending::<()>()));
        for _ in 0..3 {
            assert!(poll!(&mut working).is_pending());
            assert!(taken.try_recv().is_err());
            hand.advance(interval);
            assert!(poll!(&mut working).is_pending());
            assert_eq!(taken.try_recv().unwrap(), format!(": heartbeat\nid: {EPOCH}:7\n\n"));
        }
        drop(taken);
        assert!(matches!(poll!(&mut working), std::task::Poll::Ready(Err(Over))));
    }

    #[test]
    fn pieces_are_the_frames_one_after_the_other() {
        let large = format!("{{\"text\": \"{}\"}}", "x".repeat(API_STREAM_PAGE_BYTES));
        for sizes in
            [&["{}"][..], &["{}", "{}", "{}"], &["{}", &large, "{}", "{}"], &[&large], &[&large, &large]]
        {
            let events: Vec<_> = (1..)
                .zip(sizes)
                .map(|(seq, payload)| Rendered::new(EPOCH, stored(seq, "order.created", payload)))
                .collect();
            let frames: Vec<Bytes> = events.iter().map(|event| event.frame()).collect();
            let pieces = pieces(&events);
            assert_eq!(pieces.concat(), frames.concat());
            assert!(pieces.len() <= sizes.len());
        }
    }

    #[test]
    fn where_a_client_was_is_in_the_header() {
        let header = |text: &'static [u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(LAST_EVENT_ID, HeaderValue::from_bytes(text).unwrap());
            last_event_id(&headers)
        };
        let position = Position { epoch: Uuid::from_u128(7), seq: 42 };
        assert_eq!(header(b"00000000-0000-0000-0000-000000000007:42").unwrap(), Some(After::At(position)));
        assert_eq!((header(b"").unwrap(), last_event_id(&HeaderMap::new()).unwrap()), (None, None));
        for wrong in [&b"42"[..], b"head", b"\xff"] {
            assert_eq!(header(wrong).unwrap_err().code(), Code::ValidationFailed);
        }
    }
}
