//! A database that vanishes without a word.

use seqline_testkit::{Role, eventually};
use serde_json::json;

use super::{client_of, done_for, for_sam};
use crate::api::proxied;
use crate::support::{DEADLINE, Sessions, as_admin, run_sql, server_db};
use crate::worker::{Worker, server};
use seqline::access::Rights;

#[tokio::test]
async fn requests_of_operators_end_and_their_places_are_free_when_the_database_is_back() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    let (proxy, url) = proxied(&db).await;
    let through = server(&db, "api").env("SEQLINE_DATABASE_URL", url);
    let quick = through.env("SEQLINE_DATABASE__LOCK_TIMEOUT", "500ms");
    let quick = quick.env("SEQLINE_SYNC__DETACH_LOCK_TIMEOUT_MAX", "500ms");
    let server = Worker::start(quick.env("SEQLINE_DATABASE__STATEMENT_TIMEOUT", "1s")).await;
    let sam = client_of(&db, &server, "Sam", Rights { append: false, operate: true }).await;
    // A round that is under way, for which all of them wait.
    let mut round = db.connect(Role::Consumer).await;
    run_sql(&mut round, "BEGIN; SELECT seqline.poll('mine', 1)").await;
    let asking = sam.clone();
    let asked = tokio::spawn(async move {
        let body = json!({});
        let all = (0..3).map(|_| asking.post("/v1/consumers/mine/pause", &body));
        futures_util::future::join_all(all).await
    });
    let waiting = "wait_event_type = 'Lock' AND query LIKE '%set_consumer_paused%'";
    Sessions::of(&db, Role::App).reach(3, waiting).await;
    proxy.black_hole();
    for answer in asked.await.unwrap() {
        answer.problem(503, "unavailable");
    }
    run_sql(&mut round, "ROLLBACK").await;
    proxy.heal();
    let body = json!({"reason": "NOTE"});
    eventually(DEADLINE, "operators are answered again", async || {
        sam.post("/v1/consumers/mine/pause", &body).await.status == 200
    })
    .await;
    assert_eq!(done_for(&db).await, [for_sam("consumer.pause", "mine", Some("NOTE"))]);
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_lost_in_the_commit_of_a_change_leaves_the_outcome_open_and_says_so() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    let (proxy, url) = proxied(&db).await;
    let server = Worker::start(server(&db, "api").env("SEQLINE_DATABASE_URL", url)).await;
    let sam = client_of(&db, &server, "Sam", Rights { append: false, operate: true }).await;
    sam.get("/v1/consumers/mine").await.ok(200);
    // In the commit it waits for this.
    as_admin(
        &db,
        "CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(17); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER waits AFTER UPDATE ON seqline.event_consumers
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.wait()",
    )
    .await;
    let mut lock = db.connect(Role::Admin).await;
    run_sql(&mut lock, "SELECT pg_advisory_lock(17)").await;
    let asking = sam.clone();
    let asked = tokio::spawn(async move { asking.post("/v1/consumers/mine/pause", &json!({})).await });
    Sessions::of(&db, Role::App).reach(1, "wait_event = 'advisory'").await;
    // The database commits, and its answer does not arrive.
    proxy.hold_answers();
    run_sql(&mut lock, "SELECT pg_advisory_unlock(17)").await;
    let paused = "SELECT paused_at IS NOT NULL FROM seqline.event_consumers WHERE name = 'mine'";
    eventually(DEADLINE, "it is done", async || {
        sqlx::query_scalar(paused).fetch_one(&db.admin()).await.unwrap_or(false)
    })
    .await;
    proxy.cut();
    proxy.heal();
    let problem = asked.await.unwrap().problem(503, "outcome_unknown");
    assert!(problem["detail"].as_str().unwrap().contains("done as a whole or not at all"), "{problem}");
    assert_eq!(done_for(&db).await, [for_sam("consumer.pause", "mine", None)]);
    server.stop().await;
}
