//! What goes wrong around an agent that asks: a database that is away, a server that was stopped and goes on.

use nix::sys::signal::Signal;
use seqline_testkit::{Role, eventually};
use serde_json::json;

use super::{Site, WAITING, number};
use crate::api::proxied;
use crate::support::{DEADLINE, append};

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
