//! What operators do over HTTP: the same as with the command, for whoever may, and recorded with who asked.

mod audit;
mod consumers;
mod faults;
mod jobs;
mod lanes;
mod parked;
mod partitions;
mod redactions;
mod rights;

use seqline::access::{NewPrincipal, PrincipalKind, Rights, create_principal, create_token};
use seqline_testkit::{Role, TestDb};
use serde_json::Value;
use uuid::Uuid;

use super::Client;
use crate::worker::{Worker, server};

/// A server, and an operator called Sam.
struct Desk {
    server: Worker,
    sam: Client,
}

impl Desk {
    async fn at(db: &TestDb) -> Self {
        let server = Worker::start(server(db, "api")).await;
        let sam = client_of(db, &server, "Sam", Rights { append: false, operate: true }).await;
        Self { server, sam }
    }

    /// What the server answers to a change of this with this body.
    async fn does(&self, path: &str, body: Value) -> Value {
        self.sam.post(&format!("/v1/{path}"), &body).await.ok(200)
    }

    async fn gets(&self, path: &str) -> Value {
        self.sam.get(&format!("/v1/{path}")).await.ok(200)
    }
}

/// Somebody with a token of a new principal.
async fn client_of(db: &TestDb, server: &Worker, id: &str, rights: Rights) -> Client {
    let mut connection = db.connect(Role::App).await;
    let principal = NewPrincipal { id: id.to_owned(), kind: PrincipalKind::User, name: None, rights };
    create_principal(&mut connection, &principal, None).await.expect("the principal is new");
    let made = create_token(&mut connection, id, None, None, None).await.expect("the token is made");
    Client::new(server.api().await).token(made.token.reveal())
}

/// What was done to consumers, parked events and jobs, and for whom; that of principals is not about operators.
async fn done_for(db: &TestDb) -> Vec<(String, String, Option<String>, Option<String>)> {
    sqlx::query_as(
        "SELECT action, subject, principal, why FROM seqline.audit_log
         WHERE action NOT LIKE 'principal.%' AND action NOT LIKE 'token.%' ORDER BY id",
    )
    .fetch_all(&db.admin())
    .await
    .expect("the audit log can be read")
}

fn for_sam(
    action: &str,
    subject: &str,
    why: Option<&str>,
) -> (String, String, Option<String>, Option<String>) {
    (action.to_owned(), subject.to_owned(), Some("Sam".to_owned()), why.map(str::to_owned))
}

/// The same without times and ids, which differ from database to database.
fn without_times(mut value: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.retain(|name, _| {
                    !(name == "at" || name.ends_with("_at") || name == "id" || name == "pending_age_seconds")
                });
                members.values_mut().for_each(strip);
            }
            Value::Array(elements) => elements.iter_mut().for_each(strip),
            Value::String(text) if Uuid::try_parse(text).is_ok() => text.clear(),
            _ => {}
        }
    }
    strip(&mut value);
    value
}
