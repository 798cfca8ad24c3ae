//! Processes that are killed: at any moment, nothing is lost and nothing happens twice.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Runtime, StreamConsumer};
use seqline_nats::stream::StreamSettings;
use seqline_testkit::{Role, eventually};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::support::*;

/// Set in the process that is going to be killed: the database, and the broker.
const VICTIM: &str = "SEQLINE_TEST_STREAM_VICTIM";
const VICTIM_BROKER: &str = "SEQLINE_TEST_STREAM_VICTIM_BROKER";

/// Taken by the test. The victim waits for it in its handler.
const BARRIER: i64 = 73_101;

fn config() -> seqline_nats::consumer::StreamConsumerConfig {
    let mut config = quick();
    config.ack_wait = Duration::from_secs(2);
    config
}

fn victim_of(site: &Site, name: &str) -> Child {
    victim_at(site, name, site.nats.url())
}

fn victim_at(site: &Site, name: &str, broker: String) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(VICTIM, site.db.url(Role::App))
        .env(VICTIM_BROKER, broker)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kills(mut victim: Child) {
    // SIGKILL.
    victim.kill().unwrap();
    victim.wait().unwrap();
}

async fn victim(probe: Probe) {
    let Ok(url) = std::env::var(VICTIM) else { return };
    let options: PgConnectOptions = url.parse().unwrap();
    let pool = PgPoolOptions::new().max_connections(3).connect_lazy_with(options);
    let broker = Broker::new(BrokerConfig::new(std::env::var(VICTIM_BROKER).unwrap()));
    let consumer = StreamConsumer::new(PROBE, probe).unwrap();
    let runtime = Runtime::new(pool, broker, StreamSettings::default(), consumer, config(), Clock::system());
    runtime.run(tokio_util::sync::CancellationToken::new()).await;
}

/// Not a test by itself: a process that handles what comes.
#[tokio::test]
async fn handling_victim() {
    victim(Probe::plain()).await;
}

/// Not a test by itself: a process that is stuck in its first event.
#[tokio::test]
async fn stuck_victim() {
    victim(Probe::acting(|_, context| {
        Box::pin(async {
            sqlx::query("SELECT pg_advisory_xact_lock($1)")
                .bind(BARRIER)
                .execute(context.connection())
                .await?;
            Ok(())
        })
    }))
    .await;
}

/// Between commit and acknowledgement: the acknowledgements get no further than a network that passes nothing on from the commit on.
#[tokio::test]
async fn a_process_that_is_killed_between_commit_and_acknowledgement_has_handled_its_events() {
    let site = Site::new().await;
    let proxy = seqline_testkit::FaultProxy::start(site.nats.addr()).await.unwrap();
    let ids = site.feed(1..=5).await;
    let mut barrier = seqline::begin(&site.db.admin()).await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(BARRIER).execute(&mut *barrier).await.unwrap();
    let victim = victim_at(&site, "consumer::crashes::stuck_victim", format!("nats://{}", proxy.addr()));
    is_stuck(&site).await;
    proxy.black_hole();
    barrier.rollback().await.unwrap();
    site.handles(PROBE, &ids).await;
    kills(victim);
    assert_eq!(site.info(PROBE).await.num_ack_pending, 5, "nothing was acknowledged");
    let probe = Probe::plain();
    let running = Running::start(site.runtime(PROBE, probe.clone(), config()));
    eventually(DEADLINE, "all come again", async || running.tally.duplicates() == 5).await;
    assert_eq!((probe.calls(), running.tally.redelivered()), (vec![], 5));
    site.settled_info(PROBE).await;
    assert_eq!(site.effects(PROBE).await, ids);
    running.stops().await;
}

async fn is_stuck(site: &Site) {
    eventually(DEADLINE, "the victim is in its handler", async || {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                            WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database())",
        )
        .fetch_one(&site.db.admin())
        .await
        .unwrap()
    })
    .await;
}

/// More often than handlers may fail, and all of them each time.
#[tokio::test]
async fn processes_that_are_killed_right_after_a_fetch_lose_nothing() {
    let site = Site::new().await;
    let ids = site.feed(1..=25).await;
    for death in 1..=6 {
        let mut barrier = seqline::begin(&site.db.admin()).await.unwrap();
        sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(BARRIER).execute(&mut *barrier).await.unwrap();
        let victim = victim_of(&site, "consumer::crashes::stuck_victim");
        is_stuck(&site).await;
        kills(victim);
        barrier.rollback().await.unwrap();
        eventually(DEADLINE, "its session is gone", async || {
            sqlx::query_scalar(
                "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = $1
                                    AND (state = 'idle in transaction' OR wait_event_type = 'Lock'))",
            )
            .bind(Role::App.login())
            .fetch_one(&site.db.admin())
            .await
            .unwrap()
        })
        .await;
        assert!(site.effects(PROBE).await.is_empty(), "death {death} left something");
    }
    let probe = Probe::plain();
    let running = Running::start(site.runtime(PROBE, probe.clone(), config()));
    site.handles(PROBE, &ids).await;
    let mut calls = probe.calls();
    calls.sort_unstable();
    assert_eq!(calls, (1..=25).collect::<Vec<_>>());
    assert_eq!(site.dead_letters(PROBE).await.len(), 0, "deaths are no failures");
    assert_eq!(running.tally.dropped(), 0, "the broker gave up");
    site.settled_info(PROBE).await;
    running.stops().await;
}

#[tokio::test]
async fn processes_that_are_killed_while_they_work_double_nothing() {
    let site = Site::new().await;
    let mut ids = Vec::new();
    for round in 0..5 {
        let before = site.effects(PROBE).await.len();
        let victims = [(); 2].map(|()| victim_of(&site, "consumer::crashes::handling_victim"));
        ids.extend(site.feed(round * 60 + 1..=round * 60 + 60).await);
        eventually(DEADLINE, "some are handled", async || site.effects(PROBE).await.len() > before).await;
        victims.into_iter().for_each(kills);
    }
    let running = Running::start(site.runtime(PROBE, Probe::plain(), config()));
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
}
