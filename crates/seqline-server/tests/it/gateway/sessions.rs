//! Sessions that go on over another connection, and servers that stop.

use serde_json::json;

use super::{Site, Socket};
use crate::agents::number;

async fn resumed(site: &Site, session: &serde_json::Value) -> Socket {
    let mut socket = Socket::connect(&site.address).await;
    socket.send("resume", &json!({ "token": site.token, "session_id": session })).await;
    let resumed = socket.expect("resumed").await;
    assert_eq!(resumed["session_id"], *session);
    socket
}

async fn not_resumed(site: &Site, session: &serde_json::Value) -> u16 {
    let resume = json!({ "token": site.token, "session_id": session });
    Socket::refused(&site.address, "resume", &resume).await.1.code
}

#[tokio::test]
async fn a_connection_that_is_lost_is_resumed_from_its_acknowledgement() {
    let site = Site::new(&[("agent.ack_persist_interval", "30s")]).await;
    let (mut socket, ready) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    socket.ack(1).await;
    socket.is_quiet().await;
    drop(socket);
    let mut socket = resumed(&site, &ready["session_id"]).await;
    assert_eq!(socket.events(2).await, [(2, false), (3, false)]);
    assert_eq!(socket.expect("catchup.complete").await["head_seq"], 3);
    assert_eq!(site.rest().state().await["generation"], 1, "nobody else had it");
    // An older connection that is still open ends.
    let mut newer = resumed(&site, &ready["session_id"]).await;
    assert_eq!(socket.code().await, 4015);
    assert_eq!(newer.seqs(2).await, [2, 3]);
    newer.expect("catchup.complete").await;
    newer.ack(3).await;
    newer.is_quiet().await;
    newer.leave(1000).await;
    assert_eq!(number(&site.rest().state().await["acked"]), 3);
    assert_eq!(not_resumed(&site, &ready["session_id"]).await, 4006, "who left has ended it");
    site.stop().await;
}

#[tokio::test]
async fn a_session_that_was_replaced_or_is_somebody_elses_is_not_resumed() {
    let site = Site::new(&[]).await;
    let (socket, ready) = site.ready().await;
    drop(socket);
    let (_second, _) = site.ready().await;
    assert_eq!(not_resumed(&site, &ready["session_id"]).await, 4006, "in this process it is gone");
    assert_eq!(not_resumed(&site, &json!("01a22f35-356e-77f9-9001-e62feb4a3e49")).await, 4006);
    // While its connection was lost it was taken by another process.
    let (third, ready) = site.ready().await;
    drop(third);
    let (other, address) = site.another_server(&[]).await;
    let (mut taken, _) = Socket::ready(&address, &site.token).await;
    assert_eq!(not_resumed(&site, &ready["session_id"]).await, 4015);
    taken.expect("catchup.complete").await;
    taken.is_quiet().await;
    // Over REST too.
    let (fourth, ready) = site.ready().await;
    drop(fourth);
    site.rest().poll("").await;
    assert_eq!(not_resumed(&site, &ready["session_id"]).await, 4006);
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_saves_and_says_when_to_come_again() {
    let site = Site::new(&[("agent.ack_persist_interval", "30s")]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(2).await;
    assert_eq!(socket.seqs(2).await, [1, 2]);
    socket.ack(1).await;
    socket.is_quiet().await;
    site.server.running.signal(nix::sys::signal::Signal::SIGTERM);
    let told = socket.expect("reconnect").await;
    let (_, closed) = socket.closed().await;
    assert_eq!((closed.code, &closed.reason["after_ms"]), (4013, &told["after_ms"]));
    drop(socket);
    let (outcome, log) = site.server.end().await;
    assert_eq!(outcome.code(), Some(0), "{log:#?}");
    let cursor: (i64, bool) =
        sqlx::query_as("SELECT acked_seq, holder_session_id IS NULL FROM seqline.agent_consumer_cursors")
            .fetch_one(&mut site.db.connect(seqline_testkit::Role::App).await)
            .await
            .unwrap();
    assert_eq!(cursor, (1, true));
}
