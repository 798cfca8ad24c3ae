//! A connection, from its first frame to its last.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, close_code};
use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::SplitStream;
use seqline::agent;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::close::{self, Close};
use super::delivery::Delivery;
use super::frame::{self, Ack, ClientFrame, Hello, Refusal, ServerFrame};
use super::identify::{self, Established, IdentifyRefused};
use super::outgoing::Outgoing;
use super::sessions::{Attached, Told};
use crate::api::agents::acknowledged_seq;
use crate::api::hub::page::Page;
use crate::api::hub::reader::{self, Reader};
use crate::api::problem::Reason;
use crate::api::query::Selection;
use crate::api::tally::CountedConnection;
use crate::api::{Api, Caller, Code, Door, Problem};
use crate::limits::{
    API_RETRY_PAUSE, GATEWAY_ACCESS_WAIT, GATEWAY_CLOSE_WAIT, GATEWAY_PROTOCOL, GATEWAY_SHUTDOWN_SPREAD,
};

/// Runs it to its end.
pub(super) async fn run(socket: WebSocket, api: Api, door: Door) {
    let (sink, incoming) = socket.split();
    let keys = &door.config.gateway;
    let queue_bytes_max = usize::try_from(keys.queue_bytes_max).unwrap_or(usize::MAX);
    let outgoing = Outgoing::start(sink, queue_bytes_max, door.config.api.write_timeout, door.clock.clone());
    let counted = api.tally.connection();
    let mut connection = Connection { api, door, incoming, outgoing, counted };
    let end = connection.serve().await;
    connection.api.tally.closed(end.reason());
    connection.close(end).await;
}

struct Connection {
    api: Api,
    door: Door,
    incoming: SplitStream<WebSocket>,
    outgoing: Outgoing,
    counted: CountedConnection,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The server closes it.
    Close(Close),
    /// A frame is too large.
    TooLarge,
    /// The client says that it will not come back.
    Left,
    /// It is not there any more, and may come back.
    Gone,
}

impl End {
    fn reason(self) -> &'static str {
        match self {
            Self::Close(close) => close.code().reason,
            Self::TooLarge => close::FRAME_TOO_LARGE,
            Self::Left => close::LEFT,
            Self::Gone => close::GONE,
        }
    }
}

/// Something that a client sent, or why nothing comes any more.
enum Received {
    Frame(Box<ClientFrame>),
    /// The protocol below answers it.
    Nothing,
    End(End),
}

impl Connection {
    async fn serve(&mut self) -> End {
        self.outgoing.frame(&ServerFrame::Hello(self.hello()));
        let first = match self.first_frame().await {
            Ok(frame) => frame,
            Err(end) => return end,
        };
        // Boxed, so that a connection that waits is small.
        let established = match first {
            ClientFrame::Identify(asked) => Box::pin(identify::identify(&self.api, &self.door, asked)).await,
            ClientFrame::Resume(asked) => Box::pin(identify::resume(&self.api, &self.door, asked)).await,
            ClientFrame::Ack(_) | ClientFrame::Heartbeat(_) => {
                let problem = Problem::new(Code::MalformedRequest, "identify first");
                Err(IdentifyRefused(Some(problem), Close::InvalidFrame))
            }
        };
        match established {
            Ok(established) => self.deliver(established).await,
            Err(IdentifyRefused(problem, close)) => {
                if let Some(problem) = problem {
                    self.outgoing.frame(&ServerFrame::Error(Refusal::of(&problem)));
                }
                End::Close(close)
            }
        }
    }

    async fn first_frame(&mut self) -> Result<ClientFrame, End> {
        let (clock, stop) = (self.door.clock.clone(), self.api.stop.clone());
        let deadline = clock.elapsed() + self.door.config.gateway.identify_timeout;
        loop {
            let left = deadline.saturating_sub(clock.elapsed());
            tokio::select! {
                received = receive(&mut self.incoming, &self.door) => match received {
                    Received::Frame(frame) => return Ok(*frame),
                    Received::Nothing => {}
                    Received::End(end) => return Err(end),
                },
                () = clock.sleep(left) => return Err(End::Close(Close::IdentifyTimeout)),
                () = stop.cancelled() => return Err(End::Close(Close::ServerShutdown)),
                close = self.outgoing.ended() => return Err(close.map_or(End::Gone, End::Close)),
            }
        }
    }

    async fn deliver(&mut self, established: Established) -> End {
        let Established { attached, caller, mut delivery, place, frames } = established;
        self.counted.is_of(caller.access.kind);
        for frame in frames {
            self.outgoing.text(frame);
        }
        let mut running = Running {
            api: &self.api,
            door: &self.door,
            outgoing: &self.outgoing,
            incoming: &mut self.incoming,
            caller,
            told: attached.told.clone(),
            heard_at: self.door.clock.elapsed(),
        };
        let end = running.run(&mut delivery).await;
        // A database that is silent keeps nobody from being told why it ends.
        let left = Box::pin(leave(&self.api, attached, end));
        self.door.clock.timeout(GATEWAY_CLOSE_WAIT, left).await;
        drop(place);
        end
    }

    fn hello(&self) -> Hello {
        let (keys, agent) = (&self.door.config.gateway, &self.door.config.agent);
        Hello {
            protocol: GATEWAY_PROTOCOL,
            epoch: self.api.epoch,
            heartbeat_interval_ms: millis(keys.heartbeat_interval),
            identify_timeout_ms: millis(keys.identify_timeout),
            frame_bytes_max: keys.frame_bytes_max,
            resume_window_ms: millis(self.door.config.sync.resume_window),
            ack_timeout_ms: millis(agent.ack_timeout),
            inflight_events_max: agent.max_inflight_events,
            inflight_bytes_max: agent.inflight_bytes_max,
            close_codes: frame::close_codes(),
        }
    }

    /// Says why it ends, and waits a moment for the client to say that it has heard it: otherwise it may not hear it.
    async fn close(self, end: End) {
        let Self { api: _, door, mut incoming, outgoing, counted: _counted } = self;
        let message = match end {
            End::Close(Close::ServerShutdown) => {
                // Not all at once.
                let after_ms = fastrand::u64(0..=millis(GATEWAY_SHUTDOWN_SPREAD));
                outgoing.frame(&ServerFrame::Reconnect { after_ms });
                Some(Close::ServerShutdown.message(Some(after_ms)))
            }
            End::Close(close) => Some(close.message(None)),
            End::TooLarge => Some(Message::Close(Some(axum::extract::ws::CloseFrame {
                code: close_code::SIZE,
                reason: "{\"reason\":\"frame_too_large\",\"reconnect\":false,\"resume\":false}".into(),
            }))),
            End::Left | End::Gone => None,
        };
        let within = match end {
            // A server that stops waits for nobody.
            End::Close(Close::ServerShutdown) => GATEWAY_CLOSE_WAIT,
            _ => door.config.api.write_timeout,
        };
        outgoing.close(message, within).await;
        // What the client still says is of no interest, but reading it is what sends the answer to its own close.
        let heard = async { while let Some(Ok(_)) = incoming.next().await {} };
        door.clock.timeout(GATEWAY_CLOSE_WAIT, heard).await;
    }
}

/// The next message of the client. Cancel safe.
async fn receive(incoming: &mut SplitStream<WebSocket>, door: &Door) -> Received {
    let text = match incoming.next().await {
        Some(Ok(Message::Text(text))) => text,
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => return Received::Nothing,
        Some(Ok(Message::Binary(_))) => return Received::End(End::Close(Close::InvalidFrame)),
        Some(Ok(Message::Close(frame))) => {
            let code = frame.map(|frame| frame.code);
            let left = matches!(code, Some(close_code::NORMAL | close_code::AWAY));
            return Received::End(if left { End::Left } else { End::Gone });
        }
        Some(Err(_)) | None => return Received::End(End::Gone),
    };
    if text.len() > usize::try_from(door.config.gateway.frame_bytes_max).unwrap_or(usize::MAX) {
        return Received::End(End::TooLarge);
    }
    match serde_json::from_str(&text) {
        Ok(frame) => Received::Frame(Box::new(frame)),
        Err(_) => Received::End(End::Close(Close::InvalidFrame)),
    }
}

/// What becomes of the session when its connection has ended. Without an end of its own it can be resumed.
async fn leave(api: &Api, attached: Attached, end: End) {
    let resumable = match end {
        End::Gone => true,
        End::TooLarge | End::Left => false,
        End::Close(close) => close.code().resume,
    };
    // Somebody else has it, who has taken care of it.
    if !attached.is_current() {
        return;
    }
    let session = attached.session.clone();
    if let Some(held) = &session.held {
        let _alone = held.writing.lock().await;
        // Somebody may have resumed it meanwhile.
        if !attached.is_current() {
            return;
        }
        let save = held.save(session.id);
        let saved = api.database.ask(async |connection| match resumable {
            true => agent::save(connection, &save).await.map(drop),
            false => agent::release(connection, &save).await.map(drop),
        });
        match saved.await {
            Ok(()) => held.saved(&save),
            // What was not saved is delivered again.
            Err(error) => tracing::debug!(error = %error, "acknowledgement of an agent not saved at its end"),
        }
    }
    if !resumable {
        attached.end();
    }
}

/// A connection while it is given events.
struct Running<'a> {
    api: &'a Api,
    door: &'a Door,
    outgoing: &'a Outgoing,
    incoming: &'a mut SplitStream<WebSocket>,
    caller: Caller,
    told: watch::Receiver<Told>,
    /// By the clock's elapsed time.
    heard_at: Duration,
}

/// Where a page began, the page, and the head or why it was not filled.
type Filled = (i64, Page, Result<i64, reader::PageRefused>);

impl Running<'_> {
    async fn run(&mut self, delivery: &mut Delivery) -> End {
        let (api, clock) = (self.api, &self.door.clock);
        // However far behind an agent is, it is given everything.
        let behind_max = api.reader.behind_max.filter(|_| matches!(delivery, Delivery::Reader(_)));
        let reader = Reader { behind_max, ..api.reader.clone() };
        let selection = Arc::new(Selection::default());
        let mut reading: Option<AbortOnDropHandle<Filled>> = None;
        let mut caught_up = false;
        let mut pause_until = Duration::ZERO;
        loop {
            let now = clock.elapsed();
            let (may_read, room) =
                (reading.is_none() && !caught_up && now >= pause_until, self.outgoing.room());
            if let Some(mut page) = may_read.then(|| delivery.next_page(room)).flatten() {
                let (reader, credential, selection) =
                    (reader.clone(), self.caller.credential.clone(), selection.clone());
                // A task of its own: whatever it holds while it waits, it goes on while this does something else.
                reading = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                    let from = page.position;
                    let filled = reader.fill(&mut page, &credential, &selection).await;
                    (from, page, filled)
                })));
            }
            let silent_until = self.heard_at + 2 * self.door.config.gateway.heartbeat_interval;
            let paused = Some(pause_until).filter(|until| *until > now);
            let wake_at =
                [delivery.deadline(), paused].into_iter().flatten().fold(silent_until, Duration::min);
            let is_full = reading.is_none() && !caught_up && room == 0;
            tokio::select! {
                // Whoever is not wanted any more is given nothing more.
                biased;
                Ok(()) = self.told.changed() => {
                    let Told { close, acked } = *self.told.borrow_and_update();
                    if let Some(close) = close {
                        return End::Close(close);
                    }
                    delivery.acknowledged(api, clock.elapsed(), acked, self.outgoing);
                    caught_up = false;
                }
                () = api.stop.cancelled() => return End::Close(Close::ServerShutdown),
                close = self.outgoing.ended() => return close.map_or(End::Gone, End::Close),
                received = receive(self.incoming, self.door) => match received {
                    Received::Frame(frame) => {
                        self.heard_at = clock.elapsed();
                        // That the client lives makes no room: ten thousand that say so look for nothing.
                        caught_up &= matches!(*frame, ClientFrame::Heartbeat(_));
                        if let Err(close) = Box::pin(self.hears(*frame, delivery)).await {
                            return End::Close(close);
                        }
                    }
                    Received::Nothing => self.heard_at = clock.elapsed(),
                    Received::End(end) => return end,
                },
                Some(read) = OptionFuture::from(reading.as_mut()), if reading.is_some() => {
                    reading = None;
                    let Ok((from, page, filled)) = read else { return End::Close(Close::Internal) };
                    match filled {
                        // The window went elsewhere while the page was read: it is read again from there, and what cannot be read
                        // from where it was is lost to nobody.
                        _ if from != delivery.looked() => {}
                        Ok(head) => {
                            delivery.took(api, clock.elapsed(), &page, self.outgoing);
                            caught_up = delivery.looked() >= head;
                        }
                        Err(refused) if refused.is_outage() => pause_until = clock.elapsed() + API_RETRY_PAUSE,
                        Err(refused) => {
                            let problem = Problem::from(refused);
                            let Some(resync) = problem.to_resync() else {
                                return End::Close(match problem.code() {
                                    Code::Unauthenticated => Close::Unauthenticated,
                                    _ => Close::Internal,
                                });
                            };
                            let lost = Box::pin(delivery.lost(api, clock.elapsed(), &resync, self.outgoing));
                            if let Some(close) = lost.await {
                                return End::Close(close);
                            }
                            pause_until = clock.elapsed() + API_RETRY_PAUSE;
                        }
                    }
                }
                () = api.reader.hub.passes(delivery.looked()), if caught_up => caught_up = false,
                () = self.outgoing.drained(), if is_full => {}
                () = clock.sleep(wake_at.saturating_sub(now)) => {
                    let now = clock.elapsed();
                    if now >= silent_until {
                        return End::Close(Close::HeartbeatTimeout);
                    }
                    delivery.wake(api, now, self.outgoing);
                    caught_up = false;
                }
            }
        }
    }

    /// Does what a frame says, and returns why the connection has to end, if it has to.
    async fn hears(&mut self, frame: ClientFrame, delivery: &mut Delivery) -> Result<(), Close> {
        if let Delivery::Agent(consuming) = delivery {
            consuming.held.state.hears();
        }
        let done = match frame {
            ClientFrame::Identify(_) | ClientFrame::Resume(_) => return Err(Close::AlreadyIdentified),
            ClientFrame::Heartbeat(_) => {
                let credential = &self.caller.credential;
                if self.door.limiter.may_ask(credential, &self.caller.access.principal).is_err() {
                    return Err(Close::RateLimited);
                }
                self.still_good().await?;
                let head = self.api.position(self.api.reader.hub.position()).to_string();
                // Answers wait like everything else: one who asks and does not take them is too slow.
                if self.outgoing.room() == 0 {
                    return Err(Close::TooSlow);
                }
                self.outgoing.frame(&ServerFrame::HeartbeatAck { head });
                Ok(())
            }
            ClientFrame::Ack(ack) => match delivery {
                Delivery::Reader(_) => Err(Problem::new(Code::Forbidden, "only agents acknowledge")
                    .because(Reason::SubjectKindNotAllowed)),
                Delivery::Agent(consuming) => {
                    match self.door.limiter.may_acknowledge(&self.caller.access.principal) {
                        Err(problem) => Err(problem),
                        Ok(()) => {
                            self.still_good().await?;
                            match self.seq(&ack, consuming.window.position()).await {
                                Ok(acknowledged) => {
                                    let now = self.door.clock.elapsed();
                                    consuming.acknowledge(self.api, now, acknowledged, self.outgoing)
                                }
                                Err(problem) => Err(problem),
                            }
                        }
                    }
                }
            },
        };
        if let Err(problem) = done {
            self.outgoing.frame(&ServerFrame::Error(Refusal::of(&problem)));
            if self.outgoing.room() == 0 {
                return Err(Close::TooSlow);
            }
        }
        Ok(())
    }

    /// The number that is acknowledged, and where the log ends.
    async fn seq(&self, ack: &Ack, position: i64) -> Result<(i64, i64), Problem> {
        let seq = acknowledged_seq(self.api, ack.seq, ack.position.as_deref())?;
        let head = self.api.reader.hub.position();
        if seq <= head.max(position) {
            return Ok((seq, head));
        }
        // Another process may have delivered what this one has not seen yet.
        let head = self.api.database.ask(async |connection| seqline::read::head(connection).await).await?;
        Ok((seq, head))
    }

    /// Whether the credential is still good. While the database is away that is not known, and nothing is given out.
    async fn still_good(&self) -> Result<(), Close> {
        let access = self.api.reader.access(&self.caller.credential);
        match self.door.clock.timeout(GATEWAY_ACCESS_WAIT, access).await {
            Some(Err(refused)) if !refused.is_outage() => Err(Close::Unauthenticated),
            _ => Ok(()),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
