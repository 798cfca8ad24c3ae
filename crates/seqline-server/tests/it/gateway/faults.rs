//! What goes wrong around a connection: a client that vanishes, a database that is away, a server that dies, one that is flooded.

use futures_util::SinkExt;
use seqline::access::PrincipalKind;
use seqline_testkit::{FaultProxy, eventually};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::socket::{Next, Socket};
use super::{SOON, Site};
use crate::agents::{agent, number, with_keys};
use crate::api::proxied;
use crate::support::DEADLINE;
use crate::worker::Worker;

#[tokio::test]
async fn a_client_that_vanished_without_a_word_is_let_go_and_goes_on_later() {
    // As many connections as it has: as long as the server takes the lost one for one that lives, there is no other.
    let keys = [("gateway.heartbeat_interval", "2500ms"), ("api.waiting_max", "1"), SOON];
    let site = Site::new(&keys).await;
    let proxy = FaultProxy::start(site.address.parse().unwrap()).await.unwrap();
    let (mut socket, ready) = Socket::ready(&proxy.addr().to_string(), &site.token).await;
    socket.expect("catchup.complete").await;
    site.append(2).await;
    assert_eq!(socket.seqs(2).await, [1, 2]);
    socket.ack(1).await;
    socket.is_quiet().await;
    proxy.black_hole();
    site.append(1).await;
    let resume = json!({ "token": site.token, "session_id": ready["session_id"] });
    let mut found = None;
    eventually(DEADLINE, "the lost connection is let go", async || {
        let mut again = Socket::connect(&site.address).await;
        again.send("resume", &resume).await;
        match again.next().await {
            Next::Frame(frame) if frame["op"] == "resumed" => found = Some(again),
            Next::Frame(frame) if frame["d"]["code"] == "rate_limited" => {}
            other => panic!("neither resumed nor told to come again: {other:?}"),
        }
        found.is_some()
    })
    .await;
    let mut again = found.unwrap();
    assert_eq!(again.events(2).await, [(2, false), (3, false)]);
    // What was sent into the hole comes out of it: why it was closed, and before that the event, unless the server came to it too late.
    proxy.heal();
    let (frames, closed) = socket.closed().await;
    let are_right = frames.len() <= 1 && frames.iter().all(|frame| frame["d"]["seq"] == 3);
    assert!(are_right && closed.code == 4009, "{closed:?} after {frames:?}");
    again.ack(3).await;
    again.leave(1000).await;
    assert_eq!(number(&site.rest().state().await["acked"]), 3);
    site.stop().await;
}

/// How a database is away.
#[derive(Clone, Copy)]
enum Away {
    Refuses,
    SaysNothing,
}

async fn everything_comes_once_when_the_database_is_there_again(away: Away) {
    let site = Site::new(&[]).await;
    let (proxy, url) = proxied(&site.db).await;
    let keys = [
        SOON,
        ("agent.max_inflight_events", "3"),
        ("api.hub_events_max", "1"),
        ("api.permissions_max_age", "100ms"),
        ("database.lock_timeout", "1s"),
        ("database.statement_timeout", "2s"),
        ("database.listen_heartbeat_interval", "500ms"),
        ("database.listen_heartbeat_timeout", "500ms"),
        ("database.listen_reconnect_backoff_cap", "300ms"),
        ("consumer.poll_interval", "100ms"),
        ("sync.log_poll_interval", "100ms"),
        ("ops.look_interval", "100ms"),
    ];
    let server = Worker::start(with_keys(&site.db, &keys).env("SEQLINE_DATABASE_URL", url)).await;
    let address = server.api().await;
    let alex = agent(&site.db, "alex", PrincipalKind::User).await;
    let (mut reader, _) = Socket::ready(&address, &alex).await;
    let (mut socket, _) = Socket::ready(&address, &site.token).await;
    for client in [&mut reader, &mut socket] {
        client.expect("catchup.complete").await;
    }
    site.append(5).await;
    assert_eq!(reader.seqs(5).await, [1, 2, 3, 4, 5]);
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    match away {
        Away::Refuses => {
            proxy.refuse();
            proxy.cut();
        }
        Away::SaysNothing => proxy.black_hole(),
    }
    eventually(DEADLINE, "the server knows that it is away", async || server.get("/readyz").await.0 == 503)
        .await;
    site.append(3).await;
    // The connections live, and what is acknowledged is not forgotten. It makes room for an event
    // that has to be read from the database.
    socket.ack(2).await;
    for client in [&mut reader, &mut socket] {
        client.is_quiet().await;
    }
    proxy.heal();
    assert_eq!(reader.events(3).await, [(6, false), (7, false), (8, false)]);
    assert_eq!(socket.events(2).await, [(4, false), (5, false)]);
    eventually(DEADLINE, "it is saved", async || number(&site.rest().state().await["acked"]) == 2).await;
    socket.ack(5).await;
    assert_eq!(socket.events(3).await, [(6, false), (7, false), (8, false)]);
    for client in [&mut reader, &mut socket] {
        client.is_quiet().await;
    }
    socket.ack(8).await;
    socket.leave(1000).await;
    assert_eq!(number(&site.rest().state().await["acked"]), 8);
    drop(reader);
    server.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn while_the_database_refuses_connections_live_and_nothing_is_lost() {
    everything_comes_once_when_the_database_is_there_again(Away::Refuses).await;
}

#[tokio::test]
async fn while_the_database_says_nothing_connections_live_and_nothing_is_lost() {
    everything_comes_once_when_the_database_is_there_again(Away::SaysNothing).await;
}

#[tokio::test]
async fn when_a_server_is_killed_an_agent_goes_on_at_another_and_misses_nothing() {
    let keys = [("agent.max_inflight_events", "1000"), SOON];
    let site = Site::new(&keys).await;
    let (other, address) = site.another_server(&keys).await;
    let (mut here, _) = site.ready().await;
    here.expect("catchup.complete").await;
    site.append(100).await;
    for seq in 1..=60 {
        assert_eq!(here.events(1).await, [(seq, false)]);
        here.ack(seq).await;
        if seq == 30 {
            // What it is given and has not acknowledged is not saved with that.
            eventually(DEADLINE, "it is saved", async || number(&site.rest().state().await["acked"]) == 30)
                .await;
        }
    }
    site.server.running.signal(nix::sys::signal::Signal::SIGKILL);
    site.append(100).await;
    let (mut there, ready) = Socket::ready(&address, &site.token).await;
    let acked = number(&ready["acked"]);
    // It acknowledged no more than that, and what was not saved comes again.
    assert!((30..=60).contains(&acked) && ready["generation"] == 2, "{ready}");
    let left = usize::try_from(200 - acked).unwrap();
    assert_eq!(there.events(left).await, (acked + 1..=200).map(|seq| (seq, false)).collect::<Vec<_>>());
    there.ack(200).await;
    there.leave(1000).await;
    let state = crate::agents::Consumer {
        client: crate::api::Client::new(&address).token(&site.token),
        ..site.rest()
    };
    assert_eq!(number(&state.state().await["acked"]), 200);
    other.stop().await;
}

#[tokio::test]
async fn one_that_asks_for_more_than_it_takes_is_told_that_it_is_too_slow() {
    // Each is answered with an error.
    is_too_slow("{\"op\":\"ack\",\"d\":{}}", 20_000).await;
}

#[tokio::test]
async fn one_that_says_that_it_lives_and_takes_no_answer_is_too_slow_as_well() {
    is_too_slow("{\"op\":\"heartbeat\",\"d\":{}}", 80_000).await;
}

/// Sends this so often, and reads none of the answers until all is sent.
async fn is_too_slow(frame: &str, times: usize) {
    let often = [("api.requests_per_second", "1000000"), ("api.requests_burst", "1000000")];
    let site = Site::new(&[("gateway.queue_bytes_max", "4096"), often[0], often[1]]).await;
    let narrow = tokio::net::TcpSocket::new_v4().unwrap();
    narrow.set_recv_buffer_size(4096).unwrap();
    let stream = narrow.connect(site.address.parse().unwrap()).await.unwrap();
    let mut socket = Socket::over(stream, &site.address).await;
    socket.expect("hello").await;
    socket.send("identify", &json!({ "token": site.token })).await;
    socket.expect("ready").await;
    let frame = Message::text(frame);
    for _ in 0..times {
        // What comes behind the end is taken by nobody.
        if socket.stream.feed(frame.clone()).await.is_err() {
            break;
        }
    }
    let _ = socket.stream.flush().await;
    let (frames, closed) = socket.closed().await;
    assert_eq!((closed.code, &closed.reason["resume"]), (4014, &json!(true)));
    assert!(frames.len() > 10 && frames.len() < times, "{}", frames.len());
    site.stop().await;
}
