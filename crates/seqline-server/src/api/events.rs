//! Pages of events, and waiting for the next one.
//!
//! A page has what the reader may see of the log after its position, and the position from which to go on. With `wait` the answer to a
//! reader that has read everything comes with the next event for it. Until then it waits in memory, without a connection to the
//! database.

use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use seqline::Clock;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use super::envelope::EventSchema;
use super::hub::page::{Page, PageLimits};
use super::hub::reader::Reader;
use super::hub::waiting::{Kind, WaitingPlace};
use super::query::{self, After, READING, ReadQuery, Resource, SELECTING, Selection};
use super::{Api, Caller, Code, Credential, Params, PathParams, Problem};
use crate::limits::{API_LOOK_MAX, API_PAGE_EVENTS_USUAL, API_RETRY_AFTER};

/// The next events of a reader.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the text is put together from what is rendered already; this describes it")]
pub(super) struct EventPage {
    /// What you may see and asked for, in the order of the log. Can be empty.
    events: Vec<EventSchema>,
    /// Pass it as `after` to get what comes next. It moves on even when the page is empty.
    #[schema(example = "0198c8f2-7a4b-7000-8000-00000000abcd:1042")]
    next: String,
    /// The position of the newest event in the log.
    #[schema(example = "0198c8f2-7a4b-7000-8000-00000000abcd:1042")]
    head: String,
    /// Whether there was nothing more to look at. If not, there is more to get at once.
    caught_up: bool,
}

/// Which events, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "queries are read by another module, which names all that is wrong; this describes them"
)]
pub(super) struct SelectingParams {
    /// Only events of these types. One that ends in `.*` stands for all that begin like this. Can be given several times, as the
    /// other lists.
    #[param(nullable = false, example = json!(["order.*"]))]
    r#type: Option<Vec<String>>,
    /// Only events in these spaces.
    #[param(nullable = false)]
    space_id: Option<Vec<String>>,
    /// Only events in these channels.
    #[param(nullable = false)]
    channel_id: Option<Vec<String>>,
    /// Only events about resources of these kinds.
    #[param(nullable = false)]
    resource_kind: Option<Vec<String>>,
    /// Only events about this resource, of the one kind that is given.
    #[param(nullable = false)]
    resource_id: Option<String>,
}

/// From where on, how much, how long, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "as above")]
pub(super) struct ReadingParams {
    /// The position up to which you have read: `next` of the page before, or `oldest` for all that is there, or `head` for what comes
    /// from now on.
    #[param(
        example = "oldest",
        pattern = r"^(oldest|head|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:(0|[1-9][0-9]{0,17}))$"
    )]
    after: String,
    /// The most events that you want, 100 if not given; the server gives no more than `api.page_events_max`.
    #[param(nullable = false, minimum = 1)]
    limit: Option<u32>,
    /// How many seconds to wait for the next event when there is none; the server waits no longer than `api.wait_max`.
    #[param(nullable = false, minimum = 0)]
    wait: Option<u32>,
}

/// The same, where a position need not be given, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "as above")]
pub(super) struct HistoryParams {
    /// The position up to which you have read: `next` of the page before, or `oldest`, as if it were not given, or `head`.
    #[param(
        nullable = false,
        pattern = r"^(oldest|head|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:(0|[1-9][0-9]{0,17}))$"
    )]
    after: Option<String>,
    /// The most events that you want, 100 if not given; the server gives no more than `api.page_events_max`.
    #[param(nullable = false, minimum = 1)]
    limit: Option<u32>,
    /// How many seconds to wait for the next event when there is none; the server waits no longer than `api.wait_max`.
    #[param(nullable = false, minimum = 0)]
    wait: Option<u32>,
}

/// A resource of an application.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ResourcePath {
    /// What it is, such as `order`.
    kind: String,
    /// Which one.
    id: String,
}

/// Events after a position
///
/// What you may see of the log after a position, in its order. Begin with `after=oldest` or `after=head`, then pass `next` of each page
/// as `after`. With `wait` the answer to a reader that has caught up comes with its next event, or when the time is up.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "list_events",
    tag = "events",
    security(("token" = [])),
    params(ReadingParams, SelectingParams),
    responses(
        (status = 200, description = "The next events.", body = EventPage),
        (status = 410, description = "The position cannot be read from: start anew.", body = super::problem::Document<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A parameter is not as expected.", body = super::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    api: Api,
    caller: Caller,
    Params(pairs): Params<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let known: Vec<&str> = READING.into_iter().chain(SELECTING).collect();
    let asked = query::parse(&pairs, &known)?;
    let after = query::required(asked.after)?;
    page(&api, &caller, after, asked).await
}

/// The history of a resource
///
/// The events about one resource, in the order of the log, from its first one that is there if no position is given. It pages and waits
/// like the list of all events.
#[utoipa::path(
    get,
    path = "/v1/resources/{kind}/{id}/events",
    operation_id = "list_resource_events",
    tag = "events",
    security(("token" = [])),
    params(ResourcePath, HistoryParams),
    responses(
        (status = 200, description = "The next events of this resource; none is not an error.", body = EventPage),
        (status = 410, description = "The position cannot be read from: start anew.", body = super::problem::Document<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A parameter is not as expected.", body = super::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn of_resource(
    api: Api,
    caller: Caller,
    PathParams(ResourcePath { kind, id }): PathParams<ResourcePath>,
    Params(pairs): Params<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    for (name, value) in [("kind", &kind), ("id", &id)] {
        query::possible_id(value).map_err(|what| {
            Problem::new(Code::ValidationFailed, "no resource can have this name")
                .at(format!("/{name}"), what)
        })?;
    }
    let mut asked = query::parse(&pairs, &READING)?;
    asked.selection.resource = Some(Resource { kind, id });
    let after = asked.after.unwrap_or(After::Oldest);
    page(&api, &caller, after, asked).await
}

/// Fills a page, and waits for what comes into it if that is wanted.
async fn page(api: &Api, caller: &Caller, after: After, asked: ReadQuery) -> Result<Response, Problem> {
    let keys = &api.config.api;
    let events_max = usize::try_from(keys.page_events_max).unwrap_or(usize::MAX);
    let limits = PageLimits {
        events: asked.limit.unwrap_or(API_PAGE_EVENTS_USUAL).min(events_max),
        bytes: usize::try_from(keys.page_bytes_max).unwrap_or(usize::MAX),
    };
    let begin = tokio::select! {
        begin = api.reader.begin(after) => begin?,
        () = api.stop.cancelled() => return Err(Problem::unavailable("this server is stopping")),
    };
    let mut page = Page::new(begin, limits);
    let looking = Looking {
        reader: &api.reader,
        clock: &api.clock,
        stop: &api.stop,
        credential: &caller.credential,
        selection: &asked.selection,
        wait: asked.wait.min(keys.wait_max),
    };
    let head = looking.fill(&mut page, || take_place(api, caller, Kind::Request)).await?;
    Ok(answer(api, &page, head))
}

/// Who looks for the events of one page, and for how long.
struct Looking<'a> {
    reader: &'a Reader,
    clock: &'a Clock,
    /// Whatever is there when it is cancelled is the page.
    stop: &'a CancellationToken,
    credential: &'a Credential,
    selection: &'a Selection,
    wait: Duration,
}

impl Looking<'_> {
    /// Goes through the log until the page is full, has caught up with what is wanted, or the time is up, and returns the head.
    async fn fill(
        &self,
        page: &mut Page,
        take_place: impl Fn() -> Result<WaitingPlace, Problem>,
    ) -> Result<i64, Problem> {
        let begun = self.clock.elapsed();
        let (look_until, wait_until) = (begun + API_LOOK_MAX, begun + self.wait);
        let mut place = None;
        loop {
            let head = tokio::select! {
                filled = self.reader.fill(page, self.credential, self.selection) => filled?,
                // A page has whole steps only: what was being read is not in it.
                () = self.stop.cancelled() => return Ok(self.reader.hub.position()),
            };
            let caught_up = page.position >= head;
            let now = self.clock.elapsed();
            // A reader whose events are rare is not sent away with nothing at each step of the log, nor kept for ever.
            let done = match (page.events.is_empty(), caught_up) {
                (true, true) => now >= wait_until,
                (true, false) => now >= look_until.max(wait_until),
                (false, false) => page.is_full() || now >= look_until,
                (false, true) => true,
            };
            if done || self.stop.is_cancelled() {
                return Ok(head);
            }
            if !caught_up {
                // What comes from memory waits for nothing, and others have a turn too.
                tokio::task::yield_now().await;
                continue;
            }
            if place.is_none() {
                place = Some(take_place()?);
            }
            tokio::select! {
                () = self.reader.hub.passes(page.position) => {}
                () = self.clock.sleep(wait_until.saturating_sub(now)) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }
}

/// A place to wait, within `api.waiting_max`.
pub(super) fn take_place(api: &Api, caller: &Caller, kind: Kind) -> Result<WaitingPlace, Problem> {
    api.waiting.enter(&caller.access.principal, kind).ok_or_else(|| {
        Problem::new(
            Code::RateLimited,
            "as many requests and streams of this principal wait for events as api.waiting_max allows",
        )
        .retry_after(API_RETRY_AFTER)
    })
}

/// The text of a page, put together from events that are rendered already.
fn answer(api: &Api, page: &Page, head: i64) -> Response {
    let caught_up = page.position >= head;
    let (next, head) = (api.position(page.position), api.position(head));
    let events: Vec<_> = page.events.iter().map(|event| event.envelope()).collect();
    let mut text = Vec::with_capacity(events.iter().map(|event| event.len() + 1).sum::<usize>() + 256);
    text.extend_from_slice(b"{\"events\":[");
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        text.extend_from_slice(event);
    }
    let rest = format!("],\"next\":\"{next}\",\"head\":\"{head}\",\"caught_up\":{caught_up}}}");
    text.extend_from_slice(rest.as_bytes());
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from(text)).into_response()
}

#[cfg(test)]
mod tests;
