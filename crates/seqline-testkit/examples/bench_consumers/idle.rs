//! What consumers cost that have nothing to do.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use seqline::Clock;
use seqline::StoredEvent;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, states,
};
use seqline_testkit::bench::Report;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::{FaultProxy, Role, TestDb, TestServer, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio_util::sync::CancellationToken;

use crate::measuring::now;

const CONSUMERS: usize = 20;

struct Idle;

impl Handler for Idle {
    async fn handle(&self, _: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// Counts what is sent to PostgreSQL.
pub(crate) async fn measure(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let proxy = FaultProxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, server.postgres().port()))).await?;
    let options = db.options(Role::App).port(proxy.addr().port());
    let config = ConsumerConfig::default();
    let settled = 2 * config.poll_interval;
    let pool = PgPoolOptions::new().max_connections(CONSUMERS as u32).connect_lazy_with(options.clone());
    let mut consumers = Consumers::new(pool, options, config, Clock::system());
    for n in 0..CONSUMERS {
        consumers.register(Consumer::new(ConsumerName::new(format!("idle_{n}"))?, Idle))?;
    }
    let mut listening = consumers.listening();
    let stop = CancellationToken::new();
    let running = tokio::spawn(consumers.run(stop.clone()));
    listening.wait_for(|listening| *listening).await?;
    let mut connection = db.connect(Role::App).await;
    eventually(Duration::from_secs(10), "all cursors", async || {
        states(&mut connection).await.is_ok_and(|states| states.len() == CONSUMERS)
    })
    .await;
    drop(connection);
    // What is done once is done.
    Clock::system().sleep(settled).await;

    let mut admin = server.admin_options().connect().await?;
    let commits = commits(&mut admin, db.name()).await?;
    let (requests, start) = (proxy.requests(), now());
    Clock::system().sleep(duration).await;
    let (requests, seconds) = ((proxy.requests() - requests) as f64, start.elapsed().as_secs_f64());
    let commits = (self::commits(&mut admin, db.name()).await? - commits) as f64;
    stop.cancel();
    running.await??;

    let each = |count: f64| count / seconds / CONSUMERS as f64;
    println!(
        "{CONSUMERS} idle consumers for {seconds:.0} s with the default configuration, for each and second"
    );
    println!("  requests that wait for an answer  {:>6.3}  ({requests:.0} in all)", each(requests));
    println!("  transactions, as PostgreSQL says  {:>6.3}  ({commits:.0} in all)\n", each(commits));
    report.single("requests of an idle consumer", "1/s", each(requests));
    report.judge(keys::IDLE_ROUND_TRIPS, each(requests))
}

/// How many transactions have ended in the database. Sessions report theirs once they have been idle for ten seconds, so this is
/// a cross-check and no more.
async fn commits(admin: &mut PgConnection, database: &str) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1")
        .bind(database)
        .fetch_one(admin)
        .await
}
