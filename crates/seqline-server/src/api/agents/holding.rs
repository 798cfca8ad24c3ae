//! The window of a holder over REST, in the row of its consumer.
//!
//! It is read, changed and written in one transaction that holds the row, so two requests of one consumer, in one process or two, share a
//! window and never hand out the same event for the same reason. Between such transactions nothing is held: a request that waits has read a
//! window which another one may have filled since, and finds that out when it wants to fill it itself.

use std::time::Duration;

use seqline::DatabaseError;
use seqline::agent::{self, AgentConsumer, Cursor, Holder, HolderKind, Locked, Save, Take, Taking};
use sqlx::PgTransaction;
use uuid::Uuid;

use super::bounds::bounds;
use super::window::{Action, Input, Window};
use crate::api::gateway::sessions::Held as HeldHere;
use crate::api::{Api, Code, Problem};

/// A window, as it was in the database a moment ago.
pub(super) struct Held {
    pub(super) session: Uuid,
    pub(super) generation: i64,
    pub(super) window: Window,
    /// The time of the database then, and that of this process.
    read_at: (Duration, Duration),
    /// When it was heard of before.
    seen_at: time::OffsetDateTime,
}

/// What somebody who comes finds.
pub(super) enum Opened {
    /// There was no such consumer: it begins here, with this generation.
    Created { generation: i64, position: i64 },
    /// The window of the requests before, or a new one.
    Held(Held),
}

/// One consumer, for one request.
pub(super) struct Holding<'a> {
    pub(super) api: &'a Api,
    pub(super) consumer: AgentConsumer,
    /// Given by an agent that wants to hear of it when somebody else has come in between.
    pub(super) generation: Option<i64>,
}

impl Holding<'_> {
    /// Goes on with the window of the requests before, or takes the consumer from whoever has it.
    pub(super) async fn open(&self) -> Result<Opened, Problem> {
        let _turn = self.api.turn(&self.consumer).await?;
        // Whoever holds it over a connection of this process, and does not write meanwhile.
        let before = self.api.sessions.holder(&self.consumer);
        let _alone = match &before {
            Some((_, held)) => Some(held.writing.lock().await),
            None => None,
        };
        let mut actions = Vec::new();
        let opened = self
            .within(async |tx| {
                let Some(locked) = agent::lock(tx, &self.consumer, self.api.epoch).await? else {
                    return self.create(tx).await;
                };
                // One that nobody has is there for whoever comes, as over a connection.
                let is_other =
                    self.generation.is_some_and(|generation| generation != locked.cursor.generation);
                if is_other && locked.cursor.holder.is_some() {
                    return Ok(Err(replaced(&locked.cursor)));
                }
                let lately = self.stored(&locked).filter(|held| !self.is_silent(&locked, held.seen_at));
                let mut held = match lately {
                    Some(held) => held,
                    None => match self.take(tx, &locked, before.as_ref()).await? {
                        Ok(held) => held,
                        Err(problem) => return Ok(Err(problem)),
                    },
                };
                actions = held.window.step(locked.now, &bounds(&self.api.config), Input::Woken);
                self.store(tx, held.session, &held.window).await?;
                Ok(Ok(Opened::Held(held)))
            })
            .await?;
        self.count(&actions);
        // Whoever held it over a connection of this process is told now that it is somebody else's.
        self.api.sessions.retire(&self.consumer);
        Ok(opened)
    }

    /// Tells the window what happened, as it is in the database by now, and returns what is to be done. Refused if somebody else has the
    /// consumer.
    pub(super) async fn step(&self, held: &mut Held, input: Input) -> Result<Vec<Action>, Problem> {
        let (now, actions) = self
            .within(async |tx| {
                let Some(locked) = agent::lock(tx, &self.consumer, self.api.epoch).await? else {
                    return Ok(Err(gone()));
                };
                let Some(mut now) = self.stored(&locked).filter(|stored| stored.session == held.session)
                else {
                    return Ok(Err(replaced(&locked.cursor)));
                };
                let actions = now.window.step(locked.now, &bounds(&self.api.config), input);
                for action in &actions {
                    if let Action::Resync(lost) = action {
                        agent::lose(tx, &self.consumer, now.session, lost).await?;
                    }
                }
                self.store(tx, now.session, &now.window).await?;
                Ok(Ok((now, actions)))
            })
            .await?;
        *held = now;
        self.count(&actions);
        Ok(actions)
    }

    /// Whether nobody has acknowledged anything or come for the consumer since. Looks, and locks and writes nothing.
    pub(super) async fn is_as_it_was(&self, held: &Held) -> Result<bool, Problem> {
        let cursor =
            self.api.database.ask(async |connection| agent::cursor(connection, &self.consumer).await).await?;
        Ok(cursor.is_some_and(|cursor| {
            let is_held = cursor.holder.is_some_and(|holder| holder.session == held.session);
            is_held && cursor.acked_seq <= held.window.acked() && cursor.lost == held.window.lost()
        }))
    }

    /// Of what is stored now.
    fn count(&self, actions: &[Action]) {
        for action in actions {
            if let Action::WentBack { events } = action {
                went_back(self.api, &self.consumer, HolderKind::Rest, *events);
            }
        }
    }

    async fn create(&self, tx: &mut PgTransaction<'_>) -> Result<Result<Opened, Problem>, DatabaseError> {
        if self.generation.is_some() {
            return Ok(Err(gone()));
        }
        let position = self.api.reader.hub.position();
        let taking = self.taking(position);
        match agent::take(tx, &taking).await? {
            Take::Taken { cursor, before: _ } => {
                self.store(tx, taking.session, &Window::begin(cursor.acked_seq, None, None)).await?;
                Ok(Ok(Opened::Created { generation: cursor.generation, position: cursor.acked_seq }))
            }
            Take::TooMany => Ok(Err(Problem::new(
                Code::Conflict,
                "the agent has as many consumers as agent.consumers_max allows",
            ))),
            Take::NoAgent => Ok(Err(Problem::new(Code::Unauthenticated, "the agent was deleted"))),
            // Nobody is asked to go.
            Take::Held(cursor) => Ok(Err(replaced(&cursor))),
        }
    }

    async fn take(
        &self,
        tx: &mut PgTransaction<'_>,
        locked: &Locked,
        before: Option<&(Uuid, HeldHere)>,
    ) -> Result<Result<Held, Problem>, DatabaseError> {
        // What a connection of this process has acknowledged counts.
        if let Some((id, held)) = before
            && let Some(unsaved) = held.unsaved(*id)
        {
            agent::save(tx, &unsaved).await?;
        }
        let taking = self.taking(locked.cursor.acked_seq);
        let Take::Taken { cursor, before } = agent::take(tx, &taking).await? else { return Ok(Err(gone())) };
        if let Some(before) = before {
            log_takeover(&self.consumer, taking.session, &before);
            // From who asks only now and then, and has not for long, nothing was taken.
            if before.kind == HolderKind::Gateway || !self.is_silent(locked, before.seen_at) {
                self.api.tally.taken_over(HolderKind::Rest);
            }
        }
        Ok(Ok(Held {
            session: taking.session,
            generation: cursor.generation,
            window: Window::begin(cursor.acked_seq, None, cursor.lost),
            read_at: (locked.now, self.api.clock.elapsed()),
            seen_at: cursor.updated_at,
        }))
    }

    fn taking(&self, start: i64) -> Taking<'_> {
        Taking {
            consumer: &self.consumer,
            session: Uuid::now_v7(),
            kind: HolderKind::Rest,
            start,
            consumers_max: self.api.config.agent.consumers_max,
            unless_seen_within: None,
            unless_after: None,
            but_from: None,
            epoch: self.api.epoch,
        }
    }

    /// The window in the row, unless somebody else has it.
    fn stored(&self, locked: &Locked) -> Option<Held> {
        let holder = locked.cursor.holder.filter(|holder| holder.kind == HolderKind::Rest)?;
        // One that an older or newer version wrote may say something else: what it had in flight is delivered again.
        let window: Window = serde_json::from_str(locked.window.as_deref()?).ok()?;
        Some(Held {
            session: holder.session,
            generation: locked.cursor.generation,
            window: window.resumed(locked.cursor.acked_seq, locked.cursor.lost),
            read_at: (locked.now, self.api.clock.elapsed()),
            seen_at: holder.seen_at,
        })
    }

    /// Whether nothing was heard of somebody for so long that who comes begins anew.
    fn is_silent(&self, locked: &Locked, seen_at: time::OffsetDateTime) -> bool {
        let seen_at = Duration::try_from(seen_at - time::OffsetDateTime::UNIX_EPOCH).unwrap_or_default();
        locked.now.saturating_sub(seen_at) > self.api.config.sync.resume_window
    }

    async fn store(
        &self,
        tx: &mut PgTransaction<'_>,
        session: Uuid,
        window: &Window,
    ) -> Result<(), DatabaseError> {
        let save = Save {
            consumer: self.consumer.clone(),
            session,
            acked_seq: window.settled(window.position()),
            knows_lost: window.lost().is_none(),
        };
        let window = serde_json::to_string(window).unwrap_or_default();
        // The row is held, so nobody else can have come.
        agent::store_window(tx, &save, &window).await.map(drop)
    }

    /// Does something to the row in a transaction that holds nothing for long.
    async fn within<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgTransaction<'_>) -> Result<Result<T, Problem>, DatabaseError>,
    ) -> Result<T, Problem> {
        let mut lease = self.api.database.lease().await?;
        let worked = self.api.database.in_time(async {
            let mut tx = lease.begin().await?;
            let worked = work(&mut tx).await?;
            match &worked {
                Ok(_) => tx.commit().await.map_err(DatabaseError::from)?,
                Err(_) => tx.rollback().await.map_err(DatabaseError::from)?,
            }
            Ok::<_, DatabaseError>(worked)
        });
        let worked = worked.await?;
        lease.done();
        worked
    }
}

impl Held {
    /// The time of the database by now, as far as this process can tell.
    pub(super) fn now(&self, api: &Api) -> Duration {
        let (database, process) = self.read_at;
        database + api.clock.elapsed().saturating_sub(process)
    }
}

pub(super) fn gone() -> Problem {
    Problem::not_found("this agent has no consumer of this name")
}

/// A consumer was taken from somebody. Said once, by whoever took it.
pub(in crate::api) fn log_takeover(consumer: &AgentConsumer, session: Uuid, before: &Holder) {
    tracing::info!(
        agent = consumer.agent(), consumer = consumer.name(), %session,
        replaced = %before.session, over = before.kind.as_str(), "consumer of an agent taken over"
    );
}

/// So many events of a consumer were not acknowledged in time, and are given again.
pub(in crate::api) fn went_back(api: &Api, consumer: &AgentConsumer, over: HolderKind, events: usize) {
    api.tally.went_back(over, events);
    tracing::info!(
        agent = consumer.agent(),
        consumer = consumer.name(),
        over = over.as_str(),
        events,
        "events of an agent not acknowledged in time"
    );
}

/// Somebody else has come in between.
pub(in crate::api) fn replaced(cursor: &Cursor) -> Problem {
    let detail = match cursor.holder {
        Some(_) => "somebody else has the consumer",
        None => "the consumer was taken from who had it",
    };
    Problem::new(Code::ConsumerReplaced, detail).held_by(cursor.holder.map(Into::into))
}
