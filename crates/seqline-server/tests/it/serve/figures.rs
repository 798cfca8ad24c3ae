//! `/metrics` of a server, over a real database.

use seqline::access::PrincipalKind;
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb, eventually};

use crate::agents::agent;
use crate::support::{DEADLINE, Seqline, append, as_admin, on, run_sql, server_db, small_partitions};
use crate::worker::{Worker, get, server, worker};

fn quick(server: Seqline) -> Seqline {
    server.env("SEQLINE_TELEMETRY__REFRESH_INTERVAL", "100ms")
}

/// A worker that cannot move a cursor: its consumer stays where it is.
async fn pause(db: &TestDb) {
    on(db, Role::App, ["consumers", "pause", "recorder", "--yes", "--reason", "test"]).run().await;
}

/// The names that are shown, and the attributes of their lines.
fn names(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

#[tokio::test]
async fn lag_and_age_of_a_consumer_are_shown_by_a_process_that_does_not_run_it() {
    let db = server_db().await;
    let worker = Worker::start(quick(worker(&db))).await;
    append(&db.app(), 1..=2).await;
    worker.records(1..=2).await;
    let lag = "seqline_event_consumer_lag{seqline_consumer_name=\"recorder\"}";
    let age = "seqline_event_consumer_pending_age_seconds{seqline_consumer_name=\"recorder\"}";
    worker.shows("seqline_log_head", 2.0).await;
    worker.shows(lag, 0.0).await;
    worker.shows(age, 0.0).await;
    worker.stop().await;
    // Nobody works any more, and whoever is left tells it.
    append(&db.app(), 3..=5).await;
    as_admin(&db, "UPDATE seqline.event_log SET occurred_at = occurred_at - interval '1 hour' WHERE seq = 3")
        .await;
    let api = Worker::start(quick(server(&db, "api"))).await;
    api.shows(lag, 3.0).await;
    let pending = api.figure_there(age).await;
    assert!((3600.0..4000.0).contains(&pending), "{pending}");
    assert_eq!(api.figure_there("seqline_event_appended_total").await, 5.0);
    pause(&db).await;
    api.shows("seqline_event_consumer_paused{seqline_consumer_name=\"recorder\"}", 1.0).await;
    api.stop().await;
}

#[tokio::test]
async fn the_room_that_is_left_is_shown_before_appends_fail() {
    let db = server_db().await;
    small_partitions(&db, 5, 1).await;
    let api = Worker::start(quick(server(&db, "api"))).await;
    api.shows("seqline_log_partition_headroom", 5.0).await;
    append(&db.app(), 1..=5).await;
    api.shows("seqline_log_partition_headroom", 0.0).await;
    api.stop().await;
}

#[tokio::test]
async fn whoever_waits_for_the_numbering_lock_and_an_old_transaction_are_shown() {
    let db = server_db().await;
    let api = Worker::start(quick(server(&db, "api"))).await;
    api.shows("seqline_numbering_lock_waiters", 0.0).await;
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let pool = db.app();
    let waiting = tokio::spawn(async move { append(&pool, [1]).await });
    api.shows("seqline_numbering_lock_waiters", 1.0).await;
    let wait = api.figure_there("seqline_numbering_lock_wait_seconds").await;
    assert!(wait >= 0.0);
    run_sql(&mut holder, "COMMIT").await;
    waiting.await.unwrap();
    api.shows("seqline_numbering_lock_waiters", 0.0).await;
    // Its own role's transactions are seen without further rights.
    let mut old = db.connect(Role::App).await;
    run_sql(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT seqline.head()").await;
    eventually(DEADLINE, "the old transaction is shown", async || {
        api.figure("seqline_db_oldest_transaction_age_seconds").await.is_some_and(|age| age > 0.0)
    })
    .await;
    api.stop().await;
}

#[tokio::test]
async fn jobs_and_rounds_are_counted() {
    let db = server_db().await;
    let worker = Worker::start(quick(worker(&db))).await;
    worker.says("partition maintenance done").await;
    worker.shows("seqline_jobs_count{seqline_job_state=\"completed\"}", 1.0).await;
    assert!(worker.figure_there("seqline_partition_maintenance_age_seconds").await >= 0.0);
    append(&db.app(), 1..=3).await;
    worker.shows("seqline_consumer_events_total{seqline_consumer_name=\"recorder\"}", 3.0).await;
    let rounds = "seqline_consumer_rounds_total{seqline_consumer_name=\"recorder\",seqline_round_outcome=\"progressed\"}";
    assert!(worker.figure(rounds).await.is_some_and(|rounds| rounds >= 1.0));
    worker.stop().await;
}

#[tokio::test]
async fn every_metric_that_is_shown_is_in_the_catalogue_and_has_its_attributes_only() {
    use seqline_server::metrics::catalogue::{METRICS, label};

    let (db, nats) = (server_db().await, NatsServer::start().await);
    let server = Worker::start(quick(server(&db, "all")).env("SEQLINE_NATS_URL", nats.url())).await;
    append(&db.app(), [1]).await;
    agent(&db, "billing", PrincipalKind::Agent).await;
    let mut app = db.connect(Role::App).await;
    run_sql(
        &mut app,
        "INSERT INTO seqline.agent_consumer_cursors (agent_id, consumer, acked_seq) VALUES ('billing', 'invoices', 0)",
    )
    .await;
    server.records([1]).await;
    let api = server.says("api listening").await["address"].as_str().unwrap().to_owned();
    assert_eq!(get(&api, "/v1/nothing").await.0, 404);
    server.shows("seqline_log_head", 1.0).await;
    server.shows("seqline_event_fanout_lag_seconds_count", 1.0).await;
    server.shows("seqline_jobs_count{seqline_job_state=\"completed\"}", 1.0).await;
    server.shows("seqline_relay_backlog{seqline_relay_name=\"jetstream\"}", 0.0).await;
    server.shows("seqline_stream_messages{seqline_stream_name=\"EVENTS\"}", 1.0).await;
    server.shows("seqline_stream_consumer_pending{seqline_stream_consumer_name=\"recorder\"}", 0.0).await;
    server
        .shows("seqline_stream_consumer_dead_letters{seqline_stream_consumer_name=\"recorder\"}", 0.0)
        .await;
    let mut text = String::new();
    eventually(DEADLINE, "figures of the database", async || {
        text = server.get("/metrics").await.1;
        text.contains("\nseqline_log_head ")
    })
    .await;
    let names = names(&text);
    let known = |name: &&str| METRICS.iter().any(|metric| metric.prometheus_name() == **name);
    let unknown: Vec<_> = names.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "not in the catalogue: {unknown:?}");
    const WITH_TROUBLE: [&str; 4] = [
        "seqline_retention_hold_remaining_seconds",
        "seqline_relay_stalled",
        "seqline_relay_incidents",
        "seqline_relay_failures_total",
    ];
    let absent: Vec<String> = METRICS
        .iter()
        .map(|metric| metric.prometheus_name())
        .filter(|name| !names.contains(&name.as_str()) && !WITH_TROUBLE.contains(&name.as_str()))
        .collect();
    assert_eq!(absent, [""; 0], "not shown in:\n{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let metric = METRICS.iter().find(|metric| name.starts_with(&metric.prometheus_name())).unwrap();
        let Some((labels, _)) = rest.split_once('}') else { continue };
        for pair in labels.split("\",") {
            let (found, _) = pair.split_once('=').unwrap();
            let allowed = found == "le" || metric.attributes.iter().any(|name| label(name) == found);
            assert!(allowed, "{line}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_scrape_is_answered_while_the_reads_behind_it_hang_and_shows_nothing_old() {
    let db = server_db().await;
    let api = Worker::start(quick(server(&db, "api"))).await;
    api.shows("seqline_log_head", 0.0).await;
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.event_consumer_cursors IN ACCESS EXCLUSIVE MODE").await;
    eventually(DEADLINE, "old figures are gone", async || api.figure("seqline_log_head").await.is_none())
        .await;
    // What this process knows by itself is still there.
    assert_eq!(api.figure("seqline_db_up").await, Some(1.0));
    run_sql(&mut holder, "COMMIT").await;
    api.shows("seqline_log_head", 0.0).await;
    api.stop().await;
}
