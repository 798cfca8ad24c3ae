//! The API, as its clients see it.

mod append;
mod client;
mod described;
mod faults;
mod groups;
mod idempotency;
mod operate;
mod reference;
mod silent;
mod who;
mod windows;

use seqline::access::{NewPrincipal, PrincipalKind, Rights, create_principal, create_token};
use seqline_testkit::{FaultProxy, Role, TestDb};
use serde_json::{Value, json};

pub(crate) use client::{Answer, Client};

use crate::support::PLANTED;
use crate::worker::{Worker, server};

/// May append.
pub(crate) const APPEND: Rights = Rights { append: true, operate: false };

/// An app with these rights, and a token of it.
pub(crate) async fn token(db: &TestDb, id: &str, rights: Rights) -> String {
    let mut connection = db.connect(Role::App).await;
    let app = NewPrincipal { id: id.to_owned(), kind: PrincipalKind::App, name: None, rights };
    create_principal(&mut connection, &app, None).await.expect("the principal is created");
    another_token(db, id).await
}

/// One more token of a principal.
pub(crate) async fn another_token(db: &TestDb, id: &str) -> String {
    let mut connection = db.connect(Role::App).await;
    let made = create_token(&mut connection, id, None, None, None).await.expect("the token is made");
    made.token.reveal().to_owned()
}

/// A server of the API, and a client of it who may append.
pub(crate) async fn serving(db: &TestDb) -> (Worker, Client) {
    let token = token(db, "shop", APPEND).await;
    let server = Worker::start(server(db, "api")).await;
    let client = Client::new(server.api().await).token(&token);
    (server, client)
}

/// A database behind a proxy, and the URL that leads through it.
pub(crate) async fn proxied(db: &TestDb) -> (FaultProxy, String) {
    let port = db.options(Role::App).get_port();
    let proxy = FaultProxy::start(([127, 0, 0, 1], port).into()).await.expect("a proxy starts");
    let at = |port: u16| format!("@127.0.0.1:{port}/");
    let url = db.url(Role::App).replace(&at(port), &at(proxy.addr().port()));
    (proxy, url)
}

/// An event of type `test.happened` with this number, and what is planted.
pub(crate) fn event(n: i64) -> Value {
    json!({
        "type": "test.happened",
        "payload": { "n": n, "planted": PLANTED },
        "resource_kind": "test",
        "receive_action": "any",
    })
}

/// The same with more members.
pub(crate) fn event_with(n: i64, members: &Value) -> Value {
    let mut event = event(n);
    for (name, value) in members.as_object().expect("members are an object") {
        event[name] = value.clone();
    }
    event
}
