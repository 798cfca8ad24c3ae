//! What operators and their tools ask a process: does it live, is it ready, what are its figures.
//!
//! `readiness` decides and does no I/O; `watch` looks at the database now and then; `server` answers; `probe` is the client of
//! `seqline healthcheck`. An answer never waits for the database: it shows what was seen last, and says when that is too old.

pub(crate) mod probe;
pub(crate) mod readiness;
pub(crate) mod server;
pub(crate) mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use seqline::Clock;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Notify, watch as latest};
use uuid::Uuid;

use self::readiness::{Check, Limits, Seen, Stage, State};
use self::server::{Bounds, OpsServer};
use self::watch::Watch;
use crate::config::Config;
use crate::connect::OwnConnection;
use crate::failure::Failure;
use crate::jobs::schema::schema_name;
use crate::lifecycle::{Lifecycle, Phase};
use crate::limits::LOOKS_MISSED_MAX;
use crate::metrics::{self, Metrics, Reading, Retention, catalogue};

/// From where on something is late.
pub(crate) fn limits(config: &Config) -> Limits {
    Limits {
        look_age_max: config.ops.look_interval * LOOKS_MISSED_MAX,
        tail_lag_max: config.ops.ready_lag_max,
    }
}

/// Starts what answers operators, which runs until the last part of the process has stopped.
pub(crate) fn answer(
    lifecycle: &mut Lifecycle,
    server: OpsServer,
    config: &Config,
    metrics: &Metrics,
    role: &'static str,
) -> Health {
    let clock = lifecycle.clock().clone();
    let health = Health::new(clock.clone(), limits(config));
    metrics.observe(&catalogue::BUILD_INFO, move || {
        let version = KeyValue::new(catalogue::VERSION, env!("CARGO_PKG_VERSION"));
        vec![(1.0, vec![version, KeyValue::new(catalogue::ROLE, role)])]
    });
    let up = health.clone();
    metrics
        .observe(&catalogue::DB_UP, move || vec![(if up.seen().is_some() { 1.0 } else { 0.0 }, Vec::new())]);

    let same = health.clone();
    metrics.observe(&catalogue::IDENTITY_MATCHES, move || {
        let value = |seen: Seen| if seen.same_history { 1.0 } else { 0.0 };
        same.seen().map(|seen| (value(seen), Vec::new())).into_iter().collect()
    });

    let bounds =
        Bounds { connections: config.ops.max_connections, request_timeout: config.ops.request_timeout };
    let (told, shown) = (health.clone(), metrics.clone());
    lifecycle.start("ops", Phase::Ops, move |stop| async move {
        server.run(bounds, told, shown, role, clock, stop).await;
        Ok(())
    });
    health
}

/// Starts what looks at the database for those answers.
pub(crate) fn look(
    lifecycle: &mut Lifecycle,
    options: &PgConnectOptions,
    config: &Config,
    metrics: &Metrics,
    health: &Health,
) -> Result<(), Failure> {
    let clock = lifecycle.clock().clone();
    let watch = Watch {
        database: OwnConnection::new(options, "seqline-watch", config.database.statement_timeout),
        rule: config.epoch.on_change,
        interval: config.ops.look_interval,
        limit: config.database.statement_timeout,
    };
    let (watched, look_clock) = (health.clone(), clock.clone());
    lifecycle.start("watch", Phase::Ops, move |stop| async move {
        watch.run(watched, look_clock, stop).await;
        Ok(())
    });
    let reading = Reading {
        interval: config.telemetry.refresh_interval,
        limit: config.database.statement_timeout,
        retention: Retention {
            retention: config.sync.event_retention,
            hold: config.sync.event_retention_hold,
        },
        jobs_schema: schema_name(&config.jobs.schema)?,
    };
    let reads = OwnConnection::new(options, "seqline-metrics", config.database.statement_timeout);
    let read_metrics = metrics.clone();
    lifecycle.start("metrics", Phase::Ops, move |stop| async move {
        metrics::refresh(reads, read_metrics, reading, clock, stop).await;
        Ok(())
    });
    Ok(())
}

/// What is known of the process and its database, shared by those who learn it and those who tell it.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    clock: Clock,
    limits: Limits,
    state: Arc<Mutex<State>>,
    tail: Arc<Mutex<Option<FollowedTail>>>,
    /// The epoch in which numbers may be handed out; none while that is not known, or none may be.
    history: Arc<latest::Sender<Option<Uuid>>>,
    look_wanted: Arc<Notify>,
    /// How many looks there were.
    looks: Arc<latest::Sender<u64>>,
}

/// The tail of a process, which delivers in one epoch.
#[derive(Debug)]
pub(crate) struct FollowedTail {
    pub(crate) epoch: Uuid,
    pub(crate) position: latest::Receiver<i64>,
}

impl Health {
    pub(crate) fn new(clock: Clock, limits: Limits) -> Self {
        Self {
            clock,
            limits,
            state: Arc::default(),
            tail: Arc::default(),
            history: Arc::default(),
            look_wanted: Arc::default(),
            looks: Arc::default(),
        }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.change(|state| state.stage = stage);
    }

    /// From now on this tail has to keep up, if there is one.
    pub(crate) fn follows(&self, tail: Option<FollowedTail>) {
        *self.tail.lock().unwrap_or_else(PoisonError::into_inner) = tail;
        self.change(State::forget_tail);
    }

    /// The position of the tail, if there is one.
    pub(crate) fn tail_position(&self) -> Option<i64> {
        self.delivered().map(|(_, position)| position)
    }

    /// The epoch of the tail, and the number up to which it has delivered there: all of that is durable.
    pub(crate) fn delivered(&self) -> Option<(Uuid, i64)> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.as_ref().map(|tail| (tail.epoch, *tail.position.borrow()))
    }

    /// What a look at the database showed, none when it failed; and the epoch in which numbers may be handed out. A look that failed says
    /// nothing about that.
    pub(crate) fn saw(&self, seen: Option<Seen>, epoch: Option<Uuid>) {
        let (now, tail) = (self.clock.elapsed(), self.tail_position());
        self.change(|state| state.saw(now, seen, tail));
        if seen.is_some() {
            self.history.send_if_modified(|known| std::mem::replace(known, epoch) != epoch);
        }
        self.looks.send_modify(|looks| *looks += 1);
    }

    /// Waits until numbers may be handed out, and returns the epoch. Cancel safe.
    pub(crate) async fn epoch(&self) -> Uuid {
        let mut history = self.history.subscribe();
        loop {
            if let Some(epoch) = *history.borrow_and_update() {
                return epoch;
            }
            // The sender is this, so it is there.
            let _ = history.changed().await;
        }
    }

    /// The epoch in which numbers may be handed out now.
    pub(crate) fn known_epoch(&self) -> Option<Uuid> {
        *self.history.borrow()
    }

    /// Waits until numbers of this epoch may no longer be handed out. Cancel safe.
    pub(crate) async fn epoch_ends(&self, epoch: Uuid) {
        let mut history = self.history.subscribe();
        let _ = history.wait_for(|known| *known != Some(epoch)).await;
    }

    /// Wants a look now, and waits for its end, for at most `limit`.
    pub(crate) async fn look_now(&self, limit: Duration) {
        let mut looks = self.looks.subscribe();
        // The one that is under way may have begun before what it is wanted for.
        let enough = looks.borrow_and_update().saturating_add(2);
        let looked = async {
            loop {
                self.look_wanted.notify_one();
                if looks.changed().await.is_err() || *looks.borrow_and_update() >= enough {
                    return;
                }
            }
        };
        self.clock.timeout(limit, looked).await;
    }

    /// Waits until there was a look, whatever came of it. Cancel safe.
    pub(crate) async fn first_look(&self) {
        let _ = self.looks.subscribe().wait_for(|looks| *looks > 0).await;
    }

    /// Waits until somebody wants a look. Cancel safe.
    pub(crate) async fn look_is_wanted(&self) {
        self.look_wanted.notified().await;
    }

    /// What `/readyz` says.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let (now, tail) = (self.clock.elapsed(), self.tail_position());
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.checks(now, &self.limits, tail)
    }

    /// What was seen last, unless that is too old.
    pub(crate) fn seen(&self) -> Option<Seen> {
        let now = self.clock.elapsed();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).seen(now, &self.limits)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
