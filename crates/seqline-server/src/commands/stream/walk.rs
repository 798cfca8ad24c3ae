//! `seqline stream walk`: a consumer that shows that an event is handled once, whatever moment it dies at.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::Clock;
use seqline::consumer::Mode;
use seqline::envelope::Envelope;
use seqline_nats::broker::Broker;
use seqline_nats::consumer::{
    ConsumerTally, Context, Handler, HandlerError, Runtime, StartAt, StreamConsumer,
};
use seqline_nats::report::consumer_report;
use seqline_nats::retire::{self, Handled, RetireError};
use time::OffsetDateTime;
use uuid::Uuid;

use super::forget::failed;
use crate::cli::{DatabaseArgs, WalkArgs, WalkFrom};
use crate::commands::access::connect;
use crate::commands::asked_to_stop;
use crate::config::Config;
use crate::connect as connecting;
use crate::failure::Failure;
use crate::limits::{WALK_CONNECTIONS, WALK_NAMES, WALK_REDELIVERY_MARGIN, WALK_RESUME_WAIT, WALK_WAIT};
use crate::output::{self, count, grouped};

/// Takes its time for an event, and says which it is.
struct Walker {
    clock: Clock,
    pause: Duration,
}

impl Handler for Walker {
    async fn handle(&self, event: &Envelope, context: &mut Context<'_>) -> Result<(), HandlerError> {
        self.clock.sleep(self.pause).await;
        let (seq, attempt) = (grouped(context.position()), context.attempt());
        // Whoever does not read goes without.
        let _ = output::line(format!("handles {seq} {} {} (attempt {attempt})", event.event_type, event.id));
        Ok(())
    }
}

pub(super) async fn run(
    database: &DatabaseArgs,
    broker: &Broker,
    config: &Config,
    args: &WalkArgs,
) -> Result<(), Failure> {
    let (stop, clock) = (asked_to_stop(), Clock::system());
    let options = connecting::options(database)?;
    let pool = connecting::pool(&options, WALK_CONNECTIONS).await?;
    connecting::refuse_older_schema(&mut *pool.acquire().await.map_err(seqline::DatabaseError::from)?)
        .await?;
    let name = match &args.resume {
        Some(name) => {
            refuse_unknown(database, name).await?;
            name.clone()
        }
        None => format!("{WALK_NAMES}{}", &Uuid::new_v4().simple().to_string()[..8]),
    };
    let walker = Walker { clock: clock.clone(), pause: args.pause };
    let start_at = match args.from {
        WalkFrom::All => StartAt::Everything,
        WalkFrom::New => StartAt::New,
    };
    let consumer = StreamConsumer::new(&name, walker).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut settings = config.stream_consumers();
    // Each event is a transaction of its own, so that there is a moment after each.
    settings.batch = 1;
    let ack_wait = settings.ack_wait;
    let owed = match &args.resume {
        Some(name) => owed(broker, &config.stream.name, name).await?,
        None => None,
    };
    let runtime = Runtime::new(
        pool,
        broker.clone(),
        config.stream(),
        consumer.start_at(start_at),
        settings,
        clock.clone(),
    );
    let runtime = match args.kill_before_ack {
        true => runtime.before_ack(dying_at(args.limit)),
        false => runtime,
    };
    output::line(format!("consumer {name}: --resume {name} goes on as it"))?;

    let (tally, begun) = (runtime.tally(), clock.elapsed());
    let patience = if owed.is_some() { WALK_RESUME_WAIT.max(ack_wait + WALK_WAIT) } else { WALK_WAIT };
    if let Some(owed) = &owed {
        let wait = owed.wait(ack_wait, clock.now()).min(patience);
        output::line(format!("waits for what it had in hand, {}", count(owed.events, "event")))?;
        tokio::select! {
            () = clock.sleep(wait) => {}
            () = stop.cancelled() => return Err(interrupted()),
        }
    }
    let mut said = 0;
    let is_done = || {
        let is_settled = owed.as_ref().is_none_or(|owed| owed.is_settled(&tally));
        is_settled && tally.handled() + tally.duplicates() >= u64::from(args.limit)
    };
    while !is_done() && clock.elapsed() - begun < patience + args.pause * args.limit {
        let pass = tokio::select! {
            pass = runtime.poll_once() => pass,
            () = stop.cancelled() => return Err(interrupted()),
        };
        pass.map_err(|error| Failure::Unavailable(error.to_string()))?;
        if tally.duplicates() > said {
            said = tally.duplicates();
            output::line(format!("recognised {}: handled before, and acknowledged now", count(1, "event")))?;
        }
    }
    drop(runtime);
    end(database, broker, &config.stream.name, &name).await?;
    let (handled, known) = (tally.handled(), tally.duplicates());
    output::line(format!(
        "{} handled, {} recognised",
        count(handled.try_into().unwrap_or(i64::MAX), "event"),
        grouped(known.try_into().unwrap_or(i64::MAX))
    ))
}

/// A walk goes on as one that has not come to its end, and as nobody else.
async fn refuse_unknown(database: &DatabaseArgs, name: &str) -> Result<(), Failure> {
    if !name.starts_with(WALK_NAMES) {
        return Err(Failure::Usage(format!("--resume takes the name of an earlier walk: {WALK_NAMES}...")));
    }
    let known = retire::forget(&mut connect(database).await?, name, Handled::Goes, Mode::Plan).await;
    known.map(drop).map_err(failed)
}

/// A walk that has come to its end leaves nothing.
async fn end(database: &DatabaseArgs, broker: &Broker, stream: &str, name: &str) -> Result<(), Failure> {
    retire::delete(broker, stream, name).await?;
    let mode = Mode::Apply { why: Some("the walk has come to its end") };
    match retire::forget(&mut connect(database).await?, name, Handled::Goes, mode).await {
        // One that was given nothing was not recorded.
        Ok(_) | Err(RetireError::Refused(_)) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn interrupted() -> Failure {
    Failure::Interrupted("interrupted".to_owned())
}

/// What a walk had in hand when it ended, and the broker gives out again.
struct Owed {
    events: i64,
    ack_wait: Duration,
    delivered_at: Option<OffsetDateTime>,
}

async fn owed(broker: &Broker, stream: &str, name: &str) -> Result<Option<Owed>, Failure> {
    let consumer = consumer_report(broker, stream, name).await?;
    Ok(consumer.filter(|consumer| consumer.ack_pending > 0).map(|consumer| Owed {
        events: i64::try_from(consumer.ack_pending).unwrap_or(i64::MAX),
        ack_wait: consumer.ack_wait,
        delivered_at: consumer.delivered_at,
    }))
}

impl Owed {
    /// How long the broker keeps it back from now on. Whoever asks earlier is given what is new.
    fn wait(&self, ack_wait: Duration, now: OffsetDateTime) -> Duration {
        let whole = self.ack_wait.max(ack_wait) + WALK_REDELIVERY_MARGIN;
        let passed = self.delivered_at.map(|at| Duration::try_from(now - at).unwrap_or_default());
        whole.saturating_sub(passed.unwrap_or_default())
    }

    /// Whether it has come again: recognised, or never committed.
    fn is_settled(&self, tally: &ConsumerTally) -> bool {
        tally.duplicates() > 0 || tally.redelivered() >= self.events.unsigned_abs()
    }
}

/// Ends the process without a word to anybody when the last event is committed.
fn dying_at(limit: u32) -> impl Fn() + Send + Sync + 'static {
    let left = Arc::new(AtomicU32::new(limit));
    move || {
        if left.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let _ = output::line("MARKER kill-me-now");
        let _ = std::io::stdout().flush();
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}
