//! `seqline restore finalize`

use seqline_testkit::{Backup, Role, TestDb, TestServer};
use serde_json::{Value, json};

use crate::consumers::{audit_row, audited};
use crate::support::{append, as_admin, masked, on, run_sql};

/// A log of 5 events that went back, as somebody has recorded.
async fn restored() -> TestDb {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=5).await;
    db.settled().await;
    as_admin(
        &db,
        "UPDATE seqline.log_identity SET broken_at = now(), broken_reason = 'head_went_back';
         SELECT seqline.ensure_consumer('orders', 'worker', '4'), seqline.ensure_consumer('polled', 'poll', 'head');
         UPDATE seqline.event_consumer_cursors SET last_seq = 8 WHERE name = 'polled'",
    )
    .await;
    db
}

async fn epoch(db: &TestDb) -> String {
    sqlx::query_scalar("SELECT epoch::text FROM seqline.log_identity").fetch_one(&db.admin()).await.unwrap()
}

#[tokio::test]
async fn it_says_what_it_would_do_and_then_does_it() {
    let db = restored().await;
    let before = epoch(&db).await;
    let finalize = ["restore", "finalize", "--consumers", "keep"];
    let plan = on(&db, Role::App, finalize).ok().await;
    assert_eq!(
        masked(&plan),
        "would start a new epoch: readers that hold a position of the old one have to start anew then. Add --yes to do it
found         the log has fewer events than a process had seen: it was taken back to an earlier state
old epoch     [id]
head          5, the next event gets 6
consumers     keep: they handle again what they did after the backup

 consumer  kind    lane  from  to
 orders    worker     0     3   3  stays
 polled    poll       0     8   5  was above the head"
    );
    assert_eq!(epoch(&db).await, before);
    let yes = ["--yes", "--reason", "backup of 04:00"];
    let done = on(&db, Role::App, finalize).args(yes).ok().await;
    assert!(
        done.starts_with(
            "a new epoch has begun: readers that hold a position of the old one have to start anew\n"
        ),
        "{done}"
    );
    let after = epoch(&db).await;
    assert!(done.contains(&format!("old epoch     {before}\nnew epoch     {after}\n")), "{done}");
    let refused = on(&db, Role::App, finalize).args(yes).refused(4).await;
    assert_eq!(
        refused,
        "nothing in this database says that it was restored. A backup that was restored in place on the same server cannot be told from inside. If this is one, or you want a new epoch all the same: --force"
    );
    assert_eq!(epoch(&db).await, after);
}

#[tokio::test]
async fn it_is_audited_and_its_json_has_every_move() {
    let db = restored().await;
    let before = epoch(&db).await;
    let args =
        ["restore", "finalize", "--consumers", "head", "--yes", "--reason", "backup of 04:00", "--json"];
    let text = on(&db, Role::App, args).ok().await;
    let after = epoch(&db).await;
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        json!({
            "done": true, "found": "the log has fewer events than a process had seen: it was taken back to an earlier state",
            "differences": [], "old_epoch": before, "new_epoch": after, "head": 5, "consumers": "head", "staged": 0,
            "forgotten": 0, "moves": [
                {"consumer": "orders", "kind": "worker", "lane": 0, "from": 3, "to": 5},
                {"consumer": "polled", "kind": "poll", "lane": 0, "from": 8, "to": 5},
            ]
        })
    );
    let moved = |name: &str, from: i64| {
        let (from, to) = (json!({"last_seq": [from]}), json!({"last_seq": [5], "epoch": after}));
        audit_row("consumer.finalize", name, (from, to), Some("backup of 04:00"))
    };
    let log = audited(&db).await;
    assert_eq!(log[1..], [moved("orders", 3), moved("polled", 8)]);
    assert_eq!((log[0].1.as_str(), log[0].5.as_deref()), ("restore.finalize", Some("backup of 04:00")));
}

#[tokio::test]
async fn agents_are_told_and_shown_with_where_they_go_on() {
    let db = restored().await;
    as_admin(
        &db,
        "INSERT INTO seqline.principals (id, kind) VALUES ('billing', 'agent');
         INSERT INTO seqline.agent_consumer_cursors (agent_id, consumer, acked_seq)
         VALUES ('billing', 'invoices', 2), ('billing', 'totals', 5)",
    )
    .await;
    let finalize = ["restore", "finalize", "--consumers", "head"];
    let plan = on(&db, Role::App, finalize).ok().await;
    let (_, shown) = plan.split_once("consumers ").expect("it says of consumers");
    assert_eq!(
        shown.trim_end(),
        "    head: they go on with new events only
agents        2 consumers, told of it until they acknowledge where they go on

 consumer          kind    lane  from  to
 orders            worker     0     3   5  passes over 2 events
 polled            poll       0     8   5  was above the head
 billing/invoices  agent            2   5  passes over 3 events
 billing/totals    agent            5   5  stays"
    );
    on(&db, Role::App, finalize).args(["--yes", "--reason", "backup of 04:00"]).ok().await;
    let log = audited(&db).await;
    let after = json!({"last_seq": [5], "epoch": epoch(&db).await});
    let moved = ("agent.finalize", "billing/invoices", (json!({"last_seq": [2]}), after));
    assert_eq!(log[3..], [audit_row(moved.0, moved.1, moved.2, Some("backup of 04:00"))]);
    let listed = on(&db, Role::App, ["agents", "consumers", "list"]).ok().await;
    assert_eq!(listed.matches("epoch_changed").count(), 2, "{listed}");
}

#[tokio::test]
async fn what_waits_for_its_number_and_what_is_forgotten_is_counted() {
    let db = restored().await;
    as_admin(&db, "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('orders', 7), ('orders', 2)")
        .await;
    let mut admin = db.connect(Role::Admin).await;
    seqline::settings::set_sequencing(&mut admin, seqline::settings::Sequencing::AfterCommit, None)
        .await
        .unwrap();
    append(&db.producer(), [6]).await;
    let plan = on(&db, Role::App, ["restore", "finalize", "--consumers", "keep"]).ok().await;
    let lines = "waiting       1 transaction for their numbers, in the new epoch
forgotten     1 event above the head that consumers had parked or were to leave out
consumers     keep";
    assert!(plan.contains(lines), "{plan}");
}

#[tokio::test]
async fn a_healthy_log_needs_force() {
    let db = TestDb::new().await;
    let (before, finalize) = (epoch(&db).await, ["restore", "finalize", "--consumers", "keep"]);
    on(&db, Role::App, finalize).refused(4).await;
    let done = on(&db, Role::App, finalize).args(["--force", "--yes", "--reason", "test"]).ok().await;
    assert!(done.contains("found         nothing that speaks for a restore\n"), "{done}");
    assert!(done.contains("consumers     there are none\n"), "{done}");
    assert_ne!(epoch(&db).await, before);
}

#[tokio::test]
async fn whoever_may_not_or_comes_too_late_is_told() {
    let db = restored().await;
    let args = ["restore", "finalize", "--consumers", "keep", "--yes", "--reason", "test"];
    let missing = on(&db, Role::Reader, args).refused(4).await;
    assert!(missing.ends_with("grant this role seqline_app"), "{missing}");
    as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 50").await;
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let held = on(&db, Role::App, args).refused(3).await;
    assert!(held.starts_with("numbering lock not obtained within 50 ms, held by process "), "{held}");
    assert!(held.ends_with("nothing was changed, try again"), "{held}");
    as_admin(
        &db,
        "ALTER DATABASE current SET default_transaction_read_only = on"
            .replace("current", db.name())
            .as_str(),
    )
    .await;
    let read_only = on(&db, Role::App, args).refused(4).await;
    assert_eq!(read_only, "the server is read-only: say this to the one that is written to");
}

/// As a person does it: the program on a server that was recovered from a backup.
#[tokio::test]
async fn a_server_that_was_recovered_from_a_backup_is_found_and_put_right() {
    let server = TestServer::durable().await;
    let db = TestDb::numbering(&server, seqline::settings::Sequencing::AtCommit).await;
    let db = crate::support::with_jobs(db).await;
    append(&db.producer(), 1..=5).await;
    let backup = Backup::take(&server).await;
    append(&db.producer(), 6..=9).await;
    let restored = backup.recover().await;
    let url = restored.url(&db.url(Role::App), server.postgres().port());
    let program = |line: &str| crate::support::seqline(line.split(' ')).env("SEQLINE_DATABASE_URL", &url);
    let doctor = program("doctor").run().await;
    assert_eq!(doctor.code(), Some(4), "{doctor:?}");
    let difference =
        "error    identity            the log belongs to another server: timeline 2 instead of 1\n";
    assert!(doctor.stdout.contains(difference), "{doctor:?}");
    let done = program("restore finalize --consumers keep --yes --reason restored").ok().await;
    assert!(done.contains("head          5, the next event gets 6\n"), "{done}");
    let doctor = program("doctor").run().await;
    assert!(doctor.stdout.contains("\nok       identity"), "{doctor:?}");
    assert!(doctor.code() == Some(0), "{doctor:?}");
}
