//! The document, and the page that shows it.

use serde_json::Value;

use super::Client;
use crate::support::server_db;
use crate::worker::{Worker, server};

#[tokio::test]
async fn the_document_and_its_page_come_from_the_server_alone_and_need_no_token() {
    let db = server_db().await;
    let server = Worker::start(server(&db, "api")).await;
    let client = Client::new(server.api().await);

    let document = client.get("/v1/openapi.json").await.ok(200);
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")), "{document}");
    assert!(document["paths"]["/v1/log"]["get"].is_object(), "{document}");

    assert_eq!(client.get("/v1/docs").await.header("location"), "/v1/docs/");
    let page = client.get("/v1/docs/").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html"));
    assert!(page.header("content-security-policy").starts_with("default-src 'self'"), "{page:?}");
    // Whatever it loads is a file beside it.
    let loads = |mark: &str| {
        let parts = page.text.split(mark).skip(1);
        parts.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect::<Vec<_>>()
    };
    let files = [loads("src=\""), loads("href=\"")].concat();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        assert!(file.starts_with("./") || !file.contains('/'), "{file}");
        let loaded = client.get(&format!("/v1/docs/{}", file.trim_start_matches("./"))).await;
        assert_eq!(loaded.status, 200, "{file}");
    }
    let start = client.get("/v1/docs/swagger-initializer.js").await.text;
    assert!(start.contains("\"/v1/openapi.json\"") && !start.contains("http"), "{start}");
    client.get("/v1/docs/oauth2-redirect.html").await.problem(404, "not_found");
    server.stop().await;
}

/// A document in which two things have one name would show one of them for both.
#[tokio::test]
async fn every_operation_and_every_schema_has_a_name_of_its_own_and_nothing_may_be_null() {
    let db = server_db().await;
    let server = Worker::start(server(&db, "api")).await;
    let document = Client::new(server.api().await).get("/v1/openapi.json").await.ok(200);
    let mut names = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name =
                operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no name"));
            assert!(names.insert(name.to_owned()), "{name}");
            assert!(operation["summary"].is_string(), "{method} {path}");
            assert!(operation["responses"]["500"].is_object(), "{method} {path}");
        }
    }
    assert_no_null(&document, "");
    server.stop().await;
}

fn assert_no_null(value: &Value, at: &str) {
    match value {
        Value::Object(members) => {
            assert_ne!(members.get("type"), Some(&Value::from("null")), "{at}");
            for (name, value) in members {
                assert_no_null(value, &format!("{at}/{name}"));
            }
        }
        Value::Array(items) => {
            let of_types = at.ends_with("/type");
            for (index, item) in items.iter().enumerate() {
                assert!(!of_types || item != "null", "{at}");
                assert_no_null(item, &format!("{at}/{index}"));
            }
        }
        _ => {}
    }
}
