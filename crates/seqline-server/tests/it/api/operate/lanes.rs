//! Lanes that have to come to the same place first.

use seqline_testkit::{Role, eventually};
use serde_json::json;
use sqlx::PgConnection;

use super::{Desk, done_for, for_sam};
use crate::support::{DEADLINE, append, run_sql, server_db};

/// Three lanes, of which the first is in front.
async fn three_lanes(session: &mut PgConnection) {
    run_sql(session, "SELECT seqline.register_consumer('mine', 'oldest', lanes => 3)").await;
    run_sql(session, "SELECT seqline.poll('mine', 10, 0)").await;
}

#[tokio::test]
async fn lanes_in_front_wait_for_those_behind() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    let mut session = db.connect(Role::Consumer).await;
    three_lanes(&mut session).await;
    let desk = Desk::at(&db).await;
    let sam = desk.sam.clone();
    let body = json!({"lanes": 2, "wait_seconds": 60, "reason": "NOTE"});
    let asked = tokio::spawn(async move { sam.post("/v1/consumers/mine/lanes", &body).await });
    eventually(DEADLINE, "the lanes are gathered", async || {
        sqlx::query_scalar("SELECT barrier_seq = 3 FROM seqline.event_consumers WHERE name = 'mine'")
            .fetch_one(&db.admin())
            .await
            .unwrap_or(Some(false))
            .unwrap_or(false)
    })
    .await;
    run_sql(&mut session, "SELECT seqline.poll('mine', 10, 1); SELECT seqline.poll('mine', 10, 2)").await;
    assert_eq!(
        asked.await.unwrap().ok(200),
        json!({
            "consumer": "mine", "lanes": 2, "key": "resource", "lanes_before": 3, "key_before": "resource",
            "last_seq": 3, "behind": 2, "done": true, "changed": true,
        })
    );
    assert_eq!(done_for(&db).await, [for_sam("consumer.lanes", "mine", Some("NOTE"))]);
    desk.server.stop().await;
}

#[tokio::test]
async fn when_one_does_not_come_nothing_is_changed_and_the_others_go_on() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    let mut session = db.connect(Role::Consumer).await;
    three_lanes(&mut session).await;
    let desk = Desk::at(&db).await;
    let answer = desk.sam.post("/v1/consumers/mine/lanes", &json!({"lanes": 2, "wait_seconds": 0})).await;
    let detail = answer.problem(409, "conflict")["detail"].clone();
    assert_eq!(
        detail,
        "lane 1 of consumer mine is at seq 0 and did not come to seq 3, where another is, within 0s: nothing was changed"
    );
    let held: Option<i64> = sqlx::query_scalar("SELECT barrier_seq FROM seqline.event_consumers")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    let shown = desk.gets("consumers/mine").await;
    assert_eq!((held, shown["lanes"].as_array().unwrap().len()), (None, 3));
    assert_eq!(done_for(&db).await, []);
    desk.does("consumers/mine/pause", json!({})).await;
    let answer = desk.sam.post("/v1/consumers/mine/lanes", &json!({"lanes": 2})).await;
    let detail = answer.problem(409, "conflict")["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("no round of consumer mine begins"), "{detail}");
    desk.server.stop().await;
}
