//! The gateway, as its clients see it: real connections to a real server.

mod agents;
mod crowds;
mod faults;
mod figures;
mod frames;
mod golden;
mod live;
mod schema;
mod sessions;
pub(crate) mod socket;
mod takeovers;

use seqline::access::PrincipalKind;
use seqline_testkit::TestDb;

use self::socket::Socket;
use crate::agents::{Consumer, agent, with_keys};
use crate::api::Client;
use crate::support::append;
use crate::worker::Worker;

/// Acknowledgements are saved soon.
const SOON: (&str, &str) = ("agent.ack_persist_interval", "50ms");

/// A server, and an agent that has a token.
struct Site {
    db: TestDb,
    server: Worker,
    address: String,
    token: String,
}

impl Site {
    async fn new(keys: &[(&str, &str)]) -> Self {
        Self::on(TestDb::new().await, keys).await
    }

    async fn on(db: TestDb, keys: &[(&str, &str)]) -> Self {
        let server = Worker::start(with_keys(&db, keys)).await;
        let token = agent(&db, "billing", PrincipalKind::Agent).await;
        let address = server.api().await;
        Self { db, server, address, token }
    }

    /// Another server with the same database.
    async fn another_server(&self, keys: &[(&str, &str)]) -> (Worker, String) {
        let server = Worker::start(with_keys(&self.db, keys)).await;
        let address = server.api().await;
        (server, address)
    }

    /// Appends so many events that everybody may see.
    async fn append(&self, count: i64) {
        append(&self.db.app(), 1..=count).await;
        self.db.settled().await;
    }

    /// The agent over REST.
    fn rest(&self) -> Consumer {
        self.rest_of("default")
    }

    /// Another consumer of the agent over REST.
    fn rest_of(&self, consumer: &str) -> Consumer {
        Consumer {
            client: Client::new(&self.address).token(&self.token),
            path: format!("/v1/agents/billing/consumers/{consumer}"),
        }
    }

    /// A connection of the agent that is ready, and what it was told then.
    async fn ready(&self) -> (Socket, serde_json::Value) {
        Socket::ready(&self.address, &self.token).await
    }

    async fn stop(self) {
        self.server.stop().await;
    }
}
