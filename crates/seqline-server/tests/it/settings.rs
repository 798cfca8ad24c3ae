//! `seqline settings`

use std::collections::BTreeSet;

use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};
use sqlx::Connection;

use crate::sequencing::{after_commit, sequencer_of_the_test};
use crate::support::{DEADLINE, append, as_admin, numbers, on, run_sql};

async fn settings(db: &TestDb, line: &str) -> String {
    on(db, Role::App, ["settings"]).args(line.split_whitespace()).ok().await
}

async fn json_of(db: &TestDb, line: &str) -> Value {
    let text = settings(db, &format!("{line} --json")).await;
    serde_json::from_str(&text).expect("one JSON document")
}

/// Action, before, after and reason of all rows, in their order.
async fn audited(db: &TestDb) -> Vec<(String, Value, Value, Option<String>)> {
    sqlx::query_as("SELECT action, before, after, why FROM seqline.audit_log ORDER BY id")
        .fetch_all(&db.admin())
        .await
        .expect("the audit log can be read")
}

#[tokio::test]
async fn all_settings_that_the_database_enforces_are_shown() {
    let db = TestDb::new().await;
    let text = settings(&db, "").await;
    assert!(
        text.starts_with(
            "sequencing                  at_commit\nnotification                in_transaction\nstaged_transactions_max     1,000,000\nmaintenance                 off\nevent_payload_max_bytes     65,536\n"
        ),
        "{text}"
    );
    let shown = json_of(&db, "").await;
    assert_eq!(shown["complete"], json!(true));
    assert_eq!(shown["event_payload_max_bytes"], json!(65536));
    // Whatever is added to the table is shown, but for what only the product's own SQL goes by.
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT attname::text FROM pg_attribute
         WHERE attrelid = 'seqline.settings'::regclass AND attnum > 0 AND NOT attisdropped",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    let inner = ["singleton", "sequencing_changes", "staging_open"];
    let columns: BTreeSet<String> =
        columns.into_iter().filter(|column| !inner.contains(&column.as_str())).collect();
    let members: BTreeSet<String> =
        shown.as_object().unwrap().keys().filter(|name| *name != "complete").cloned().collect();
    assert_eq!(members, columns);
}

#[tokio::test]
async fn numbering_is_changed_and_back_and_it_is_said_what_happens_next() {
    let db = TestDb::new().await;
    let change = on(&db, Role::App, ["settings", "sequencing", "after_commit", "--reason", "many writers"]);
    let outcome = change.run().await;
    assert_eq!(outcome.stdout, "events are numbered after commit from now on, by the sequencer\n");
    assert_eq!(
        outcome.sentence(0),
        "no sequencer runs, so events wait for their numbers: seqline serve --role worker runs one"
    );
    let again = on(&db, Role::App, ["settings", "sequencing", "after_commit", "--json"]).run().await;
    assert_eq!(
        serde_json::from_str::<Value>(&again.stdout).unwrap(),
        json!({"sequencing": "after_commit", "changed": false, "drained": 0, "complete": true, "sequencer": false})
    );
    assert!(again.sentence(0).starts_with("no sequencer runs"), "{again:?}");
    append(&db.producer(), 1..=2).await;
    append(&db.producer(), [3]).await;
    assert_eq!(numbers(&db).await, [0_i64; 0]);
    assert_eq!(
        settings(&db, "sequencing at_commit").await,
        "events are numbered at commit from now on; 3 events that waited were numbered\n"
    );
    assert_eq!(numbers(&db).await, [1, 2, 3]);
    assert_eq!(settings(&db, "sequencing at_commit").await, "events are numbered at commit already\n");
    append(&db.producer(), [4]).await;
    assert_eq!(numbers(&db).await, [1, 2, 3, 4]);
    let row = |before: &str, after: &str, why: Option<&str>| {
        ("settings.sequencing".to_owned(), json!(before), json!(after), why.map(str::to_owned))
    };
    assert_eq!(
        audited(&db).await,
        [row("at_commit", "after_commit", Some("many writers")), row("after_commit", "at_commit", None)]
    );
}

#[tokio::test]
async fn with_a_sequencer_nothing_is_warned_of() {
    let db = TestDb::new().await;
    let sequencer = sequencer_of_the_test(&db).await;
    let text = settings(&db, "sequencing after_commit").await;
    assert_eq!(text, "events are numbered after commit from now on, by the sequencer\n");
    assert_eq!(json_of(&db, "sequencing after_commit").await["sequencer"], json!(true));
    sequencer.stop().await;
}

#[tokio::test]
async fn what_keeps_a_change_open_is_named_and_the_sequencer_completes_it() {
    let db = TestDb::new().await;
    after_commit(&db).await;
    let mut session = db.connect(Role::App).await;
    run_sql(
        &mut session,
        "BEGIN; SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any'); PREPARE TRANSACTION 'order-17'",
    )
    .await;
    session.close().await.unwrap();
    let outcome = on(&db, Role::App, ["settings", "sequencing", "at_commit"]).run().await;
    assert_eq!(
        outcome.stdout,
        "events are numbered at commit from now on. The change is not complete: still open is prepared transaction order-17. A sequencer completes it when that has ended\n",
        "{outcome:?}"
    );
    assert_eq!(
        outcome.sentence(0),
        "no sequencer runs that completes the change: seqline serve --role worker runs one, or say this again"
    );
    let shown = json_of(&db, "").await;
    assert_eq!((&shown["complete"], &shown["open"]), (&json!(false), &json!([{"prepared": "order-17"}])));
    let text = settings(&db, "").await;
    assert!(text.starts_with("sequencing                  at_commit, not complete: still open is prepared transaction order-17."), "{text}");
    let again = on(&db, Role::App, ["settings", "sequencing", "at_commit", "--json"]).run().await;
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(
        again,
        json!({"sequencing": "at_commit", "changed": false, "drained": 0, "complete": false,
            "open": [{"prepared": "order-17"}], "sequencer": false})
    );
    let sequencer = sequencer_of_the_test(&db).await;
    run_sql(&mut db.connect(Role::App).await, "COMMIT PREPARED 'order-17'").await;
    eventually(DEADLINE, "the change is complete", async || json_of(&db, "").await["complete"] == true).await;
    assert_eq!(numbers(&db).await, [1]);
    sequencer.stop().await;
}

#[tokio::test]
async fn who_tells_listeners_can_be_changed() {
    let db = TestDb::new().await;
    for (value, expected) in [
        ("in_transaction", "notification is in_transaction already\n"),
        (
            "after_commit",
            "listeners are told after commit from now on: by the library and the sequencer; other writers call seqline.wake(), or listeners poll\n",
        ),
        ("off", "listeners are told nothing from now on: they poll\n"),
        ("in_transaction", "listeners are told by the transaction that numbers events from now on\n"),
    ] {
        assert_eq!(settings(&db, &format!("notification {value} --reason tuning")).await, expected);
        assert_eq!(json_of(&db, "").await["notification"], value);
    }
    assert_eq!(
        json_of(&db, "notification in_transaction").await,
        json!({"notification": "in_transaction", "changed": false})
    );
    let audited = audited(&db).await;
    assert_eq!(audited.len(), 3);
    assert!(
        audited
            .iter()
            .all(|(action, _, _, why)| action == "settings.notification" && why.as_deref() == Some("tuning"))
    );
}

#[tokio::test]
async fn how_much_may_wait_can_be_changed() {
    let db = TestDb::new().await;
    assert_eq!(
        settings(&db, "staged-transactions-max 1,000,000").await,
        "staged_transactions_max is 1,000,000 already\n"
    );
    assert_eq!(
        settings(&db, "staged-transactions-max 3 --reason small").await,
        "appends are refused from now on while 3 or more transactions wait for their numbers\n"
    );
    assert_eq!(
        json_of(&db, "staged-transactions-max 3").await,
        json!({"staged_transactions_max": 3, "changed": false, "staged": 0})
    );
    after_commit(&db).await;
    append(&db.producer(), [1]).await;
    append(&db.producer(), [2]).await;
    let outcome = on(&db, Role::App, ["settings", "staged-transactions-max", "2"]).run().await;
    assert_eq!(
        outcome.sentence(0),
        "2 transactions wait now, so appends are refused until a sequencer has numbered them"
    );
    assert!(outcome.stdout.starts_with("appends are refused from now on while 2 or more"), "{outcome:?}");
    let changed = |before: i64, after: i64, why: Option<&str>| {
        ("settings.staged".to_owned(), json!(before), json!(after), why.map(str::to_owned))
    };
    let audited = audited(&db).await;
    assert_eq!(audited.first(), Some(&changed(1_000_000, 3, Some("small"))));
    assert_eq!(audited.last(), Some(&changed(3, 2, None)));
}

const CHANGES: [&str; 4] = [
    "sequencing after_commit",
    "notification off",
    "staged-transactions-max 17",
    "maintenance read_only --yes",
];

#[tokio::test]
async fn a_reason_that_is_too_long_is_refused() {
    let db = TestDb::new().await;
    let long = "x".repeat(1001);
    for change in CHANGES {
        let line = ["settings"].into_iter().chain(change.split(' ')).chain(["--reason", &long]);
        assert_eq!(
            on(&db, Role::App, line).refused(4).await,
            "the reason has more than 1000 characters. Shorten it, or name a document that says more",
            "{change}"
        );
    }
    assert_eq!(audited(&db).await, []);
}

#[tokio::test]
async fn a_role_that_may_not_is_told_which_may() {
    let db = TestDb::new().await;
    for change in CHANGES.into_iter().chain([""]) {
        let line = ["settings"].into_iter().chain(change.split_whitespace());
        let sentence = on(&db, Role::Producer, line).refused(4).await;
        assert!(sentence.ends_with(": grant this role seqline_app"), "{change}: {sentence}");
    }
}

#[tokio::test]
async fn an_older_schema_has_to_be_migrated() {
    let db = TestDb::new().await;
    as_admin(
        &db,
        "ALTER TABLE seqline.settings DROP COLUMN sequencing CASCADE;
         DROP FUNCTION seqline.set_sequencing; DROP FUNCTION seqline.set_notification;
         DROP FUNCTION seqline.set_staged_transactions_max; DROP FUNCTION seqline.set_maintenance;
         DELETE FROM seqline.schema_version WHERE version > 17",
    )
    .await;
    for change in CHANGES.into_iter().chain([""]) {
        let line = ["settings"].into_iter().chain(change.split_whitespace());
        let sentence = on(&db, Role::App, line).refused(4).await;
        assert!(sentence.ends_with(": run seqline migrate"), "{change}: {sentence}");
    }
}

#[tokio::test]
async fn a_numbering_lock_that_is_not_to_be_had_is_said_with_its_holder() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 50").await;
    let mut admin = db.connect(Role::Admin).await;
    run_sql(
        &mut admin,
        "SET application_name = 'report'; BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE",
    )
    .await;
    let sentence = on(&db, Role::App, ["settings", "sequencing", "after_commit"]).refused(3).await;
    assert!(sentence.contains("report") && sentence.contains("try again"), "{sentence}");
    assert_eq!(audited(&db).await, []);
    run_sql(&mut admin, "ROLLBACK").await;
}
