//! The consumers of a process: which there are, and running them.
//!
//! One task for each lane of each consumer, and one listening connection for all of them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::ConsumerConfig;
use super::definition::Consumer;
use super::error::{ConsumersError, EnsureError, RegistrationError, RoundError};
use super::lanes::Lanes;
use super::marks::Marks;
use super::name::ConsumerName;
use super::round::{Known, RoundResult};
use super::shared::Shared;
use super::tally::RoundTally;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::durable::DurableHead;
use crate::listen::{self, Listener};
use crate::store::consumers::Division;

/// The application name of the connection that wakes consumers.
pub const CONSUMER_WAKE_APPLICATION_NAME: &str = "seqline-consumer-wake";

/// The consumers of a process. See the [module](super).
///
/// Registering one after the start is not possible:
///
/// ```compile_fail,E0382
/// # use seqline::consumer::{Consumer, Consumers};
/// # async fn example(mut consumers: Consumers, late: Consumer, stop: tokio_util::sync::CancellationToken) {
/// consumers.run(stop).await;
/// consumers.register(late);
/// # }
/// ```
#[derive(Debug)]
pub struct Consumers {
    shared: Arc<Shared>,
    consumers: Vec<Arc<Consumer>>,
    listen: PgConnectOptions,
    listening: watch::Sender<bool>,
}

impl Consumers {
    /// No consumer yet. Rounds take their connections from `pool`: one for each lane that works at the same time. The
    /// listening connection is its own, made with `listen`: with a pooler in between this one goes to the server itself. There is none if
    /// [`ConsumerConfig::listen`] says so.
    #[must_use]
    pub fn new(pool: PgPool, listen: PgConnectOptions, config: ConsumerConfig, clock: Clock) -> Self {
        Self {
            shared: Arc::new(Shared {
                pool,
                config,
                clock,
                marks: Marks::default(),
                durable: DurableHead::default(),
            }),
            consumers: Vec::new(),
            listen: listen.application_name(CONSUMER_WAKE_APPLICATION_NAME),
            listening: watch::Sender::new(false),
        }
    }

    /// Adds a consumer.
    ///
    /// # Errors
    ///
    /// [`RegistrationError::Duplicate`] when one of this name was added before.
    pub fn register(&mut self, consumer: Consumer) -> Result<(), RegistrationError> {
        if self.find(&consumer.name).is_some() {
            return Err(RegistrationError::Duplicate(consumer.name));
        }
        self.consumers.push(Arc::new(consumer));
        Ok(())
    }

    /// Whether the connection that wakes consumers is up, and its changes. When it is not, they poll.
    #[must_use]
    pub fn listening(&self) -> watch::Receiver<bool> {
        self.listening.subscribe()
    }

    /// What is counted of the rounds of each consumer, from now on. Keeps counting while [`run`](Self::run) runs.
    #[must_use]
    pub fn tallies(&self) -> Vec<(ConsumerName, Arc<RoundTally>)> {
        self.consumers.iter().map(|consumer| (consumer.name.clone(), consumer.tally.clone())).collect()
    }

    /// Makes the cursors that do not exist yet, all or none. [`run`](Self::run) does it too. Cursors that exist stay where
    /// they are.
    ///
    /// # Errors
    ///
    /// [`EnsureError`] when one of them cannot be made.
    pub async fn ensure(&self) -> Result<(), EnsureError> {
        self.shared.ensure(&self.consumers).await.map(drop)
    }

    /// One round of one consumer, now; of its lanes the one that is furthest behind. For tests, and for programs that decide
    /// themselves when to work; a running worker does not mind.
    ///
    /// Dropping the future rolls the round back, unless its COMMIT was already sent.
    ///
    /// # Errors
    ///
    /// [`RoundError`]. It is neither logged nor recorded: that is up to the caller.
    ///
    /// # Panics
    ///
    /// If no consumer of this name was registered.
    pub async fn round(&self, name: &ConsumerName) -> Result<RoundResult, RoundError> {
        let consumer = self
            .find(name)
            .unwrap_or_else(|| panic!("consumer {name} has to be registered before its rounds"));
        Box::pin(self.shared.rounds(consumer, None).run(Known::Nothing)).await
    }

    /// Ensures the cursors and then runs all consumers until `stop` is cancelled. From then on no round begins; those that run
    /// are finished, for at most [`stop_timeout`](ConsumerConfig::stop_timeout).
    ///
    /// Dropping the future rolls the running rounds back, except one whose COMMIT was already sent. Neither loses or doubles
    /// anything.
    ///
    /// # Errors
    ///
    /// [`ConsumersError::Ensure`] before anything runs, when waiting does not help; a database that is away is waited for.
    /// [`ConsumersError::Ended`] is a bug: the process should end with it, so
    /// that nobody believes that the consumer still works. A failing round is not an error here.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ConsumersError> {
        let Some(divisions) = self.ensured(&stop).await? else { return Ok(()) };
        let mut tasks = JoinSet::new();
        let mut names = HashMap::new();
        let mut lanes = Vec::new();
        for consumer in &self.consumers {
            let of_consumer = Arc::new(Lanes::new(divided(consumer, &divisions)));
            let task = of_consumer.clone().run(self.shared.clone(), consumer.clone(), stop.clone());
            names.insert(tasks.spawn(task).id(), consumer.name.clone());
            lanes.push(of_consumer);
        }
        let config = &self.shared.config;
        let commits = Notify::new();
        let listener = config.listen.then(|| Listener {
            options: self.listen.clone(),
            probe: self.shared.pool.clone(),
            clock: self.shared.clock.clone(),
            backoff: Backoff::new(config.poll_interval, config.listen_reconnect_backoff_cap),
            heartbeat_interval: config.listen_heartbeat_interval,
            heartbeat_timeout: config.listen_heartbeat_timeout,
        });
        // What is dropped here ends with it: the listener, and tasks that are not done in time.
        tokio::select! {
            ended = ended(&mut tasks, &names, &stop) => ended,
            () = self.out_of_time(&stop) => {
                tracing::warn!("event consumers did not end in time, their rounds are rolled back");
                Ok(())
            }
            never = Box::pin(listen::run(listener, &commits, &self.listening)) => match never {},
            never = wake_all(&commits, &lanes) => match never {},
            never = Box::pin(self.poll(&lanes)) => match never {},
        }
    }

    /// Ensures the cursors, however long the database is away; `None` when the stop came first.
    async fn ensured(&self, stop: &CancellationToken) -> Result<Option<Vec<Division>>, EnsureError> {
        let config = &self.shared.config;
        let mut backoff = Backoff::new(config.poll_interval, config.failure_backoff_cap);
        let mut outage_logged = false;
        loop {
            let ensured = tokio::select! {
                ensured = self.shared.ensure(&self.consumers) => ensured,
                () = stop.cancelled() => return Ok(None),
            };
            match ensured {
                Err(error) if error.is_retryable() => {
                    if !std::mem::replace(&mut outage_logged, true) {
                        tracing::warn!(error = %error, "event consumers cannot begin, trying again");
                    }
                }
                ensured => return ensured.map(Some),
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(None),
                () = self.shared.clock.sleep(backoff.next(fastrand::f64())) => {}
            }
        }
    }

    /// Wakes those who have something to do, every poll interval, and learns how many lanes there are. NOTIFY only makes it faster.
    async fn poll(&self, lanes: &[Arc<Lanes>]) -> Infallible {
        let names: Vec<&str> = self.consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        loop {
            self.shared.clock.sleep(self.shared.config.poll_interval).await;
            let positions = self.shared.positions(&names).await;
            for (name, lanes) in names.iter().zip(lanes) {
                match &positions {
                    Ok(positions) => {
                        let of_consumer = || positions.iter().filter(|at| at.name == *name);
                        if let Some(at) = of_consumer().next() {
                            lanes.set_count(at.lanes);
                        } else {
                            // One without a cursor finds that out by itself. So does one that is paused: it says so.
                            lanes.wake(0);
                        }
                        of_consumer().filter(|at| !at.is_done()).for_each(|at| lanes.wake(at.lane));
                    }
                    // They find out what is wrong, and say it.
                    Err(_) => lanes.wake_all(),
                }
            }
        }
    }

    async fn out_of_time(&self, stop: &CancellationToken) {
        stop.cancelled().await;
        self.shared.clock.sleep(self.shared.config.stop_timeout).await;
    }

    fn find(&self, name: &ConsumerName) -> Option<&Arc<Consumer>> {
        self.consumers.iter().find(|consumer| consumer.name == *name)
    }
}

/// Until all tasks have ended, which they do after `stop` only.
async fn ended(
    tasks: &mut JoinSet<()>,
    names: &HashMap<tokio::task::Id, ConsumerName>,
    stop: &CancellationToken,
) -> Result<(), ConsumersError> {
    while let Some(ended) = tasks.join_next_with_id().await {
        let id = match ended {
            Ok(_) if stop.is_cancelled() => continue,
            Ok((id, ())) => id,
            Err(panic) => panic.id(),
        };
        return Err(ConsumersError::Ended(names[&id].clone()));
    }
    // Also without any consumer.
    stop.cancelled().await;
    Ok(())
}

/// Passes wake-ups on to everybody.
async fn wake_all(commits: &Notify, lanes: &[Arc<Lanes>]) -> Infallible {
    loop {
        commits.notified().await;
        lanes.iter().for_each(|lanes| lanes.wake_all());
    }
}

/// How many lanes a consumer has: what the database says counts, for all programs that work on it.
fn divided(consumer: &Consumer, divisions: &[Division]) -> u32 {
    let name = consumer.name.as_str();
    let Some(division) = divisions.iter().find(|division| division.name == name) else {
        return consumer.lanes;
    };
    let (lanes, key) = (division.lanes, division.lane_key.as_str());
    if (lanes, key) != (consumer.lanes, consumer.lane_key.as_str()) {
        tracing::warn!(
            consumer = name,
            lanes,
            key,
            declared_lanes = consumer.lanes,
            declared_key = consumer.lane_key.as_str(),
            "event consumer has other lanes than its program says"
        );
    }
    lanes
}
