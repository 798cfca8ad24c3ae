//! The passes of a consumer, and what lies between them.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::consumer::Info;
use futures_util::FutureExt;
use seqline::Clock;
use sqlx::PgPool;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::config::StreamConsumerConfig;
use super::decide::{Came, Content, Outcome, Reason, decide_outcome};
use super::definition::{StartAt, StreamConsumer};
use super::durable;
use super::effects::{Effects, Source, Work, discard, letter};
use super::error::PassError;
use super::hand::{InHand, Keeper};
use super::pace::Pace;
use super::place::Link;
use super::pull::PullError;
use super::shared::Shared;
use super::tally::{ConsumerTally, Pass};
use crate::broker::Broker;
use crate::limits::{CONSUMER_FACTS_INTERVAL, FLUSH_TIMEOUT, OWED_LOCK_WAIT};
use crate::store::consumers::Registration;
use crate::store::retries::Letter;
use crate::stream::StreamSettings;

/// Runs a [`StreamConsumer`].
///
/// Any number of processes may run the same one; they divide the work. Nothing happens before [`run`](Self::run) or
/// [`poll_once`](Self::poll_once): broker and database may be away when it is made.
pub struct Runtime {
    pub(super) shared: Arc<Shared>,
    state: Mutex<State>,
}

/// What a consumer knows from pass to pass.
#[derive(Default)]
pub(super) struct State {
    pub(super) link: Option<Link>,
    pub(super) keeper: Option<Keeper>,
    pub(super) registration: Option<Registration>,
    /// Messages as they came.
    pub(super) fetched: Vec<InHand>,
    /// Those that cannot be read, or not by this version.
    unreadable: Vec<(Subject, Came, Letter)>,
    /// Events of messages.
    works: Vec<Work>,
    /// When what is due is looked for, by what the clock says has elapsed.
    pub(super) retry_at: Duration,
    /// When the log is compared.
    pub(super) reconcile_at: Duration,
    /// When the broker is asked for figures.
    facts_at: Duration,
    pub(super) said_unchanged: bool,
    pub(super) said_stuck: bool,
    /// Until when a handler counts as one that fails, if the log says that it does.
    pub(super) failing_until: Option<Duration>,
}

impl State {
    /// Where the broker hears of what is in hand.
    pub(super) fn replies(&self) -> impl Iterator<Item = &Subject> {
        let fetched = self.fetched.iter().map(|message| &message.reply);
        let unreadable = self.unreadable.iter().map(|(reply, ..)| reply);
        fetched.chain(unreadable).chain(self.works.iter().filter_map(|work| work.reply.as_ref()))
    }

    fn is_empty_handed(&self) -> bool {
        self.replies().next().is_none()
    }
}

/// What went wrong, if the pass can go on nevertheless: without the database it cannot.
fn unless_of_database(done: Result<(), PassError>) -> Result<Result<(), PassError>, PassError> {
    match done {
        Err(error) if error.is_of_database() => Err(error),
        done => Ok(done),
    }
}

impl Runtime {
    /// Makes one. `pool` is of a login with the rights of `seqline_consumer` and `seqline_reader`, and with those that its handler needs. A `stream`
    /// that is there is left as it is: the settings are for one that has to be made.
    #[must_use]
    pub fn new(
        pool: PgPool,
        broker: Broker,
        stream: StreamSettings,
        consumer: StreamConsumer,
        config: StreamConsumerConfig,
        clock: Clock,
    ) -> Self {
        let shared = Shared {
            pool,
            broker,
            stream,
            consumer,
            config,
            clock,
            tally: Arc::default(),
            has_said: AtomicBool::new(false),
            before_ack: None,
            ended: StdMutex::default(),
            owed: StdMutex::default(),
            bad_luck: StdMutex::default(),
        };
        Self { shared: Arc::new(shared), state: Mutex::default() }
    }

    /// Has something called each time when effects are committed and the broker does not know yet: the worst moment to die, for those who want to
    /// see what happens then. For a runtime that has not run.
    #[doc(hidden)]
    #[must_use]
    pub fn before_ack(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.before_ack = Some(Box::new(hook));
        }
        self
    }

    /// What it has done since it was made.
    #[must_use]
    pub fn tally(&self) -> Arc<ConsumerTally> {
        self.shared.tally.clone()
    }

    /// One pass: what is due is tried again, then messages are fetched, handled, and acknowledged. With messages in hand from a pass that
    /// failed it goes on with them and fetches none. This is what [`run`](Self::run) does again and again.
    ///
    /// Not cancel safe: of a pass that was dropped the broker hears nothing, so its messages come again.
    ///
    /// # Errors
    ///
    /// [`PassError`]: broker or database cannot be used now. What is in hand stays there.
    pub async fn poll_once(&self) -> Result<Pass, PassError> {
        self.pass(&CancellationToken::new()).await
    }

    /// Makes passes until it is told to stop: at once after one that did something, after a pause otherwise, and after longer pauses while
    /// broker or database are away. It never ends on its own.
    ///
    /// When it is told to stop, the event that is being handled is handled to its end and committed, with those before it; messages whose turn
    /// did not come are given back; and what the broker is to know is sent. The connection to the broker is left to its owner.
    pub async fn run(&self, stop: CancellationToken) {
        let config = &self.shared.config;
        let mut pace = Pace::new(config.idle_pause, config.failure_backoff_cap);
        let mut said: Option<&'static str> = None;
        while !stop.is_cancelled() {
            // Handlers are guarded where they are called. Whatever else there may be shall not end it either.
            let passed = AssertUnwindSafe(self.pass(&stop)).catch_unwind().await;
            let pause = match passed {
                Ok(Ok(pass)) => {
                    pace.reset();
                    if said.take().is_some() {
                        tracing::info!(consumer = self.shared.name(), "stream consumer goes on");
                    }
                    if !pass.is_idle() {
                        continue;
                    }
                    config.idle_pause
                }
                Ok(Err(error)) => {
                    self.shared.tally.count_failure();
                    if said.replace(error.kind()) != Some(error.kind()) {
                        tracing::warn!(consumer = self.shared.name(), kind = error.kind(), error = %error, "stream consumer cannot go on");
                    }
                    pace.next(fastrand::f64())
                }
                Err(panic) => {
                    discard(panic);
                    // Nobody knows what was in hand: the broker gives it out again.
                    *self.state.lock().await = State::default();
                    self.shared.bad_luck.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    self.shared.tally.count_failure();
                    if said.replace("panic") != Some("panic") {
                        tracing::error!(
                            consumer = self.shared.name(),
                            kind = "panic",
                            "stream consumer cannot go on"
                        );
                    }
                    pace.next(fastrand::f64())
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.shared.clock.sleep(pause) => {}
            }
        }
        self.release().await;
    }

    /// Gives back what is in hand.
    async fn release(&self) {
        let mut state = self.state.lock().await;
        let State { link, keeper, .. } = &mut *state;
        let mut late = Vec::new();
        if let Some(link) = link {
            let mut take = |message: async_nats::Message| late.extend(message.reply);
            // A connection that is gone has nothing.
            let _ = link.puller.take_late(u32::MAX, &mut take);
        }
        let Some(keeper) = keeper.take() else { return };
        let replies: Vec<Subject> = state.replies().cloned().chain(late).collect();
        for reply in replies {
            keeper.tell(&reply, decide_outcome(Came::Stopped, self.shared.config.attempts)).await;
        }
        // What does not get there comes again.
        let _ = self.shared.clock.timeout(FLUSH_TIMEOUT, keeper.flush()).await;
        *state = State::default();
    }

    async fn pass(&self, stop: &CancellationToken) -> Result<Pass, PassError> {
        let mut state = self.state.lock().await;
        let mut pass = Pass::default();
        let passed = Box::pin(self.work(&mut state, stop, &mut pass)).await;
        self.shared.tally.count(&pass);
        if !pass.is_idle() {
            let Pass { handled, duplicates, retried, terminated, skipped, dead } = pass;
            let consumer = self.shared.name();
            // Not above debug: one that is busy makes many passes in a second, and the metrics add them up.
            tracing::debug!(
                consumer,
                handled,
                duplicates,
                retried,
                terminated,
                skipped,
                dead,
                "stream consumer pass"
            );
        }
        self.say_failing(&mut state, &pass);
        if passed.as_ref().is_err_and(PassError::is_of_database) {
            // It can be another one when it comes back: an older state of it, in which the consumer is not recorded.
            state.registration = None;
            state.link = None;
        }
        passed.map(|()| pass)
    }

    async fn work(
        &self,
        state: &mut State,
        stop: &CancellationToken,
        pass: &mut Pass,
    ) -> Result<(), PassError> {
        self.give_back_forgotten(state).await;
        Box::pin(self.record_owed(stop, pass)).await?;
        let tried = unless_of_database(Box::pin(self.try_again(state, stop, pass)).await)?;
        Box::pin(self.link(state)).await?;
        let compared = unless_of_database(Box::pin(self.reconcile(state)).await)?;
        Box::pin(self.link(state)).await?;
        self.fetch(state, stop, pass.is_idle()).await?;
        Box::pin(self.settle(state, stop, pass)).await?;
        self.look_at_waiting(state).await?;
        // What is wrong with one of them keeps no messages waiting.
        tried.and(compared)
    }

    /// Gives back what a pass had in hand that was dropped.
    async fn give_back_forgotten(&self, state: &State) {
        let Some(keeper) = &state.keeper else { return };
        for reply in keeper.held_besides(state.replies()) {
            self.tell(state, &reply, Came::Stopped).await;
        }
    }

    /// Records failures that could not be recorded when they happened.
    async fn record_owed(&self, stop: &CancellationToken, pass: &mut Pass) -> Result<(), PassError> {
        let effects = Effects { shared: &self.shared, stop };
        for unrecorded in self.shared.owed() {
            let came = match Box::pin(effects.record_failure(&unrecorded, OWED_LOCK_WAIT)).await {
                Err(error) if error.is_lock_timeout() => continue,
                recorded => recorded?,
            };
            self.shared.owed.lock().unwrap_or_else(PoisonError::into_inner).remove(&unrecorded.event_id);
            self.note((unrecorded.event_id, unrecorded.position), came, true, pass);
        }
        Ok(())
    }

    /// Gets messages, if there are none in hand. Only with nothing else to do it waits for one.
    async fn fetch(&self, state: &mut State, stop: &CancellationToken, waits: bool) -> Result<(), PassError> {
        let shared = &*self.shared;
        let is_empty_handed = state.is_empty_handed();
        let State { link: Some(link), keeper: Some(keeper), fetched, .. } = state else { return Ok(()) };
        let client = shared.broker.client().await?;
        let created = link.stream_created;
        let mut redelivered = 0;
        let mut take = |message| {
            if let Some(message) = InHand::new(message, created, &client) {
                keeper.hold(&message.reply);
                redelivered += u64::from(message.redelivered);
                fetched.push(message);
            }
        };
        let expiry = waits.then_some(shared.config.fetch_expiry);
        let margin = shared.broker.request_timeout();
        let batch = shared.batch().min(shared.config.max_ack_pending.max(1));
        let pulled = match is_empty_handed {
            true => link.puller.fetch(batch, expiry, margin, &shared.clock, stop, &mut take).await,
            // What comes late is in hand too.
            false => link.puller.take_late(shared.config.max_ack_pending, &mut take).map(drop),
        };
        shared.tally.count_redelivered(redelivered);
        match pulled {
            Ok(()) => Ok(()),
            Err(PullError::Gone) => {
                // Whether it was deleted, or a broker is starting, shows when it is connected anew.
                state.link = None;
                Err(self.pull_error(PullError::Gone))
            }
            Err(error) => Err(self.pull_error(error)),
        }
    }

    /// Handles what is in hand.
    async fn settle(
        &self,
        state: &mut State,
        stop: &CancellationToken,
        pass: &mut Pass,
    ) -> Result<(), PassError> {
        if state.is_empty_handed() {
            return Ok(());
        }
        let registration = self.register_late(state).await?;
        self.sort(state, &registration, pass).await;
        let effects = Effects { shared: &self.shared, stop };
        if !state.unreadable.is_empty() {
            let letters: Vec<Letter> = state.unreadable.iter().map(|(.., letter)| letter.clone()).collect();
            // Before the broker forgets them.
            let written = Box::pin(effects.give_up(&letters)).await?;
            pass.dead += written;
            self.say_unreadable(written, letters.last().and_then(|letter| letter.stream_seq));
            for (reply, came, _) in std::mem::take(&mut state.unreadable) {
                pass.terminated += 1;
                self.tell(state, &reply, came).await;
            }
        }
        let works = std::mem::take(&mut state.works);
        let settled = Box::pin(effects.settle(Source::Stream, works)).await;
        state.works = settled.left;
        if let (Some(hook), true) =
            (&self.shared.before_ack, settled.done.iter().any(|(_, came)| *came == Came::Handled))
        {
            hook();
        }
        let mut kept = None;
        for (work, came) in settled.done {
            self.note((work.event_id, work.position), came, false, pass);
            match (&work.reply, came) {
                (_, Came::Undecided) => {
                    kept.get_or_insert(PassError::DatabaseBehind);
                    state.works.push(work);
                }
                (_, Came::HistoriesDiffer) => {
                    kept = Some(PassError::HistoriesDiffer);
                    state.works.push(work);
                }
                (Some(reply), came) => self.tell(state, reply, came).await,
                (None, _) => {}
            }
        }
        settled.error.or(kept).map_or(Ok(()), Err)
    }

    /// Tells events from what is none, and what is asked for from what is not.
    async fn sort(&self, state: &mut State, registration: &Registration, pass: &mut Pass) {
        let consumer = &self.shared.consumer;
        for message in std::mem::take(&mut state.fetched) {
            let event = message.identity.map(|identity| (identity.event_id, identity.position));
            let mut unreadable = |came, reason| {
                let letter = letter(&message.whence, reason, event, 0, None);
                state.unreadable.push((message.reply.clone(), came, letter));
            };
            match message.content {
                Content::Unreadable => unreadable(Came::Unreadable, Reason::Unreadable),
                Content::FutureVersion => unreadable(Came::FutureVersion, Reason::FutureVersion),
                Content::Event(identity, event) => {
                    let is_before_start =
                        consumer.start_at == StartAt::New && identity.position <= registration.start_position;
                    if is_before_start
                        || !consumer.asks_for(&event.event_type, event.scope.space_id.as_deref())
                    {
                        pass.skipped += 1;
                        self.tell(state, &message.reply, Came::NotAskedFor).await;
                        continue;
                    }
                    state.works.push(Work {
                        event,
                        identity: Some(identity),
                        event_id: identity.event_id,
                        position: identity.position,
                        failures: 0,
                        whence: message.whence,
                        reply: Some(message.reply),
                    });
                }
            }
        }
    }

    async fn tell(&self, state: &State, reply: &Subject, came: Came) {
        if let Some(keeper) = &state.keeper {
            keeper.tell(reply, decide_outcome(came, self.shared.config.attempts)).await;
        }
    }

    /// Counts what came of an event.
    pub(super) fn note(&self, event: (Uuid, i64), came: Came, from_log: bool, pass: &mut Pass) {
        match (came, decide_outcome(came, self.shared.config.attempts)) {
            (Came::Handled, _) => pass.handled += 1,
            (Came::Duplicate | Came::Settled, _) => pass.duplicates += 1,
            (Came::Failed { .. }, Outcome::Terminate { reason }) => {
                pass.dead += 1;
                pass.terminated += u64::from(!from_log);
                self.say_dead_letter(event, reason);
            }
            (Came::Failed { .. }, _) => pass.retried += 1,
            (Came::OtherHistory, _) => {
                pass.dead += 1;
                self.say_dead_letter(event, Reason::OtherHistory);
            }
            _ => {}
        }
    }

    pub(super) fn note_waiting(&self, info: &Info) {
        self.shared.tally.note_waiting(info.num_pending, info.num_ack_pending as u64);
    }

    async fn look_at_waiting(&self, state: &mut State) -> Result<(), PassError> {
        let now = self.shared.clock.elapsed();
        let Some(link) = state.link.as_ref().filter(|_| now >= state.facts_at) else { return Ok(()) };
        state.facts_at = now.saturating_add(CONSUMER_FACTS_INTERVAL);
        // For figures alone: the next fetch finds out what is wrong.
        if let Ok(Some(info)) = durable::info(&link.stream, self.shared.name()).await {
            self.note_waiting(&info);
        }
        Ok(())
    }
}
