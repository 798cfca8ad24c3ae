//! After a failover what worked goes on, although connections to the old primary are still there: it is a standby now, and takes no writes.

use std::fs::File;
use std::net::SocketAddr;
use std::time::Duration;

use seqline::consumer::{Consumer, Outcome};
use seqline::limits::READ_ONLY_CHECK_AFTER;
use seqline::maintenance::{Maintenance, MaintenanceConfig};
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::{Sequencing, set_sequencing};
use seqline::{AppendError, Clock, DatabaseError, ErrorKind};
use seqline_testkit::{FaultProxy, Role, Standby, TestDb, TestServer, eventually};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};
use tokio_util::sync::CancellationToken;

use crate::consumers::{self, Bench, DEADLINE, config, database, name, plain, probe, quick};
use crate::support::{append, event};
use crate::tail::manual;

const SAID: &str = "the server takes no writes, it is a standby or read only";

async fn try_to_append(pool: &PgPool, n: i64) -> Result<(), AppendError> {
    let mut tx = seqline::begin(pool).await.map_err(AppendError::Database)?;
    seqline::append(&mut tx, &[event(n)]).await?;
    seqline::commit(tx).await.expect("what could be appended can be committed");
    Ok(())
}

fn assert_read_only_server(error: &DatabaseError) {
    assert!(error.is_read_only_server() && error.is_retryable(), "{error:?}");
    assert!(error.to_string().starts_with(SAID), "{error}");
}

/// The process of the only connection of a pool.
async fn pid(pool: &PgPool) -> i32 {
    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(pool).await.unwrap()
}

/// A server of which all transactions are read-only from now on, as far as they do not say otherwise.
async fn set_read_only(admin: &mut PgConnection, value: &str) {
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut *admin).await.unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut *admin).await.unwrap();
    eventually(DEADLINE, "the parameter", async || {
        let shown: String =
            sqlx::query_scalar("SHOW default_transaction_read_only").fetch_one(&mut *admin).await.unwrap();
        shown == value
    })
    .await;
}

#[tokio::test]
async fn an_append_that_is_refused_for_it_costs_the_pool_its_connection() {
    let server = TestServer::fast().await;
    let db = TestDb::on(&server).await;
    let (pool, mut admin) = (db.app_pool(1), server_admin(&server).await);
    append(&pool, [1]).await;
    for events in [vec![event(2)], vec![event(2), event(3)]] {
        let before = pid(&pool).await;
        set_read_only(&mut admin, "on").await;
        let mut tx = seqline::begin(&pool).await.unwrap();
        let error = seqline::append(&mut tx, &events).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        let AppendError::Database(error) = error else { panic!("{error:?}") };
        assert_read_only_server(&error);
        // It is of no use to anybody any more.
        assert!(sqlx::query("SELECT 1").execute(&mut *tx).await.is_err());
        drop(tx);
        assert_ne!(pid(&pool).await, before);
        set_read_only(&mut admin, "off").await;
    }
    append(&pool, [2]).await;
}

#[tokio::test]
async fn a_step_of_maintenance_that_is_refused_for_it_costs_it_too() {
    let server = TestServer::fast().await;
    let db = TestDb::on(&server).await;
    let (pool, mut admin) = (db.app_pool(1), server_admin(&server).await);
    let before = pid(&pool).await;
    set_read_only(&mut admin, "on").await;
    let maintenance = Maintenance::new(pool.clone(), MaintenanceConfig::default(), Clock::system());
    assert_read_only_server(&maintenance.run().await.unwrap_err());
    assert_ne!(pid(&pool).await, before);
}

/// A standby shows where consumers are, and they are never further there than on the primary.
#[tokio::test]
async fn a_round_on_a_standby_costs_the_pool_its_connection() {
    let primary = TestServer::durable().await;
    let db = TestDb::on(&primary).await;
    consumers::make_effects(&db).await;
    append(&db.producer(), [1]).await;
    let standby = Standby::synchronous(&primary).await;
    let bench = Bench::on(db, config(), probe(plain())).await;
    let options = bench.db.options(Role::App).port(standby.admin_options().get_port());
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options.clone());
    let (clock, _) = manual();
    let on_standby = consumers::consumers(pool.clone(), options.clone(), config(), clock, [probe(plain())]);
    // With nothing to do it would stay there for ever, and never see what is new.
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Processed);
    eventually(DEADLINE, "the standby shows it", async || {
        let cursor = "SELECT max(last_seq) FROM seqline.event_consumer_cursors";
        let options = standby.admin_options().database(bench.db.name());
        let mut admin = PgConnection::connect_with(&options).await.unwrap();
        sqlx::query_scalar::<_, Option<i64>>(cursor).fetch_one(&mut admin).await.unwrap() == Some(1)
    })
    .await;
    let before = pid(&pool).await;
    let error = on_standby.round(&name(consumers::PROBE)).await.unwrap_err();
    assert!(error.to_string().contains(SAID), "{error}");
    assert_eq!(error.error_type(), "database");
    assert_ne!(pid(&pool).await, before);
    // Waiting helps, so a worker that starts there waits.
    assert!(on_standby.ensure().await.unwrap_err().is_retryable());

    // A pool for writes hands none out that was not used for a while. The pause is no waiting for something: being unused is what is tested,
    // and the pool measures it in real time.
    let pool = seqline::pool::only_for_writes(PgPoolOptions::new().max_connections(1));
    let pool = pool.connect_with(options).await.unwrap();
    let before = pid(&pool).await;
    eventually(DEADLINE, "another connection", async || {
        Clock::system().sleep(2 * READ_ONLY_CHECK_AFTER).await;
        pid(&pool).await != before
    })
    .await;
    // One to the primary stays.
    let pool = seqline::pool::only_for_writes(PgPoolOptions::new().max_connections(1));
    let pool = pool.connect_with(bench.db.options(Role::App)).await.unwrap();
    let before = pid(&pool).await;
    Clock::system().sleep(2 * READ_ONLY_CHECK_AFTER).await;
    assert_eq!(pid(&pool).await, before);
}

/// Also when a handler was the first to write, or the server was found out in the middle of a round.
#[tokio::test]
async fn a_handler_that_is_refused_for_it_costs_it_too_and_its_event_is_not_to_blame() {
    let db = database().await;
    append(&db.producer(), [1]).await;
    let handler = consumers::acting(|_, round| {
        Box::pin(async move {
            // A transaction can be made read-only at any moment, and is answered like one of a standby.
            sqlx::raw_sql("SET TRANSACTION READ ONLY").execute(round.connection()).await?;
            sqlx::raw_sql("CREATE TABLE t ()").execute(round.connection()).await?;
            Ok(())
        })
    });
    let bench = Bench::on(db, config(), probe(handler)).await;
    let before = pid(&bench.pool).await;
    let error = bench.round().await.unwrap_err();
    assert_eq!((error.error_type(), error.seq()), ("handler", Some(1)));
    assert_ne!(pid(&bench.pool).await, before);
}

async fn server_admin(server: &TestServer) -> PgConnection {
    PgConnection::connect_with(&server.admin_options()).await.unwrap()
}

fn address(options: &PgConnectOptions) -> SocketAddr {
    ([127, 0, 0, 1], options.get_port()).into()
}

async fn everything_goes_on_after_a_failover(sequencing: Sequencing) {
    let mut primary = TestServer::durable().await;
    let db = TestDb::numbering(&primary, Sequencing::AtCommit).await;
    consumers::make_effects(&db).await;
    set_sequencing(&mut db.connect(Role::Admin).await, sequencing, None).await.unwrap();
    let mut standby = Standby::synchronous(&primary).await;
    let proxy = FaultProxy::start(address(&primary.admin_options())).await.unwrap();
    let through = |role: Role| db.options(role).port(proxy.addr().port());
    let pool = |role, size| PgPoolOptions::new().max_connections(size).connect_lazy_with(through(role));
    let (writers, workers) = (pool(Role::Producer, 3), pool(Role::App, 4));

    let list = [Consumer::new(name("probe"), plain())];
    let running = consumers::Running::start(consumers::consumers(
        workers.clone(),
        through(Role::App),
        quick(),
        Clock::system(),
        list,
    ));
    let stop = CancellationToken::new();
    let config = SequencerConfig { reconnect_backoff_cap: Duration::from_millis(50), ..Default::default() };
    let sequencer = Sequencer::new(pool(Role::App, 1), config, Clock::system());
    let sequencing = tokio::spawn(sequencer.run(stop.clone()));
    eventually(DEADLINE, "the consumer", async || consumers::cursor(&db, "probe").await == 0).await;
    try_to_append(&writers, 1).await.unwrap();
    eventually(DEADLINE, "the first event", async || consumers::cursor(&db, "probe").await == 1).await;

    // The primary comes back as a standby, and for a while the address leads there all the same.
    primary.stop().await;
    File::create(primary.postgres().data_dir().join("pgdata/standby.signal")).unwrap();
    primary.start_again().await;
    let mut old = server_admin(&primary).await;
    {
        // The writers' pool is full of connections to it.
        let mut open = Vec::new();
        eventually(DEADLINE, "connections to the standby", async || {
            if let Ok(tx) = seqline::begin(&writers).await {
                open.push(tx);
            }
            open.len() == 3
        })
        .await;
    }
    eventually(DEADLINE, "the worker tries it on the standby", async || {
        let sessions: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE usename = $1")
            .bind(Role::App.login())
            .fetch_one(&mut old)
            .await
            .unwrap();
        sessions > 0
    })
    .await;
    let AppendError::Database(error) = try_to_append(&writers, 2).await.unwrap_err() else { panic!() };
    assert_read_only_server(&error);

    standby.promote().await;
    proxy.lead_to(address(&standby.admin_options()));
    // As many attempts as there were connections to the old one.
    let mut attempts = 0;
    while let Err(error) = try_to_append(&writers, 2).await {
        let AppendError::Database(error) = error else { panic!("{error:?}") };
        assert!(error.is_retryable(), "{error:?}");
        attempts += 1;
        assert!(attempts <= 3, "the pool still leads to the old primary");
    }
    let mut new = PgConnection::connect_with(&standby.admin_options().database(db.name())).await.unwrap();
    eventually(DEADLINE, "the event on the new primary", async || {
        let cursor: i64 = sqlx::query_scalar("SELECT max(last_seq) FROM seqline.event_consumer_cursors")
            .fetch_one(&mut new)
            .await
            .unwrap();
        cursor == 2
    })
    .await;
    let effects: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM effects ORDER BY id").fetch_all(&mut new).await.unwrap();
    assert_eq!(effects, consumers::twice(1..=2));
    running.stops().await;
    stop.cancel();
    sequencing.await.unwrap();
}

#[tokio::test]
async fn everything_goes_on_after_a_failover_with_numbering_at_commit() {
    everything_goes_on_after_a_failover(Sequencing::AtCommit).await;
}

#[tokio::test]
async fn everything_goes_on_after_a_failover_with_numbering_after_commit() {
    everything_goes_on_after_a_failover(Sequencing::AfterCommit).await;
}
