//! What each role runs.

use seqline_testkit::{Role, eventually};

use crate::support::{DEADLINE, Sessions, append, server_db};
use crate::worker::{Worker, server};

fn listens(what: &str) -> String {
    format!("application_name = '{what}' AND query LIKE 'LISTEN%'")
}

#[tokio::test]
async fn an_api_follows_the_log_and_works_on_nothing() {
    let db = server_db().await;
    let server = Worker::start(server(&db, "api")).await;
    let sessions = Sessions::of(&db, Role::App);
    sessions.reach(1, "application_name = 'seqline-event-tail'").await;
    append(&db.app(), 1..=3).await;
    server.shows("seqline_event_fanout_lag_seconds_count", 3.0).await;
    assert_eq!(sessions.count("application_name = 'seqline-consumer-wake'").await, 0);
    let log = server.stop().await;
    assert!(!log.iter().any(|line| line["message"] == "event recorded"), "{log:#?}");
    let stopped: Vec<&str> = log.iter().filter_map(|line| line["component"].as_str()).collect();
    assert_eq!(stopped, ["event_tail", "ops", "watch", "metrics"]);
}

#[tokio::test]
async fn a_worker_works_and_does_not_follow() {
    let db = server_db().await;
    let server = Worker::start(server(&db, "worker")).await;
    append(&db.app(), 1..=3).await;
    server.records(1..=3).await;
    assert_eq!(Sessions::of(&db, Role::App).count("application_name = 'seqline-event-tail'").await, 0);
    assert_eq!(server.figure("seqline_tail_lag").await, None);
    server.stop().await;
}

#[tokio::test]
async fn all_does_both_and_stops_delivery_first() {
    let db = server_db().await;
    // The default.
    let command = crate::support::on(&db, Role::App, ["serve"]);
    let server = Worker::start(command).await;
    eventually(DEADLINE, "both listen", async || {
        let sessions = Sessions::of(&db, Role::App);
        sessions.count(&listens("seqline-event-tail")).await
            + sessions.count(&listens("seqline-consumer-wake")).await
            > 0
            && server.figure("seqline_listener_connected{seqline_listener_name=\"tail\"}").await == Some(1.0)
            && server.figure("seqline_listener_connected{seqline_listener_name=\"consumers\"}").await
                == Some(1.0)
    })
    .await;
    append(&db.app(), [1]).await;
    server.records([1]).await;
    server.shows("seqline_event_fanout_lag_seconds_count", 1.0).await;
    let log = server.stop().await;
    let stopped: Vec<&str> = log.iter().filter_map(|line| line["component"].as_str()).collect();
    assert_eq!(stopped, ["event_tail", "event_consumers", "jobs", "sequencer", "ops", "watch", "metrics"]);
}
