//! Takeovers in every direction: whoever comes has the consumer, and whoever had it changes nothing any more.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{Site, Socket};
use crate::agents::number;

const SOON: (&str, &str) = ("agent.ack_persist_interval", "100ms");

#[tokio::test]
async fn in_one_process_the_older_connection_saves_and_ends() {
    let site = Site::new(&[("agent.ack_persist_interval", "30s")]).await;
    let (mut older, first) = site.ready().await;
    older.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(older.seqs(3).await, [1, 2, 3]);
    older.ack(2).await;
    older.is_quiet().await;
    let (mut newer, ready) = site.ready().await;
    let (_, closed) = older.closed().await;
    assert_eq!((closed.code, &closed.reason["reason"]), (4015, &json!("consumer_replaced")));
    assert_eq!(
        (number(&ready["acked"]), &ready["generation"]),
        (2, &json!(2)),
        "what it had acknowledged counts"
    );
    assert_eq!(newer.events(1).await, [(3, false)]);
    let line = site.server.says("consumer of an agent taken over").await;
    assert_eq!((&line["replaced"], &line["session"]), (&first["session_id"], &ready["session_id"]));
    site.stop().await;
}

#[tokio::test]
async fn one_who_is_polite_leaves_it_to_who_has_it() {
    let site = Site::new(&[]).await;
    let (mut mine, _) = site.ready().await;
    mine.expect("catchup.complete").await;
    let polite = json!({ "token": site.token, "take_over": false });
    let (frames, closed) = Socket::refused(&site.address, "identify", &polite).await;
    assert_eq!((closed.code, &frames[0]["d"]["code"]), (4016, &json!("consumer_replaced")));
    assert!(frames[0]["d"]["detail"].as_str().unwrap().contains("over gateway since 2"), "{frames:?}");
    mine.is_quiet().await;
    mine.leave(1000).await;
    let (_, ready) = Socket::identified(&site.address, &polite).await;
    assert_eq!(ready["generation"], 2);
    site.stop().await;
}

#[tokio::test]
async fn another_process_takes_it_and_the_holder_finds_out_when_it_saves() {
    let site = Site::new(&[SOON]).await;
    let (mut here, _) = site.ready().await;
    here.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(here.seqs(3).await, [1, 2, 3]);
    let (other, address) = site.another_server(&[SOON]).await;
    let (mut there, _) = Socket::ready(&address, &site.token).await;
    assert_eq!(there.seqs(3).await, [1, 2, 3]);
    there.expect("catchup.complete").await;
    there.ack(1).await;
    here.ack(3).await;
    assert_eq!(here.code().await, 4015);
    there.is_quiet().await;
    there.leave(1000).await;
    assert_eq!(
        number(&site.rest().state().await["acked"]),
        1,
        "what the older one acknowledged is not saved"
    );
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn between_a_connection_and_requests_over_rest() {
    let site = Site::new(&[SOON]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    socket.ack(1).await;
    socket.is_quiet().await;
    // Neither how it stands nor an acknowledgement takes it.
    site.rest().state().await;
    site.rest().acked(1).await;
    socket.is_quiet().await;
    let polled = site.rest().poll("").await;
    assert_eq!(socket.code().await, 4015);
    assert_eq!((polled.seqs(), polled.generation()), (vec![2, 3], 2));
    let (mut socket, _) = site.ready().await;
    assert_eq!(socket.events(2).await, [(2, false), (3, false)]);
    let generation = polled.generation();
    site.rest().ask(&format!("generation={generation}")).await.problem(409, "consumer_replaced");
    site.stop().await;
}

#[tokio::test]
async fn a_process_that_stood_still_and_goes_on_acknowledges_nothing() {
    let site = Site::new(&[SOON]).await;
    let (mut here, _) = site.ready().await;
    here.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(here.seqs(3).await, [1, 2, 3]);
    let (other, address) = site.another_server(&[SOON]).await;
    site.server.running.signal(Signal::SIGSTOP);
    here.ack(3).await;
    let (mut there, _) = Socket::ready(&address, &site.token).await;
    assert_eq!(there.seqs(3).await, [1, 2, 3]);
    there.expect("catchup.complete").await;
    site.server.running.signal(Signal::SIGCONT);
    assert_eq!(here.code().await, 4015);
    there.ack(2).await;
    there.is_quiet().await;
    there.leave(1000).await;
    assert_eq!(number(&site.rest().state().await["acked"]), 2);
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn an_acknowledgement_over_rest_counts_for_the_connection() {
    let site = Site::new(&[("agent.max_inflight_events", "2"), SOON]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(4).await;
    assert_eq!(socket.seqs(2).await, [1, 2]);
    socket.is_quiet().await;
    site.rest().acked(2).await;
    assert_eq!(socket.seqs(2).await, [3, 4]);
    socket.is_quiet().await;
    site.stop().await;
}
