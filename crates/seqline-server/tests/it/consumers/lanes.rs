//! `seqline consumers lanes`

use serde_json::json;

use super::*;
use crate::support::{append, as_admin, run_sql, server_db};
use crate::worker::{Worker, recorded};

#[tokio::test]
async fn a_consumer_is_divided_while_its_worker_runs() {
    let db = server_db().await;
    let worker = Worker::start(quick_worker(&db)).await;
    append(&db.producer(), 1..=3).await;
    worker.records(1..=3).await;
    assert_eq!(
        consumers(&db, "lanes recorder --to 4 --key channel").await,
        "would divide consumer recorder at seq 3 into 4 lanes by channel instead of 1 lane by resource. Add --yes to do it\n"
    );
    assert_eq!(audited(&db).await, []);
    assert_eq!(
        consumers(&db, "lanes recorder --to 4 --key channel --reason slow --yes").await,
        "consumer recorder has 4 lanes by channel\n"
    );
    assert_eq!(
        consumers(&db, "lanes recorder --to 4 --yes").await,
        "consumer recorder has 4 lanes by channel already\n"
    );
    append(&db.producer(), 4..=5).await;
    worker.records(1..=5).await;
    let divided = json_of(&db, "lanes recorder --to 2 --yes").await;
    assert_eq!(
        divided,
        json!({
            "consumer": "recorder", "lanes": 2, "key": "channel", "lanes_before": 4, "key_before": "channel",
            "last_seq": 5, "behind": divided["behind"], "done": true, "changed": true,
        })
    );
    append(&db.producer(), [6]).await;
    worker.records(1..=6).await;
    assert_eq!(cells(&db, "list", &["consumer", "lanes"]).await, [["recorder", "2"]]);
    let times = recorded(&worker.stop().await);
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    let change = |from: (i32, &str), to: (i32, &str), seq: i32| {
        let before = json!({"lanes": from.0, "key": from.1});
        (before, json!({"lanes": to.0, "key": to.1, "last_seq": seq}))
    };
    let first = change((1, "resource"), (4, "channel"), 3);
    let second = change((4, "channel"), (2, "channel"), 5);
    assert_eq!(
        audited(&db).await,
        [
            audit_row("consumer.lanes", "recorder", first, Some("slow")),
            audit_row("consumer.lanes", "recorder", second, None)
        ]
    );
}

#[tokio::test]
async fn a_lane_that_does_not_come_is_named_and_nothing_is_changed() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    let mut session = db.connect(Role::Consumer).await;
    run_sql(&mut session, "SELECT seqline.register_consumer('mine', 'oldest', lanes => 3)").await;
    run_sql(&mut session, "SELECT seqline.poll('mine', 10, 0)").await;
    assert_eq!(
        consumers(&db, "lanes mine --to 2").await,
        "would divide consumer mine at seq 3 into 2 lanes by resource instead of 3 lanes by resource: 2 lanes have to come there first, and the others wait up to 30s for them. Add --yes to do it\n"
    );
    let late = on(&db, Role::App, ["consumers", "lanes", "mine", "--to", "2", "--wait", "50ms", "--yes"]);
    assert_eq!(
        late.refused(3).await,
        "lane 1 of consumer mine is at seq 0 and did not come to seq 3, where another is, within 50ms: nothing was changed. seqline consumers show mine says how it is"
    );
    assert_eq!(audited(&db).await, []);
    let lanes = json_of(&db, "show mine").await["lanes"].clone();
    let positions: Vec<_> = lanes.as_array().unwrap().iter().map(|lane| lane["last_seq"].as_i64()).collect();
    assert_eq!(positions, [Some(3), Some(0), Some(0)]);
    run_sql(&mut session, "SELECT seqline.poll('mine', 10, 1)").await;
    let plan = consumers(&db, "lanes mine --to 2").await;
    assert!(
        plan.contains(": 1 lane has to come there first, and the others wait up to 30s for it."),
        "{plan}"
    );
    run_sql(&mut session, "SELECT seqline.poll('mine', 10, 2)").await;
    assert_eq!(consumers(&db, "lanes mine --to 2 --yes").await, "consumer mine has 2 lanes by resource\n");
}

#[tokio::test]
async fn parked_events_keep_the_key_as_it_is() {
    let db = server_db().await;
    append(&db.producer(), [1]).await;
    let register = "SELECT seqline.register_consumer('mine', 'oldest'); SELECT seqline.poll('mine', 1)";
    run_sql(&mut db.connect(Role::Consumer).await, register).await;
    as_admin(&db, "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('mine', 1)").await;
    for confirm in ["", " --yes"] {
        assert_eq!(
            refused(&db, &format!("lanes mine --to 2 --key space{confirm}")).await,
            "consumer mine has parked events, which wait by resource. Retry or discard them, and then take another key"
        );
    }
    assert_eq!(consumers(&db, "lanes mine --to 2 --yes").await, "consumer mine has 2 lanes by resource\n");
}
