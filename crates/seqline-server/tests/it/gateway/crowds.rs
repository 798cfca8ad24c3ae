//! Many connections at once.

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use seqline::access::PrincipalKind;
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use super::Site;
use super::socket::{Next, Socket};
use crate::agents::agent;
use crate::api::another_token;
use crate::support::Sessions;

const CLIENTS: usize = 1_000;
/// Of them, consumers of an agent.
const CONSUMERS: usize = 100;
/// How many come at the same time.
const ABREAST: usize = 50;
/// Each client is a file here, and one in the server, which has the limit of this process.
const FILES: u64 = 4_096;

/// Lets this process, and those that it starts, have as many files open as there are clients.
fn allow_files() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is a limit");
    if soft < FILES {
        assert!(hard >= FILES, "{hard} open files are allowed at most, {FILES} are needed");
        setrlimit(Resource::RLIMIT_NOFILE, FILES, hard).expect("below the hard limit it can be set");
    }
}

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
    allow_files();
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

/// How many come back at once.
const LOST: usize = 200;

#[tokio::test]
async fn those_that_are_lost_at_once_and_are_little_behind_are_served_from_memory() {
    // Nobody looks at the log because a moment has passed.
    let keys = [
        ("gateway.heartbeat_interval", "10m"),
        ("gateway.identify_timeout", "1m"),
        ("sync.log_poll_interval", "4s"),
        ("telemetry.refresh_interval", "1m"),
    ];
    let site = Site::new(&keys).await;
    let alex = agent(&site.db, "alex", PrincipalKind::User).await;
    let beginning = (0..LOST).map(|_| Client::begin(&site.address, alex.clone(), None));
    let mut clients: Vec<_> = stream::iter(beginning).buffered(ABREAST).collect().await;
    site.append(1).await;
    join_all(clients.iter_mut().map(|client| client.takes(1))).await;
    for _ in 0..3 {
        site.append(1).await;
    }
    site.rest().knows(4).await;
    let before = looks_at_the_log(&site.db).await;
    let mut back = join_all(clients.into_iter().map(|client| client.again(&site.address, 1))).await;
    for seq in 2..=4 {
        join_all(back.iter_mut().map(|client| client.takes(seq))).await;
    }
    drop(back);
    let Site { db, server, .. } = site;
    server.stop().await;
    // A session says what it did when it ends, at the latest.
    db.app().close().await;
    Sessions::of(&db, Role::App).end().await;
    let looks = looks_at_the_log(&db).await - before;
    // One read looks into several partitions. Among these are those of the tail.
    assert!(looks < i64::try_from(LOST / 2).unwrap(), "{looks} looks at the log for {LOST} readers");
}

/// How often the log was looked at in the database, by all sessions that have ended and those that have said so.
async fn looks_at_the_log(db: &TestDb) -> i64 {
    sqlx::query_scalar(
        "SELECT sum(coalesce(idx_scan, 0) + coalesce(seq_scan, 0))::bigint FROM pg_stat_all_tables
         WHERE schemaname = 'seqline' AND relname LIKE 'event\\_log%'",
    )
    .fetch_one(&db.admin())
    .await
    .expect("it is counted")
}
