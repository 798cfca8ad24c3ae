//! A request of an agent for the next events of one of its consumers.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use seqline::agent::LostReason;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::bounds::bounds;
use super::caller::consumer;
use super::delivery::envelope;
use super::holding::{Held, Holding, Opened};
use super::state::{ConsumerPath, Resync};
use super::window::{Action, Input, Looked, Seen};
use crate::api::envelope::EventSchema;
use crate::api::events::take_place;
use crate::api::hub::page::{Page, PageLimits};
use crate::api::hub::reader::{PageRefused, Reader};
use crate::api::hub::waiting::Kind;
use crate::api::problem::ResyncReason;
use crate::api::query::{self, Selection};
use crate::api::{Api, Caller, Params, PathParams, Problem};
use crate::limits::{AGENT_FULL_LOOK, API_LOOK_MAX, API_PAGE_EVENTS_USUAL};

/// How an agent asks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "queries are read by another module, which names all that is wrong; this describes them"
)]
pub(super) struct PollParams {
    /// How many events at most. No more than fit beside those that you have not acknowledged.
    #[param(nullable = false, minimum = 1, default = 100)]
    limit: Option<u32>,
    /// How many seconds to wait for an event when there is none, at most `api.wait_max`.
    #[param(nullable = false, minimum = 0, default = 0)]
    wait: Option<u32>,
    /// The `generation` of the answer before: refused if somebody else has had the consumer since.
    #[param(nullable = false, minimum = 1)]
    generation: Option<i64>,
}

/// The next events of a consumer.
#[derive(Debug, ToSchema)]
#[schema(as = AgentDelivery)]
#[expect(dead_code, reason = "the text is put together from events that are rendered; this describes it")]
pub(super) struct Delivery {
    /// In order. Those that you were given before and did not acknowledge in time have `redelivered`.
    events: Vec<EventSchema>,
    /// Acknowledge this when you are done with all of `events`. It is less than the last of them while you have not acknowledged events of an
    /// answer before.
    #[schema(example = "0198c8f2-7a4b-7000-8000-00000000abcd:1042")]
    next: String,
    /// Up to where you have acknowledged.
    acked: String,
    /// The position of the newest event of the log.
    head: String,
    /// Rises whenever somebody else takes the consumer.
    generation: i64,
    /// How many events you were given and have not acknowledged.
    in_flight: usize,
    /// Whether there is nothing more for now.
    caught_up: bool,
    /// Events that you may never have got, until you acknowledge that you know.
    #[schema(nullable = false)]
    resync: Option<Resync>,
}

/// The next events
///
/// What a consumer of yours has not been given yet, in order, as far as it fits beside what you have not acknowledged, and again what you have
/// not acknowledged in time. The first request for a consumer creates it at the head of the log and gives nothing. Whoever asks has the
/// consumer from then on: a connection of the same consumer is closed.
#[utoipa::path(
    get,
    path = "/v1/agents/{agent}/consumers/{consumer}/events",
    operation_id = "poll_consumer_events",
    tag = "agents",
    security(("token" = [])),
    params(ConsumerPath, PollParams),
    responses(
        (status = 200, description = "The next events; none is not an error.", body = Delivery),
        (status = 403, description = "You are not this agent.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
        (status = 409, description = "Somebody else has the consumer.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
        (status = 410, description = "Events were lost for the consumer. It goes on at the head with the next request.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A parameter is not as expected.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn events(
    api: Api,
    caller: Caller,
    PathParams(path): PathParams<ConsumerPath>,
    Params(pairs): Params<Vec<(String, String)>>,
) -> Result<Response, Problem> {
    let asked = query::parse(&pairs, &["limit", "wait", "generation"])?;
    let consumer = consumer(&api, &caller, &path.agent, &path.consumer).await?;
    let holding = Holding { api: &api, consumer, generation: asked.generation };
    let held = match holding.open().await? {
        Opened::Held(held) => held,
        Opened::Created { generation, position } => {
            let (position, head) = (api.position(position), api.position(api.reader.hub.position()));
            return Ok(json(format!(
                "{{\"events\":[],\"next\":\"{position}\",\"acked\":\"{position}\",\"head\":\"{head}\",\
                 \"generation\":{generation},\"in_flight\":0,\"caught_up\":true}}"
            )));
        }
    };
    let begun = api.clock.elapsed();
    let polling = Polling {
        looked: held.window.position(),
        held,
        // However far behind a consumer is, it is given everything.
        reader: Reader { behind_max: None, ..api.reader.clone() },
        limit: asked.limit.unwrap_or(API_PAGE_EVENTS_USUAL),
        look_until: begun + API_LOOK_MAX,
        wait_until: begun + asked.wait.min(api.config.api.wait_max),
        holding: &holding,
        api: &api,
        caller: &caller,
    };
    polling.run().await
}

/// Such a request, while it is answered.
struct Polling<'a> {
    api: &'a Api,
    caller: &'a Caller,
    holding: &'a Holding<'a>,
    held: Held,
    reader: Reader,
    limit: usize,
    /// By the clock's elapsed time.
    look_until: Duration,
    wait_until: Duration,
    /// There is nothing for the agent up to here which the window does not know of.
    looked: i64,
}

/// What looking for events came to.
enum Found {
    /// They are delivered by this answer.
    Events(Response),
    /// There is more of the log to look at.
    More,
    /// There is nothing for now.
    Nothing,
    /// Nothing fits: the agent has to acknowledge first.
    Full,
}

impl Polling<'_> {
    async fn run(mut self) -> Result<Response, Problem> {
        let mut place = None;
        loop {
            let found = self.look().await?;
            let now = self.api.clock.elapsed();
            let (full, give_up) = match found {
                Found::Events(answer) => return Ok(answer),
                Found::More => (false, now >= self.look_until.max(self.wait_until)),
                Found::Nothing => (false, now >= self.wait_until),
                Found::Full => (true, now >= self.wait_until),
            };
            if give_up || self.api.stop.is_cancelled() {
                return self.nothing(matches!(found, Found::Nothing)).await;
            }
            if matches!(found, Found::More) {
                continue;
            }
            if place.is_none() {
                place = Some(take_place(self.api, self.caller, Kind::Request)?);
            }
            self.wait(full).await?;
        }
    }

    /// Looks at the next part of the log, and delivers what is there.
    async fn look(&mut self) -> Result<Found, Problem> {
        let Some(wants) = self.held.window.wants(&bounds(&self.api.config)) else { return Ok(Found::Full) };
        let limits = PageLimits { events: wants.events.min(self.limit), bytes: wants.bytes.max(1) };
        let mut page = Page::new(self.looked, limits);
        let head = match self.reader.fill(&mut page, &self.caller.credential, &Selection::default()).await {
            Ok(head) => head,
            Err(refused) => return Err(self.lost(refused).await),
        };
        self.looked = page.position;
        if page.events.is_empty() {
            return Ok(if page.position < head { Found::More } else { Found::Nothing });
        }
        let seen = page.events.iter().map(|event| Seen { seq: event.seq(), bytes: event.envelope().len() });
        let looked =
            Looked { after: self.held.window.position(), up_to: page.position, seen: seen.collect() };
        let actions = self.step(Input::Looked(looked)).await?;
        let events: HashMap<i64, _> = page.events.iter().map(|event| (event.seq(), event)).collect();
        let delivered = actions.iter().filter_map(|action| match action {
            Action::Deliver { seq, redelivered } => {
                Some((*seq, envelope(events.get(seq)?.event(), *redelivered)))
            }
            _ => None,
        });
        let delivered: Vec<(i64, String)> = delivered.collect();
        if delivered.is_empty() {
            // Another request of this consumer came before.
            return Ok(Found::More);
        }
        let caught_up = self.held.window.position() >= head;
        Ok(Found::Events(self.answer(&delivered, caught_up)))
    }

    /// Waits until there may be something, or time is up.
    async fn wait(&mut self, full: bool) -> Result<(), Problem> {
        let (api, now) = (self.api, self.api.clock.elapsed());
        let overdue = self.held.window.deadline(&bounds(&api.config));
        let overdue_in = overdue.map(|deadline| deadline.saturating_sub(self.held.now(api)));
        let mut most = self.wait_until.saturating_sub(now).min(overdue_in.unwrap_or(Duration::MAX));
        if full {
            // An acknowledgement may come to any process.
            most = most.min(AGENT_FULL_LOOK);
        }
        tokio::select! {
            () = api.reader.hub.passes(self.looked), if !full => return Ok(()),
            () = api.clock.sleep(most) => {}
            () = api.stop.cancelled() => return Ok(()),
        }
        let is_overdue = overdue_in.is_some_and(|overdue_in| overdue_in <= most);
        if is_overdue || full && !self.holding.is_as_it_was(&self.held).await? {
            self.step(Input::Woken).await?;
        }
        Ok(())
    }

    async fn step(&mut self, input: Input) -> Result<Vec<Action>, Problem> {
        let actions = self.holding.step(&mut self.held, input).await?;
        self.looked = self.held.window.position();
        Ok(actions)
    }

    /// Answers with nothing, and keeps how far there is nothing.
    async fn nothing(&mut self, caught_up: bool) -> Result<Response, Problem> {
        if self.looked > self.held.window.position() {
            let looked = Looked { after: self.held.window.position(), up_to: self.looked, seen: Vec::new() };
            self.step(Input::Looked(looked)).await?;
        }
        Ok(self.answer(&[], caught_up))
    }

    /// The position cannot be read from: the consumer goes on at the head, and the agent is told.
    async fn lost(&mut self, refused: PageRefused) -> Problem {
        let problem = Problem::from(refused);
        let Some(resync) = problem.to_resync() else { return problem };
        let reason = match resync.reason {
            ResyncReason::Retention => LostReason::Retention,
            ResyncReason::CursorAhead => LostReason::CursorAhead,
            // Neither is asked of a consumer: it has no position but its own, may be as far behind as it likes, and whoever starts an epoch tells it.
            ResyncReason::TooFarBehind | ResyncReason::EpochChanged => return problem,
        };
        let head = resync.head;
        match self.step(Input::Lost { reason, position: self.held.window.position(), head }).await {
            Ok(_) => problem,
            Err(problem) => problem,
        }
    }

    fn answer(&self, delivered: &[(i64, String)], caught_up: bool) -> Response {
        let (api, window) = (self.api, &self.held.window);
        let next = api.position(window.safe_position(delivered.first().map(|(seq, _)| *seq)));
        let (acked, head) = (api.position(window.acked()), api.position(api.reader.hub.position()));
        let size: usize = delivered.iter().map(|(_, event)| event.len() + 1).sum();
        let mut text = String::with_capacity(size + 512);
        text.push_str("{\"events\":[");
        for (at, (_, event)) in delivered.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            text.push_str(event);
        }
        text.push_str(&format!(
            "],\"next\":\"{next}\",\"acked\":\"{acked}\",\"head\":\"{head}\",\"generation\":{},\"in_flight\":{},\
             \"caught_up\":{caught_up}",
            self.held.generation,
            window.in_flight()
        ));
        if let Some(lost) = window.lost() {
            let resync = serde_json::to_string(&Resync::of(api, &lost)).unwrap_or_default();
            text.push_str(&format!(",\"resync\":{resync}"));
        }
        text.push('}');
        json(text)
    }
}

fn json(text: String) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from(text)).into_response()
}
