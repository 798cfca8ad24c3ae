//! Every frame of both directions and every close, as they were really sent: who changes one sees it in `snapshots/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use insta::assert_snapshot;
use seqline::access::PrincipalKind;
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_tungstenite::tungstenite::Message;
use uuid::Uuid;

use super::schema::fault;
use super::{Site, Socket};
use crate::agents::{agent, with_keys};
use crate::api::Client;
use crate::support::{as_admin, on};
use crate::worker::Worker;

/// What was said, in order: `>` by the client, `<` by the server, `x` as the last word of one of them.
#[derive(Default)]
struct Transcript {
    text: String,
    /// The tokens, with whose they are.
    tokens: Vec<(String, String)>,
    ids: BTreeMap<Uuid, usize>,
}

impl Transcript {
    fn scene(&mut self, what: &str) {
        let _ = writeln!(self.text, "# {what}");
    }

    fn line(&mut self, sign: char, text: &str) {
        let masked = self.masked(text);
        let _ = writeln!(self.text, "{sign} {masked}");
    }

    /// Ids in the order in which they came, times, tokens and pauses replaced by what is always the same.
    fn masked(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (token, whose) in &self.tokens {
            text = text.replace(token, &format!("token-of-{whose}"));
        }
        let mut masked = String::new();
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let time = rest.find(|c: char| !c.is_ascii_digit() && !"-:.TZ".contains(c)).unwrap_or(rest.len());
            let id = rest.get(..36).and_then(|id| Uuid::try_parse(id).ok());
            let (with, length) = if let Some(id) = id {
                let next = self.ids.len() + 1;
                let at = *self.ids.entry(id).or_insert(next);
                (format!("01980000-0000-7000-8000-{at:012}"), 36)
            } else if OffsetDateTime::parse(&rest[..time], &Rfc3339).is_ok() {
                ("2026-01-31T12:00:00.123456Z".to_owned(), time)
            } else {
                (first.to_string(), first.len_utf8())
            };
            masked.push_str(&with);
            rest = &rest[length..];
            if masked.ends_with("after_ms\":") {
                masked.push_str("1840");
                rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            }
        }
        masked
    }

    async fn says(&mut self, socket: &mut Socket, op: &str, d: &Value) {
        let text = json!({ "op": op, "d": d }).to_string();
        self.says_text(socket, &text).await;
    }

    async fn says_text(&mut self, socket: &mut Socket, text: &str) {
        self.line('>', text);
        socket.send_text(text).await;
    }

    /// The next frame, which has to be of this kind, and its `d`.
    async fn hears(&mut self, socket: &mut Socket, op: &str) -> Value {
        match socket.message().await {
            Some(Message::Text(text)) => {
                self.line('<', &text);
                let mut frame: Value = serde_json::from_str(&text).expect("a frame is JSON");
                assert_eq!(frame["op"], op, "{}", self.text);
                frame["d"].take()
            }
            other => panic!("no {op} but {other:?} after {}", self.text),
        }
    }

    /// The last word of the server.
    async fn closes(&mut self, socket: &mut Socket) {
        match socket.message().await {
            Some(Message::Close(Some(frame))) => {
                self.line('x', &format!("{} {}", u16::from(frame.code), frame.reason));
            }
            other => panic!("it is not closed: {other:?} after {}", self.text),
        }
    }

    /// A connection that has identified, after what the server says first.
    async fn identified(&mut self, site: &Site, identify: Value) -> (Socket, Value) {
        let mut socket = Socket::connect(&site.address).await;
        self.says(&mut socket, "identify", &identify).await;
        let ready = self.hears(&mut socket, "ready").await;
        (socket, ready)
    }

    /// How a connection ends that begins like this, with so many errors before.
    async fn refused(&mut self, site: &Site, op: &str, d: &Value, errors: usize) {
        let mut socket = Socket::connect(&site.address).await;
        self.says(&mut socket, op, d).await;
        for _ in 0..errors {
            self.hears(&mut socket, "error").await;
        }
        self.closes(&mut socket).await;
    }
}

#[tokio::test]
async fn frames_and_closes_are_what_they_were() {
    let mut t = Transcript::default();
    let site = Site::new(&[]).await;
    let alex = agent(&site.db, "alex", PrincipalKind::User).await;
    t.tokens = vec![(site.token.clone(), "billing".to_owned()), (alex.clone(), "alex".to_owned())];
    agents(&mut t, &site).await;
    people(&mut t, &site, &alex).await;
    let schema = Client::new(&site.address).get("/v1/gateway/schema").await.ok(200);
    let hello = ends(&mut t, &site, &alex).await;
    site.server.running.signal(nix::sys::signal::Signal::SIGTERM);
    t.scene("the server stops");
    let mut socket = hello;
    t.hears(&mut socket, "reconnect").await;
    t.closes(&mut socket).await;
    drop(socket);
    assert_eq!(site.server.end().await.0.code(), Some(0));
    deadlines(&mut t, site.db).await;
    is_complete(&t.text, &schema);
    assert_snapshot!("frames", t.text);
}

async fn agents(t: &mut Transcript, site: &Site) {
    t.scene("an agent begins, is given events, acknowledges, and says that it lives");
    let mut socket = Socket::open(&site.address).await;
    t.hears(&mut socket, "hello").await;
    t.says(
        &mut socket,
        "identify",
        &json!({ "token": site.token, "consumer": "invoices", "take_over": true }),
    )
    .await;
    let ready = t.hears(&mut socket, "ready").await;
    t.hears(&mut socket, "catchup.complete").await;
    site.append(2).await;
    t.hears(&mut socket, "event").await;
    t.hears(&mut socket, "event").await;
    t.says(&mut socket, "ack", &json!({ "seq": 1 })).await;
    t.says(&mut socket, "heartbeat", &json!({})).await;
    t.hears(&mut socket, "heartbeat.ack").await;
    t.scene("it acknowledges what is not there yet");
    t.says(&mut socket, "ack", &json!({ "seq": 3 })).await;
    t.hears(&mut socket, "error").await;
    t.scene("its connection is lost and it goes on");
    socket.leave(4900).await;
    let mut socket = Socket::connect(&site.address).await;
    t.says(&mut socket, "resume", &json!({ "token": site.token, "session_id": ready["session_id"] })).await;
    t.hears(&mut socket, "resumed").await;
    t.hears(&mut socket, "event").await;
    t.hears(&mut socket, "catchup.complete").await;
    t.scene("somebody else takes its consumer, or leaves it to it");
    let polite = json!({ "token": site.token, "consumer": "invoices", "take_over": false });
    t.refused(site, "identify", &polite, 1).await;
    let (newer, _) = t.identified(site, json!({ "token": site.token, "consumer": "invoices" })).await;
    t.closes(&mut socket).await;
    newer.leave(1000).await;
    t.scene("an operator takes its consumer");
    let (mut socket, _) = t.identified(site, json!({ "token": site.token, "consumer": "invoices" })).await;
    t.hears(&mut socket, "event").await;
    t.hears(&mut socket, "catchup.complete").await;
    on(&site.db, Role::App, "agents consumers release billing invoices --yes".split(' ')).ok().await;
    t.says(&mut socket, "ack", &json!({ "seq": 2 })).await;
    t.closes(&mut socket).await;
    t.scene("its acknowledgement is above the log");
    as_admin(&site.db, "UPDATE seqline.agent_consumer_cursors SET acked_seq = 70").await;
    let (mut socket, _) = t.identified(site, json!({ "token": site.token, "consumer": "invoices" })).await;
    t.hears(&mut socket, "resync_required").await;
    socket.leave(1000).await;
    let (socket, _) = t.identified(site, json!({ "token": site.token, "consumer": "invoices" })).await;
    socket.leave(1000).await;
}

async fn people(t: &mut Transcript, site: &Site, alex: &str) {
    t.scene("a person reads from a position on");
    let (mut socket, ready) = t.identified(site, json!({ "token": alex, "position": "oldest" })).await;
    let event = t.hears(&mut socket, "event").await;
    t.hears(&mut socket, "event").await;
    t.hears(&mut socket, "catchup.complete").await;
    let position = ready["head"].as_str().unwrap().replace(":2", ":1");
    assert_eq!(event["seq"], 1);
    t.says(&mut socket, "heartbeat", &json!({ "position": position })).await;
    t.hears(&mut socket, "heartbeat.ack").await;
    t.scene("acknowledgements are for agents");
    t.says(&mut socket, "ack", &json!({ "position": position })).await;
    t.hears(&mut socket, "error").await;
    t.scene("the session goes on over another connection");
    let mut newer = Socket::connect(&site.address).await;
    let resume = json!({ "token": alex, "session_id": ready["session_id"], "position": position });
    t.says(&mut newer, "resume", &resume).await;
    t.hears(&mut newer, "resumed").await;
    t.hears(&mut newer, "event").await;
    t.hears(&mut newer, "catchup.complete").await;
    t.closes(&mut socket).await;
    t.scene("the position belongs to another history");
    let other = "0198c8f2-7a4b-7000-8000-00000000abcd:1";
    let (mut socket, _) = t.identified(site, json!({ "token": alex, "position": other })).await;
    t.hears(&mut socket, "resync_required").await;
}

/// Connections that a client ends by what it says, and one that is still there.
async fn ends(t: &mut Transcript, site: &Site, alex: &str) -> Socket {
    t.scene("what is no frame, or comes at the wrong time");
    let mut socket = Socket::connect(&site.address).await;
    t.says_text(&mut socket, "{\"op\":\"dance\",\"d\":{}}").await;
    t.closes(&mut socket).await;
    t.refused(site, "ack", &json!({ "seq": 1 }), 1).await;
    t.refused(site, "identify", &json!({ "token": site.token, "consumer": "Invoices" }), 1).await;
    let (mut socket, _) = t.identified(site, json!({ "token": alex })).await;
    t.hears(&mut socket, "catchup.complete").await;
    t.says(&mut socket, "identify", &json!({ "token": alex })).await;
    t.closes(&mut socket).await;
    t.scene("a token that is not good, and a session that is none");
    t.refused(site, "identify", &json!({ "token": "nonsense" }), 1).await;
    let session = "01a22f35-356e-77f9-9001-e62feb4a3e49";
    t.refused(site, "resume", &json!({ "token": alex, "session_id": session }), 0).await;
    t.scene("a fault of the server");
    let rename = |from: &str, to: &str| format!("ALTER TABLE seqline.{from} RENAME TO {to}");
    as_admin(&site.db, &rename("agent_consumer_cursors", "elsewhere")).await;
    t.refused(site, "identify", &json!({ "token": site.token }), 1).await;
    as_admin(&site.db, &rename("elsewhere", "agent_consumer_cursors")).await;
    let (mut socket, _) = Socket::identified(&site.address, &json!({ "token": alex })).await;
    socket.expect("catchup.complete").await;
    socket
}

/// What happens when time passes, or there is too much of something. Each bound at a server of its own, so that a slow machine meets
/// no other one.
async fn deadlines(t: &mut Transcript, mut db: TestDb) {
    let (token, alex) = (t.tokens[0].0.clone(), t.tokens[1].0.clone());
    for scene in Scene::ALL {
        let keys = [("gateway.heartbeat_interval", "5m"), ("gateway.identify_timeout", "1m")];
        let keys: Vec<_> = keys.into_iter().chain(scene.keys().iter().copied()).collect();
        let server = Worker::start(with_keys(&db, &keys)).await;
        let site = Site { address: server.api().await, server, token: token.clone(), db };
        scene.play(t, &site, &alex).await;
        site.server.stop().await;
        db = site.db;
    }
}

/// One of those bounds.
#[derive(Clone, Copy)]
enum Scene {
    Acknowledgements,
    AckTimeout,
    IdentifyTimeout,
    FrameSize,
    Silence,
    Requests,
}

impl Scene {
    const ALL: [Self; 6] = [
        Self::Acknowledgements,
        Self::AckTimeout,
        Self::IdentifyTimeout,
        Self::FrameSize,
        Self::Silence,
        Self::Requests,
    ];

    /// Later ones count.
    fn keys(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Acknowledgements => &[("agent.acks_per_second", "1"), ("agent.acks_burst", "1")],
            Self::AckTimeout => &[("agent.ack_timeout", "500ms"), ("agent.ack_persist_interval", "100ms")],
            Self::IdentifyTimeout => &[("gateway.identify_timeout", "1s")],
            Self::FrameSize => &[("gateway.frame_bytes_max", "1024")],
            Self::Silence => &[("gateway.heartbeat_interval", "2s")],
            Self::Requests => &[("api.requests_per_second", "1"), ("api.requests_burst", "8")],
        }
    }

    async fn play(self, t: &mut Transcript, site: &Site, alex: &str) {
        match self {
            Self::Acknowledgements => {
                t.scene("it acknowledges too often");
                let (mut socket, _) = t.identified(site, json!({ "token": site.token })).await;
                t.hears(&mut socket, "catchup.complete").await;
                let ack = json!({ "seq": 0 });
                t.says(&mut socket, "ack", &ack).await;
                t.says(&mut socket, "ack", &ack).await;
                // Slow as this machine may be, one of so many is too many. Only the first answer counts.
                for _ in 0..100 {
                    socket.send("ack", &ack).await;
                }
                t.hears(&mut socket, "error").await;
                socket.leave(1000).await;
            }
            Self::AckTimeout => {
                let (mut socket, _) = Socket::ready(&site.address, &site.token).await;
                socket.expect("catchup.complete").await;
                t.scene("an event is not acknowledged in time");
                site.append(1).await;
                t.hears(&mut socket, "event").await;
                t.hears(&mut socket, "event").await;
                socket.leave(1000).await;
            }
            Self::IdentifyTimeout => {
                t.scene("it does not say who it is");
                let mut socket = Socket::connect(&site.address).await;
                t.closes(&mut socket).await;
            }
            Self::FrameSize => {
                t.scene("its frame is too large");
                let mut socket = Socket::connect(&site.address).await;
                let large = json!({ "op": "heartbeat", "d": { "position": "x".repeat(1024) } });
                socket.send_text(&large.to_string()).await;
                t.closes(&mut socket).await;
            }
            Self::Silence => {
                t.scene("nothing is heard of it");
                let (mut socket, _) = t.identified(site, json!({ "token": alex })).await;
                t.hears(&mut socket, "catchup.complete").await;
                t.closes(&mut socket).await;
            }
            Self::Requests => {
                t.scene("it says too much");
                let (mut socket, _) = t.identified(site, json!({ "token": alex })).await;
                t.hears(&mut socket, "catchup.complete").await;
                for _ in 0..200 {
                    socket.send("heartbeat", &json!({})).await;
                }
                let (_, closed) = socket.closed().await;
                t.line('x', &format!("{} {}", closed.code, closed.reason));
            }
        }
    }
}

/// Closes of which the client is not told, or that take too long to come about: see [`super::faults`].
const NOT_HERE: [u64; 1] = [4014];

/// All kinds of frames and closes are in there, and frames are as the schema says.
fn is_complete(text: &str, schema: &Value) {
    let (mut client, mut server, mut codes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut hello = Value::Null;
    for line in text.lines() {
        let (sign, said) = line.split_once(' ').expect("a line has a sign");
        match sign {
            "<" | ">" => {
                let frame: Value = serde_json::from_str(said).expect("a frame is JSON");
                let is_right = fault(schema, schema, &frame).is_none();
                let op = frame["op"].as_str().unwrap().to_owned();
                assert_eq!(is_right, op != "dance", "{line}: {:?}", fault(schema, schema, &frame));
                if op == "hello" {
                    hello = frame["d"].clone();
                }
                if sign == "<" {
                    server.insert(op)
                } else {
                    client.insert(op)
                };
            }
            "x" => {
                let code = said.split(' ').next().unwrap().parse::<u64>().unwrap();
                codes.insert(code);
            }
            _ => {}
        }
    }
    client.remove("dance");
    let ops = |name: &str| -> BTreeSet<String> {
        let frames = schema["$defs"][name]["oneOf"].as_array().expect("there are several").iter();
        frames.map(|frame| frame["properties"]["op"]["enum"][0].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(client, ops("ClientFrame"));
    let mut sent = ops("ServerFrame");
    sent.insert("event".to_owned());
    assert_eq!(server, sent);
    let known = hello["close_codes"].as_array().unwrap().iter().map(|code| code["code"].as_u64().unwrap());
    let expected: BTreeSet<u64> = known.filter(|code| !NOT_HERE.contains(code)).chain([1009]).collect();
    assert_eq!(codes, expected);
}
