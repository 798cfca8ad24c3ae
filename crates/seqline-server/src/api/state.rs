//! What requests are answered with, in one epoch after the other.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use opentelemetry::metrics::Counter;
use seqline::agent::AgentConsumer;
use seqline::{Clock, DatabaseError, DurableHead, read};
use sqlx::PgPool;
use tokio::sync::{OwnedMutexGuard, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use uuid::Uuid;

use super::append::Appender;
use super::body::Bodies;
use super::database::Database;
use super::gateway::saver::Saver;
use super::gateway::sessions::Sessions;
use super::hub::Hub;
use super::hub::reader::Reader;
use super::hub::waiting::WaitingRoom;
use super::jwt::JwtVerifier;
use super::limiter::Limiter;
use super::permissions::Permissions;
use super::tally::Tally;
use super::{Code, Position, Problem};
use crate::config::Config;
use crate::limits::{
    API_DURABLE_WAITS_MAX, API_HEAD_WAIT_MAX, API_OPERATORS_MAX, API_RETRY_AFTER, GATEWAY_SESSIONS_MAX,
};
use crate::metrics::{Metrics, catalogue};
use crate::ops::Health;

/// What answers in one epoch. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Api(Arc<Answering>);

/// What it is made of.
pub(crate) struct Answering {
    pub(crate) pool: PgPool,
    pub(crate) config: Arc<Config>,
    pub(crate) clock: Clock,
    /// The history of which it tells.
    pub(crate) epoch: Uuid,
    pub(crate) health: Health,
    pub(crate) permissions: Permissions,
    /// The same pool, for work that has a bound.
    pub(crate) database: Database,
    /// What appends.
    pub(crate) appender: Appender,
    /// Fills the pages of those who read.
    pub(crate) reader: Reader,
    /// Who is connected to the gateway, and which consumers of agents they hold.
    pub(crate) sessions: Sessions,
    /// Counts what they and agents do.
    pub(crate) tally: Tally,
    /// Where they wait.
    pub(crate) waiting: WaitingRoom,
    /// Up to where events may be handed out.
    durable: DurableHead,
    /// Places for those who ask the database how far that is.
    asking_durable: Semaphore,
    /// Places for requests of operators.
    pub(crate) operators: Arc<Semaphore>,
    /// Cancelled when the epoch or the process ends: whoever waits or streams ends by it.
    pub(crate) stop: CancellationToken,
    /// The requests that are being answered.
    requests: TaskTracker,
}

impl Deref for Api {
    type Target = Answering;

    fn deref(&self) -> &Answering {
        &self.0
    }
}

impl Api {
    /// The turn of whoever takes this consumer in this process, which another may have for as long as the database takes.
    pub(crate) async fn turn(&self, consumer: &AgentConsumer) -> Result<OwnedMutexGuard<()>, Problem> {
        let turn =
            self.clock.timeout(self.config.database.statement_timeout, self.sessions.turn(consumer)).await;
        turn.ok_or_else(|| Problem::unavailable("somebody else is taking the consumer"))
    }

    pub(crate) fn new(pool: PgPool, config: &Config, clock: &Clock, hub: &Hub, health: &Health) -> Self {
        let keys = &config.api;
        let database = Database::new(pool.clone(), clock.clone(), config.database.statement_timeout);
        let permissions = Permissions::of_database(database.clone(), keys.permissions_max_age, clock.clone());
        let reader = Reader {
            hub: hub.clone(),
            permissions: permissions.clone(),
            database: database.clone(),
            places: Arc::new(Semaphore::new(size(keys.readers_max).min(Semaphore::MAX_PERMITS))),
            scan: keys.catch_up_scan_size,
            behind_max: Some(i64::from(keys.catch_up_events_max)).filter(|behind_max| *behind_max > 0),
        };
        let epoch = hub.epoch();
        let (sessions, stop) = (Sessions::new(GATEWAY_SESSIONS_MAX, clock.clone()), CancellationToken::new());
        let saver = Saver {
            sessions: sessions.clone(),
            database: database.clone(),
            clock: clock.clone(),
            interval: config.agent.ack_persist_interval,
            resume_window: config.sync.resume_window,
        };
        tokio::spawn(saver.run(stop.clone()));
        Self(Arc::new(Answering {
            permissions,
            reader,
            sessions,
            tally: Tally::new(super::gateway::reasons()),
            waiting: WaitingRoom::new(size(keys.waiting_max)),
            appender: Appender::start(database.clone(), keys),
            database,
            pool,
            config: Arc::new(config.clone()),
            clock: clock.clone(),
            epoch,
            health: health.clone(),
            durable: DurableHead::default(),
            asking_durable: Semaphore::new(API_DURABLE_WAITS_MAX),
            operators: Arc::new(Semaphore::new(API_OPERATORS_MAX)),
            stop,
            requests: TaskTracker::new(),
        }))
    }

    /// The number before the oldest event, and that of the newest one that may be told of: a crash cannot take it back.
    pub(crate) async fn ends(&self) -> Result<(i64, i64), DatabaseError> {
        let ends = self.database.ask(async |connection| {
            let head = read::head(connection).await?;
            Ok::<_, DatabaseError>((read::min_retained(connection).await? - 1, head))
        });
        let (oldest, head) = ends.await?;
        // As a rule all of it is durable in a moment. If not, as when a standby is away, what the tail has had is.
        let durable = match self.clock.timeout(API_HEAD_WAIT_MAX, self.until_durable(head)).await {
            Some(waited) => waited.map(|()| head)?,
            None => oldest,
        };
        Ok((oldest, durable.max(self.reader.hub.position())))
    }

    /// Returns when the event with this number may be handed out: a crash cannot take it back. While a standby is away that takes as long, so
    /// those who wait hold no connection, but for a few who ask.
    pub(crate) async fn until_durable(&self, seq: i64) -> Result<(), DatabaseError> {
        let hub = &self.reader.hub;
        if seq <= hub.position() {
            return Ok(());
        }
        let waited = Box::pin(async {
            let _place = tokio::select! {
                // Nobody closes it.
                place = self.asking_durable.acquire() => place,
                () = hub.passes(seq - 1) => return Ok(()),
            };
            let mut lease = self.database.lease().await?;
            self.durable.wait_for(lease.connection(), seq).await?;
            lease.done();
            Ok(())
        });
        self.database.in_time(waited).await
    }

    /// As long as what is returned lives, the end of the epoch waits for it.
    pub(crate) fn under_way(&self) -> TaskTrackerToken {
        self.0.requests.token()
    }

    /// A number as it leaves the server.
    pub(crate) fn position(&self, seq: i64) -> Position {
        Position { epoch: self.epoch, seq }
    }
}

fn size(key: u32) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}

/// What is behind the address: an [`Api`], or none for a while. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) config: Arc<Config>,
    pub(crate) clock: Clock,
    /// How often who may ask.
    pub(crate) limiter: Arc<Limiter>,
    /// Room for bodies of requests.
    pub(crate) bodies: Bodies,
    /// Whom else it believes.
    pub(super) jwt: Option<JwtVerifier>,
    health: Health,
    /// Counts the requests.
    pub(super) requests: Counter<f64>,
    behind: Arc<watch::Sender<Option<Api>>>,
}

impl Door {
    pub(crate) fn new(
        config: &Config,
        clock: &Clock,
        health: &Health,
        metrics: &Metrics,
        jwt: Option<JwtVerifier>,
    ) -> Self {
        Self {
            jwt,
            config: Arc::new(config.clone()),
            clock: clock.clone(),
            limiter: Arc::new(Limiter::new(&config.api, &config.agent, clock)),
            bodies: Bodies::new(),
            health: health.clone(),
            requests: metrics.count(&catalogue::API_REQUESTS),
            behind: Arc::default(),
        }
    }

    /// Lets requests be answered by it, from the call on, until `stop` is cancelled. What is returned ends when none of them is under way any
    /// more.
    pub(crate) fn open(self, api: Api, stop: CancellationToken) -> impl Future<Output = ()> {
        self.behind.send_replace(Some(api.clone()));
        async move {
            stop.cancelled().await;
            self.behind.send_replace(None);
            api.stop.cancel();
            api.requests.close();
            api.requests.wait().await;
        }
    }

    /// What answers now, or why nothing does. It never waits, not even for a database of which it is known that it is away.
    fn behind(&self) -> Result<Api, Problem> {
        let seen = self.health.seen();
        match (self.behind.borrow().clone(), seen) {
            (Some(api), Some(_)) if self.health.known_epoch() == Some(api.epoch) => Ok(api),
            (_, None) => Err(Problem::unavailable("the database does not answer")),
            (_, Some(seen)) if !seen.same_history => Err(Problem::new(
                Code::EpochUndecided,
                "the database was restored or replaced, and it is not decided how its history goes on",
            )
            .retry_after(API_RETRY_AFTER)),
            (_, Some(_)) => Err(Problem::unavailable("this server is starting or stopping")),
        }
    }

    /// The same for a request. As long as what is returned beside it lives, the end of the epoch waits for it.
    pub(super) fn enter(&self) -> (Entered, Option<TaskTrackerToken>) {
        let behind = self.behind();
        let counted = behind.as_ref().ok().map(|api| api.requests.token());
        (Entered(behind), counted)
    }
}

/// What a request is answered with, from its beginning to its end, or why it is not.
#[derive(Clone)]
pub(super) struct Entered(Result<Api, Problem>);

impl FromRequestParts<Door> for Api {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        match parts.extensions.get::<Entered>() {
            Some(Entered(behind)) => behind.clone(),
            None => door.behind(),
        }
    }
}
