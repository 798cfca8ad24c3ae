//! `seqline tail --follow`: what is committed from now on.

use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb};

use crate::support::{Running, Sessions, append, closed_port, on};

async fn follow(db: &TestDb, args: &[&str]) -> Running {
    on(db, Role::Reader, ["tail", "--follow"]).args(args).start()
}

async fn expect(running: &mut Running, seqs: impl IntoIterator<Item = i64>) {
    for seq in seqs {
        let line = running.line().await;
        assert!(line.starts_with(&format!("{seq} ")), "expected {seq}: {line}");
    }
}

/// Ends it as a user does, and nothing was said or left.
async fn interrupt(running: Running) {
    running.signal(Signal::SIGINT);
    assert_eq!(running.end().await.ok(), "");
}

#[tokio::test]
async fn what_is_committed_later_follows_the_newest_events() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=12).await;
    let mut running = follow(&db, &[]).await;
    expect(&mut running, 3..=12).await;
    for n in 13..=15 {
        append(&db.app(), [n]).await;
        expect(&mut running, [n]).await;
    }
    interrupt(running).await;
    Sessions::of(&db, Role::Reader).end().await;
}

#[tokio::test]
async fn it_begins_after_a_number_and_skips_nothing() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=1200).await;
    let mut running = follow(&db, &["--after", "100"]).await;
    append(&db.app(), 1201..=1300).await;
    expect(&mut running, 101..=1300).await;
    interrupt(running).await;
}

#[tokio::test]
async fn on_an_empty_log_it_waits_for_the_first_event() {
    let db = TestDb::new().await;
    let mut running = follow(&db, &["--json"]).await;
    append(&db.app(), [1]).await;
    assert!(running.line().await.contains("\"seq\":1,"));
    interrupt(running).await;
}

#[tokio::test]
async fn each_signal_to_stop_is_a_good_end() {
    let db = TestDb::new().await;
    append(&db.app(), [1]).await;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut running = follow(&db, &[]).await;
        expect(&mut running, [1]).await;
        running.signal(signal);
        assert_eq!(running.end().await.ok(), "", "{signal}");
    }
}

#[tokio::test]
async fn the_end_of_all_its_backends_loses_nothing_and_is_talked_about_without_payloads() {
    let db = TestDb::new().await;
    append(&db.app(), [1]).await;
    let mut running = follow(&db, &[]).await;
    expect(&mut running, [1]).await;
    for n in 2..=6 {
        Sessions::of(&db, Role::Reader).terminate().await;
        append(&db.app(), [n]).await;
        expect(&mut running, [n]).await;
    }
    running.signal(Signal::SIGTERM);
    let outcome = running.end().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(!outcome.stderr.contains("\"n\""), "{outcome:?}");
}

#[tokio::test]
async fn without_a_connection_to_listen_on_it_polls() {
    let db = TestDb::new().await;
    let nowhere = format!("postgres://alex:hunter2@127.0.0.1:{}/db", closed_port());
    let mut running = follow(&db, &["--listen-url", &nowhere, "--poll-interval", "20ms"]).await;
    append(&db.app(), [1]).await;
    expect(&mut running, [1]).await;
    running.signal(Signal::SIGINT);
    let outcome = running.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(!outcome.stderr.contains("hunter2"), "{outcome:?}");
}

#[tokio::test]
async fn with_notifications_it_does_not_wait_for_the_poll() {
    let db = TestDb::new().await;
    append(&db.app(), [1]).await;
    let mut running = follow(&db, &["--poll-interval", "1h"]).await;
    expect(&mut running, [1]).await;
    let listens = "application_name = 'seqline-event-tail' AND query LIKE 'LISTEN%'";
    Sessions::of(&db, Role::Reader).reach(1, listens).await;
    append(&db.app(), [2]).await;
    expect(&mut running, [2]).await;
    interrupt(running).await;
}

#[tokio::test]
async fn a_reader_of_the_output_that_has_seen_enough_is_no_failure() {
    let db = TestDb::new().await;
    append(&db.app(), [1]).await;
    let mut running = follow(&db, &[]).await;
    expect(&mut running, [1]).await;
    running.close_stdout();
    append(&db.app(), [2]).await;
    let outcome = running.end().await;
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
}

#[tokio::test]
async fn it_can_be_told_not_to_listen() {
    let db = TestDb::new().await;
    // Nobody would answer there, and it would be said.
    let nowhere = format!("postgres://127.0.0.1:{}/nowhere", closed_port());
    let mut running =
        follow(&db, &["--no-listen", "--poll-interval", "20ms", "--listen-url", &nowhere]).await;
    for n in 1..=3 {
        append(&db.app(), [n]).await;
        expect(&mut running, [n]).await;
    }
    interrupt(running).await;
}
