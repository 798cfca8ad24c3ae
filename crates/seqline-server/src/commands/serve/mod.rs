//! `seqline serve`: the parts of the server, as long as they are wanted.
//!
//! What is wrong at the start is said in a sentence, as by every command. From then on there are logs only, one JSON object
//! per line; losing the database is in them and ends nothing, and neither does a database that is not there yet.
//!
//! Parts run in one epoch. When the database turns out to have another history than the numbers that were handed out, they are stopped,
//! and start again when somebody has said how it goes on.

mod figures;
mod parts;

use std::sync::OnceLock;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::figures::Figures;
use self::parts::{Making, Parts};
use super::asked_to_stop;
use crate::api::{ApiServer, Door, JwtVerifier};
use crate::cli::{DatabaseArgs, ServeArgs};
use crate::failure::Failure;
use crate::lifecycle::{Lifecycle, Phase};
use crate::ops::readiness::Stage;
use crate::ops::server::OpsServer;
use crate::ops::{self, Health};
use crate::recorder::Recorder;
use crate::streaming::Streaming;
use crate::{Server, connect};

pub(crate) async fn run(database: &DatabaseArgs, args: ServeArgs, server: &Server) -> Result<(), Failure> {
    let stop = asked_to_stop();
    let (config, role) = (&server.config, args.role);
    let options = connect::options(database)?;
    let listen = connect::listen_options(args.listen_url.as_deref(), &options)?;
    let metrics = &server.telemetry.metrics;
    let clock = &server.clock;
    let streaming = Streaming::of(role, args.nats_url.as_deref(), config)?;
    let streaming = streaming.as_ref();
    let making = Making { role, options: &options, listen: &listen, config, metrics, clock, streaming };
    let ops = OpsServer::bind(config.ops.listen, "ops.listen").await?;
    let address = ops.address();
    let (api, jwt) = match role.delivers() {
        true => {
            let jwt = JwtVerifier::new(&config.auth, &server.clock)?;
            (Some(ApiServer::bind(config.api.listen, "api.listen").await?), jwt)
        }
        false => (None, None),
    };
    let api_address = api.as_ref().map(ApiServer::address);
    let mut lifecycle = Lifecycle::new(server.clock.clone());
    let health = ops::answer(&mut lifecycle, ops, config, metrics, role.as_str());
    let door = Door::new(config, &server.clock, &health, metrics, jwt);
    if let Some(api) = api {
        let door = door.clone();
        lifecycle.start("api_server", Phase::Delivery, |stop| async move {
            api.run(door, stop).await;
            Ok(())
        });
    }

    // What is refused now is said in a sentence, as by every command, and nothing has been logged yet.
    let first = tokio::select! {
        prepared = making.prepare() => prepared,
        () = stop.cancelled() => return Ok(()),
    };
    let first = match first {
        Err(Failure::Unavailable(error)) => Err(error),
        prepared => Ok(prepared?),
    };
    ops::look(&mut lifecycle, &options, config, metrics, &health)?;
    tracing::info!(role = role.as_str(), address = %address, "server listening");
    if let Some(address) = api_address {
        tracing::info!(address = %address, "api listening");
    }
    if let Err(error) = &first {
        tracing::warn!(error, "database is away, waiting for it");
    }
    let figures = Figures::new(metrics, &health);
    let serving = Serving {
        making,
        figures,
        health,
        door,
        stop,
        ending_since: OnceLock::new(),
        has_served: OnceLock::new(),
    };
    let mut serve = std::pin::pin!(serving.epochs(first.ok()));
    let result = tokio::select! {
        served = &mut serve => served,
        ended = lifecycle.unexpected_end() => {
            let failure = ended.logged();
            // The others stop in order, as when they are asked to.
            serving.stop.cancel();
            serve.await.and(Err(failure))
        }
    };
    lifecycle.stop(serving.budget()).await;
    if let Some(streaming) = streaming {
        streaming.end(clock).await;
    }
    tracing::info!(role = role.as_str(), "server stopped");
    result
}

/// A server that has begun.
struct Serving<'a> {
    making: Making<'a>,
    figures: Figures,
    health: Health,
    door: Door,
    stop: CancellationToken,
    /// When the end of the process began, by the clock's elapsed time.
    ending_since: OnceLock<Duration>,
    /// Whether parts have run.
    has_served: OnceLock<()>,
}

/// Why the parts of an epoch were stopped.
enum End {
    /// The process was asked to stop.
    Asked,
    /// The numbers that they hand out may not be handed out any more.
    Epoch,
}

impl Serving<'_> {
    /// Runs the parts in one epoch after the other, until the process is asked to stop or one of the parts ends on its own, which is a
    /// failure of the whole: nobody shall believe that the part still works.
    async fn epochs(&self, mut prepared: Option<Parts>) -> Result<(), Failure> {
        loop {
            let begun = tokio::select! {
                begun = self.begin(prepared.take()) => begun?,
                () = self.stop.cancelled() => return self.stopping(),
            };
            let (lifecycle, epoch) = begun;
            match self.run(lifecycle, epoch).await? {
                End::Asked => return Ok(()),
                End::Epoch => {}
            }
        }
    }

    /// Starts the parts when the database is there, and it is known which history it has.
    async fn begin(&self, prepared: Option<Parts>) -> Result<(Lifecycle, Uuid), Failure> {
        let role = self.making.role;
        let mut prepared = prepared;
        loop {
            let parts = match prepared.take() {
                Some(parts) => parts,
                None => {
                    let parts = self.making.prepare_at_last(self.has_served.get().is_some()).await?;
                    tracing::info!("database is there");
                    parts
                }
            };
            self.health.enter(Stage::Undecided);
            let epoch = self.health.epoch().await;
            match self.making.tail(&parts).await {
                // Another epoch has begun meanwhile, and the tail may be in it.
                Ok(_) if self.health.known_epoch() != Some(epoch) => prepared = Some(parts),
                Ok(tail) => {
                    let _ = self.has_served.set(());
                    let lifecycle =
                        self.making.start(parts, tail, epoch, &self.figures, &self.health, &self.door)?;
                    self.health.enter(Stage::Running);
                    let consumers = role.works().then_some(Recorder::NAME);
                    let streaming = self.making.streaming.map(|it| it.names(self.making.config));
                    let (relay, stream_consumers) = streaming.unwrap_or_default();
                    tracing::info!(role = role.as_str(), consumers, relay, stream_consumers, %epoch, "server started");
                    return Ok((lifecycle, epoch));
                }
                // It was there a moment ago.
                Err(Failure::Unavailable(error)) => {
                    tracing::warn!(error, "database is away, waiting for it");
                    self.health.enter(Stage::Starting);
                }
                Err(failure) => {
                    tracing::error!(error = failure.message(), "server cannot start");
                    return Err(Failure::Logged(failure.exit_code()));
                }
            }
        }
    }

    /// Lets the parts run, and stops them.
    async fn run(&self, mut lifecycle: Lifecycle, epoch: Uuid) -> Result<End, Failure> {
        let ended = tokio::select! {
            () = self.stop.cancelled() => Ok(End::Asked),
            () = self.health.epoch_ends(epoch) => Ok(End::Epoch),
            ended = lifecycle.unexpected_end() => Err(ended),
        };
        let ended = match ended {
            Ok(end) => Ok(end),
            Err(ended) => {
                // What ended may have met another history before the watch has: then that is the reason, and it has to be recorded.
                tokio::select! {
                    () = self.health.look_now(self.making.config.database.statement_timeout) => {}
                    () = self.stop.cancelled() => {}
                }
                let same = tokio::select! {
                    biased;
                    () = self.health.epoch_ends(epoch) => false,
                    () = std::future::ready(()) => true,
                };
                if same { Err(ended.logged()) } else { Ok(End::Epoch) }
            }
        };
        match ended {
            Ok(End::Epoch) => {
                tracing::warn!(%epoch, "epoch ended, the parts of the server stop and start anew");
                lifecycle.stop(self.making.config.shutdown.total_timeout).await;
                self.health.enter(Stage::Undecided);
            }
            Ok(End::Asked) | Err(_) => {
                self.stopping()?;
                lifecycle.stop(self.budget()).await;
            }
        }
        self.figures.show(None);
        self.health.follows(None);
        ended
    }

    /// What is left of the time for the end of the process.
    fn budget(&self) -> Duration {
        let now = self.making.clock.elapsed();
        let used = now.saturating_sub(*self.ending_since.get_or_init(|| now));
        self.making.config.shutdown.total_timeout.saturating_sub(used)
    }

    fn stopping(&self) -> Result<(), Failure> {
        self.ending_since.get_or_init(|| self.making.clock.elapsed());
        self.health.enter(Stage::Stopping);
        tracing::info!(role = self.making.role.as_str(), "server stopping");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use seqline::Clock;
    use sqlx::postgres::PgConnectOptions;

    use super::*;
    use crate::cli::ServeRole;
    use crate::config::Config;
    use crate::lifecycle::Phase;
    use crate::telemetry::Telemetry;

    fn parts(end: Option<Result<(), String>>) -> Lifecycle {
        let mut lifecycle = Lifecycle::new(Clock::system());
        lifecycle.start("steady", Phase::Jobs, |stop| async move {
            stop.cancelled().await;
            Ok(())
        });
        if let Some(end) = end {
            lifecycle.start("ends", Phase::Consumers, |_| async { end });
        }
        lifecycle
    }

    /// Runs these parts in an epoch of which nothing else is seen.
    async fn run(lifecycle: Lifecycle, stop: CancellationToken) -> Result<End, Failure> {
        let (mut config, clock, options) = (Config::default(), Clock::system(), PgConnectOptions::new());
        // Nobody looks here.
        config.database.statement_timeout = Duration::from_millis(10);
        let telemetry = Telemetry::new(&config, clock.clone())?;
        let metrics = &telemetry.metrics;
        let health = Health::new(clock.clone(), ops::limits(&config));
        let epoch = Uuid::from_u128(7);
        health.saw(Some(ops::readiness::Seen { head: 0, writable: true, same_history: true }), Some(epoch));
        let figures = Figures::new(metrics, &health);
        let making = Making {
            role: ServeRole::All,
            options: &options,
            listen: &options,
            config: &config,
            metrics,
            clock: &clock,
            streaming: None,
        };
        let door = Door::new(&config, &clock, &health, metrics, None);
        let (ending_since, has_served) = (OnceLock::new(), OnceLock::new());
        Serving { making, figures, health, door, stop, ending_since, has_served }.run(lifecycle, epoch).await
    }

    #[tokio::test]
    async fn a_part_that_ends_on_its_own_ends_the_process_with_exit_code_1() {
        for end in [Ok(()), Err("why".to_owned())] {
            let ended = run(parts(Some(end)), CancellationToken::new()).await;
            assert_eq!(ended.err().map(|failure| failure.exit_code()), Some(1));
        }
    }

    #[tokio::test]
    async fn a_stop_that_was_asked_for_is_a_good_end() {
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(matches!(run(parts(None), stop).await, Ok(End::Asked)));
    }
}
