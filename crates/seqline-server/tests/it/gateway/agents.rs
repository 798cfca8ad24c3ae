//! Agents over the gateway: what they are given, and what again.

use std::time::Duration;

use serde_json::json;

use super::{Site, Socket};
use crate::agents::{number, with_keys};
use crate::api::proxied;
use crate::worker::Worker;

const SOON: (&str, &str) = ("agent.ack_persist_interval", "50ms");

#[tokio::test]
async fn an_agent_is_given_what_comes_and_what_it_did_not_acknowledge() {
    let site = Site::new(&[SOON]).await;
    site.append(2).await;
    site.rest().knows(2).await;
    let (mut socket, ready) = site.ready().await;
    assert_eq!(
        (&ready["consumer"], &ready["generation"], number(&ready["acked"])),
        (&json!("default"), &json!(1), 2)
    );
    assert_eq!((&ready["kind"], &ready["principal"]), (&json!("agent"), &json!("billing")));
    assert_eq!(socket.expect("catchup.complete").await["head_seq"], 2);
    site.append(3).await;
    let first = socket.expect("event").await;
    assert_eq!(
        (&first["seq"], &first["type"], &first["payload"]["n"]),
        (&json!(3), &json!("test.happened"), &json!(1))
    );
    assert_eq!(socket.events(2).await, [(4, false), (5, false)]);
    socket.ack(4).await;
    socket.is_quiet().await;
    socket.leave(1000).await;
    let state = site.rest().state().await;
    assert_eq!((number(&state["acked"]), state.get("holder")), (4, None), "who leaves gives it up");
    let (mut socket, ready) = site.ready().await;
    assert_eq!((number(&ready["acked"]), &ready["generation"]), (4, &json!(2)));
    assert_eq!(socket.events(1).await, [(5, false)]);
    assert_eq!(socket.expect("catchup.complete").await["head_seq"], 5);
    site.stop().await;
}

#[tokio::test]
async fn acknowledgements_are_saved_while_a_connection_lasts() {
    let site = Site::new(&[SOON]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    socket.ack(2).await;
    seqline_testkit::eventually(crate::support::DEADLINE, "it is saved", async || {
        number(&site.rest().state().await["acked"]) == 2
    })
    .await;
    // A process that ends without a word has lost nothing that it was told long ago.
    site.server.running.signal(nix::sys::signal::Signal::SIGKILL);
    let (other, address) = site.another_server(&[]).await;
    let (mut socket, _) = Socket::ready(&address, &site.token).await;
    assert_eq!(socket.events(1).await, [(3, false)]);
    other.stop().await;
}

#[tokio::test]
async fn delivery_stops_at_the_bound_and_goes_on_with_an_acknowledgement() {
    let site = Site::new(&[("agent.max_inflight_events", "3")]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    assert_eq!(socket.hello["inflight_events_max"], 3);
    site.append(7).await;
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    socket.is_quiet().await;
    socket.ack(2).await;
    assert_eq!(socket.seqs(2).await, [4, 5]);
    socket.is_quiet().await;
    socket.ack(5).await;
    assert_eq!(socket.seqs(2).await, [6, 7]);
    site.stop().await;
}

#[tokio::test]
async fn what_is_not_acknowledged_in_time_comes_again_marked_and_in_order() {
    let site = Site::new(&[("agent.ack_timeout", "500ms"), ("agent.ack_persist_interval", "100ms")]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(socket.events(3).await, [(1, false), (2, false), (3, false)]);
    assert_eq!(socket.events(3).await, [(1, true), (2, true), (3, true)]);
    socket.ack(1).await;
    assert_eq!(socket.events(2).await, [(2, true), (3, true)]);
    socket.ack(3).await;
    site.append(1).await;
    assert_eq!(socket.events(1).await, [(4, false)]);
    site.stop().await;
}

#[tokio::test]
async fn what_is_no_acknowledgement_is_told_and_the_connection_goes_on() {
    let site = Site::new(&[]).await;
    site.append(3).await;
    site.rest().knows(3).await;
    let (mut socket, ready) = site.ready().await;
    socket.expect("catchup.complete").await;
    // A fresh consumer can acknowledge what it was told.
    socket.send("ack", &json!({ "position": ready["head"] })).await;
    socket.is_quiet().await;
    for (ack, pointer) in [
        (json!({ "seq": -1 }), "/seq"),
        (json!({ "seq": 4 }), "/seq"),
        (json!({ "seq": u64::MAX }), "/seq"),
        (json!({ "seq": -1e30 }), "/seq"),
        (json!({}), "/seq"),
        (json!({ "position": "4" }), "/position"),
    ] {
        socket.send("ack", &ack).await;
        let error = socket.expect("error").await;
        assert_eq!(
            (&error["code"], &error["errors"][0]["pointer"]),
            (&json!("validation_failed"), &json!(pointer))
        );
    }
    // Repeated and lower ones change nothing, and one beyond what was given covers it.
    site.append(3).await;
    assert_eq!(socket.seqs(3).await, [4, 5, 6]);
    for seq in [6, 6, 2] {
        socket.ack(seq).await;
    }
    socket.is_quiet().await;
    socket.leave(1000).await;
    assert_eq!(number(&site.rest().state().await["acked"]), 6);
    site.stop().await;
}

#[tokio::test]
async fn who_acknowledges_too_often_is_told_when_to_again() {
    let site = Site::new(&[("agent.acks_per_second", "1"), ("agent.acks_burst", "2")]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    for _ in 0..3 {
        socket.ack(0).await;
    }
    let error = socket.expect("error").await;
    assert_eq!(error["code"], "rate_limited");
    assert!(error["retry_after_ms"].as_u64().is_some_and(|after| after > 0), "{error}");
    socket.is_quiet().await;
    site.stop().await;
}

#[tokio::test]
async fn events_that_are_lost_are_told_until_that_is_known() {
    let site = Site::new(&[SOON]).await;
    site.append(5).await;
    site.rest().knows(5).await;
    site.rest().poll("").await;
    let mut app = site.db.connect(seqline_testkit::Role::App).await;
    sqlx::query("UPDATE seqline.agent_consumer_cursors SET acked_seq = 70").execute(&mut app).await.unwrap();
    let (mut socket, _) = site.ready().await;
    let told = socket.expect("resync_required").await;
    assert_eq!(told["reason"], "cursor_ahead");
    assert_eq!((number(&told["after"]), number(&told["position"])), (70, 5));
    site.append(1).await;
    assert_eq!(socket.events(1).await, [(6, false)]);
    socket.leave(1000).await;
    let (mut socket, ready) = site.ready().await;
    assert_eq!((&ready["resync"]["reason"], number(&ready["acked"])), (&json!("cursor_ahead"), 5));
    socket.ack(5).await;
    assert_eq!(socket.seqs(1).await, [6]);
    socket.expect("catchup.complete").await;
    socket.is_quiet().await;
    socket.leave(1000).await;
    assert!(site.rest().state().await.get("resync").is_none());
    site.stop().await;
}

/// What is overdue is not passed over by a page that was asked for before.
#[tokio::test]
async fn what_becomes_overdue_while_the_log_is_read_comes_again() {
    let site = Site::new(&[]).await;
    let (proxy, url) = proxied(&site.db).await;
    let keys = [
        ("api.hub_events_max", "2"),
        ("agent.ack_timeout", "200ms"),
        ("gateway.heartbeat_interval", "10m"),
        ("agent.ack_persist_interval", "100ms"),
    ];
    let server = Worker::start(with_keys(&site.db, &keys).env("SEQLINE_DATABASE_URL", url)).await;
    let (mut socket, _) = Socket::ready(&server.api().await, &site.token).await;
    socket.expect("catchup.complete").await;
    // From now on an answer of the database takes longer than an acknowledgement may.
    proxy.delay(Duration::from_millis(300));
    let of_others = || seqline::NewEvent::builder("salary.paid", "salary", "salary.read").build().unwrap();
    let mut events = vec![crate::support::event(1)];
    events.extend((0..50).map(|_| of_others()));
    let mut tx = seqline::begin(&site.db.app()).await.unwrap();
    seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    for redelivered in [false, true, true] {
        assert_eq!(socket.events(1).await, [(1, redelivered)]);
    }
    proxy.delay(Duration::ZERO);
    socket.ack(1).await;
    server.stop().await;
    site.stop().await;
}
