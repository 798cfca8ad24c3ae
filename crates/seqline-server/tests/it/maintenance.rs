//! `seqline settings maintenance`, and what the other commands say while the log is read only.

use seqline_testkit::{Role, TestDb, TestServer};
use serde_json::{Value, json};

use crate::support::{append, numbers, on, run_sql, server_db};

const READ_ONLY: [&str; 4] = ["settings", "maintenance", "read_only", "--yes"];
const OFF: [&str; 3] = ["settings", "maintenance", "off"];

const APPEND: [&str; 4] = ["append", "test.happened", "--resource-kind", "test"];

async fn json_of<'a>(db: &TestDb, line: impl IntoIterator<Item = &'a str>) -> Value {
    let text = on(db, Role::App, line).arg("--json").ok().await;
    serde_json::from_str(&text).expect("one JSON document")
}

#[tokio::test]
async fn it_says_what_it_would_do_does_it_and_takes_it_back() {
    let db = server_db().await;
    append(&db.producer(), 1..=2).await;
    let planned =
        on(&db, Role::App, ["settings", "maintenance", "read_only", "--reason", "upgrade"]).ok().await;
    assert_eq!(
        planned,
        "would refuse every append from now on, and wait for transactions that have appended: the head is 2. Add --yes to do it\n"
    );
    append(&db.producer(), [3]).await;
    let done = on(&db, Role::App, READ_ONLY).args(["--reason", "upgrade"]).ok().await;
    assert_eq!(done, "appends are refused from now on, and the log ends at seq 3\n");
    assert_eq!(
        json_of(&db, READ_ONLY).await,
        json!({"maintenance": "read_only", "changed": false, "complete": true, "head": 3, "drained": 0, "done": true})
    );
    assert_eq!(json_of(&db, ["settings"]).await["maintenance"], "read_only");
    let status = on(&db, Role::App, ["status"]).ok().await;
    let told = "maintenance   read_only, appends are refused: seqline settings maintenance off ends it\n";
    assert!(status.contains(told), "{status}");
    assert_eq!(json_of(&db, ["status"]).await["numbering"]["maintenance"], "read_only");
    assert_eq!(on(&db, Role::App, OFF).ok().await, "events can be appended again\n");
    assert_eq!(on(&db, Role::App, OFF).ok().await, "events can be appended already\n");
    append(&db.producer(), [4]).await;
    assert_eq!(numbers(&db).await, [1, 2, 3, 4]);
    let status = on(&db, Role::App, ["status"]).ok().await;
    assert!(!status.contains("maintenance"), "{status}");
}

#[tokio::test]
async fn append_and_import_say_why_and_do_not_try_again() {
    let db = TestDb::new().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("input.jsonl");
    std::fs::write(&file, "{\"n\": 1}\n").unwrap();
    on(&db, Role::App, READ_ONLY).ok().await;
    let said = "append refused: the log is read only for maintenance, until seqline settings maintenance off";
    assert_eq!(on(&db, Role::Producer, APPEND).refused(3).await, said);
    let import = on(&db, Role::App, ["import"]).arg(&file);
    let import = import.args(["--type", "test.happened", "--resource-kind", "test"]);
    let outcome = import.run().await;
    assert_eq!(outcome.code(), Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    on(&db, Role::App, OFF).ok().await;
    on(&db, Role::Producer, APPEND).ok().await;
}

#[tokio::test]
async fn whoever_keeps_it_from_being_complete_is_named() {
    let server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let mut session = db.connect(Role::App).await;
    run_sql(
        &mut session,
        "SET application_name = 'shop'; BEGIN; SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any')",
    )
    .await;
    let outcome = on(&db, Role::App, READ_ONLY).run().await;
    assert_eq!(outcome.stdout, "appends are refused from now on\n");
    let sentence = outcome.sentence(5);
    let (before, after) = sentence.split_once("process ").unwrap();
    assert_eq!(
        before,
        "a transaction that has appended before is still open, and the log grows when it commits: "
    );
    assert!(after.ends_with(" (shop). Say this again to wait for it"), "{sentence}");
    run_sql(&mut session, "COMMIT").await;
    let again = on(&db, Role::App, READ_ONLY).ok().await;
    assert_eq!(again, "appends are refused already, and the log ends at seq 1\n");
}
