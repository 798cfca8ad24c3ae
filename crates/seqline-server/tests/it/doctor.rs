//! `seqline doctor`

mod horizon;
mod pooler;
mod upkeep;

use seqline::settings::{Sequencing, set_sequencing};
use seqline_testkit::{FaultProxy, Role, TestDb, TestServer, eventually};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use crate::support::{
    DEADLINE, append, as_admin, closed_port, on, run_sql, seqline, server_db, small_partitions,
};

/// Every finding by its name: level and what was found. Runs as this role.
async fn examine(db: &TestDb, role: Role) -> (Option<i32>, Vec<(String, String, String)>) {
    findings(on(db, role, ["doctor", "--json"])).await
}

async fn findings(doctor: crate::support::Seqline) -> (Option<i32>, Vec<(String, String, String)>) {
    let outcome = doctor.run().await;
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    let text = |finding: &Value, member: &str| finding[member].as_str().unwrap_or_default().to_owned();
    let list = report["findings"].as_array().expect("findings");
    let all = list.iter().map(|finding| {
        assert!(finding["level"] == "ok" || finding["advice"].is_string(), "no advice: {finding}");
        (text(finding, "id"), text(finding, "level"), text(finding, "found"))
    });
    (outcome.code(), all.collect())
}

#[track_caller]
fn finding<'a>(findings: &'a [(String, String, String)], id: &str) -> (&'a str, &'a str) {
    let found = findings.iter().find(|finding| finding.0 == id);
    let (_, level, text) = found.unwrap_or_else(|| panic!("no {id} in {findings:#?}"));
    (level, text)
}

fn levels(findings: &[(String, String, String)], level: &str) -> Vec<String> {
    findings.iter().filter(|finding| finding.1 == level).map(|finding| finding.0.clone()).collect()
}

#[tokio::test]
async fn everything_is_looked_at_and_a_sound_log_has_no_error() {
    let server = TestServer::durable().await;
    let db = crate::support::with_jobs(TestDb::numbering(&server, Sequencing::AtCommit).await).await;
    append(&db.producer(), 1..=3).await;
    let (code, findings) = examine(&db, Role::App).await;
    assert_eq!(
        (code, levels(&findings, "error"), levels(&findings, "warning")),
        (Some(0), vec![], vec![]),
        "{findings:#?}"
    );
    for id in [
        "connection",
        "server",
        "durability",
        "schema",
        "roles",
        "privileges",
        "identity",
        "cursors",
        "partitions",
        "read_only",
        "retention",
        "consumers",
        "sequencing",
        "numbering_lock",
        "vacuum_horizon",
        "notification_queue",
        "jobs",
        "maintenance",
        "clock",
        "pooler",
        "listen",
    ] {
        finding(&findings, id);
    }
    assert_eq!(finding(&findings, "privileges").1, "seqline_test_app has seqline_app");
    let text = on(&db, Role::App, ["doctor"]).run().await;
    assert_eq!((text.code(), text.stderr.as_str()), (Some(0), ""), "{text:?}");
    assert!(text.stdout.contains("ok       listen              a notification was heard\n"), "{text:?}");
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_a_finding() {
    let db = TestDb::new().await;
    let port = db.options(Role::App).get_port().to_string();
    let url = db.url(Role::App).replace(&format!(":{port}/"), &format!(":{}/", closed_port()));
    let (code, found) = findings(seqline(["doctor", "--json"]).env("SEQLINE_DATABASE_URL", url)).await;
    assert_eq!((code, found.len(), levels(&found, "error")), (Some(3), 1, vec!["connection".to_owned()]));
}

#[tokio::test]
async fn a_schema_that_is_missing_older_or_newer_hides_nothing_else() {
    let empty = TestDb::empty().await;
    let (code, found) = examine(&empty, Role::App).await;
    assert_eq!(
        (code, finding(&found, "schema")),
        (Some(4), ("error", "there is no Seqline schema in this database"))
    );
    assert_eq!(finding(&found, "identity").0, "unknown");
    assert_eq!(finding(&found, "clock").0, "ok");
    for (change, level) in [("version - 1", "needs"), ("version + 9", "knows")] {
        let db = TestDb::new().await;
        let sql = format!(
            "UPDATE seqline.schema_version SET version = {change} WHERE version = (SELECT max(version) FROM seqline.schema_version)"
        );
        if change.contains('-') {
            as_admin(&db, "DELETE FROM seqline.schema_version WHERE version = (SELECT max(version) - 1 FROM seqline.schema_version)")
                .await;
        }
        as_admin(&db, &sql).await;
        let (code, found) = examine(&db, Role::App).await;
        let (found_level, text) = finding(&found, "schema");
        assert_eq!((code, found_level), (Some(4), "error"));
        assert!(text.contains(level), "{text}");
        assert_eq!(finding(&found, "identity").0, "ok");
    }
}

#[tokio::test]
async fn a_role_that_may_little_is_told_so() {
    let db = server_db().await;
    let (code, found) = examine(&db, Role::Nobody).await;
    assert_eq!((code, finding(&found, "privileges").0), (Some(4), "error"));
    assert_eq!((finding(&found, "identity").0, finding(&found, "clock").0), ("unknown", "ok"));
    let (code, found) = examine(&db, Role::Reader).await;
    assert_eq!(code, Some(0), "{found:#?}");
    assert_eq!(finding(&found, "privileges"), ("ok", "seqline_test_reader has seqline_reader"));
    assert_eq!((finding(&found, "identity").0, finding(&found, "partitions").0), ("ok", "unknown"));
    let (_, found) = examine(&db, Role::Admin).await;
    assert_eq!(finding(&found, "privileges").0, "warning");
}

#[tokio::test]
async fn a_history_that_went_back_and_a_cursor_above_the_head_are_errors() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    db.settled().await;
    as_admin(&db, "SELECT seqline.ensure_consumer('orders', 'worker', 'head'); UPDATE seqline.event_consumer_cursors SET last_seq = 9")
        .await;
    let (code, found) = examine(&db, Role::App).await;
    assert_eq!((code, levels(&found, "error")), (Some(4), vec!["identity".to_owned(), "cursors".to_owned()]));
    assert_eq!(
        finding(&found, "cursors").1,
        "1 cursor above the head 3, among them that of orders at 9: such a consumer does nothing"
    );
}

#[tokio::test]
async fn little_room_is_a_warning_and_none_an_error() {
    let db = server_db().await;
    small_partitions(&db, 2, 1).await;
    let (code, found) = examine(&db, Role::App).await;
    assert_eq!((code, finding(&found, "partitions").0), (Some(0), "warning"));
    append(&db.producer(), 1..=2).await;
    db.settled().await;
    as_admin(&db, "DO $$ DECLARE p record; BEGIN FOR p IN SELECT name FROM seqline.event_log_partitions() WHERE lower_bound > 2 LOOP
                   EXECUTE format('DROP TABLE seqline.%I', p.name); END LOOP; END $$").await;
    let (code, found) = examine(&db, Role::App).await;
    assert_eq!((code, finding(&found, "partitions").0), (Some(4), "error"), "{found:#?}");
}

#[tokio::test]
async fn events_that_wait_for_a_sequencer_that_does_not_run_are_an_error() {
    let db = crate::support::with_jobs(TestDb::at_commit().await).await;
    set_sequencing(&mut db.connect(Role::Admin).await, Sequencing::AfterCommit, None).await.unwrap();
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!(finding(&found, "sequencing").0, "warning");
    append(&db.producer(), 1..=3).await;
    let (code, found) = examine(&db, Role::App).await;
    let (level, text) = finding(&found, "sequencing");
    assert_eq!((code, level), (Some(4), "error"));
    assert!(text.starts_with("no sequencer runs; 1 transaction waits for its numbers, for "), "{text}");
}

#[tokio::test]
async fn a_prepared_transaction_that_holds_staging_is_named() {
    let db = crate::support::with_jobs(TestDb::at_commit().await).await;
    let mut admin = db.connect(Role::Admin).await;
    set_sequencing(&mut admin, Sequencing::AfterCommit, None).await.unwrap();
    let mut writer = db.connect(Role::Admin).await;
    run_sql(
        &mut writer,
        "BEGIN; SELECT seqline.append('test.happened', '{}', 'test', 'any'); PREPARE TRANSACTION 'doctor one'",
    )
    .await;
    set_sequencing(&mut admin, Sequencing::AtCommit, None).await.unwrap();
    let (_, found) = examine(&db, Role::App).await;
    run_sql(&mut writer, "ROLLBACK PREPARED 'doctor one'").await;
    let (level, text) = finding(&found, "staging");
    assert_eq!(level, "warning");
    assert!(text.ends_with("doctor one"), "{text}");
}

#[tokio::test]
async fn whoever_holds_up_numbering_is_named_without_the_text_of_its_statement() {
    let db = server_db().await;
    let mut holder = db.connect(Role::Admin).await;
    let lock = "BEGIN; SET application_name = 'report'; SELECT 'secret'; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE";
    run_sql(&mut holder, lock).await;
    let writers = db.producer();
    let waiting = tokio::spawn(async move {
        let mut tx = seqline::begin(&writers).await.unwrap();
        seqline::append(&mut tx, &[crate::support::event(1)]).await.unwrap();
        seqline::commit(tx).await
    });
    let waits =
        "SELECT clock_timestamp() - min(waitstart) > interval '2.2 s' FROM pg_locks WHERE NOT granted";
    let admin = db.admin();
    as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 60000").await;
    eventually(DEADLINE, "a commit that has waited for long", async || {
        sqlx::query_scalar::<_, Option<bool>>(waits).fetch_one(&admin).await.unwrap().unwrap_or(false)
            || waiting.is_finished()
    })
    .await;
    let plain = on(&db, Role::Admin, ["doctor", "--json"]).run().await;
    let shown = on(&db, Role::Admin, ["doctor", "--json", "--show-queries"]).run().await;
    drop(holder);
    waiting.await.unwrap().unwrap();
    assert!(!plain.stdout.contains("secret"), "{plain:?}");
    assert!(shown.stdout.contains("SELECT 'secret'"), "{shown:?}");
    let report: Value = serde_json::from_str(&plain.stdout).unwrap();
    let found = report["findings"].as_array().unwrap().iter().find(|f| f["id"] == "numbering_lock").unwrap();
    assert_eq!(found["level"], "warning", "{found}");
    assert!(found["found"].as_str().unwrap().contains("(report), idle in transaction, "), "{found}");
}

#[tokio::test]
async fn sessions_that_cannot_be_seen_are_unknown_and_the_grant_is_named() {
    let db = server_db().await;
    let mut old = db.connect(Role::Admin).await;
    run_sql(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT now()").await;
    let doctor = on(&db, Role::App, ["doctor"]).run().await;
    assert!(doctor.stdout.contains("have somebody GRANT pg_read_all_stats TO this role\n"), "{doctor:?}");
    let (_, found) = examine(&db, Role::Admin).await;
    assert!(
        finding(&found, "vacuum_horizon").1.starts_with("the oldest transaction has been open"),
        "{found:#?}"
    );
}

#[tokio::test]
async fn a_listening_connection_that_hears_nothing_or_is_elsewhere_is_told() {
    let (db, other) = (server_db().await, TestDb::new().await);
    let target = (std::net::Ipv4Addr::LOCALHOST, db.options(Role::App).get_port()).into();
    let proxy = FaultProxy::start(target).await.unwrap();
    proxy.drop_notifications();
    let port = db.options(Role::App).get_port();
    let deaf = db.url(Role::App).replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()));
    let listen_url = |url: String| on(&db, Role::App, ["doctor", "--json", "--listen-url"]).arg(url);
    let (code, found) = findings(listen_url(deaf)).await;
    assert_eq!((code, finding(&found, "listen").0), (Some(0), "warning"));
    let (code, found) = findings(listen_url(other.url(Role::App))).await;
    assert_eq!((code, finding(&found, "listen").0), (Some(4), "error"));
}

#[tokio::test]
async fn a_server_that_cannot_be_written_to_is_an_error() {
    let db = server_db().await;
    as_admin(&db, &format!("ALTER DATABASE {} SET default_transaction_read_only = on", db.name())).await;
    let (code, found) = examine(&db, Role::App).await;
    assert_eq!((code, finding(&found, "server").0), (Some(4), "error"));
    // That of the tests is fast and careless.
    assert_eq!(finding(&found, "durability").0, "warning");
}

#[tokio::test]
async fn jobs_that_cannot_be_worked_are_an_error_and_those_given_up_overdue_or_paused_a_warning() {
    let db = TestDb::new().await;
    let (code, found) = examine(&db, Role::App).await;
    let missing = ("error", "no jobs are in the schema seqline_jobs; workers do not start");
    assert_eq!((code, finding(&found, "jobs")), (Some(4), missing));
    let said = on(&db, Role::App, ["doctor"]).run().await.stdout;
    assert!(
        said.contains("\n                             run seqline migrate, or correct jobs.schema\n"),
        "{said}"
    );
    let db = crate::support::with_jobs(db).await;
    for (id, state) in [("jobs", "available"), ("jobs_discarded", "discarded")] {
        let finalized = if state == "discarded" { "now()" } else { "NULL" };
        let sql = format!(
            "INSERT INTO seqline_jobs.river_job (kind, args, max_attempts, state, scheduled_at, finalized_at, queue)
             VALUES ('test', '{{}}', 1, '{state}', now() - interval '1 hour', {finalized}, 'maintenance')"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&db.admin()).await.unwrap();
        let (_, found) = examine(&db, Role::App).await;
        assert_eq!(finding(&found, id).0, "warning", "{found:#?}");
    }
}

/// What it says to resume a queue is tried, as the role that it is said to, with a worker that runs.
#[tokio::test]
async fn a_paused_queue_is_named_and_what_resumes_it_works() {
    let db = server_db().await;
    as_admin(
        &db,
        "INSERT INTO seqline_jobs.river_queue (name, updated_at, paused_at) VALUES ('maintenance', now(), now())",
    )
    .await;
    let worker = crate::worker::Worker::start(crate::worker::worker(&db)).await;
    worker.says("jobs wait in a paused queue").await;
    let report = on(&db, Role::App, ["doctor", "--json"]).run().await.stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    let paused = report["findings"].as_array().unwrap().iter().find(|f| f["id"] == "jobs_paused").unwrap();
    assert_eq!(paused["found"], "paused queues, whose jobs wait: maintenance");
    let advice = paused["advice"].as_str().unwrap();
    let (_, sql) = advice.split_once("UPDATE ").unwrap();
    let (sql, _) = sql.split_once(';').unwrap();
    let sql = format!("UPDATE {}", sql.replace("...", "maintenance"));
    run_sql(&mut db.connect(Role::App).await, &sql).await;
    worker.says("partition maintenance done").await;
    worker.stop().await;
}

/// The tables are locked by somebody: the checks that need them give up in time, and the others say what they have found.
#[tokio::test]
async fn a_check_that_gets_no_answer_does_not_hide_the_others() {
    let db = server_db().await;
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.log_identity IN ACCESS EXCLUSIVE MODE").await;
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!((finding(&found, "identity").0, finding(&found, "cursors").0), ("unknown", "unknown"));
    assert_eq!((finding(&found, "jobs").0, finding(&found, "listen").0), ("ok", "ok"));
}
