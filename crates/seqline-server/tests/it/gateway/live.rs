//! People and apps: from a position on, then live.

use seqline::access::PrincipalKind;
use seqline_testkit::{Role, eventually};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{Site, Socket};
use crate::agents::{agent, grant, number};
use crate::support::{DEADLINE, append};

async fn alex(site: &Site, position: Option<&str>) -> (Socket, Value, String) {
    let token = agent(&site.db, "alex", PrincipalKind::User).await;
    let mut identify = json!({ "token": token });
    if let Some(position) = position {
        identify["position"] = json!(position);
    }
    let (socket, ready) = Socket::identified(&site.address, &identify).await;
    (socket, ready, token)
}

#[tokio::test]
async fn a_reader_catches_up_and_goes_on_live() {
    let site = Site::new(&[]).await;
    site.append(300).await;
    site.rest().knows(300).await;
    let (mut socket, ready, token) = alex(&site, Some("oldest")).await;
    assert_eq!((number(&ready["position"]), number(&ready["head"])), (0, 300));
    assert_eq!(socket.seqs(300).await, (1..=300).collect::<Vec<_>>());
    assert_eq!(socket.expect("catchup.complete").await["head_seq"], 300);
    site.append(2).await;
    assert_eq!(socket.seqs(2).await, [301, 302]);
    // An acknowledgement is for agents.
    socket.ack(302).await;
    let error = socket.expect("error").await;
    assert_eq!(error["code"], "forbidden");
    // The session goes on where the client says that it is.
    drop(socket);
    let epoch = socket_epoch(&ready);
    let mut socket = Socket::connect(&site.address).await;
    let resume =
        json!({ "token": token, "session_id": ready["session_id"], "position": format!("{epoch}:301") });
    socket.send("resume", &resume).await;
    socket.expect("resumed").await;
    assert_eq!(socket.seqs(1).await, [302]);
    socket.expect("catchup.complete").await;
    // Without a position it begins at the head.
    let (mut live, ready) = Socket::identified(&site.address, &json!({ "token": token })).await;
    assert_eq!(number(&ready["position"]), 302);
    live.expect("catchup.complete").await;
    live.is_quiet().await;
    site.stop().await;
}

fn socket_epoch(ready: &Value) -> String {
    ready["head"].as_str().unwrap().split_once(':').unwrap().0.to_owned()
}

#[tokio::test]
async fn a_position_that_cannot_be_read_from_is_told_and_it_goes_on_at_the_head() {
    let site = Site::new(&[]).await;
    site.append(3).await;
    site.rest().knows(3).await;
    let other = "0198c8f2-7a4b-7000-8000-00000000abcd:2";
    let (mut socket, ready, token) = alex(&site, Some(other)).await;
    let told = socket.expect("resync_required").await;
    assert_eq!((&told["reason"], number(&told["head"])), (&json!("epoch_changed"), 3));
    site.append(1).await;
    assert_eq!(socket.seqs(1).await, [4]);
    let ahead = format!("{}:70", socket_epoch(&ready));
    let (mut socket, _) =
        Socket::identified(&site.address, &json!({ "token": token, "position": ahead })).await;
    assert_eq!(socket.expect("resync_required").await["reason"], "cursor_ahead");
    site.append(1).await;
    assert_eq!(socket.seqs(1).await, [5]);
    site.stop().await;
}

#[tokio::test]
async fn a_grant_that_is_taken_back_counts_for_the_next_event_and_a_revoked_token_closes() {
    let site = Site::new(&[]).await;
    let (mut socket, _, _) = alex(&site, None).await;
    socket.expect("catchup.complete").await;
    let pool = site.db.app();
    grant(&site.db, "alex", "order.read").await;
    append_for(&site, "order.read").await;
    assert_eq!(socket.seqs(1).await, [1]);
    let mut app = site.db.connect(Role::App).await;
    sqlx::query("DELETE FROM seqline.grants").execute(&mut app).await.unwrap();
    append_for(&site, "order.read").await;
    append(&pool, 1..=1).await;
    assert_eq!(socket.seqs(1).await, [3]);
    sqlx::query("UPDATE seqline.api_tokens SET revoked_at = now()").execute(&mut app).await.unwrap();
    append(&pool, 1..=1).await;
    let (frames, closed) = socket.closed().await;
    assert_eq!((frames.len(), closed.code, &closed.reason["reconnect"]), (0, 4012, &json!(false)));
    site.stop().await;
}

/// Appends one event that whoever may do this may see.
async fn append_for(site: &Site, action: &str) {
    let event = seqline::NewEvent::builder("order.created", "order", action).build().unwrap();
    let mut tx = seqline::begin(&site.db.app()).await.unwrap();
    seqline::append(&mut tx, &[event]).await.unwrap();
    seqline::commit(tx).await.unwrap();
}

#[tokio::test]
async fn an_app_is_given_what_it_was_granted_from_its_position_on_and_then_live() {
    let site = Site::new(&[]).await;
    let shop = agent(&site.db, "shop", PrincipalKind::App).await;
    grant(&site.db, "shop", "order.read").await;
    for action in ["order.read", "order.audit", "order.read", "order.audit"] {
        append_for(&site, action).await;
    }
    site.db.settled().await;
    site.rest().knows(4).await;
    let identify = json!({ "token": shop, "position": "oldest" });
    let (mut socket, ready) = Socket::identified(&site.address, &identify).await;
    assert_eq!((&ready["kind"], ready.get("consumer")), (&json!("app"), None));
    assert_eq!(socket.seqs(2).await, [1, 3]);
    assert_eq!(socket.expect("catchup.complete").await["head_seq"], 4);
    for action in ["order.audit", "order.read"] {
        append_for(&site, action).await;
    }
    assert_eq!(socket.seqs(1).await, [6]);
    // An acknowledgement is for agents, and to be told so ends nothing.
    socket.ack(6).await;
    assert_eq!(socket.expect("error").await["code"], "forbidden");
    for action in ["order.audit", "order.read"] {
        append_for(&site, action).await;
    }
    assert_eq!(socket.seqs(1).await, [8]);
    socket.is_quiet().await;
    site.stop().await;
}

#[tokio::test]
async fn one_that_reads_nothing_holds_up_nobody_and_loses_its_connection() {
    let keys = [
        ("api.write_timeout", "2s"),
        ("gateway.queue_bytes_max", "65536"),
        ("gateway.heartbeat_interval", "10m"),
    ];
    let site = Site::new(&keys).await;
    let (mut socket, _, token) = alex(&site, None).await;
    socket.expect("catchup.complete").await;
    // It identifies, and reads nothing from then on.
    let mut silent = raw(&site.address, &token).await;
    let large = seqline::Payload::from_json(&format!("{{\"text\": \"{}\"}}", "x".repeat(60_000))).unwrap();
    let event = seqline::NewEvent::builder("test.happened", "test", "any").payload(large).build().unwrap();
    for seq in 1..=200 {
        let mut tx = seqline::begin(&site.db.app()).await.unwrap();
        seqline::append(&mut tx, std::slice::from_ref(&event)).await.unwrap();
        seqline::commit(tx).await.unwrap();
        assert_eq!(socket.seqs(1).await, [seq]);
    }
    eventually(DEADLINE, "it is gone", async || silent.write_all(&[0x89, 0x80, 0, 0, 0, 0]).await.is_err())
        .await;
    socket.is_quiet().await;
    site.stop().await;
}

/// A connection that is identified and of which nothing is read.
async fn raw(address: &str, token: &str) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let request = format!(
        "GET /v1/gateway HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let identify = json!({ "op": "identify", "d": { "token": token } }).to_string();
    // Masked with zeros, as whoever sends to a server has to.
    let length = u8::try_from(identify.len()).unwrap();
    let mut frame = vec![0x81, 0x80 | 126, 0, length, 0, 0, 0, 0];
    if length < 126 {
        frame = vec![0x81, 0x80 | length, 0, 0, 0, 0];
    }
    frame.extend_from_slice(identify.as_bytes());
    stream.write_all(&frame).await.unwrap();
    stream
}
