use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use super::{Desk, done_for, for_sam};
use crate::jobs::filled;
use crate::support::{as_admin, on};

async fn command(db: &TestDb, args: &str) -> Value {
    let text = on(db, Role::App, ["jobs"]).args(args.split(' ')).arg("--json").ok().await;
    serde_json::from_str(&text).expect("it is JSON")
}

fn ids(page: &Value) -> Vec<i64> {
    page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn jobs_are_listed_in_pages_and_shown_as_by_the_command() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    assert_eq!(desk.gets("jobs").await["jobs"], command(&db, "list").await);
    let page = desk.gets("jobs?limit=3").await;
    assert_eq!((ids(&page), &page["next"]), (vec![5, 4, 3], &json!("3")));
    let page = desk.gets("jobs?limit=3&after=3").await;
    assert_eq!((ids(&page), page.get("next")), (vec![2, 1], None));
    for (query, found) in [
        ("state=discarded", vec![2]),
        ("kind=b.job", vec![5, 4, 3]),
        ("queue=default", vec![2, 1]),
        ("kind=none", vec![]),
    ] {
        assert_eq!(ids(&desk.gets(&format!("jobs?{query}")).await), found, "{query}");
    }
    assert_eq!(desk.gets("jobs/2").await, command(&db, "show 2").await);
    for path in ["jobs/99", "jobs/x", "jobs/99999999999999999999"] {
        desk.sam.get(&format!("/v1/{path}")).await.problem(404, "not_found");
    }
    for query in ["state=lost", "kind=%00", "after=x"] {
        desk.sam.get(&format!("/v1/jobs?{query}")).await.problem(422, "validation_failed");
    }
    desk.server.stop().await;
}

#[tokio::test]
async fn jobs_are_tried_again_and_discarded_and_recorded_both_ways() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    let tried = desk.does("jobs/2/retry", json!({"reason": "NOTE"})).await;
    assert_eq!((&tried["state"], &tried["max_attempts"]), (&json!("available"), &json!(4)));
    let given_up = desk.does("jobs/5/discard", json!({})).await;
    assert_eq!(given_up["state"], "discarded");
    assert_eq!(desk.does("jobs/5/discard", json!({})).await["state"], "discarded");
    on(&db, Role::App, ["jobs", "discard", "3", "--reason", "NOTE"]).ok().await;
    let rows = [
        for_sam("job.retry", "2", Some("NOTE")),
        for_sam("job.discard", "5", None),
        ("job.discard".to_owned(), "3".to_owned(), None, Some("NOTE".to_owned())),
    ];
    assert_eq!(done_for(&db).await, rows);
    let states: Vec<(Value, Value)> =
        sqlx::query_as("SELECT before, after FROM seqline.audit_log WHERE action LIKE 'job.%' ORDER BY id")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    let state = |state: &str| json!({"state": state});
    assert_eq!(
        states,
        [
            (state("discarded"), state("available")),
            (state("available"), state("discarded")),
            (state("retryable"), state("discarded")),
        ]
    );
    desk.server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_done_to_a_job_is_refused_and_not_recorded() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    for (path, body, status, code) in [
        ("4/retry", json!({}), 409, "conflict"),
        ("4/discard", json!({}), 409, "conflict"),
        ("1/discard", json!({}), 409, "conflict"),
        ("99/retry", json!({}), 404, "not_found"),
        ("2/retry", json!({"reason": "x".repeat(1001)}), 422, "validation_failed"),
        ("2/retry", json!({"dry_run": true}), 422, "validation_failed"),
    ] {
        desk.sam.post(&format!("/v1/jobs/{path}"), &body).await.problem(status, code);
    }
    assert_eq!(done_for(&db).await, []);
    assert_eq!(command(&db, "show 2").await["state"], "discarded");
    as_admin(&db, "DROP SCHEMA seqline_jobs CASCADE").await;
    desk.sam.get("/v1/jobs").await.problem(409, "conflict");
    desk.server.stop().await;
}
