//! Many connections at once.

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use seqline::access::PrincipalKind;
use serde_json::{Value, json};

use super::Site;
use super::socket::{Next, Socket};
use crate::agents::agent;
use crate::api::another_token;

const CLIENTS: usize = 1_000;
/// Of them, consumers of an agent.
const CONSUMERS: usize = 100;
/// How many come at the same time.
const ABREAST: usize = 50;

/// One of the crowd.
struct Client {
    socket: Socket,
    ready: Value,
    token: String,
}

impl Client {
    async fn begin(address: &str, token: String, consumer: Option<String>) -> Self {
        let mut identify = json!({ "token": token });
        if let Some(consumer) = consumer {
            identify["consumer"] = json!(consumer);
        }
        let (mut socket, ready) = Socket::identified(address, &identify).await;
        socket.expect("catchup.complete").await;
        Self { socket, ready, token }
    }

    /// Its connection is gone, and it comes again with the last event that it has.
    async fn again(self, address: &str, seq: i64) -> Self {
        let Self { socket, ready, token } = self;
        drop(socket);
        let (epoch, _) = ready["head"].as_str().unwrap().split_once(':').unwrap();
        let mut resume = json!({ "token": token, "session_id": ready["session_id"] });
        if ready["kind"] != "agent" {
            resume["position"] = json!(format!("{epoch}:{seq}"));
        }
        let mut socket = Socket::connect(address).await;
        socket.send("resume", &resume).await;
        let ready = socket.expect("resumed").await;
        Self { socket, ready, token }
    }

    /// The next event, which an agent acknowledges.
    async fn takes(&mut self, seq: i64) {
        assert_eq!(self.socket.events(1).await, [(seq, false)]);
        if self.ready["kind"] == "agent" {
            self.socket.ack(seq).await;
            self.socket.send("heartbeat", &json!({})).await;
            while !matches!(self.socket.next().await, Next::Frame(frame) if frame["op"] == "heartbeat.ack") {}
        }
    }
}

#[tokio::test]
async fn a_thousand_get_each_event_and_those_that_are_lost_at_once_come_back_to_where_they_were() {
    let keys = [
        ("gateway.heartbeat_interval", "10m"),
        ("gateway.identify_timeout", "1m"),
        ("agent.acks_per_second", "100000"),
        ("agent.acks_burst", "100000"),
    ];
    let site = Site::new(&keys).await;
    let alex = agent(&site.db, "alex", PrincipalKind::User).await;
    let other = another_token(&site.db, "alex").await;
    let beginning = (0..CLIENTS).map(|at| {
        let (token, consumer) = match at {
            at if at < CONSUMERS => (&site.token, Some(format!("part-{at}"))),
            at if at % 2 == 0 => (&alex, None),
            _ => (&other, None),
        };
        Client::begin(&site.address, token.clone(), consumer)
    });
    let mut clients: Vec<_> = stream::iter(beginning).buffered(ABREAST).collect().await;
    site.append(1).await;
    join_all(clients.iter_mut().map(|client| client.takes(1))).await;
    // Every fifth is lost, and misses an event while it is away.
    let (mut lost, mut there) = (Vec::new(), Vec::new());
    for (at, client) in clients.into_iter().enumerate() {
        if at % 5 == 0 { lost.push(client) } else { there.push(client) }
    }
    site.append(1).await;
    let mut back = join_all(lost.into_iter().map(|client| client.again(&site.address, 1))).await;
    join_all(back.iter_mut().chain(&mut there).map(|client| client.takes(2))).await;
    site.append(1).await;
    join_all(back.iter_mut().chain(&mut there).map(|client| client.takes(3))).await;
    drop((back, there));
    site.stop().await;
}
