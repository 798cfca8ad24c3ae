//! Everything at once, by chance: whatever filters, lanes and policies there are, whatever fails and whoever interferes, each event that
//! was asked for is handled once, and those of a key in order.
//!
//! A case is decided by its seed, as far as what runs at the same time lets it be. `SEQLINE_TEST_SEED` runs one again.

mod plan;
pub(crate) mod stage;

use tokio::task::JoinSet;

pub(crate) use self::plan::Plan;
use self::plan::Poison;
use self::stage::{Stage, seeds};
use super::dropped::at_poll;
use super::*;

/// Connections with this name are ended at random.
pub(crate) const VICTIM: &str = "seqline-test-victim";

/// How many cases there are, and after which time none begins.
const CASES: u64 = 10;
pub(crate) const TIME: Duration = Duration::from_secs(40);

/// Of so many events that are handed to a handler one has something go wrong.
const STRIKE_EVERY: u64 = 50;

/// The handler that writes the journal and fails as it was planned.
struct Working(Arc<Stage>, Arc<tokio::sync::Notify>);

impl Handler for Working {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        let Self(stage, strikes) = self;
        stage.stir();
        let times = stage.times();
        let entry: i64 = sqlx::query_scalar(
            "INSERT INTO journal (what, seq, lane) VALUES ('handled', $1, $2) RETURNING id",
        )
        .bind(event.seq)
        .bind(round.lane() as i32)
        .fetch_one(round.connection())
        .await?;
        if stage.plan.random(times).u64(0..STRIKE_EVERY) == 0 {
            strikes.notify_one();
        }
        let statements = match stage.fails(event.seq, entry) {
            None => return Ok(()),
            Some(Poison::Error) => return Err("refused".into()),
            Some(Poison::Panic) => std::panic::resume_unwind(Box::new("on purpose")),
            Some(Poison::Hangs) => std::future::pending().await,
            Some(Poison::Breaks) => "SELECT 1 / 0",
            Some(Poison::BeginsAnew) => "ROLLBACK; BEGIN",
            Some(Poison::Dies) => "SELECT pg_terminate_backend(pg_backend_pid())",
        };
        // Whatever it says, the handler goes on.
        drop(sqlx::raw_sql(statements).execute(round.connection()).await);
        Ok(())
    }
}

/// Somebody who works on the consumer, with a pool of its own.
fn worker(stage: &Arc<Stage>, strikes: &Arc<tokio::sync::Notify>, connections: u32) -> Consumers {
    let plan = &stage.plan;
    let consumer = probe(Working(stage.clone(), strikes.clone()))
        .filter(plan.asked.filter())
        .expect("the filter is valid")
        .lanes(plan.key, plan.lanes)
        .on_failure(plan.policy);
    let options = stage.db.options(Role::App).application_name(VICTIM);
    let pool = PgPoolOptions::new().max_connections(connections).connect_lazy_with(options.clone());
    let config = ConsumerConfig {
        batch_size: plan.batch_size,
        scan_size: plan.scan_size,
        event_timeout: Duration::from_millis(150),
        ..quick()
    };
    consumers(pool, options, config, Clock::system(), [consumer])
}

/// Calls rounds by hand and drops most of them somewhere in the middle.
async fn step_and_drop(stage: Arc<Stage>, consumers: Consumers, stepper: u64) {
    let mut random = stage.plan.random(1 << 40 | stepper);
    let mut stirred = stage.stirred.subscribe();
    while !stage.calm.is_cancelled() {
        let round = at_poll(consumers.round(&name(PROBE)), random.usize(0..120)).await;
        match round {
            None | Some(Ok(RoundResult { outcome: Outcome::Processed, .. })) => {}
            Some(_) => Stage::is_stirred(&mut stirred, &stage.calm).await,
        }
    }
}

/// Keeps processes running, of which one ends at once now and then, or a connection of somebody.
async fn strike(stage: Arc<Stage>, strikes: Arc<tokio::sync::Notify>) {
    let mut random = stage.plan.random(1 << 41);
    let start = || Running::start(worker(&stage, &strikes, 3));
    let mut processes: Vec<Running> = (0..stage.plan.processes).map(|_| start()).collect();
    loop {
        tokio::select! {
            () = stage.calm.cancelled() => break,
            () = strikes.notified() => {}
        }
        if random.u8(0..5) == 0 {
            let process = random.usize(0..processes.len());
            std::mem::replace(&mut processes[process], start()).task.abort();
        } else {
            end_a_connection(&stage.db, &mut random).await;
        }
    }
    stage.over.cancelled().await;
    for process in processes {
        process.stops().await;
    }
}

/// Ends one of the connections that may be ended.
pub(crate) async fn end_a_connection(db: &TestDb, random: &mut fastrand::Rng) {
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = $1
         ORDER BY state = 'idle', md5(pid::text || $2::text) LIMIT 1",
    )
    .bind(VICTIM)
    .bind(random.i32(..))
    .execute(&db.admin())
    .await
    .expect("a superuser ends connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_is_handled_once_and_in_order_whatever_happens() {
    let clock = Clock::system();
    let begin = clock.now();
    let mut handled = 0;
    for seed in seeds(CASES) {
        if clock.now() - begin > TIME {
            break;
        }
        let plan = Plan::new(seed);
        println!("SEQLINE_TEST_SEED={seed} {plan:?}");
        let stage = Stage::new(plan).await;
        let strikes = Arc::default();
        worker(&stage, &strikes, 1).ensure().await.unwrap();
        let mut workers = JoinSet::new();
        for stepper in 0..stage.plan.steppers {
            workers.spawn(step_and_drop(stage.clone(), worker(&stage, &strikes, 1), stepper as u64));
        }
        workers.spawn(strike(stage.clone(), strikes));
        let tally = stage.play(workers).await;
        println!("{:?} {tally:?}", clock.now() - begin);
        handled += tally.handled;
    }
    // Not in each case: its filter may let nothing through.
    assert!(handled > 0, "there was nothing to do");
}
