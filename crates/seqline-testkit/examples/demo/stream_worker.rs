//! A consumer of the stream: what runs in the processes that are killed.

use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::Clock;
use seqline::envelope::Envelope;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Context, Handler, HandlerError, Runtime, StreamConsumer, StreamConsumerConfig};
use seqline_nats::stream::StreamSettings;
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The argument that makes a consumer of the stream of this program.
pub(crate) const ARGUMENT: &str = "stream-worker";
/// Where it is told its database, with the password in it, and its broker.
pub(crate) const DATABASE_URL: &str = "DEMO_STREAM_DATABASE_URL";
pub(crate) const NATS_URL: &str = "DEMO_STREAM_NATS_URL";
/// All of these processes are one consumer.
pub(crate) const CONSUMER: &str = "demo_stream";
/// What a killed process had in hand comes again after that. Short, so that it happens while somebody watches.
const ACK_WAIT: Duration = Duration::from_secs(2);
/// Set for those that are not to kill themselves.
pub(crate) const CAREFUL: &str = "DEMO_STREAM_CAREFUL";
/// One batch in so many is the last one of its process: committed, and not acknowledged.
const DEADLY_ONE_IN: u32 = 8;
/// One event in so many takes long, so that there is time to be killed in the middle of it.
const SLOW_ONE_IN: i64 = 40;
const SLOW: Duration = Duration::from_millis(20);

/// What it writes: a row for each event. Nothing keeps one from being there twice.
pub(crate) async fn create_effects(admin: &PgPool) -> sqlx::Result<()> {
    sqlx::raw_sql(
        "CREATE TABLE stream_effects (seq bigint NOT NULL, event_id uuid NOT NULL, worker bigint NOT NULL);
         GRANT SELECT, INSERT ON stream_effects TO PUBLIC",
    )
    .execute(admin)
    .await
    .map(drop)
}

struct Effects {
    worker: i64,
    clock: Clock,
}

impl Handler for Effects {
    async fn handle(&self, event: &Envelope, context: &mut Context<'_>) -> Result<(), HandlerError> {
        let seq = context.position();
        sqlx::query("INSERT INTO stream_effects (seq, event_id, worker) VALUES ($1, $2, $3)")
            .bind(seq)
            .bind(event.id)
            .bind(self.worker)
            .execute(context.connection())
            .await?;
        if seq % SLOW_ONE_IN == 0 {
            self.clock.sleep(SLOW).await;
        }
        Ok(())
    }
}

/// Works until SIGTERM, or until the process that started it is gone.
pub(crate) async fn run() -> anyhow::Result<()> {
    let database = std::env::var(DATABASE_URL).context("a worker is started by the demo")?;
    let broker = std::env::var(NATS_URL).context("a worker is started by the demo")?;
    let clock = Clock::system();
    let handler = Effects { worker: i64::from(std::process::id()), clock: clock.clone() };
    let mut config = StreamConsumerConfig::default();
    config.ack_wait = ACK_WAIT;
    let runtime = Runtime::new(
        PgPoolOptions::new().max_connections(3).connect_lazy(&database)?,
        Broker::new(BrokerConfig::new(broker)),
        StreamSettings::default(),
        StreamConsumer::new(CONSUMER, handler)?,
        config,
        clock,
    );
    let runtime = match std::env::var_os(CAREFUL) {
        None => runtime.before_ack(die_now_and_then),
        Some(_) => runtime,
    };
    let stop = CancellationToken::new();
    let asked = stop.clone();
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        let mut parent = tokio::io::stdin();
        tokio::select! {
            _ = terminated.recv() => {}
            _ = parent.read_u8() => {}
        }
        asked.cancel();
    });
    runtime.run(stop).await;
    Ok(())
}

/// The worst moment to die, which nobody hits from outside: what was done is committed, and the broker does not know.
fn die_now_and_then() {
    if fastrand::u32(..DEADLY_ONE_IN) == 0 {
        // Of itself a process is always allowed to do that.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}
