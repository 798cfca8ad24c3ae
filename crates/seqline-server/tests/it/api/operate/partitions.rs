use seqline_testkit::Role;
use serde_json::{Value, json};

use super::Desk;
use crate::support::{append, on, server_db, small_partitions};

#[tokio::test]
async fn partitions_are_listed_in_pages_and_made_as_by_the_command() {
    let db = server_db().await;
    small_partitions(&db, 2, 2).await;
    append(&db.producer(), 1..=3).await;
    let desk = Desk::at(&db).await;
    let text = on(&db, Role::App, ["partitions", "--json"]).ok().await;
    let listed: Value = serde_json::from_str(&text).unwrap();
    let count = listed.as_array().unwrap().len();
    assert_eq!(desk.gets("partitions").await, json!({"partitions": listed}));
    let first = desk.gets("partitions?limit=1").await;
    assert_eq!((&first["partitions"][0], &first["next"]), (&listed[0], &json!("1")));
    let second = desk.gets("partitions?limit=1&after=1").await;
    assert_eq!(second["partitions"][0], listed[1]);

    let done = desk.sam.post_text("/v1/partitions/ensure", "").await.ok(200);
    let created = done["created"].as_u64().unwrap();
    assert!(created > 0 && done["dropped"] == 0, "{done}");
    let now = desk.gets("partitions").await["partitions"].as_array().unwrap().len();
    assert_eq!(now as u64, count as u64 + created);
    let text = on(&db, Role::App, ["partitions", "ensure", "--json"]).ok().await;
    let nothing: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(desk.sam.post_text("/v1/partitions/ensure", "").await.ok(200), nothing);
    desk.server.stop().await;
}
