//! What is recorded by name, and read by people: each name is explained where they look for it.

use std::collections::BTreeSet;

use seqline_nats::relay::STALLED_BY;
use seqline_testkit::{Role, TestDb};
use sqlx::{Connection, PgConnection};

const GUIDE: &str = include_str!("../../../../docs/guide/jetstream.md");
const RUNBOOK: &str = include_str!("../../../../docs/guide/operate/runbook.md");

fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) =
        page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("there is {heading}"));
    rest.split("\n## ").next().expect("a part")
}

/// The names in what stands between two of these signs.
fn quoted(text: &str, sign: char) -> BTreeSet<&str> {
    text.split(sign).skip(1).step_by(2).collect()
}

/// The names that have rows in the table whose first column is called so.
fn rows<'a>(section: &'a str, column: &str) -> BTreeSet<&'a str> {
    let (_, table) =
        section.split_once(&format!("\n| {column} |")).unwrap_or_else(|| panic!("{column} is a table"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| quoted(row.split('|').nth(1).expect("a cell"), '`')).collect()
}

/// What a column may hold, as the database checks it.
async fn allowed(connection: &mut PgConnection, table: &str, column: &str) -> String {
    let definition = sqlx::query_scalar(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = $1::regclass AND conname = $2",
    );
    let name = format!("{table}_{column}_check");
    definition.bind(format!("seqline.{table}")).bind(name).fetch_one(connection).await.unwrap()
}

#[test]
fn the_runbook_says_of_everything_that_keeps_a_relay_from_going_on_what_to_do() {
    assert_eq!(rows(section(RUNBOOK, "RelayStalled"), "stalled by"), BTreeSet::from(STALLED_BY));
}

#[tokio::test]
async fn guide_and_runbook_explain_each_incident_and_each_reason_to_give_something_up() {
    let db = TestDb::new().await;
    let mut connection = db.connect(Role::Admin).await;
    let incidents = allowed(&mut connection, "relay_incidents", "kind").await;
    let reasons = allowed(&mut connection, "dead_letters", "reason").await;
    connection.close().await.unwrap();

    let (incidents, reasons) = (quoted(&incidents, '\''), quoted(&reasons, '\''));
    assert!(incidents.contains("foreign_messages") && reasons.contains("unreadable"), "they are read");
    assert_eq!(rows(section(RUNBOOK, "RelayIncident"), "incident"), incidents);
    assert_eq!(rows(section(GUIDE, "What you get"), "incident"), incidents);
    assert_eq!(rows(section(RUNBOOK, "DeadLetters"), "reason"), reasons);
    let (_, given_up) = GUIDE.split_once("what was given up:").expect("the guide names them");
    assert_eq!(quoted(given_up.split('.').next().expect("a sentence"), '`'), reasons);
}
