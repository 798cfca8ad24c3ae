//! Agents that consume their events over REST, as they see it, from one server or from several.

mod acks;
mod asking;
mod clients;
mod command;
mod conformance;
mod faults;
mod windows;

use seqline::access::{Grant, NewPrincipal, PrincipalKind, Rights, create_principal};
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{Answer, Client, another_token};
use crate::support::{DEADLINE, append};
use crate::worker::{Worker, server};

/// How many requests wait at a server.
const WAITING: &str = "seqline_api_waiting{seqline_api_waiting_kind=\"request\"}";

/// An agent, its consumer, and a server that it asks.
struct Site {
    db: TestDb,
    server: Worker,
    token: String,
    consumer: Consumer,
}

/// A consumer of an agent, at one server.
#[derive(Clone)]
pub(crate) struct Consumer {
    pub(crate) client: Client,
    pub(crate) path: String,
}

impl Site {
    async fn new(keys: &[(&str, &str)]) -> Self {
        Self::on(TestDb::new().await, keys).await
    }

    async fn on(db: TestDb, keys: &[(&str, &str)]) -> Self {
        let server = Worker::start(with_keys(&db, keys)).await;
        let token = agent(&db, "billing", PrincipalKind::Agent).await;
        let client = Client::new(server.api().await).token(&token);
        let consumer = Consumer { client, path: "/v1/agents/billing/consumers/invoices".to_owned() };
        Self { db, server, token, consumer }
    }

    /// Appends so many events that everybody may see.
    async fn append(&self, count: i64) {
        append(&self.db.app(), 1..=count).await;
        self.db.settled().await;
    }

    /// The same agent at another server with the same database.
    async fn another_server(&self, keys: &[(&str, &str)]) -> (Worker, Consumer) {
        let server = Worker::start(with_keys(&self.db, keys)).await;
        let mut consumer = self.consumer.clone();
        consumer.client.address = server.api().await;
        (server, consumer)
    }

    /// The same site, with another server in the place of the one that was stopped before this was done to the database.
    async fn without_server(self, keys: &[(&str, &str)], change: impl AsyncFnOnce(&TestDb)) -> Self {
        self.server.stop().await;
        change(&self.db).await;
        let server = Worker::start(with_keys(&self.db, keys)).await;
        let mut consumer = self.consumer;
        consumer.client.address = server.api().await;
        Self { db: self.db, server, token: self.token, consumer }
    }

    async fn stop(self) {
        self.server.stop().await;
    }
}

pub(crate) fn with_keys(db: &TestDb, keys: &[(&str, &str)]) -> crate::support::Seqline {
    keys.iter()
        .fold(server(db, "api"), |command, (key, value)| command.args(["--set", &format!("{key}={value}")]))
}

/// The epoch that the log is in.
pub(crate) async fn epoch(db: &TestDb) -> Uuid {
    let epoch = sqlx::query_scalar("SELECT epoch FROM seqline.log_identity");
    epoch.fetch_one(&db.admin()).await.expect("there is one")
}

/// A principal of this kind, who may do nothing, and a token of it.
pub(crate) async fn agent(db: &TestDb, id: &str, kind: PrincipalKind) -> String {
    let mut connection = db.connect(Role::App).await;
    let agent = NewPrincipal { id: id.to_owned(), kind, name: None, rights: Rights::default() };
    create_principal(&mut connection, &agent, None).await.expect("the principal is created");
    another_token(db, id).await
}

pub(crate) async fn grant(db: &TestDb, principal: &str, action: &str) {
    let mut connection = db.connect(Role::App).await;
    seqline::access::grant(&mut connection, principal, &Grant::of(action), None)
        .await
        .expect("it is granted");
}

impl Consumer {
    pub(crate) async fn ask(&self, query: &str) -> Answer {
        self.client.get(&format!("{}/events?{query}", self.path)).await
    }

    /// The next events.
    pub(crate) async fn poll(&self, query: &str) -> Delivery {
        Delivery(self.ask(query).await.ok(200))
    }

    /// Asks until there are events: what was committed a moment ago may not have come to the server yet.
    async fn delivered(&self, query: &str) -> Delivery {
        self.poll(&format!("wait=30&{query}")).await
    }

    async fn ack(&self, body: &Value) -> Answer {
        self.client.post(&format!("{}/ack", self.path), body).await
    }

    /// Acknowledges a number, which has to be taken.
    pub(crate) async fn acked(&self, seq: i64) -> Value {
        self.ack(&json!({ "seq": seq })).await.ok(200)
    }

    pub(crate) async fn state(&self) -> Value {
        self.client.get(&self.path).await.ok(200)
    }

    /// Waits until this server knows of an event of this number.
    pub(crate) async fn knows(&self, seq: i64) {
        eventually(DEADLINE, "the server knows of the event", async || {
            number(&self.client.get("/v1/events?after=head").await.ok(200)["head"]) >= seq
        })
        .await;
    }
}

/// What an agent was given.
pub(crate) struct Delivery(Value);

impl Delivery {
    /// The numbers of the events, and whether each was given before.
    fn events(&self) -> Vec<(i64, bool)> {
        let events = self.0["events"].as_array().expect("it is a list").iter();
        events.map(|event| (event["seq"].as_i64().unwrap(), event["redelivered"] == true)).collect()
    }

    pub(crate) fn seqs(&self) -> Vec<i64> {
        self.events().into_iter().map(|(seq, _)| seq).collect()
    }

    fn next(&self) -> i64 {
        number(&self.0["next"])
    }

    pub(crate) fn generation(&self) -> i64 {
        self.0["generation"].as_i64().unwrap()
    }

    fn in_flight(&self) -> u64 {
        self.0["in_flight"].as_u64().unwrap()
    }
}

/// The number of a position.
pub(crate) fn number(position: &Value) -> i64 {
    let (_, seq) = position.as_str().expect("it is a text").split_once(':').expect("it is a position");
    seq.parse().expect("it has a number")
}
