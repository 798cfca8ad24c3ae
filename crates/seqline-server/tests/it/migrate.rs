//! `seqline migrate`

use std::process::Stdio;

use seqline::embedded::PostgresBinaries;
use seqline::migrate::newest_version;
use seqline_testkit::{Role, TestDb};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::{as_admin, on, seqline, server_db};

const JOBS_CURRENT: &str = "jobs schema seqline_jobs is current (River version 8)\n";
const JOBS_CREATED: &str = "jobs schema seqline_jobs created (River version 8)\n";

fn current() -> String {
    format!("schema is current (version {}), 0 partitions created\n{JOBS_CURRENT}", newest_version())
}

#[tokio::test]
async fn a_fresh_database_gets_the_schema_and_partitions_and_a_second_time_nothing() {
    let db = TestDb::empty().await;
    let created =
        format!("schema created (version {}), 2 partitions created\n{JOBS_CREATED}", newest_version());
    assert_eq!(on(&db, Role::Admin, ["migrate"]).ok().await, created);
    assert_eq!(on(&db, Role::Admin, ["migrate"]).ok().await, current());
}

#[tokio::test]
async fn the_outcome_can_be_had_as_json() {
    let db = TestDb::empty().await;
    let version = newest_version();
    for (from, partitions, jobs_from) in [(0, 2, 0), (version, 0, 8)] {
        assert_eq!(
            on(&db, Role::Admin, ["migrate", "--json"]).ok().await,
            format!(
                "{{\"from\":{from},\"to\":{version},\"partitions_created\":{partitions},\"jobs_schema\":\"seqline_jobs\",\"jobs_from\":{jobs_from},\"jobs_to\":8}}\n"
            )
        );
    }
}

#[tokio::test]
async fn the_application_may_check_that_the_schema_is_current() {
    let db = server_db().await;
    assert_eq!(on(&db, Role::App, ["migrate"]).ok().await, current());
}

#[tokio::test]
async fn missing_partitions_are_created_although_the_schema_is_current() {
    let db = server_db().await;
    as_admin(&db, "UPDATE seqline.settings SET event_log_partitions_ahead = 3").await;
    let expected =
        format!("schema is current (version {}), 1 partition created\n{JOBS_CURRENT}", newest_version());
    assert_eq!(on(&db, Role::App, ["migrate"]).ok().await, expected);
}

#[tokio::test]
async fn many_at_once_create_the_schema_once() {
    let db = TestDb::empty().await;
    let runs = (0..4).map(|_| tokio::spawn(on(&db, Role::Admin, ["migrate"]).ok()));
    let mut said = Vec::new();
    for run in runs.collect::<Vec<_>>() {
        said.push(run.await.unwrap());
    }
    for once in ["schema created (version", JOBS_CREATED] {
        assert_eq!(said.iter().filter(|text| text.contains(once)).count(), 1, "{said:?}");
    }
}

/// Runs a printed script as a DBA would. Without psql on this machine the server gets the same statements.
pub(crate) async fn apply(db: &TestDb, script: &str) {
    let psql = PostgresBinaries::find(None).unwrap().dir().join("psql");
    if !psql.is_file() {
        as_admin(db, script.strip_prefix("\\set ON_ERROR_STOP on\n").unwrap()).await;
        return;
    }
    let mut child = Command::new(psql)
        .args(["--no-psqlrc", "--quiet", "--dbname", &db.url(Role::Admin)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn the_printed_sql_has_the_result_of_migrate() {
    let db = TestDb::empty().await;
    // It needs no database to print.
    apply(&db, &seqline(["migrate", "--print"]).ok().await).await;
    assert_eq!(on(&db, Role::Admin, ["migrate"]).ok().await, current());
    db.grant_roles().await;
    assert!(on(&db, Role::App, ["append", "a.b", "--resource-kind", "x"]).ok().await.starts_with("1 "));
}

#[tokio::test]
async fn what_is_printed_after_a_version_brings_that_version_up_to_date() {
    let db = TestDb::empty().await;
    let all = seqline(["migrate", "--print"]).ok().await;
    let (before, _) = all.split_once("\n-- Migration 6 ").unwrap();
    apply(&db, &format!("{before}\nCOMMIT;\n")).await;
    let rest = seqline(["migrate", "--print", "--after", "5"]).ok().await;
    assert!(!rest.contains("Migration 5 ") && rest.contains("Migration 6 "));
    apply(&db, &rest).await;
    assert_eq!(on(&db, Role::Admin, ["migrate"]).ok().await, current());
}

#[tokio::test]
async fn an_older_schema_is_updated_and_the_versions_are_named() {
    let db = TestDb::empty().await;
    let all = seqline(["migrate", "--print"]).ok().await;
    let (before, _) = all.split_once("\n-- Migration 6 ").unwrap();
    apply(&db, &format!("{before}\nCOMMIT;\n")).await;
    let expected =
        format!("schema updated (version 5 to {}), 2 partitions created\n{JOBS_CREATED}", newest_version());
    assert_eq!(on(&db, Role::Admin, ["migrate"]).ok().await, expected);
}
