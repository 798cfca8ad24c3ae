//! Reading over HTTP, as clients do it: pages, waiting, streams, on a real server.

mod client;
mod histories;
mod outages;
mod pages;
mod permissions;
mod positions;
mod slow;
mod streams;
mod vouched;
mod waiting;

use seqline::access::{Grant, NewPrincipal, PrincipalKind, Rights, create_principal, create_token};
use seqline::{NewEvent, Payload};
use seqline_testkit::{Role, TestDb};
use sqlx::PgPool;
use uuid::Uuid;

use self::client::Client;
use crate::support::PLANTED;
use crate::worker::{Worker, server};

/// A server of the API on a database.
struct Site {
    db: TestDb,
    server: Worker,
    address: String,
}

impl Site {
    async fn new(keys: &[(&str, &str)]) -> Self {
        Self::on(TestDb::new().await, keys).await
    }

    async fn on(db: TestDb, keys: &[(&str, &str)]) -> Self {
        let command = keys.iter().fold(server(&db, "api"), |command, (key, value)| {
            command.args(["--set", &format!("{key}={value}")])
        });
        let server = Worker::start(command).await;
        let address = address(&server).await;
        Self { db, server, address }
    }

    /// A user of this name, with these grants, and the client that it reads with.
    async fn user(&self, id: &str, grants: &[Grant]) -> Client {
        let (client, _) = self.user_with_token(id, grants).await;
        client
    }

    /// The same, with the id of its token.
    async fn user_with_token(&self, id: &str, grants: &[Grant]) -> (Client, Uuid) {
        let (token, token_id) = user(&self.db, id, grants).await;
        (Client::new(&self.address, &token), token_id)
    }

    /// Ends it as a service manager does.
    async fn stop(self) {
        self.server.stop().await;
    }
}

async fn address(server: &Worker) -> String {
    server.says("api listening").await["address"].as_str().expect("it has an address").to_owned()
}

/// A user of this name, with these grants; a token of it, and the id of that.
async fn user(db: &TestDb, id: &str, grants: &[Grant]) -> (String, Uuid) {
    let connection = &mut db.connect(Role::App).await;
    let user =
        NewPrincipal { id: id.to_owned(), kind: PrincipalKind::User, name: None, rights: Rights::default() };
    create_principal(connection, &user, None).await.expect("the user is created");
    for grant in grants {
        seqline::access::grant(connection, id, grant, None).await.expect("it is granted");
    }
    let made = create_token(connection, id, None, None, None).await.expect("a token is made");
    (made.token.reveal().to_owned(), made.id)
}

/// An event that a grant of `order.read` is needed for, about this order in this space.
fn order(event_type: &str, id: &str, space: &str) -> NewEvent {
    let payload = format!("{{\"planted\": \"{PLANTED}\"}}");
    let payload = Payload::from_json(&payload).expect("the payload is an object");
    let event = NewEvent::builder(event_type, "order", "order.read").resource_id(id).space(space);
    event.payload(payload).build().expect("the event is valid")
}

/// Appends these in one transaction.
async fn append_all(pool: &PgPool, events: &[NewEvent]) {
    let mut tx = seqline::begin(pool).await.expect("a transaction begins");
    seqline::append(&mut tx, events).await.expect("the events are appended");
    seqline::commit(tx).await.expect("the transaction commits");
}
