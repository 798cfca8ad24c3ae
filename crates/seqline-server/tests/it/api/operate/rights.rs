//! Who may.

use hyper::Method;
use seqline::access::Rights;
use serde_json::json;

use super::{Desk, client_of, done_for};
use crate::api::Client;
use crate::support::{run_sql, server_db};
use seqline_testkit::Role;

/// The operations of operators in the document, each at a path that leads to something.
async fn operations(client: &Client) -> Vec<(Method, String)> {
    let document = client.get("/v1/openapi.json").await.ok(200);
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["tags"] == json!(["operators"]) {
                let path = path.replace("{name}", "mine").replace("{consumer}", "mine");
                let path = path.replace("{seq}", "1").replace("{id}", "1");
                found.push((method.to_uppercase().parse().unwrap(), path));
            }
        }
    }
    found
}

#[tokio::test]
async fn nobody_without_the_right_learns_or_changes_anything() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    let desk = Desk::at(&db).await;
    let alex = client_of(&db, &desk.server, "Alex", Rights { append: true, operate: false }).await;
    let nobody = Client::new(alex.address.clone());
    let all = operations(&nobody).await;
    assert_eq!(all.len(), 22, "{all:?}");
    for (method, path) in all {
        let body = (method == Method::POST).then(|| json!({}).to_string());
        nobody.ask(method.clone(), &path, body.clone()).await.problem(401, "unauthenticated");
        let refused = alex.ask(method.clone(), &path, body.clone()).await.problem(403, "forbidden");
        // What is there and what is not are refused alike, and so is what makes no sense.
        for (other, body) in [
            (path.replace("mine", "nobody").replace("/1", "/99"), body.clone()),
            (path.clone(), body.map(|_| "no JSON".to_owned())),
        ] {
            assert_eq!(alex.ask(method.clone(), &other, body).await.problem(403, "forbidden"), refused);
        }
    }
    assert_eq!(done_for(&db).await, []);
    desk.server.stop().await;
}
