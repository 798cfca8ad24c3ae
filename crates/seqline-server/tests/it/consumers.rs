//! `seqline consumers`

use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use crate::support::{append, on, run_sql, server_db};
use crate::worker::{Worker, worker};

async fn consumers(db: &TestDb, args: &str) -> String {
    on(db, Role::App, ["consumers"]).args(args.split(' ')).ok().await
}

#[tokio::test]
async fn a_consumer_is_paused_and_goes_on_while_its_worker_runs() {
    let db = server_db().await;
    let worker = Worker::start(worker(&db)).await;
    append(&db.producer(), [1]).await;
    worker.records(1..=1).await;
    assert_eq!(
        consumers(&db, "pause recorder").await,
        "would pause consumer recorder at seq 1, 0 events behind: no round of it begins then, and retention does not wait for it. Add --yes to do it\n"
    );
    assert_eq!(consumers(&db, "resume recorder").await, "consumer recorder is not paused\n");
    assert_eq!(
        consumers(&db, "pause recorder --reason maintenance --yes").await,
        "consumer recorder is paused\n"
    );
    let again = consumers(&db, "pause recorder --yes").await;
    assert_eq!(again, "consumer recorder is paused already, at seq 1\n");
    append(&db.producer(), 2..=3).await;
    worker.says("event consumer is paused").await;
    let listed: Value = serde_json::from_str(&consumers(&db, "list --json").await).unwrap();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["state"], &listed[0]["lag"]),
        (&json!("recorder"), &json!("paused"), &json!(2))
    );
    assert!(listed[0]["paused_at"].is_string());
    let table = consumers(&db, "list").await;
    assert!(table.contains(" recorder  worker ") && table.contains(" paused "), "{table}");
    let status = on(&db, Role::App, ["status"]).ok().await;
    assert!(status.contains(" paused "), "{status}");
    assert_eq!(
        consumers(&db, "resume recorder").await,
        "would let consumer recorder go on at seq 1, 2 events behind. Add --yes to do it\n"
    );
    let done: Value = serde_json::from_str(&consumers(&db, "resume recorder --yes --json").await).unwrap();
    assert_eq!(done, json!({"consumer": "recorder", "last_seq": 1, "lag": 2, "done": true, "changed": true}));
    worker.records(1..=3).await;
    worker.stop().await;
    let audit: Vec<(String, String, Option<String>)> =
        sqlx::query_as("SELECT action, subject, why FROM seqline.audit_log ORDER BY id")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    let row =
        |action: &str, why: Option<&str>| (action.to_owned(), "recorder".to_owned(), why.map(str::to_owned));
    assert_eq!(audit, [row("consumer.pause", Some("maintenance")), row("consumer.resume", None)]);
}

#[tokio::test]
async fn what_cannot_be_done_is_a_sentence() {
    let db = server_db().await;
    let none = on(&db, Role::App, ["consumers", "list"]).run().await;
    assert_eq!((none.code(), none.sentence(0).as_str()), (Some(0), "no consumers found"));
    for name in ["nobody", "No-Name"] {
        let sentence = on(&db, Role::App, ["consumers", "pause", name, "--yes"]).refused(4).await;
        assert_eq!(sentence, format!("there is no consumer {name}"));
    }
    let mut session = db.connect(Role::Consumer).await;
    run_sql(&mut session, "SELECT seqline.register_consumer('mine')").await;
    run_sql(&mut session, "BEGIN; SELECT seqline.poll('mine', 1)").await;
    let outcome = on(&db, Role::App, ["consumers", "pause", "mine", "--yes"]).run().await;
    assert_eq!(
        (outcome.code(), outcome.sentence(3).as_str()),
        (Some(3), "a round of consumer mine has not ended for 10s: nothing was changed, try again")
    );
    run_sql(&mut session, "COMMIT").await;
    assert_eq!(consumers(&db, "pause mine --yes").await, "consumer mine is paused\n");
}
