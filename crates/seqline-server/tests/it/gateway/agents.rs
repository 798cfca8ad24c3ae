//! Agents over the gateway: what they are given, and what again.

use std::time::Duration;

use serde_json::json;

use super::{SOON, Site, Socket};
use crate::agents::{number, with_keys};
use crate::api::proxied;
use crate::worker::Worker;

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
