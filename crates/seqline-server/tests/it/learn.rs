//! The pages that one learns from are run as they stand there, against a server.

use std::path::Path;

use seqline_testkit::guide::{Step, Terminal, python_environment, steps};
use seqline_testkit::{Role, TestDb};

use crate::api::{APPEND, token};
use crate::support::{closed_port, server_db};
use crate::up::Place;
use crate::worker::{Worker, server};

const START: &str = include_str!("../../../../docs/guide/learn/README.md");
const PYTHON: &str = include_str!("../../../../docs/guide/learn/python.md");
const RUST: &str = include_str!("../../../../docs/guide/learn/rust.md");
const NODE: &str = include_str!("../../../../docs/guide/learn/node.md");
const CURL: &str = include_str!("../../../../docs/guide/learn/curl.md");

/// What a page says and a test does not, and why.
const LEFT_OUT: [(&str, &str); 1] =
    [("python3 -m pip install \"psycopg[binary]\"", "the development environment has it")];

/// Does what a page says, and returns how many commands that were.
async fn follow(page: &str, terminal: &mut Terminal) -> usize {
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

/// A terminal with the command on the path, and what Python needs.
fn new_terminal() -> Terminal {
    let programs = Path::new(env!("CARGO_BIN_EXE_seqline")).parent().expect("it is in a folder");
    python_environment()
        .into_iter()
        .fold(Terminal::new(programs), |terminal, (name, value)| terminal.set(name, value))
}

/// A terminal of somebody who has come as far as the first page does.
fn terminal(db: &TestDb) -> Terminal {
    new_terminal().set("SEQLINE_DATABASE_URL", db.url(Role::Admin))
}

/// The same with a server and a token.
async fn terminal_of_shop(db: &TestDb) -> (Worker, Terminal) {
    let server = Worker::start(server(db, "api")).await;
    let url = format!("http://{}", server.api().await);
    let token = token(db, "shop", APPEND).await;
    (server, terminal(db).set("SEQLINE_URL", url).set("TOKEN", token))
}

/// The commands of the first page, with another port than the page has: somebody may have that one.
fn start() -> (String, Vec<Step>) {
    let page = START.replace("127.0.0.1:8090", &format!("127.0.0.1:{}", closed_port()));
    let mut steps = steps(&page);
    let Step::Command { line, .. } = steps.remove(0) else { panic!("the page begins with a command") };
    (line, steps)
}

#[tokio::test]
async fn a_newcomer_follows_all_pages_one_after_the_other_on_one_server() {
    let (up, mut commands) = start();
    let options = up.strip_prefix("seqline up ").expect("it is started with an address for the API");
    let place = Place::new();
    let mut up = place.start(place.up().args(options.split(' '))).await;
    let said = up.running.talk_until("Press Ctrl-C to stop.").await;
    // What differs on each machine is copied from what the server has said.
    let copied = said.lines().map(str::trim).find(|line| line.starts_with("export "));
    let copied = copied.expect("it says how to reach the database");
    let Some(Step::Command { line: export, .. }) = commands.first_mut() else { panic!("there is a command") };
    for shape in ["export SEQLINE_DATABASE_URL=\"$(cat '/", "/url')\""] {
        assert!(export.contains(shape) && copied.contains(shape), "{export}\n{copied}");
    }
    copied.clone_into(export);

    let mut terminal = new_terminal().beside_others().cargo_runs("learn");
    for step in &commands {
        terminal.does(step).await;
    }
    for page in [PYTHON, RUST, NODE, CURL] {
        follow(page, &mut terminal).await;
    }
    up.stop().await;
}

#[tokio::test]
async fn in_python_an_order_gets_its_invoice() {
    let db = server_db().await;
    assert_eq!(follow(PYTHON, &mut terminal(&db)).await, 6);
    let invoices: Vec<(String, i64)> =
        sqlx::query_as("SELECT order_id, amount FROM invoices ORDER BY order_id")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(invoices, [("17".to_owned(), 1250), ("18".to_owned(), 900)]);
}

#[tokio::test]
async fn with_node_alone_tickets_are_appended_once_and_followed() {
    let db = server_db().await;
    let (server, mut terminal) = terminal_of_shop(&db).await;
    assert_eq!(follow(NODE, &mut terminal).await, 5);
    let tickets: Vec<String> = sqlx::query_scalar("SELECT resource_id FROM seqline.event_log ORDER BY seq")
        .fetch_all(&db.admin())
        .await
        .unwrap();
    assert_eq!(tickets, ["37", "38"]);
    server.stop().await;
}

#[tokio::test]
async fn with_curl_parcels_are_appended_and_followed() {
    let db = server_db().await;
    let (server, mut terminal) = terminal_of_shop(&db).await;
    assert_eq!(follow(CURL, &mut terminal).await, 4);
    server.stop().await;
}
