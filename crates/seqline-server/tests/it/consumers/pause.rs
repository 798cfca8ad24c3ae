//! `seqline consumers pause` and `resume`, and what is the same for all changes.

use futures_util::future::join_all;
use seqline_testkit::Role;
use serde_json::{Value, json};

use super::*;
use crate::support::{append, as_admin, on, run_sql, server_db};
use crate::worker::{Worker, worker};

#[tokio::test]
async fn a_consumer_is_paused_and_goes_on_while_its_worker_runs() {
    let db = server_db().await;
    let worker = Worker::start(worker(&db)).await;
    append(&db.producer(), [1]).await;
    worker.records(1..=1).await;
    assert_eq!(
        consumers(&db, "pause recorder").await,
        "would pause consumer recorder at seq 1, 0 events behind: no round of it begins then. Add --yes to do it\n"
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
    for change in [
        "show {}",
        "pause {} --yes",
        "resume {} --yes",
        "rewind {} --to 1",
        "skip {} --seq 1",
        "retire {} --yes",
        "lanes {} --to 2",
        "replay {} --into again --from 1 --to 1",
        "acknowledge {}",
    ] {
        for name in ["nobody", "No-Name", "push"] {
            let sentence = refused(&db, &change.replace("{}", name)).await;
            assert_eq!(
                sentence,
                format!("there is no consumer {name}: seqline consumers list shows those that there are"),
                "{change}"
            );
        }
    }
    for change in ["list nobody", "show nobody --seq 1", "retry nobody", "discard nobody --all"] {
        let sentence = on(&db, Role::App, ["parked"]).args(change.split(' ')).refused(4).await;
        assert_eq!(
            sentence, "there is no consumer nobody: seqline consumers list shows those that there are",
            "{change}"
        );
    }
}

/// All that hold the cursors wait for a round, as long as each other.
#[tokio::test]
async fn a_round_that_does_not_end_keeps_all_changes_out() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    let mut session = db.connect(Role::Consumer).await;
    run_sql(&mut session, "SELECT seqline.register_consumer('mine', 'oldest', lanes => 2)").await;
    run_sql(&mut session, "SELECT seqline.poll('mine', 2, 0)").await;
    run_sql(&mut session, "BEGIN; SELECT seqline.poll('mine', 1, 0)").await;
    let changes = [
        "consumers pause mine --yes",
        "consumers resume mine --yes",
        "consumers rewind mine --to 1 --yes",
        "consumers skip mine --seq 3 --reason broken --yes",
        "consumers retire mine --yes",
        "consumers lanes mine --to 3 --yes",
        "parked discard mine --all --reason broken --yes",
    ];
    let outcomes = join_all(changes.map(|change| on(&db, Role::App, change.split(' ')).run())).await;
    for (change, outcome) in changes.iter().zip(outcomes) {
        assert_eq!(
            outcome.sentence(3),
            "a round of consumer mine has not ended for 10s: nothing was changed, try again",
            "{change}"
        );
        assert_eq!(outcome.stdout, "", "{change}");
    }
    assert_eq!(audited(&db).await, []);
    run_sql(&mut session, "COMMIT").await;
    assert_eq!(consumers(&db, "pause mine --yes").await, "consumer mine is paused\n");
}

#[tokio::test]
async fn a_reason_that_is_too_long_is_refused() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    let long = "x".repeat(1001);
    for change in ["pause", "retire", "acknowledge"] {
        let sentence = refused(&db, &format!("{change} mine --yes --reason {long}")).await;
        assert_eq!(
            sentence,
            "the reason has more than 1000 characters. Shorten it, or name a document that says more",
            "{change}"
        );
    }
    let blank = on(&db, Role::App, ["consumers", "skip", "mine", "--seq", "1", "--yes", "--reason", " "]);
    let sentence = blank.refused(4).await;
    assert_eq!(sentence, "the reason is missing. Say why, for those who find it in the audit log");
    assert_eq!(audited(&db).await, []);
}

#[tokio::test]
async fn a_role_that_may_not_is_told_which_may() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    for line in ["consumers list", "consumers show mine", "consumers retire mine --yes", "parked list"] {
        let sentence = on(&db, Role::Reader, line.split(' ')).refused(4).await;
        assert!(sentence.ends_with(": grant this role seqline_app"), "{line}: {sentence}");
    }
}

#[tokio::test]
async fn a_schema_that_does_not_know_it_has_to_be_migrated() {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    as_admin(
        &db,
        "DROP FUNCTION seqline.retire_consumer; DELETE FROM seqline.schema_version WHERE version > 12",
    )
    .await;
    for line in ["consumers show mine", "consumers retire mine --yes", "parked list"] {
        let sentence = on(&db, Role::App, line.split(' ')).refused(4).await;
        assert!(sentence.ends_with(": run seqline migrate"), "{line}: {sentence}");
    }
}
