use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use super::{Desk, done_for, for_sam, without_times};
use crate::parked::has_parked;
use crate::support::on;

async fn command(db: &TestDb, args: &str) -> Value {
    let text = on(db, Role::App, ["parked"]).args(args.split(' ')).arg("--json").ok().await;
    serde_json::from_str(&text).expect("it is JSON")
}

#[tokio::test]
async fn parked_events_are_listed_in_pages_and_shown_as_by_the_command_and_without_payload() {
    let db = has_parked().await;
    let desk = Desk::at(&db).await;
    let mut rows = Vec::new();
    let mut after = String::new();
    loop {
        let page = desk.gets(&format!("parked?limit=3{after}")).await;
        rows.extend(page["events"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        assert_eq!((next, rows.len()), ("orders:4", 3));
        after = format!("&after={next}");
    }
    assert_eq!(Value::from(rows), command(&db, "list").await);
    assert_eq!(desk.gets("parked?consumer=orders").await["events"].as_array().unwrap().len(), 4);
    let shown = desk.sam.get("/v1/parked/orders/4").await;
    assert_eq!(shown.ok(200), command(&db, "show orders --seq 4").await);
    assert!(!shown.text.contains("secret") && !shown.text.contains("payload"), "{shown:?}");
    for path in ["parked/orders/2", "parked/nobody/1", "parked/orders/x", "parked?consumer=nobody"] {
        desk.sam.get(&format!("/v1/{path}")).await.problem(404, "not_found");
    }
    for after in ["orders", "4", "Orders:4", "orders:x"] {
        desk.sam.get(&format!("/v1/parked?after={after}")).await.problem(422, "validation_failed");
    }
    desk.server.stop().await;
}

#[tokio::test]
async fn parked_events_are_tried_again_and_given_up_as_by_the_command() {
    let (typed, asked) = (has_parked().await, has_parked().await);
    let desk = Desk::at(&asked).await;
    for (args, path, body) in [
        ("retry orders --seq 1 --reason NOTE", "retry", json!({"seq": 1, "reason": "NOTE"})),
        ("retry orders", "retry", json!({})),
        ("discard orders --seq 4 --reason NOTE", "discard", json!({"seq": 4, "reason": "NOTE"})),
        ("discard orders --all --reason NOTE", "discard", json!({"all": true, "reason": "NOTE"})),
    ] {
        let path = format!("parked/orders/{path}");
        let mut dry = body.clone();
        dry["dry_run"] = true.into();
        assert_eq!(desk.does(&path, dry).await, command(&typed, args).await, "{args}");
        assert_eq!(desk.does(&path, body).await, command(&typed, &format!("{args} --yes")).await, "{args}");
        let rows = desk.gets("parked").await["events"].clone();
        assert_eq!(without_times(rows), without_times(command(&typed, "list").await), "{args}");
    }
    let rows = [
        for_sam("parked.retry", "orders", Some("NOTE")),
        for_sam("parked.retry", "orders", None),
        for_sam("parked.discard", "orders", Some("NOTE")),
        for_sam("parked.discard", "orders", Some("NOTE")),
    ];
    assert_eq!(done_for(&asked).await, rows);
    desk.server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_done_to_a_parked_event_is_refused() {
    let db = has_parked().await;
    let desk = Desk::at(&db).await;
    for (path, body, status, code) in [
        ("orders/retry", json!({"seq": 2}), 404, "not_found"),
        ("nobody/retry", json!({}), 404, "not_found"),
        // It waits for another one.
        ("orders/retry", json!({"seq": 3}), 409, "conflict"),
        ("orders/discard", json!({"seq": 1}), 422, "validation_failed"),
        ("orders/discard", json!({"reason": "NOTE"}), 422, "validation_failed"),
        ("orders/discard", json!({"seq": 1, "all": true, "reason": "NOTE"}), 422, "validation_failed"),
    ] {
        desk.sam.post(&format!("/v1/parked/{path}"), &body).await.problem(status, code);
    }
    assert_eq!(done_for(&db).await, []);
    desk.server.stop().await;
}
