//! Sessions that go on over another connection, and servers that stop.

use seqline::access::PrincipalKind;
use serde_json::json;

use super::{Site, Socket};
use crate::agents::{agent, number};

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
    assert_eq!(not_resumed(&site, &json!("01a22f35-356e-77f9-9001-e62feb4a3e49")).await, 4006);
    let (lost, ready) = site.ready().await;
    // The server knows that the connection is lost, and that the client may come back.
    lost.leave(4900).await;
    let other = agent(&site.db, "other", PrincipalKind::Agent).await;
    let resume = json!({ "token": other, "session_id": ready["session_id"] });
    assert_eq!(Socket::refused(&site.address, "resume", &resume).await.1.code, 4006);
    // One that was told that it was replaced has no session any more.
    let (mut first, ready) = site.ready().await;
    let (second, of_second) = site.ready().await;
    assert_eq!(first.code().await, 4015);
    assert_eq!(not_resumed(&site, &ready["session_id"]).await, 4006);
    // One that was replaced while its connection was lost is told now: by a connection, over REST, by another process.
    second.leave(4900).await;
    let (third, of_third) = site.ready().await;
    assert_eq!(not_resumed(&site, &of_second["session_id"]).await, 4015);
    assert_eq!(not_resumed(&site, &of_second["session_id"]).await, 4006, "once");
    third.leave(4900).await;
    site.rest().poll("").await;
    assert_eq!(not_resumed(&site, &of_third["session_id"]).await, 4015);
    let (fourth, of_fourth) = site.ready().await;
    fourth.leave(4900).await;
    let (other, address) = site.another_server(&[]).await;
    let (mut taken, _) = Socket::ready(&address, &site.token).await;
    assert_eq!(not_resumed(&site, &of_fourth["session_id"]).await, 4015);
    taken.expect("catchup.complete").await;
    taken.is_quiet().await;
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn what_was_acknowledged_over_rest_meanwhile_counts_for_a_session_that_goes_on() {
    let site = Site::new(&[]).await;
    let (mut socket, ready) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    socket.leave(4900).await;
    site.rest().acked(2).await;
    let mut socket = resumed(&site, &ready["session_id"]).await;
    assert_eq!(socket.seqs(1).await, [3]);
    site.stop().await;
}

#[tokio::test]
async fn an_agent_whose_events_are_rare_does_not_stay_behind() {
    let site = Site::new(&[]).await;
    let (mut socket, ready) = site.ready().await;
    socket.expect("catchup.complete").await;
    let of_others = seqline::NewEvent::builder("salary.paid", "salary", "salary.read").build().unwrap();
    let mut tx = seqline::begin(&site.db.app()).await.unwrap();
    seqline::append(&mut tx, &vec![of_others; 20]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    site.db.settled().await;
    site.rest().knows(20).await;
    // What comes for it comes behind what is not.
    site.append(1).await;
    assert_eq!(socket.seqs(1).await, [21]);
    socket.leave(4900).await;
    assert_eq!(number(&site.rest().state().await["acked"]), 20);
    let mut socket = resumed(&site, &ready["session_id"]).await;
    assert_eq!(socket.seqs(1).await, [21]);
    site.stop().await;
}

#[tokio::test]
async fn a_client_that_closes_hears_that_this_was_heard() {
    let site = Site::new(&[]).await;
    for code in [1000, 4900] {
        let (socket, _) = site.ready().await;
        socket.leave(code).await;
    }
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
