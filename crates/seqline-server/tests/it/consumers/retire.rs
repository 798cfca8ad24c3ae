//! `seqline consumers retire`

use serde_json::json;

use super::*;
use crate::support::{append, as_admin, run_sql, server_db};
use crate::worker::Worker;

#[tokio::test]
async fn a_consumer_is_retired_and_comes_back_while_its_worker_runs() {
    let db = server_db().await;
    let worker = Worker::start(quick_worker(&db)).await;
    append(&db.producer(), [1]).await;
    worker.records([1]).await;
    assert_eq!(
        consumers(&db, "retire recorder").await,
        "would retire consumer recorder at seq 1, where it has handled all of its events: no round of it begins then, and retention does not wait for it. Add --yes to do it\n"
    );
    assert_eq!(audited(&db).await, []);
    assert_eq!(
        json_of(&db, "retire recorder --reason replaced --yes").await,
        json!({"consumer": "recorder", "last_seq": 1, "events": 0, "parked": 0, "done": true})
    );
    append(&db.producer(), 2..=3).await;
    let hidden = on(&db, Role::App, ["consumers", "list"]).run().await;
    assert_eq!(hidden.sentence(0), "no consumers found that are in use: --all shows those that were retired");
    assert_eq!(json_of(&db, "list").await, json!([]));
    let all = json_of(&db, "list --all").await;
    assert_eq!((&all[0]["state"], &all[0]["lag"]), (&json!("retired"), &json!(2)));
    assert!(all[0]["retired_at"].is_string());
    assert_eq!(cells(&db, "list --all", &["consumer", "state"]).await, [["recorder", "retired"]]);
    let status = on(&db, Role::App, ["status"]).ok().await;
    assert!(!status.contains("recorder"), "{status}");
    for change in ["retire recorder", "retire recorder --yes"] {
        let sentence = refused(&db, change).await;
        assert_eq!(sentence, "consumer recorder was retired. seqline consumers resume brings it back");
    }
    for change in ["pause recorder", "pause recorder --yes"] {
        assert_eq!(
            refused(&db, change).await,
            "consumer recorder was retired. No round of it begins as it is. seqline consumers resume brings it back"
        );
    }
    assert_eq!(
        consumers(&db, "resume recorder").await,
        "would let consumer recorder go on at seq 1, 2 events behind. Add --yes to do it\n"
    );
    assert_eq!(worker.count("event recorded"), 1);
    consumers(&db, "resume recorder --yes").await;
    worker.records(1..=3).await;
    worker.stop().await;
    let after = json!({"last_seq": 1, "not_handled": 0, "parked": 0});
    let retired = audit_row("consumer.retire", "recorder", (json!({}), after), Some("replaced"));
    let resumed = audit_row("consumer.resume", "recorder", (json!({}), json!({})), None);
    assert_eq!(audited(&db).await, [retired, resumed]);
}

#[tokio::test]
async fn what_is_left_behind_is_counted() {
    let db = server_db().await;
    append(&db.producer(), 1..=1003).await;
    let mut session = db.connect(Role::Consumer).await;
    run_sql(
        &mut session,
        "SELECT seqline.register_consumer('mine', 'oldest'); SELECT seqline.poll('mine', 2)",
    )
    .await;
    assert_eq!(
        consumers(&db, "retire mine --yes").await,
        "consumer mine is retired at seq 2, where 1,001 events are not handled\n"
    );
    consumers(&db, "resume mine --yes").await;
    as_admin(&db, "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('mine', 1)").await;
    assert_eq!(
        consumers(&db, "retire mine --yes").await,
        "consumer mine is retired at seq 2, where 1,001 events are not handled, and 1 event is parked\n"
    );
    consumers(&db, "resume mine --yes").await;
    run_sql(&mut session, "SELECT seqline.poll('mine', 1001)").await;
    assert_eq!(
        consumers(&db, "retire mine --yes").await,
        "consumer mine is retired at seq 1,003, where it has come to the end, and 1 event is parked\n"
    );
}
