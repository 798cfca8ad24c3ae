//! Consumers in `seqline status`.

use seqline_testkit::{Role, TestDb, eventually};
use serde_json::json;

use super::json_of;
use crate::support::{DEADLINE, append, as_admin, on, server_db};

/// Makes a consumer that somebody else runs.
async fn add(db: &TestDb, name: &str, kind: &str, last_seq: i64) {
    as_admin(
        db,
        &format!(
            "INSERT INTO seqline.event_consumers (name, kind) VALUES ('{name}', '{kind}');
             INSERT INTO seqline.event_consumer_cursors (name, last_seq) VALUES ('{name}', {last_seq})"
        ),
    )
    .await;
}

/// The table, cell by cell.
async fn table(db: &TestDb) -> Vec<Vec<String>> {
    let text = on(db, Role::App, ["status"]).ok().await;
    let Some((_, table)) = text.split_once("\n\n") else { return Vec::new() };
    let mut lines = table.lines();
    let header = lines.next().unwrap();
    // Columns begin where the header does, or end there if they are numbers; so cells are cut by two spaces.
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    assert_eq!(
        cells(header),
        [
            "consumer",
            "kind",
            "lanes",
            "cursor",
            "lag",
            "oldest pending",
            "state",
            "parked",
            "lost",
            "last error"
        ]
    );
    lines.map(cells).collect()
}

#[tokio::test]
async fn without_consumers_nothing_is_said_of_them() {
    let db = server_db().await;
    append(&db.app(), 1..=3).await;
    assert!(!on(&db, Role::App, ["status"]).ok().await.contains("consumer"));
    assert_eq!(json_of(&db, &["status"]).await["consumers"], json!([]));
}

#[tokio::test]
async fn each_is_shown_with_its_cursor_lag_and_failure() {
    let db = server_db().await;
    append(&db.app(), 1..=1234).await;
    add(&db, "done", "worker", 1234).await;
    add(&db, "late", "poll", 4).await;
    add(&db, "broken", "worker", 16).await;
    add(&db, "mended", "worker", 1234).await;
    add(&db, "restored", "worker", 1300).await;
    add(&db, "replay", "worker", 9).await;
    add(&db, "unused", "worker", 3).await;
    as_admin(
        &db,
        "INSERT INTO seqline.event_consumer_failures (name, error_type, seq, failed_at, recovered_at) VALUES
             ('broken', 'handler', 17, now() - interval '3 min 5 s', NULL),
             ('mended', 'database', NULL, now() - interval '2 h 5 s', now());
         INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('late', 1, 3);
         INSERT INTO seqline.parked_events (consumer, seq) VALUES ('late', 3), ('late', 4);
         UPDATE seqline.event_consumers SET until_seq = 9 WHERE name = 'replay';
         UPDATE seqline.event_consumers SET retired_at = now() WHERE name = 'unused'",
    )
    .await;
    let rows = table(&db).await;
    // The age of what is pending is that of this test.
    let without_age = |row: &Vec<String>| -> Vec<String> {
        row.iter().filter(|cell| !(cell.len() <= 3 && cell.ends_with('s'))).cloned().collect()
    };
    assert_eq!(
        rows.iter().map(without_age).collect::<Vec<_>>(),
        [
            vec!["broken", "worker", "1", "16", "1,218", "failing", "0", "0", "handler at seq 17, for 3m"],
            vec!["done", "worker", "1", "1,234", "0", "idle", "0", "0"],
            vec!["late", "poll", "1", "4", "1,230", "behind", "2 from seq 3", "3"],
            vec!["mended", "worker", "1", "1,234", "0", "idle", "0", "0", "database, 2h ago, recovered"],
            vec!["replay", "worker", "1", "9", "0", "done", "0", "0"],
            vec!["restored", "worker", "1", "1,300", "0", "ahead of head", "0", "0"],
        ]
    );
    assert!(rows[0].len() == 10 && rows[2].len() == 9, "those that are behind have an age: {rows:?}");
}

#[tokio::test]
async fn the_members_of_the_json_are_these() {
    let db = server_db().await;
    append(&db.app(), 1..=3).await;
    add(&db, "broken", "worker", 1).await;
    add(&db, "done", "poll", 3).await;
    as_admin(
        &db,
        "INSERT INTO seqline.event_consumer_failures (name, error_type, seq) VALUES ('broken', 'handler', 2);
         UPDATE seqline.event_consumer_cursors SET updated_at = '2026-11-29T12:00:00Z'",
    )
    .await;
    let status = json_of(&db, &["status"]).await;
    let mut broken = status["consumers"][0].clone();
    let (pending_at, age) = (broken["oldest_pending_at"].take(), broken["pending_age_seconds"].take());
    assert!(pending_at.as_str().is_some_and(|at| at.ends_with('Z')), "{pending_at}");
    assert!(age.as_i64().is_some_and(|age| (0..60).contains(&age)), "{age}");
    let failed_at = broken["last_error"]["at"].take();
    assert!(failed_at.as_str().is_some_and(|at| at.ends_with('Z')), "{failed_at}");
    assert_eq!(
        broken,
        json!({
            "name": "broken", "kind": "worker", "lanes": 1, "last_seq": 1, "head_seq": 3, "lag": 2,
            "oldest_pending_at": null, "pending_age_seconds": null, "updated_at": "2026-11-29T12:00:00Z",
            "state": "failing",
            "last_error": {"type": "handler", "seq": 2, "at": null, "current": true},
            "parked_events": 0, "lost_events": 0, "gone_events": 0,
        })
    );
    assert_eq!(
        status["consumers"][1],
        json!({
            "name": "done", "kind": "poll", "lanes": 1, "last_seq": 3, "head_seq": 3, "lag": 0,
            "updated_at": "2026-11-29T12:00:00Z", "state": "idle", "parked_events": 0, "lost_events": 0, "gone_events": 0,
        })
    );
}

#[tokio::test]
async fn a_role_that_may_not_see_them_gets_the_rest() {
    let db = server_db().await;
    add(&db, "done", "worker", 0).await;
    as_admin(&db, "REVOKE SELECT ON seqline.event_consumer_cursors FROM seqline_app").await;
    let text = on(&db, Role::App, ["status"]).ok().await;
    assert!(text.contains("head") && !text.contains("done"), "{text}");
    let status = json_of(&db, &["status"]).await;
    assert_eq!((&status["head"], status.get("consumers")), (&json!(0), None));
    // This role may not see partitions either, and is told so as ever.
    let refused = on(&db, Role::Reader, ["status"]).refused(4).await;
    assert!(refused.contains("event_log_partitions"), "{refused}");
}

#[tokio::test]
async fn a_schema_that_has_none_is_shown_without() {
    let db = server_db().await;
    as_admin(&db, "DROP TABLE seqline.event_consumer_cursors").await;
    assert!(on(&db, Role::App, ["status"]).ok().await.starts_with("PostgreSQL"));
}

#[tokio::test]
async fn a_worker_that_fails_is_seen_failing_and_then_recovered() {
    let db = server_db().await;
    as_admin(&db, "REVOKE EXECUTE ON FUNCTION seqline.advance_consumer FROM seqline_app").await;
    append(&db.app(), 1..=2).await;
    let worker = on(&db, Role::App, ["serve", "--role", "worker"])
        .env("SEQLINE_CONSUMER__POLL_INTERVAL", "20ms")
        .env("SEQLINE_CONSUMER__FAILURE_BACKOFF_CAP", "50ms")
        .start();
    let state = async |wanted: &str| {
        eventually(DEADLINE, wanted, async || {
            json_of(&db, &["status"]).await["consumers"][0]["state"] == wanted
        })
        .await;
        json_of(&db, &["status"]).await["consumers"][0].clone()
    };
    let failing = state("failing").await;
    assert_eq!((&failing["lag"], &failing["last_error"]["current"]), (&json!(2), &json!(true)), "{failing}");
    as_admin(&db, "GRANT EXECUTE ON FUNCTION seqline.advance_consumer TO seqline_app").await;
    let idle = state("idle").await;
    assert_eq!((&idle["lag"], &idle["last_error"]["current"]), (&json!(0), &json!(false)), "{idle}");
    drop(worker);
}

/// They are left out only where there is no such table, or a role may not read it.
#[tokio::test]
async fn consumers_of_which_a_column_is_missing_are_an_error() {
    let db = server_db().await;
    as_admin(&db, "ALTER TABLE seqline.event_consumers RENAME COLUMN kind TO sort").await;
    let said = on(&db, Role::App, ["status"]).refused(4).await;
    assert_eq!(said, "this database has no Seqline schema, or an older one: run seqline migrate");
}
