//! How events are numbered, and what waits for it.

use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};

use super::json_of;
use crate::sequencing::{after_commit, sequencer_of_the_test};
use crate::support::{DEADLINE, append, as_admin, numbers, on, server_db, small_partitions};

/// The lines about numbering.
async fn lines(db: &TestDb) -> Vec<String> {
    let text = on(db, Role::App, ["status"]).ok().await;
    text.lines()
        .filter(|line| line.starts_with("numbering ") || line.starts_with("staged "))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn at_commit_is_one_line() {
    let db = server_db().await;
    let told = "numbering     at commit, notification in_transaction";
    assert_eq!(lines(&db).await, [told]);
    assert_eq!(
        json_of(&db, &["status"]).await["numbering"],
        json!({"sequencing": "at_commit", "complete": true, "notification": "in_transaction", "maintenance": "off",
            "staged_transactions": 0, "staged_transactions_max": 1_000_000, "sequencer": false})
    );
    as_admin(&db, "UPDATE seqline.settings SET notification = 'off'").await;
    assert_eq!(lines(&db).await, ["numbering     at commit, notification off"]);
}

#[tokio::test]
async fn after_commit_shows_what_waits_and_whether_a_sequencer_runs() {
    let db = server_db().await;
    as_admin(&db, "UPDATE seqline.settings SET notification = 'after_commit'").await;
    after_commit(&db).await;
    let numbering = "numbering     after commit, notification after_commit";
    let nothing = "staged        nothing, no sequencer runs: seqline serve --role worker runs one";
    assert_eq!(lines(&db).await, [numbering, nothing]);
    append(&db.producer(), [1]).await;
    append(&db.producer(), [2]).await;
    as_admin(
        &db,
        "UPDATE seqline.staged_transactions SET staged_at = staged_at - interval '3 min' WHERE n = 1",
    )
    .await;
    let waiting = "staged        2 transactions, the oldest 3m old, no sequencer runs: seqline serve --role worker runs one";
    assert_eq!(lines(&db).await, [numbering, waiting]);
    let shown = json_of(&db, &["status"]).await["numbering"].clone();
    assert_eq!((&shown["staged_transactions"], &shown["sequencer"]), (&json!(2), &json!(false)));
    assert!(shown["oldest_staged_at"].is_string(), "{shown}");
    assert!(
        matches!(&shown["oldest_staged_age_seconds"], Value::Number(age) if age.as_i64() >= Some(180)),
        "{shown}"
    );
    let sequencer = sequencer_of_the_test(&db).await;
    eventually(DEADLINE, "nothing waits", async || {
        lines(&db).await == [numbering, "staged        nothing, a sequencer runs"]
    })
    .await;
    sequencer.stop().await;
}

#[tokio::test]
async fn a_change_that_is_not_complete_is_shown() {
    let db = server_db().await;
    after_commit(&db).await;
    as_admin(&db, "UPDATE seqline.settings SET sequencing = 'at_commit'").await;
    assert_eq!(
        lines(&db).await[1],
        "staged        nothing, the change to at_commit is not complete, no sequencer runs"
    );
    assert_eq!(json_of(&db, &["status"]).await["numbering"]["complete"], json!(false));
}

#[tokio::test]
async fn without_a_partition_appends_go_on_and_their_numbers_wait() {
    let db = server_db().await;
    small_partitions(&db, 1, 1).await;
    append(&db.producer(), [1]).await;
    after_commit(&db).await;
    append(&db.producer(), [2]).await;
    let status = on(&db, Role::App, ["status"]).run().await;
    assert_eq!(
        status.sentence(4),
        "no partition is left, events wait for their numbers: run seqline partitions ensure"
    );
    let back = on(&db, Role::App, ["settings", "sequencing", "at_commit"]).refused(3).await;
    assert_eq!(
        back,
        "no partition of the event log for seq 2 to 2: run seqline partitions ensure and try again"
    );
    on(&db, Role::App, ["partitions", "ensure"]).ok().await;
    on(&db, Role::App, ["settings", "sequencing", "at_commit"]).ok().await;
    assert_eq!(numbers(&db).await, [1, 2]);
}

#[tokio::test]
async fn an_older_schema_has_to_be_migrated() {
    let db = server_db().await;
    as_admin(
        &db,
        "ALTER TABLE seqline.settings DROP COLUMN sequencing CASCADE;
         DELETE FROM seqline.schema_version WHERE version > 17",
    )
    .await;
    let sentence = on(&db, Role::App, ["status"]).refused(4).await;
    assert!(sentence.ends_with(": run seqline migrate"), "{sentence}");
}
