//! What keeps vacuum from removing rows: the doctor and the figure go by one rule, which is PostgreSQL's.

use seqline::embedded::Durability;
use seqline_testkit::{Role, Standby, TestDb, TestServer, eventually};
use sqlx::{AssertSqlSafe, PgConnection};

use super::findings;
use crate::support::{DEADLINE, as_admin, on, run_sql, server_db};
use crate::worker::Worker;

/// The findings of this rule, when everything counts as old that has lasted for a second.
async fn horizon(db: &TestDb) -> Vec<(String, String)> {
    let doctor = on(db, Role::Admin, ["doctor", "--json", "--set", "alert.oldest_transaction_age=1s"]);
    let (_, found) = findings(doctor).await;
    found.into_iter().filter(|found| found.0 == "vacuum_horizon").map(|found| (found.1, found.2)).collect()
}

fn levels(found: &[(String, String)]) -> Vec<&str> {
    found.iter().map(|found| found.0.as_str()).collect()
}

/// A process that sees everybody, for its figure.
async fn watcher(db: &TestDb) -> Worker {
    let api = on(db, Role::Admin, ["serve", "--role", "api"]);
    let api = Worker::start(api.env("SEQLINE_TELEMETRY__REFRESH_INTERVAL", "100ms")).await;
    api.shows("seqline_log_head", 0.0).await;
    api
}

async fn figure(api: &Worker) -> f64 {
    api.figure_there("seqline_db_oldest_transaction_age_seconds").await
}

/// Waits until a query says yes.
async fn until(connection: &mut PgConnection, what: &str, query: &str) {
    eventually(DEADLINE, what, async || {
        sqlx::query_scalar::<_, Option<bool>>(AssertSqlSafe(query.to_owned()))
            .fetch_one(&mut *connection)
            .await
            .unwrap()
            .unwrap_or(false)
    })
    .await;
}

/// A session with a snapshot and a prepared transaction, both older than two seconds when it returns.
async fn be_in_the_way(db: &TestDb, name: &str) -> PgConnection {
    let mut session = db.connect(Role::Admin).await;
    let prepare = format!("CREATE TABLE public.prepared (); PREPARE TRANSACTION '{name}'");
    run_sql(&mut session, &format!("BEGIN; {prepare}")).await;
    run_sql(&mut session, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT now()").await;
    let old = "SELECT clock_timestamp() - now() > interval '2.1 s'";
    until(&mut session, "an old transaction", old).await;
    session
}

async fn get_out_of_the_way(mut session: PgConnection, name: &str) {
    run_sql(&mut session, "COMMIT").await;
    run_sql(&mut session, &format!("ROLLBACK PREPARED '{name}'")).await;
}

#[tokio::test]
async fn transactions_of_this_database_count_and_those_of_others_do_not() {
    let (db, other) = (server_db().await, TestDb::new().await);
    let api = watcher(&db).await;
    let elsewhere = be_in_the_way(&other, "horizon elsewhere").await;
    let (found, age) = (horizon(&db).await, figure(&api).await);
    get_out_of_the_way(elsewhere, "horizon elsewhere").await;
    assert_eq!(levels(&found), ["ok"], "{found:?}");
    assert!(age < 2.0, "{age}");
    let here = be_in_the_way(&db, "horizon here").await;
    let found = horizon(&db).await;
    eventually(DEADLINE, "the figure shows it", async || figure(&api).await > 2.0).await;
    run_sql(&mut { here }, "COMMIT").await;
    let prepared = horizon(&db).await;
    let age = figure(&api).await;
    as_admin(&db, "ROLLBACK PREPARED 'horizon here'").await;
    api.stop().await;
    assert_eq!(levels(&found), ["warning", "warning"], "{found:?}");
    assert!(found[0].1.starts_with("an old transaction: process "), "{found:?}");
    assert!(found[1].1.starts_with("prepared transaction horizon here is "), "{found:?}");
    // A prepared transaction has no session any more.
    assert_eq!(levels(&prepared), ["warning"], "{prepared:?}");
    assert!(age > 2.0, "{age}");
}

/// PostgreSQL leaves it out, although it has a snapshot for as long as it runs.
#[tokio::test]
async fn a_vacuum_that_takes_long_does_not_count() {
    let db = server_db().await;
    as_admin(&db, "CREATE TABLE public.large AS SELECT generate_series(1, 100000) AS n").await;
    let api = watcher(&db).await;
    let mut session = db.connect(Role::Admin).await;
    run_sql(&mut session, "SET vacuum_cost_delay = '100ms'; SET vacuum_cost_limit = 1").await;
    let vacuum = tokio::spawn(async move {
        sqlx::raw_sql("VACUUM (INDEX_CLEANUP off) public.large").execute(&mut session).await
    });
    let mut admin = db.connect(Role::Admin).await;
    let runs = "SELECT bool_or(a.backend_xmin IS NOT NULL AND clock_timestamp() - a.xact_start > interval '2.1 s')
                FROM pg_stat_progress_vacuum v JOIN pg_stat_activity a USING (pid) WHERE v.relid = 'public.large'::regclass";
    until(&mut admin, "a vacuum with a snapshot", runs).await;
    let (found, age) = (horizon(&db).await, figure(&api).await);
    until(&mut admin, "it runs still", runs).await;
    run_sql(
        &mut admin,
        "SELECT pg_cancel_backend(pid) FROM pg_stat_progress_vacuum WHERE relid = 'public.large'::regclass",
    )
    .await;
    vacuum.await.unwrap().unwrap_err();
    api.stop().await;
    assert_eq!(levels(&found), ["ok"], "{found:?}");
    assert!(age < 2.0, "{age}");
}

/// They hold for all databases, and have no time.
#[tokio::test]
async fn slots_that_nobody_uses_are_named_with_what_they_keep() {
    let server = TestServer::with(Durability::Durable, &[("wal_level", "logical")]).await;
    let db = crate::support::with_jobs(TestDb::on(&server).await).await;
    let mut admin = db.connect(Role::Admin).await;
    let mut standby = Standby::synchronous(&server).await;
    run_sql(
        &mut admin,
        "SELECT pg_create_physical_replication_slot('standby'); SELECT pg_create_physical_replication_slot('of_no_rows')",
    )
    .await;
    standby.set("primary_slot_name", "standby").await;
    standby.set("hot_standby_feedback", "on").await;
    let keeps = "SELECT active AND xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = 'standby'";
    until(&mut admin, "a standby that says what it reads", keeps).await;
    let used = horizon(&db).await;
    run_sql(&mut admin, "ALTER SYSTEM SET synchronous_standby_names = ''").await;
    run_sql(&mut admin, "SELECT pg_reload_conf()").await;
    standby.stop().await;
    let left = "SELECT NOT active AND xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = 'standby'";
    until(&mut admin, "a slot that nobody uses", left).await;
    run_sql(&mut admin, "SELECT pg_create_logical_replication_slot('changes', 'pgoutput')").await;
    assert_eq!(levels(&used), ["ok"], "{used:?}");
    let warning = |text: &str| ("warning".to_owned(), text.to_owned());
    assert_eq!(
        horizon(&db).await,
        [
            warning("replication slots that nobody uses keep rows: standby"),
            warning("replication slots that nobody uses keep rows of the system catalogs: changes"),
        ]
    );
}
