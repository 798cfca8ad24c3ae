//! What goes wrong around an agent: lost events, a database that is away, a server that was stopped and goes on.

use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::json;

use super::{Site, WAITING, number};
use crate::api::proxied;
use crate::support::{DEADLINE, append, as_admin, small_partitions};

#[tokio::test]
async fn events_that_have_expired_are_told_until_that_is_acknowledged() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 5).await;
    let site = Site::on(db, &[]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(25).await;
    invoices.knows(25).await;
    assert_eq!(invoices.delivered("limit=3").await.seqs(), [1, 2, 3]);
    as_admin(
        &site.db,
        "DO $$ BEGIN EXECUTE format('DROP TABLE seqline.%I',
             (SELECT name FROM seqline.event_log_partitions() ORDER BY lower_bound LIMIT 1)); END $$",
    )
    .await;
    // Another server has none of the expired events in its memory either.
    let (other, there) = site.another_server(&[]).await;
    there.knows(25).await;
    let problem = there.ask("").await.problem(410, "resync_required");
    assert_eq!((&problem["reason"], number(&problem["head"])), (&json!("retention"), 25));
    told_until_acknowledged(&site, &there, "retention", 0, 25).await;
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn a_cursor_beyond_the_log_is_moved_to_its_head() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(5).await;
    invoices.knows(5).await;
    let mut app = site.db.connect(Role::App).await;
    sqlx::query("UPDATE seqline.agent_consumer_cursors SET acked_seq = 70").execute(&mut app).await.unwrap();
    let problem = invoices.ask("").await.problem(410, "resync_required");
    assert_eq!((&problem["reason"], number(&problem["head"])), (&json!("cursor_ahead"), 5));
    told_until_acknowledged(&site, invoices, "cursor_ahead", 70, 5).await;
    site.stop().await;
}

/// The next request succeeds, and says what was lost until that is acknowledged.
async fn told_until_acknowledged(
    site: &Site,
    consumer: &super::Consumer,
    reason: &str,
    after: i64,
    position: i64,
) {
    site.append(1).await;
    let told = |resync: &serde_json::Value| {
        assert_eq!(resync["reason"], reason, "{resync}");
        assert_eq!((number(&resync["after"]), number(&resync["position"])), (after, position));
    };
    let given = consumer.delivered("").await;
    assert_eq!(given.seqs(), [position + 1]);
    told(&given.0["resync"]);
    told(&consumer.poll("").await.0["resync"]);
    told(&consumer.acked(position - 1).await["resync"]);
    let known = consumer.acked(position).await;
    assert!(known.get("resync").is_none(), "{known}");
    assert!(consumer.poll("").await.0.get("resync").is_none());
}

#[tokio::test]
async fn while_the_database_is_away_nothing_is_given_and_nothing_is_lost() {
    let site = Site::new(&[]).await;
    site.consumer.poll("").await;
    site.append(3).await;
    let (proxy, url) = proxied(&site.db).await;
    let keys = ["database.lock_timeout=1s", "database.statement_timeout=2s", "api.permissions_max_age=100ms"];
    let command = keys
        .into_iter()
        .fold(crate::worker::server(&site.db, "api").env("SEQLINE_DATABASE_URL", url), |command, key| {
            command.args(["--set", key])
        });
    let server = crate::worker::Worker::start(command).await;
    let mut invoices = site.consumer.clone();
    invoices.client.address = server.api().await;
    invoices.knows(3).await;
    assert_eq!(invoices.delivered("limit=1").await.seqs(), [1]);
    proxy.refuse();
    proxy.cut();
    for answer in [invoices.ask("").await, invoices.ack(&json!({ "seq": 1 })).await] {
        answer.problem(503, "unavailable");
    }
    proxy.heal();
    eventually(DEADLINE, "it answers again", async || invoices.ask("limit=0").await.status == 422).await;
    eventually(DEADLINE, "it acknowledges", async || invoices.ack(&json!({ "seq": 1 })).await.status == 200)
        .await;
    assert_eq!(invoices.delivered("").await.events(), [(2, false), (3, false)]);
    server.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn a_server_that_was_stopped_and_goes_on_after_a_takeover_gives_nothing_and_acknowledges_nothing() {
    let site = Site::new(&[]).await;
    let invoices = site.consumer.clone();
    invoices.poll("").await;
    let generation = invoices.poll("").await.generation();
    let waiting = tokio::spawn({
        let invoices = invoices.clone();
        async move { invoices.ask("wait=30").await }
    });
    site.server.shows(WAITING, 1.0).await;
    let (other, there) = site.another_server(&[]).await;
    site.server.running.signal(Signal::SIGSTOP);
    let mut app = site.db.connect(Role::App).await;
    // As somebody who comes over the gateway does.
    sqlx::query(
        "UPDATE seqline.agent_consumer_cursors SET generation = generation + 1, holder_session_id = gen_random_uuid(),
             holder_kind = 'gateway', held_since = now(), rest_window = NULL",
    )
    .execute(&mut app)
    .await
    .unwrap();
    let taken = there.poll("").await;
    assert_eq!(taken.generation(), generation + 2);
    append(&site.db.app(), 1..=2).await;
    assert_eq!(there.delivered("").await.seqs(), [1, 2]);
    site.server.running.signal(Signal::SIGCONT);
    // It was waiting with the window of before.
    waiting.await.unwrap().problem(409, "consumer_replaced");
    let late = invoices.ack(&json!({ "seq": 2, "generation": generation })).await;
    late.problem(409, "consumer_replaced");
    assert_eq!(number(&there.state().await["acked"]), 0);
    other.stop().await;
    site.stop().await;
}
