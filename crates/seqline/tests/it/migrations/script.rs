//! The printed script, for somebody who applies schema changes by hand.

use std::process::{Output, Stdio};

use seqline::embedded::PostgresBinaries;
use seqline::migrate::script;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::*;

/// Runs a script as a person would, if psql was installed with the server, and else without its own commands.
async fn apply(db: &TestDb, sql: &str) {
    // With it the roles are there, and no two scripts make them at the same time.
    TestDb::new().await;
    let psql = PostgresBinaries::find(None).expect("there is a server").dir().join("psql");
    if psql.exists() {
        let output = psql_output(&psql, &db.url(Role::Admin), sql).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    } else {
        let plain: String =
            sql.lines().filter(|line| !line.starts_with('\\')).map(|line| format!("{line}\n")).collect();
        run(&mut db.connect(Role::Admin).await, &plain).await;
    }
}

async fn psql_output(psql: &std::path::Path, url: &str, sql: &str) -> Output {
    let mut child = Command::new(psql)
        .args(["--no-psqlrc", "--quiet", "--file=-", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql starts");
    let mut stdin = child.stdin.take().expect("it has an input");
    // After an error it reads no further, and has ended perhaps.
    let _ = stdin.write_all(sql.as_bytes()).await;
    drop(stdin);
    child.wait_with_output().await.expect("psql ends")
}

#[tokio::test]
async fn the_script_has_the_same_result_as_a_run() {
    let (by_hand, by_program) = (TestDb::empty().await, TestDb::empty().await);
    apply(&by_hand, &script(0)).await;
    migrate(&mut by_program.connect(Role::Admin).await).await.unwrap();
    let (mut by_hand, mut by_program) =
        (by_hand.connect(Role::Admin).await, by_program.connect(Role::Admin).await);
    assert_eq!(catalog(&mut by_hand).await, catalog(&mut by_program).await);
    assert_eq!(versions(&mut by_hand).await, versions(&mut by_program).await);
}

#[tokio::test]
async fn the_script_makes_the_roles_of_a_fresh_server() {
    let server = TestServer::fast().await;
    let db = TestDb::empty_on(&server).await;
    apply(&db, &script(0)).await;
    db.grant_roles().await;
    append(&db.producer(), [1]).await;
}

#[tokio::test]
async fn a_run_after_the_script_finds_the_schema_current() {
    let db = TestDb::empty().await;
    apply(&db, &script(0)).await;
    assert_eq!(migrate(&mut db.connect(Role::Admin).await).await.unwrap(), current());
}

#[tokio::test]
async fn the_script_of_the_newest_version_changes_nothing() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    let before = (catalog(&mut admin).await, versions(&mut admin).await);
    apply(&db, &script(newest_version())).await;
    assert_eq!((catalog(&mut admin).await, versions(&mut admin).await), before);
}

#[tokio::test]
async fn the_scripts_of_a_version_and_of_the_rest_have_the_same_result_as_one() {
    let db = TestDb::empty().await;
    // The first half of the whole script, up to a version, and then the script that begins there.
    let whole = script(0);
    let half = 4;
    let at = whole.find(&format!("\n-- Migration {} ", half + 1)).expect("there is a migration after it");
    apply(&db, &format!("{}COMMIT;\n", &whole[..at])).await;
    apply(&db, &script(half)).await;
    let other = TestDb::new().await;
    let (mut stepwise, mut at_once) = (db.connect(Role::Admin).await, other.connect(Role::Admin).await);
    assert_eq!(versions(&mut stepwise).await, versions(&mut at_once).await);
    assert_eq!(catalog(&mut stepwise).await, catalog(&mut at_once).await);
}

/// A log that has been in use goes on where it was: with its head in the middle of a partition that is not the first.
#[tokio::test]
async fn a_log_of_an_older_version_goes_on_where_it_was() {
    let db = TestDb::empty().await;
    let whole = script(0);
    let at = whole.find("\n-- Migration 18 ").expect("there is a migration after version 17");
    apply(&db, &format!("{}COMMIT;\n", &whole[..at])).await;
    let mut admin = db.connect(Role::Admin).await;
    run(
        &mut admin,
        "UPDATE seqline.settings SET event_log_partition_size = 3;
         SELECT seqline.sync_event_log_ensure_partitions(3, 4, 0)",
    )
    .await;
    let append = "SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any')";
    for _ in 1..=4 {
        run(&mut admin, append).await;
    }
    apply(&db, &script(17)).await;
    for _ in 5..=9 {
        run(&mut admin, append).await;
    }
    let numbers: Vec<i64> = sqlx::query_scalar("SELECT seq FROM seqline.event_log ORDER BY seq")
        .fetch_all(&mut admin)
        .await
        .unwrap();
    assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
    let head: i64 = sqlx::query_scalar("SELECT seqline.head()").fetch_one(&mut admin).await.unwrap();
    assert_eq!(head, 9);
}

#[tokio::test]
async fn a_script_that_fails_changes_nothing() {
    let db = TestDb::empty().await;
    let mut admin = db.connect(Role::Admin).await;
    // Somebody's own schema of that name.
    run(&mut admin, "CREATE SCHEMA seqline; CREATE TABLE seqline.settings (theirs int)").await;
    let before = catalog(&mut admin).await;
    let psql = PostgresBinaries::find(None).expect("there is a server").dir().join("psql");
    if psql.exists() {
        assert!(!psql_output(&psql, &db.url(Role::Admin), &script(0)).await.status.success());
    }
    assert_eq!(catalog(&mut admin).await, before);
}
