//! `seqline status` and `seqline partitions`

mod consumers;
mod numbering;
mod retention;

use std::collections::BTreeSet;

use insta::assert_snapshot;
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use crate::support::{append, masked, on, run_sql, server_db, small_partitions};

/// Ids, times, the version of the server and sizes replaced.
fn masked_status(text: &str) -> String {
    let lines = masked(text).lines().map(mask_line).collect::<Vec<_>>();
    lines.join("\n")
}

fn mask_line(line: &str) -> String {
    let newest = format!("version {}", seqline::migrate::newest_version());
    match line.split_at(14.min(line.len())) {
        (name @ "PostgreSQL    ", version) if version.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("{name}[version]")
        }
        (name @ "schema        ", version) if version == newest => format!("{name}version [newest]"),
        (name @ "size          ", size) if size.ends_with(" bytes") => format!("{name}[size] bytes"),
        _ => line.to_owned(),
    }
}

async fn json_of(db: &TestDb, args: &[&str]) -> Value {
    let text = on(db, Role::App, args).arg("--json").ok().await;
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn the_state_of_an_empty_log_and_of_one_with_events_is_shown() {
    let db = server_db().await;
    assert_snapshot!("status of an empty log", masked_status(&on(&db, Role::App, ["status"]).ok().await));
    append(&db.app(), 1..=1234).await;
    assert_snapshot!("status of a log", masked_status(&on(&db, Role::App, ["status"]).ok().await));
}

#[tokio::test]
async fn the_members_of_the_json_are_these() {
    let db = server_db().await;
    let members =
        |status: &Value| -> BTreeSet<String> { status.as_object().unwrap().keys().cloned().collect() };
    let empty = json_of(&db, &["status"]).await;
    let always = [
        "server_version",
        "schema_version",
        "log_id",
        "epoch",
        "head",
        "min_retained",
        "retained",
        "partitions",
        "headroom",
        "total_bytes",
        "numbering",
        "consumers",
        "jobs",
    ];
    assert_eq!(members(&empty), always.map(str::to_owned).into());
    for (member, value) in [("head", 0), ("min_retained", 1), ("retained", 0), ("partitions", 2)] {
        assert_eq!(empty[member], value, "{member}");
    }
    append(&db.app(), 1..=3).await;
    let status = json_of(&db, &["status"]).await;
    let with_times: BTreeSet<String> =
        always.into_iter().chain(["oldest_at", "newest_at"]).map(str::to_owned).collect();
    assert_eq!(members(&status), with_times);
    assert_eq!((&status["head"], &status["retained"]), (&json!(3), &json!(3)));
    assert_eq!(status["schema_version"], seqline::migrate::newest_version());
}

#[tokio::test]
async fn a_log_without_room_is_shown_and_refused_until_partitions_are_ensured() {
    let db = server_db().await;
    small_partitions(&db, 2, 1).await;
    append(&db.app(), 1..=2).await;
    let outcome = on(&db, Role::App, ["status"]).run().await;
    assert_eq!(outcome.sentence(4), "no partition is left, appends fail: run seqline partitions ensure");
    assert!(outcome.stdout.contains("room for 0 more events"), "{outcome:?}");
    // Whoever watches with --json has to notice as well.
    assert_eq!(on(&db, Role::App, ["status", "--json"]).run().await.code(), Some(4));
    assert_eq!(on(&db, Role::App, ["partitions", "ensure"]).ok().await, "1 created, 0 closed, 0 dropped\n");
    append(&db.app(), [3]).await;
    assert_eq!(json_of(&db, &["status"]).await["headroom"], 1);
}

#[tokio::test]
async fn an_older_schema_is_told_to_be_migrated() {
    let db = server_db().await;
    let newest = seqline::migrate::newest_version();
    let mut admin = db.connect(Role::Admin).await;
    run_sql(&mut admin, &format!("DELETE FROM seqline.schema_version WHERE version = {newest}")).await;
    let text = on(&db, Role::App, ["status"]).ok().await;
    let expected =
        format!("schema        version {}, this program knows {newest}: run seqline migrate\n", newest - 1);
    assert!(text.contains(&expected), "{text}");
}

#[tokio::test]
async fn partitions_are_listed_with_their_bounds_and_events() {
    let db = server_db().await;
    small_partitions(&db, 1000, 2).await;
    append(&db.app(), 1..=1001).await;
    let rows = json_of(&db, &["partitions"]).await;
    let figures: Vec<Value> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| json!([row["name"], row["lower_bound"], row["upper_bound"], row["events"]]))
        .collect();
    assert_eq!(
        figures,
        [
            json!(["event_log_from_0000000000000000001", 1, 1001, 1000]),
            json!(["event_log_from_0000000000000001001", 1001, 2001, 1]),
        ]
    );
    let text = on(&db, Role::App, ["partitions"]).ok().await;
    let without_sizes: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>())
        .map(|mut cells| {
            // Sizes differ; nobody keeps anything, so the header alone has a cell behind them.
            cells.truncate(4);
            cells
        })
        .collect();
    assert_eq!(
        without_sizes,
        [
            ["partition", "first seq", "last seq", "events"],
            ["event_log_from_0000000000000000001", "1", "1,000", "1,000"],
            ["event_log_from_0000000000000001001", "1,001", "2,000", "1"],
        ]
    );
}

#[tokio::test]
async fn maintenance_creates_closes_and_drops_what_the_options_say() {
    let db = server_db().await;
    small_partitions(&db, 4, 1).await;
    append(&db.app(), 1..=3).await;
    let maintain =
        |options: &'static [&'static str]| on(&db, Role::App, ["partitions", "maintain"]).args(options);
    assert_eq!(maintain(&[]).ok().await, "1 created, 0 closed, 0 dropped\n");
    assert_eq!(maintain(&[]).ok().await, "0 created, 0 closed, 0 dropped\n");
    assert_eq!(
        maintain(&["--partition-max-age", "0s", "--json"]).ok().await,
        "{\"created\":0,\"closed\":true,\"dropped\":0,\"postponed\":false}\n"
    );
    append(&db.app(), [4]).await;
    assert!(maintain(&["--retention", "0s"]).ok().await.ends_with(" 0 closed, 1 dropped\n"));
    assert_eq!(json_of(&db, &["status"]).await["min_retained"], 4);
}

#[tokio::test]
async fn a_reader_that_holds_the_log_postpones_the_drop_and_is_mentioned() {
    let db = server_db().await;
    small_partitions(&db, 2, 2).await;
    append(&db.app(), 1..=3).await;
    let mut reader = db.connect(Role::Reader).await;
    run_sql(&mut reader, "BEGIN; SELECT count(*) FROM seqline.event_log").await;
    let outcome = on(&db, Role::App, ["partitions", "maintain", "--retention", "0s"]).run().await;
    assert_eq!(outcome.sentence(0), "others use the log, the rest is left to the next run");
    assert!(outcome.stdout.ends_with(" 0 dropped\n"), "{outcome:?}");
    run_sql(&mut reader, "COMMIT").await;
}
