//! `seqline consumers list` and `show`

use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::support::{append, as_admin, masked, run_sql, server_db};

/// A consumer with two lanes of which there is something to say in every respect.
async fn filled() -> TestDb {
    let db = server_db().await;
    append(&db.producer(), 1..=1234).await;
    let register = "SELECT seqline.register_consumer('mine', 'oldest', types => '{test.*,order.created}',
                        resource_kinds => '{test}', lanes => 2, lane_key => 'thread')";
    run_sql(&mut db.connect(Role::Consumer).await, register).await;
    as_admin(
        &db,
        "UPDATE seqline.event_consumer_cursors SET last_seq = 1100, updated_at = '2026-01-02T00:00:00Z' WHERE lane = 0;
         UPDATE seqline.event_consumer_cursors SET last_seq = 16, updated_at = '2026-01-01T00:00:00Z' WHERE lane = 1;
         UPDATE seqline.event_consumers SET kind = 'worker', until_seq = 1200;
         INSERT INTO seqline.event_consumer_failures (name, lane, error_type, seq, failed_at)
         VALUES ('mine', 1, 'handler', 17, now() - interval '3 min 5 s');
         INSERT INTO seqline.round_marks VALUES ('mine', 1, 16, 30, 17, 2, '2026-01-01T00:00:05Z', 'handler');
         INSERT INTO seqline.skipped_events (consumer, seq, why) VALUES ('mine', 9, 'x'), ('mine', 18, 'x'), ('mine', 1150, 'x');
         INSERT INTO seqline.parked_events (consumer, seq) VALUES ('mine', 3), ('mine', 4);
         INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('mine', -5, -1);
         INSERT INTO seqline.audit_log (recorded_at, who, action, subject, before, after, why)
         OVERRIDING USER VALUE VALUES
             ('2026-01-01T00:00:00Z', 'alex', 'consumer.pause', 'mine', '{}', '{\"paused_at\": 1}', 'no\nmail'),
             ('2026-01-01T00:10:00Z', 'sam', 'consumer.resume', 'mine', '{\"paused_at\": 1}', '{}', NULL)",
    )
    .await;
    db
}

#[tokio::test]
async fn everything_about_a_consumer_is_shown() {
    let db = filled().await;
    let shown = consumers(&db, "show mine").await;
    let (age, line) = ("s old", shown.lines().find(|line| line.starts_with("cursor")).unwrap());
    assert!(line.ends_with(age), "{line}");
    let at = line.rfind(' ').map(|end| line[..end].rfind(' ').unwrap()).unwrap();
    assert_snapshot!("consumers show", masked(&shown.replace(line, &format!("{} [age] old", &line[..at]))));
    assert_eq!(cells(&db, "list", &["lanes", "parked", "lost"]).await, [["2", "2 from seq 3", "5"]]);
}

#[tokio::test]
async fn what_does_not_apply_is_not_shown() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    assert_snapshot!("consumers show of a new one", masked(&consumers(&db, "show mine").await));
}

#[tokio::test]
async fn the_members_of_the_json_are_these() {
    let db = filled().await;
    let mut shown = json_of(&db, "show mine").await;
    let row = shown["consumer"].take();
    assert_eq!(row, json_of(&db, "list").await[0]);
    let members = [
        "kind",
        "lanes",
        "last_seq",
        "lag",
        "until_seq",
        "state",
        "parked_events",
        "first_parked_seq",
        "lost_events",
    ];
    assert_eq!(
        members.map(|member| row[member].clone()),
        [
            json!("worker"),
            json!(2),
            json!(16),
            json!(1184),
            json!(1200),
            json!("failing"),
            json!(2),
            json!(3),
            json!(5)
        ]
    );
    assert!(shown["lost"][0]["at"].take().is_string());
    let (first, second) = ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z");
    assert_eq!(
        shown,
        json!({
            "consumer": null,
            "filter": {"types": ["order.created", "test.*"], "resource_kinds": ["test"]},
            "lane_key": "thread",
            "lanes": [
                {"lane": 0, "last_seq": 1100, "updated_at": first},
                {"lane": 1, "last_seq": 16, "updated_at": second, "trying": {
                    "until_seq": 30, "seq": 17, "attempts": 2, "next_attempt_at": "2026-01-01T00:00:05Z", "error_type": "handler",
                }},
            ],
            "skipped": [18, 1150],
            "skipped_events": 2,
            "lost": [{"from": -5, "to": -1, "at": null}],
            "lost_ranges": 1,
            "audit": [
                {"id": 2, "at": "2026-01-01T00:10:00Z", "who": "sam", "action": "consumer.resume", "subject": "mine",
                 "before": {"paused_at": 1}, "after": {}},
                {"id": 1, "at": second, "who": "alex", "action": "consumer.pause", "subject": "mine", "before": {}, "after": {"paused_at": 1},
                 "why": "no\nmail"},
            ],
        })
    );
}
