//! The log in a stream: running the relay, the broker and the consumers, and killing each of them.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::message::Identity;
use seqline_nats::relay::operate;
use seqline_nats::stream::{DEFAULT_NAME, info};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb, eventually};
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::serving::Relaying;
use crate::stream_worker::{self, CONSUMER};

const WORKERS: usize = 2;
/// When things happen, in hundredths of the time that writers have. In the middle PostgreSQL is killed, by somebody else.
const RELAY_KILLS_AT: [u32; 3] = [15, 45, 75];
const BROKER_KILL_AT: u32 = 35;
/// From a kill of a consumer to the next.
const PAUSE: Duration = Duration::from_millis(700);
/// How long a process may take to stop.
const SOON: Duration = Duration::from_secs(20);

/// The broker, the relay and the consumers. All of them end with this program, however it ends.
pub(crate) struct Streams<'a> {
    db: &'a TestDb,
    nats: NatsServer,
    relay: Relaying,
    workers: Vec<Child>,
    clock: Clock,
    deeds: Deeds,
}

/// What was done to them.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    pub(crate) relays_killed: usize,
    pub(crate) brokers_killed: usize,
    pub(crate) consumers_killed: usize,
    /// Those that killed themselves between a commit and its acknowledgement.
    pub(crate) consumers_died: usize,
}

/// A message of the stream.
pub(crate) struct Copied {
    pub(crate) position: i64,
    pub(crate) event_id: Uuid,
}

/// An effect of a consumer.
#[derive(sqlx::FromRow)]
pub(crate) struct Effect {
    pub(crate) seq: i64,
    pub(crate) event_id: Uuid,
}

/// What is left when all is done.
pub(crate) struct Outcome {
    pub(crate) stream: Vec<Option<Copied>>,
    pub(crate) effects: Vec<Effect>,
    /// How many messages the broker has delivered, counting each delivery.
    pub(crate) deliveries: u64,
    /// What the relay met, by name.
    pub(crate) incidents: Vec<String>,
    pub(crate) deeds: Deeds,
}

impl<'a> Streams<'a> {
    pub(crate) async fn start(db: &'a TestDb) -> anyhow::Result<Self> {
        let nats = NatsServer::start().await;
        let relay = Relaying::start(db, &nats.url()).await?;
        let workers = (0..WORKERS).map(|_| start(db, &nats, true)).collect::<anyhow::Result<_>>()?;
        Ok(Self { db, nats, relay, workers, clock: Clock::system(), deeds: Deeds::default() })
    }

    /// What the broker calls its version.
    pub(crate) fn broker(&self) -> &str {
        self.nats.version()
    }

    /// Kills consumers all the time, the relay now and then, and the broker once.
    pub(crate) async fn disturb(&mut self, duration: Duration) -> anyhow::Result<()> {
        let begin = self.clock.elapsed();
        let mut relay_kills = RELAY_KILLS_AT.into_iter().peekable();
        let mut broker_kills = [BROKER_KILL_AT].into_iter().peekable();
        loop {
            self.clock.sleep(PAUSE).await;
            let passed = self.clock.elapsed().saturating_sub(begin);
            if passed >= duration {
                return self.calm().await;
            }
            for worker in &mut self.workers {
                if worker.try_wait()?.is_some() {
                    self.deeds.consumers_died += 1;
                    *worker = start(self.db, &self.nats, true)?;
                }
            }
            let due = |at: &u32| passed >= duration * *at / 100;
            if relay_kills.next_if(due).is_some() {
                self.relay.kill().await?;
                self.deeds.relays_killed += 1;
                self.relay = Relaying::start(self.db, &self.nats.url()).await?;
            } else if broker_kills.next_if(due).is_some() {
                self.nats.kill().await;
                self.deeds.brokers_killed += 1;
                self.nats.restart().await;
            } else {
                let victim = fastrand::usize(..self.workers.len());
                self.workers[victim].kill().await?;
                self.deeds.consumers_killed += 1;
                self.workers[victim] = start(self.db, &self.nats, true)?;
            }
        }
    }

    /// From now on nobody is killed.
    async fn calm(&mut self) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            worker.kill().await?;
            *worker = start(self.db, &self.nats, false)?;
        }
        Ok(())
    }

    /// Waits until everything up to the head is in the stream and handled, stops all of it and says what there is.
    pub(crate) async fn finish(self, head: i64, limit: Duration) -> anyhow::Result<Outcome> {
        let db = self.db;
        let mut connection = db.connect(Role::App).await;
        eventually(limit, "the relay and the consumers of the stream reaching the head", async || {
            let at: i64 = sqlx::query_scalar("SELECT count(DISTINCT event_id) FROM stream_effects")
                .fetch_one(&mut connection)
                .await
                .unwrap_or_default();
            at >= head
        })
        .await;
        for worker in self.workers {
            stop(worker).await?;
        }
        let broker = Broker::new(BrokerConfig::new(self.nats.url()));
        let deliveries = delivered(&broker).await?;
        let stream = read(&broker).await?;
        let relays = operate::statuses(&mut connection).await?;
        let incidents = relays.iter().flat_map(|relay| &relay.incidents).map(|it| it.kind.to_string());
        let incidents = incidents.collect();
        let effects = sqlx::query_as("SELECT seq, event_id FROM stream_effects ORDER BY seq");
        let effects = effects.fetch_all(&mut connection).await?;
        Ok(Outcome { stream, effects, deliveries, incidents, deeds: self.deeds })
    }
}

/// Starts a consumer, which kills itself now and then if it is `deadly`.
fn start(db: &TestDb, nats: &NatsServer, deadly: bool) -> anyhow::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg(stream_worker::ARGUMENT)
        .envs((!deadly).then_some((stream_worker::CAREFUL, "1")))
        .env(stream_worker::DATABASE_URL, db.url(Role::App))
        .env(stream_worker::NATS_URL, nats.url())
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start a consumer of the stream")
}

async fn stop(mut worker: Child) -> anyhow::Result<()> {
    let pid = worker.id().context("a consumer of the stream ended although nobody asked for it")?;
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
    let ended = tokio::time::timeout(SOON, worker.wait()).await;
    let status = ended.context("a consumer of the stream did not stop after SIGTERM")??;
    ensure!(status.success(), "a consumer of the stream stopped with {status} after SIGTERM");
    Ok(())
}

async fn delivered(broker: &Broker) -> anyhow::Result<u64> {
    let stream = broker.jetstream().await?.get_stream(DEFAULT_NAME).await?;
    Ok(stream.consumer_info(CONSUMER).await?.delivered.consumer_sequence)
}

/// All messages in their order, asked of the leader one by one; None for one that no relay wrote.
async fn read(broker: &Broker) -> anyhow::Result<Vec<Option<Copied>>> {
    let state = info(broker, DEFAULT_NAME).await?.context("the stream is gone")?.state;
    let stream = broker.jetstream().await?.get_stream(DEFAULT_NAME).await?;
    let mut messages = Vec::new();
    for seq in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(seq).await?;
        let identity = Identity::of(Some(&message.headers));
        messages.push(identity.map(|found| Copied { position: found.position, event_id: found.event_id }));
    }
    Ok(messages)
}
