//! A database that fails under an import.

use std::net::SocketAddr;

use seqline_testkit::{FaultProxy, Role, TestDb, TestServer, eventually};

use super::resume::{WAITS_FOR_THE_TEST, hold_lines};
use super::{Input, assert_each_line_once, counts, import};
use crate::support::{
    DEADLINE, Sessions, WAITS_TO_NUMBER, append, as_admin, numbers, run_sql, small_partitions,
};

#[tokio::test]
async fn a_server_that_is_killed_under_an_import_costs_no_line_and_doubles_none() {
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let input = Input::numbered(1000);
    let _holder = hold_lines(&db, "NEW.first_line > 500").await;
    let running = import(&db, &input.file).args(["--batch", "10", "--json"]).start();
    Sessions::of(&db, Role::App).reach(1, WAITS_FOR_THE_TEST).await;
    server.kill().await;
    server.start_again().await;
    let first = running.end().await;
    // It was patient enough for the restart, or it said that the database is away.
    if first.code() == Some(0) {
        assert_eq!(counts(&first).imported, 1000);
    } else {
        first.sentence(3);
    }
    import(&db, &input.file).ok().await;
    assert_eq!(numbers(&db).await, (1..=1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_server_that_is_killed_under_the_commits_of_an_import_costs_no_line_and_doubles_none() {
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 600000").await;
    let input = Input::numbered(400);
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let running = import(&db, &input.file).args(["--batch", "10", "--writers", "4", "--json"]).start();
    Sessions::of(&db, Role::App).reach(4, WAITS_TO_NUMBER).await;
    server.kill().await;
    server.start_again().await;
    let first = running.end().await;
    if first.code() != Some(0) {
        first.sentence(3);
    }
    import(&db, &input.file).ok().await;
    assert_each_line_once(&db, 400).await;
}

#[tokio::test]
async fn backends_that_are_terminated_under_an_import_cost_no_line_and_double_none() {
    let db = TestDb::new().await;
    let input = Input::numbered(600);
    let running = import(&db, &input.file).args(["--batch", "2", "--writers", "4"]).start();
    for lines in [50, 150, 250] {
        eventually(DEADLINE, "more lines are imported", async || numbers(&db).await.len() > lines).await;
        Sessions::of(&db, Role::App).terminate().await;
    }
    let outcome = running.end().await;
    if outcome.code() != Some(0) {
        outcome.sentence(3);
        Sessions::of(&db, Role::App).end().await;
    }
    import(&db, &input.file).ok().await;
    assert_each_line_once(&db, 600).await;
}

/// The COMMIT of the first attempt goes through after the program has looked for it.
#[tokio::test]
async fn a_connection_that_is_lost_in_the_commit_costs_no_line_and_doubles_none() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 600000").await;
    let port = db.options(Role::App).get_port();
    let proxy = FaultProxy::start(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    let url = db.url(Role::App).replace(&format!(":{port}/"), &format!(":{}/", proxy.addr().port()));
    let input = Input::numbered(3);
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let running = import(&db, &input.file).args(["--database-url", &url]).start();
    let sessions = Sessions::of(&db, Role::App);
    sessions.reach(1, WAITS_TO_NUMBER).await;
    proxy.cut();
    proxy.heal();
    // The second attempt waits for the key of the first one's note.
    sessions.reach(1, "wait_event_type = 'Lock' AND wait_event = 'transactionid'").await;
    run_sql(&mut holder, "ROLLBACK").await;
    assert_eq!(running.end().await.ok(), "3 imported, 0 rejected\n");
    assert_each_line_once(&db, 3).await;
}

#[tokio::test]
async fn a_log_that_runs_out_of_partitions_stops_the_import_until_there_are_more() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 1).await;
    append(&db.app(), [0]).await;
    let input = Input::numbered(20);
    let outcome = import(&db, &input.file).args(["--batch", "3"]).run().await;
    let sentence = outcome.sentence(3);
    assert!(sentence.contains("no partition of the event log for seq 11 to 13"), "{sentence}");
    assert!(sentence.ends_with("; run the same command again to go on"), "{sentence}");
    assert_eq!(outcome.stdout, "9 imported, 0 rejected\n");
    as_admin(&db, "SELECT seqline.sync_event_log_ensure_partitions(1000, 1, 0)").await;
    let outcome = import(&db, &input.file).ok().await;
    assert_eq!(outcome, "11 imported, 0 rejected, 9 lines were done before\n");
    assert_eq!(numbers(&db).await, (0..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_rejected_line_is_kept_once_however_often_its_batch_is_tried() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 600000").await;
    let input = Input::new("{\"n\":1}\nnonsense\n");
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let running = import(&db, &input.file).start();
    let sessions = Sessions::of(&db, Role::App);
    sessions.reach(1, WAITS_TO_NUMBER).await;
    sessions.terminate().await;
    run_sql(&mut holder, "ROLLBACK").await;
    let outcome = running.end().await;
    assert_eq!(
        (outcome.code(), outcome.stdout.as_str()),
        (Some(5), "1 imported, 1 rejected\n"),
        "{outcome:?}"
    );
    assert_eq!(input.rejects().len(), 1, "{:?}", input.rejects());
}
