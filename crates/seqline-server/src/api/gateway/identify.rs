//! How a session begins, and how it goes on over another connection.

use seqline::access::PrincipalKind;
use seqline::agent::{self, AgentConsumer, HolderKind, Lost, Take, Taking};
use uuid::Uuid;

use super::close::Close;
use super::delivery::{Consuming, Delivery, Reading, resync_of_reader};
use super::frame::{Identify, Ready, Resume, ServerFrame};
use super::sessions::{Attached, Held, Session, State};
use crate::api::agents::{Resync, Window, bounds};
use crate::api::hub::waiting::{Kind, WaitingPlace};
use crate::api::query::After;
use crate::api::{Api, Caller, Code, Door, Problem};
use crate::limits::AGENT_HOLDER_SEEN;

/// A session with its connection.
pub(super) struct Established {
    pub(super) attached: Attached,
    pub(super) caller: Caller,
    pub(super) delivery: Delivery,
    /// Its place among those of the principal.
    pub(super) place: WaitingPlace,
    /// What the client is told first.
    pub(super) frames: Vec<String>,
}

/// Why there is none: what the client is told, and how the connection ends.
pub(super) struct IdentifyRefused(pub(super) Option<Problem>, pub(super) Close);

impl From<Problem> for IdentifyRefused {
    fn from(problem: Problem) -> Self {
        let close = match problem.code() {
            Code::Unauthenticated => Close::Unauthenticated,
            Code::RateLimited => Close::RateLimited,
            Code::Unavailable | Code::EpochUndecided | Code::Internal => Close::Internal,
            _ => Close::InvalidFrame,
        };
        Self(Some(problem), close)
    }
}

impl From<seqline::DatabaseError> for IdentifyRefused {
    fn from(error: seqline::DatabaseError) -> Self {
        Problem::from(error).into()
    }
}

/// Whoever shows this token.
async fn caller(api: &Api, door: &Door, token: &str) -> Result<(Caller, WaitingPlace), IdentifyRefused> {
    let caller = Caller::of_token(token, api, door).await?;
    let place = api.waiting.enter(&caller.access.principal, Kind::Connection).ok_or_else(|| {
        Problem::new(
            Code::RateLimited,
            "this principal has as many connections and requests that wait as api.waiting_max allows",
        )
    })?;
    Ok((caller, place))
}

/// Begins a session.
pub(super) async fn identify(
    api: &Api,
    door: &Door,
    asked: Identify,
) -> Result<Established, IdentifyRefused> {
    let (caller, place) = caller(api, door, &asked.token).await?;
    if caller.access.kind == PrincipalKind::Agent {
        return identify_agent(api, caller, place, &asked).await;
    }
    let after = match asked.position.as_deref() {
        None | Some("head") => After::Head,
        Some("oldest") => After::Oldest,
        Some(position) => After::At(position.parse().map_err(|error| {
            Problem::new(Code::ValidationFailed, "identify is not as expected")
                .at("/position", format!("{error}"))
        })?),
    };
    let head = api.reader.hub.position();
    let begun = api.reader.begin(after).await;
    // One that cannot be read from is told in its turn, when the first page is looked for.
    let (position, resync) = match begun {
        Ok(position) => (position, None),
        Err(refused) => {
            let problem = Problem::from(refused);
            let resync = problem.to_resync().ok_or(problem)?;
            (resync.head, Some(resync))
        }
    };
    let session = Session { id: Uuid::now_v7(), principal: caller.access.principal.clone(), held: None };
    let attached = api.sessions.begin(session);
    let backlog_end = Some(head).filter(|_| resync.is_none());
    let ready = of_reader(api, &caller, attached.session.id, position, head);
    let mut frames = vec![ServerFrame::Ready(ready).to_text()];
    frames.extend(resync.map(|resync| resync_of_reader(api, &resync).to_text()));
    let delivery = Delivery::Reader(Reading { position, backlog_end });
    Ok(Established { attached, caller, delivery, place, frames })
}

async fn identify_agent(
    api: &Api,
    caller: Caller,
    place: WaitingPlace,
    asked: &Identify,
) -> Result<Established, IdentifyRefused> {
    let agent = caller.access.principal.clone();
    let consumer = match asked.consumer.as_deref() {
        None => AgentConsumer::default_of(agent),
        Some(name) => AgentConsumer::new(agent, name).map_err(|error| {
            Problem::new(Code::ValidationFailed, "identify is not as expected")
                .at("/consumer", error.to_string())
        })?,
    };
    let _turn = api.turn(&consumer).await?;
    let before = api.sessions.holder(&consumer);
    let is_left = asked.take_over == Some(false) || asked.generation.is_some();
    // One that may never have heard that it was let in may be this very client: it is in nobody's way.
    let unheard = before.as_ref().map(|(id, _)| *id).filter(|id| api.sessions.is_unheard(*id));
    let (session, head) = (Uuid::now_v7(), api.reader.hub.position());
    let taking = Taking {
        consumer: &consumer,
        session,
        kind: HolderKind::Gateway,
        start: head,
        consumers_max: api.config.agent.consumers_max,
        unless_seen_within: is_left.then_some(AGENT_HOLDER_SEEN),
        unless_after: asked.generation,
        but_from: unheard,
        epoch: api.epoch,
    };
    // What whoever has it in this process acknowledged is saved first, and that one is told when somebody else has it.
    let taken = async {
        let _alone = match &before {
            Some((_, held)) => Some(held.writing.lock().await),
            None => None,
        };
        let unsaved = before.as_ref().and_then(|(id, held)| held.unsaved(*id));
        let taken = api.database.ask(async |connection| {
            if let Some(unsaved) = &unsaved {
                agent::save(connection, unsaved).await?;
            }
            agent::take(connection, &taking).await
        });
        taken.await
    };
    let (cursor, before) = match taken.await? {
        Take::Taken { cursor, before } => (cursor, before),
        Take::Held(cursor) => {
            return Err(IdentifyRefused(Some(crate::api::agents::replaced(&cursor)), Close::ConsumerHeld));
        }
        Take::TooMany => {
            let detail = "the agent has as many consumers as agent.consumers_max allows";
            return Err(Problem::new(Code::Conflict, detail).into());
        }
        Take::NoAgent => return Err(Problem::new(Code::Unauthenticated, "the agent was deleted").into()),
    };
    api.sessions.retire(&consumer);
    if let Some(before) = before {
        crate::api::agents::log_takeover(&consumer, session, &before);
        let is_its_own = asked.generation == Some(cursor.generation - 1);
        let is_silent = cursor.updated_at - before.seen_at > api.config.sync.resume_window;
        // From who is not there, and from itself, nothing was taken.
        if !is_its_own && !is_silent {
            api.tally.taken_over(HolderKind::Gateway);
        }
    }
    let state = State::new(cursor.acked_seq, cursor.lost.is_some());
    let held = Held::new(consumer, cursor.generation, state);
    let session =
        Session { id: session, principal: caller.access.principal.clone(), held: Some(held.clone()) };
    let attached = api.sessions.begin(session);
    Ok(consuming(api, Comer { caller, place, attached }, held, cursor.lost, head, false))
}

/// Goes on with a session.
pub(super) async fn resume(api: &Api, door: &Door, asked: Resume) -> Result<Established, IdentifyRefused> {
    let (caller, place) = caller(api, door, &asked.token).await?;
    let Some(session) = api.sessions.find(asked.session_id, &caller.access.principal) else {
        return Err(IdentifyRefused(None, Close::SessionInvalid));
    };
    let head = api.reader.hub.position();
    if let Some(held) = session.held.clone() {
        let _turn = api.turn(&held.consumer).await?;
        let alone = held.writing.lock().await;
        let save = held.save(session.id);
        let found = api.database.ask(async |connection| {
            let saved = agent::save(connection, &save).await?;
            Ok::<_, seqline::DatabaseError>((saved, agent::cursor(connection, &held.consumer).await?))
        });
        // Only who still holds the row goes on.
        let (saved, cursor) = found.await?;
        let lost = Close::of_holder(saved);
        let Some(cursor) = cursor.filter(|_| lost.is_none()) else {
            let why = lost.unwrap_or(Close::ConsumerReleased);
            // A connection that is still there is told as well.
            api.sessions.lost(session.id, why);
            api.sessions.forget(session.id);
            return Err(IdentifyRefused(None, why));
        };
        let attached = api.sessions.resume(session.id).ok_or(IdentifyRefused(None, Close::SessionInvalid))?;
        drop(alone);
        held.saved(&save);
        // It may have acknowledged more over REST.
        let acked = cursor.acked_seq.max(held.state.settled());
        held.state.set(acked, acked, cursor.lost.is_some());
        return Ok(consuming(api, Comer { caller, place, attached }, held, cursor.lost, head, true));
    }
    let position = asked.position.as_deref().map(str::parse::<crate::api::Position>);
    let Some(Ok(position)) = position else {
        let problem = Problem::new(Code::ValidationFailed, "resume is not as expected");
        return Err(problem.at("/position", "expected the position of the last event that you have").into());
    };
    if position.epoch != api.epoch {
        return Err(IdentifyRefused(None, Close::SessionInvalid));
    }
    let attached = api.sessions.resume(session.id).ok_or(IdentifyRefused(None, Close::SessionInvalid))?;
    let ready = of_reader(api, &caller, session.id, position.seq, head);
    let frames = vec![ServerFrame::Resumed(ready).to_text()];
    let delivery = Delivery::Reader(Reading { position: position.seq, backlog_end: Some(head) });
    Ok(Established { attached, caller, delivery, place, frames })
}

/// Somebody who is let in.
struct Comer {
    caller: Caller,
    place: WaitingPlace,
    attached: Attached,
}

/// An agent that holds its consumer now.
fn consuming(
    api: &Api,
    Comer { caller, place, attached }: Comer,
    held: Held,
    lost: Option<Lost>,
    head: i64,
    is_resumed: bool,
) -> Established {
    let session = attached.session.id;
    let acked = held.state.settled();
    let ready = Ready {
        session_id: session,
        principal: &caller.access.principal,
        kind: caller.access.kind.as_str(),
        head: api.position(head).to_string(),
        position: None,
        consumer: Some(held.consumer.name()),
        generation: Some(held.generation),
        acked: Some(api.position(acked).to_string()),
        resync: lost.map(|lost| Resync::of(api, &lost)),
    };
    let frame = if is_resumed { ServerFrame::Resumed(ready) } else { ServerFrame::Ready(ready) };
    let frames = vec![frame.to_text()];
    let window = Window::begin(acked, Some(head), lost);
    let (bounds, in_flight) = (bounds(&api.config), api.tally.in_flight());
    let delivery = Consuming { session, window, bounds, looked: acked, held, in_flight };
    Established { attached, caller, delivery: Delivery::Agent(Box::new(delivery)), place, frames }
}

fn of_reader<'a>(api: &Api, caller: &'a Caller, session_id: Uuid, position: i64, head: i64) -> Ready<'a> {
    Ready {
        session_id,
        principal: &caller.access.principal,
        kind: caller.access.kind.as_str(),
        head: api.position(head).to_string(),
        position: Some(api.position(position).to_string()),
        consumer: None,
        generation: None,
        acked: None,
        resync: None,
    }
}
