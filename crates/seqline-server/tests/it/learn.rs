//! The pages that one learns from are run as they stand there, against a server.

use std::path::Path;

use seqline_testkit::guide::{Step, Terminal, python_environment, steps};
use seqline_testkit::{Role, TestDb};

use crate::api::{APPEND, token};
use crate::support::server_db;
use crate::worker::{Worker, server};

const START: &str = include_str!("../../../../docs/guide/learn/README.md");
const PYTHON: &str = include_str!("../../../../docs/guide/learn/python.md");
const NODE: &str = include_str!("../../../../docs/guide/learn/node.md");
const CURL: &str = include_str!("../../../../docs/guide/learn/curl.md");

/// What a page says and a test does not, and why.
const LEFT_OUT: [(&str, &str); 4] = [
    ("seqline up", "up::embedded::it_is_used_through_the_ready_file_and_leaves_nothing_but_the_data"),
    (
        "export SEQLINE_DATABASE_URL=\"$(cat ~/.local/share/seqline/url)\"",
        "the test has a database of its own",
    ),
    ("export SEQLINE_URL=http://127.0.0.1:8090", "another server can have that port"),
    ("python3 -m pip install \"psycopg[binary]\"", "the development environment has it"),
];

/// Does what a page says, and returns how many commands that were.
async fn follow(page: &str, mut terminal: Terminal) -> usize {
    let mut commands = 0;
    for step in steps(page) {
        if let Step::Command { line, .. } = &step {
            if LEFT_OUT.iter().any(|(left_out, _)| left_out == line) {
                continue;
            }
            commands += 1;
        }
        terminal.does(&step).await;
    }
    commands
}

/// A terminal of somebody who has come as far as the first page does.
fn terminal(db: &TestDb) -> Terminal {
    let programs = Path::new(env!("CARGO_BIN_EXE_seqline")).parent().expect("it is in a folder");
    Terminal::new(programs).set("SEQLINE_DATABASE_URL", db.url(Role::Admin))
}

/// The same with a server and a token.
async fn terminal_of_shop(db: &TestDb) -> (Worker, Terminal) {
    let server = Worker::start(server(db, "api")).await;
    let url = format!("http://{}", server.api().await);
    let token = token(db, "shop", APPEND).await;
    (server, terminal(db).set("SEQLINE_URL", url).set("TOKEN", token))
}

#[tokio::test]
async fn one_starts_with_a_principal_and_its_token() {
    let db = server_db().await;
    let server = Worker::start(server(&db, "api")).await;
    let url = format!("http://{}", server.api().await);
    assert_eq!(follow(START, terminal(&db).set("SEQLINE_URL", url)).await, 3);
    server.stop().await;
}

#[tokio::test]
async fn in_python_an_order_gets_its_invoice() {
    let db = server_db().await;
    let terminal = python_environment()
        .into_iter()
        .fold(terminal(&db), |terminal, (name, value)| terminal.set(name, value));
    assert_eq!(follow(PYTHON, terminal).await, 6);
    let invoices: Vec<(String, i64)> =
        sqlx::query_as("SELECT order_id, amount FROM invoices ORDER BY order_id")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(invoices, [("17".to_owned(), 1250), ("18".to_owned(), 900)]);
}

#[tokio::test]
async fn with_node_alone_orders_are_appended_once_and_followed() {
    let db = server_db().await;
    let (server, terminal) = terminal_of_shop(&db).await;
    assert_eq!(follow(NODE, terminal).await, 5);
    let orders: Vec<String> = sqlx::query_scalar("SELECT resource_id FROM seqline.event_log ORDER BY seq")
        .fetch_all(&db.admin())
        .await
        .unwrap();
    assert_eq!(orders, ["17", "18"]);
    server.stop().await;
}

#[tokio::test]
async fn with_curl_orders_are_appended_and_followed() {
    let db = server_db().await;
    let (server, terminal) = terminal_of_shop(&db).await;
    assert_eq!(follow(CURL, terminal).await, 4);
    server.stop().await;
}
