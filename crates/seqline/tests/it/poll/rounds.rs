//! One round: a transaction that polls, writes, and commits or does not.

use seqline_testkit::{Role, TestDb, eventually};
use sqlx::{AssertSqlSafe, Column, PgConnection, Row};

use super::*;
use crate::support::{append, event};

const COPY_TWO: &str = "INSERT INTO effects SELECT seq FROM seqline.poll('totals', 2)";
const APPEND: &str = "SELECT seqline.append('test.happened', '{\"n\": 0}', 'test', 'any')";

async fn effects(connection: &mut PgConnection) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM effects ORDER BY seq").fetch_all(connection).await.unwrap()
}

#[tokio::test]
async fn events_come_in_order_and_whole() {
    let db = TestDb::new().await;
    run(
        &mut db.connect(Role::Producer).await,
        r#"SELECT seqline.append(type => 'order.paid', payload => '{"customer": "Alex", "lines": [1, {"a": "b"}]}',
               resource_kind => 'order', receive_action => 'self', resource_id => '17', resource_version => 3,
               space_id => 's', channel_id => 'c', thread_id => 't', actor_kind => 'user', actor_principal_id => 'sam',
               audience_principal_id => 'robin', schema_version => 2, client_msg_id => 'm', truncated => true,
               traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')"#,
    )
    .await;
    append(&db.producer(), 1..=3).await;
    let mut session = session(&db).await;
    register(&mut session, "totals", "oldest").await;
    let polled: Vec<String> =
        sqlx::query_scalar("SELECT to_jsonb(p)::text FROM seqline.poll('totals', 10) p")
            .fetch_all(&mut session)
            .await
            .unwrap();
    let stored: Vec<String> =
        sqlx::query_scalar("SELECT to_jsonb(e)::text FROM seqline.event_log e ORDER BY e.seq")
            .fetch_all(&mut db.connect(Role::Reader).await)
            .await
            .unwrap();
    assert_eq!(polled, stored);
    assert_eq!(polled.len(), 4);
}

#[tokio::test]
async fn the_columns_are_those_of_the_log() {
    let (db, mut session) = with_events(1).await;
    let names = |row: &sqlx::postgres::PgRow| -> Vec<String> {
        row.columns().iter().map(|column| column.name().to_owned()).collect()
    };
    let polled =
        sqlx::query("SELECT * FROM seqline.poll('totals', 1)").fetch_one(&mut session).await.unwrap();
    let stored = sqlx::query("SELECT * FROM seqline.event_log").fetch_one(&db.reader()).await.unwrap();
    assert_eq!(names(&polled), names(&stored));
    assert!(names(&polled).len() > 20);
}

#[tokio::test]
async fn a_commit_keeps_the_callers_writes_and_the_step_together() {
    let (db, mut session) = with_events(3).await;
    run(&mut session, "CREATE TABLE effects (seq bigint)").await;
    run(&mut session, &format!("BEGIN; {COPY_TWO}; COMMIT")).await;
    assert_eq!(effects(&mut session).await, [1, 2]);
    assert_eq!(cursor(&db, "totals").await, 2);
    assert_eq!(poll(&mut session, "totals", 10).await, [3]);
}

#[tokio::test]
async fn a_rollback_takes_both_back_and_the_events_come_again() {
    let (db, mut session) = with_events(3).await;
    run(&mut session, "CREATE TABLE effects (seq bigint)").await;
    run(&mut session, &format!("BEGIN; {COPY_TWO}; ROLLBACK")).await;
    assert_eq!(effects(&mut session).await, [0; 0]);
    assert_eq!(cursor(&db, "totals").await, 0);
    assert_eq!(poll(&mut session, "totals", 10).await, [1, 2, 3]);
}

#[tokio::test]
async fn nothing_moves_before_the_commit() {
    let (db, mut session) = with_events(3).await;
    run(&mut session, "BEGIN").await;
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
    assert_eq!(cursor(&db, "totals").await, 0);
    run(&mut session, "COMMIT").await;
    assert_eq!(cursor(&db, "totals").await, 2);
}

#[tokio::test]
async fn a_rollback_to_a_savepoint_takes_the_step_back() {
    let (db, mut session) = with_events(4).await;
    run(&mut session, "BEGIN").await;
    assert_eq!(poll(&mut session, "totals", 1).await, [1]);
    run(&mut session, "SAVEPOINT a").await;
    assert_eq!(poll(&mut session, "totals", 2).await, [2, 3]);
    run(&mut session, "ROLLBACK TO a").await;
    assert_eq!(poll(&mut session, "totals", 1).await, [2]);
    run(&mut session, "COMMIT").await;
    assert_eq!(cursor(&db, "totals").await, 2);
}

#[tokio::test]
async fn after_a_rollback_to_a_savepoint_the_consumer_is_free_for_others() {
    let (db, mut session) = with_events(2).await;
    run(&mut session, "BEGIN; SAVEPOINT a").await;
    assert_eq!(poll(&mut session, "totals", 1).await, [1]);
    run(&mut session, "ROLLBACK TO a").await;
    let mut other = super::session(&db).await;
    assert_eq!(poll(&mut other, "totals", 1).await, [1]);
    assert_eq!(poll(&mut session, "totals", 1).await, [2]);
    run(&mut session, "COMMIT").await;
    assert_eq!(cursor(&db, "totals").await, 2);
}

#[tokio::test]
async fn an_error_that_is_caught_behind_the_call_takes_the_step_back() {
    let (db, mut session) = with_events(2).await;
    run(
        &mut session,
        "DO $$ BEGIN
             PERFORM seqline.poll('totals', 1);
             PERFORM 1 / 0;
         EXCEPTION WHEN division_by_zero THEN NULL;
         END $$",
    )
    .await;
    assert_eq!(cursor(&db, "totals").await, 0);
    assert_eq!(poll(&mut session, "totals", 1).await, [1]);
}

#[tokio::test]
async fn two_calls_in_one_transaction_go_on() {
    let (db, mut session) = with_events(5).await;
    run(&mut session, "BEGIN").await;
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
    assert_eq!(poll(&mut session, "totals", 2).await, [3, 4]);
    assert_eq!(poll(&mut session, "totals", 2).await, [5]);
    assert_eq!(poll(&mut session, "totals", 2).await, [0; 0]);
    run(&mut session, "ROLLBACK").await;
    assert_eq!(cursor(&db, "totals").await, 0);
}

#[tokio::test]
async fn a_consumer_that_somebody_has_in_hand_gives_no_rows_at_once() {
    let (db, mut holder) = with_events(3).await;
    run(&mut holder, "BEGIN").await;
    assert_eq!(poll(&mut holder, "totals", 2).await, [1, 2]);
    // Its timeouts end it if it waits.
    let mut other = session(&db).await;
    assert_eq!(poll(&mut other, "totals", 2).await, [0; 0]);
    run(&mut holder, "COMMIT").await;
    assert_eq!(poll(&mut other, "totals", 2).await, [3]);
}

#[tokio::test]
async fn a_call_that_found_the_consumer_in_hand_takes_over_in_the_same_transaction() {
    let (db, mut holder) = with_events(3).await;
    run(&mut holder, "BEGIN").await;
    poll(&mut holder, "totals", 2).await;
    let mut other = session(&db).await;
    run(&mut other, "BEGIN").await;
    assert_eq!(poll(&mut other, "totals", 2).await, [0; 0]);
    run(&mut holder, "COMMIT").await;
    assert_eq!(poll(&mut other, "totals", 2).await, [3]);
    run(&mut other, "COMMIT").await;
    assert_eq!(cursor(&db, "totals").await, 3);
}

#[tokio::test]
async fn one_consumer_in_hand_does_not_hold_up_another() {
    let (db, mut holder) = with_events(3).await;
    let mut other = session(&db).await;
    register(&mut other, "invoices", "2").await;
    run(&mut holder, "BEGIN").await;
    poll(&mut holder, "totals", 2).await;
    assert_eq!(poll(&mut other, "invoices", 10).await, [2, 3]);
}

#[tokio::test]
async fn transactions_that_take_two_consumers_in_opposite_order_do_not_wait_for_each_other() {
    let (db, mut first) = with_events(2).await;
    register(&mut first, "invoices", "oldest").await;
    let mut second = session(&db).await;
    run(&mut first, "BEGIN").await;
    run(&mut second, "BEGIN").await;
    assert_eq!(poll(&mut first, "totals", 1).await, [1]);
    assert_eq!(poll(&mut second, "invoices", 1).await, [1]);
    assert_eq!(poll(&mut first, "invoices", 1).await, [0; 0]);
    assert_eq!(poll(&mut second, "totals", 1).await, [0; 0]);
    run(&mut first, "COMMIT").await;
    run(&mut second, "COMMIT").await;
}

#[tokio::test]
async fn a_session_that_dies_in_its_round_leaves_the_events_to_the_next() {
    let (db, mut holder) = with_events(3).await;
    run(&mut holder, "CREATE TABLE effects (seq bigint)").await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holder).await.unwrap();
    run(&mut holder, &format!("BEGIN; {COPY_TWO}")).await;
    run(&mut db.connect(Role::Admin).await, &format!("SELECT pg_terminate_backend({pid})")).await;
    let mut other = session(&db).await;
    let mut seqs = Vec::new();
    eventually(DEADLINE, "the end of the session", async || {
        seqs = poll(&mut other, "totals", 10).await;
        !seqs.is_empty()
    })
    .await;
    assert_eq!(seqs, [1, 2, 3]);
    assert_eq!(effects(&mut other).await, [0; 0]);
}

/// What a look that finds nothing must not change: the row, its version and its place.
async fn cursor_row(db: &TestDb) -> String {
    sqlx::query_scalar(
        "SELECT format('%s %s %s', c.ctid, c.xmin, c) FROM seqline.event_consumer_cursors c WHERE c.name = 'totals'",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap()
}

#[tokio::test]
async fn an_empty_log_gives_no_rows_and_writes_nothing() {
    let (db, mut session) = with_events(0).await;
    let before = cursor_row(&db).await;
    for _ in 0..3 {
        assert_eq!(poll(&mut session, "totals", 10).await, [0; 0]);
    }
    assert_eq!(cursor_row(&db).await, before);
}

#[tokio::test]
async fn the_head_gives_no_rows_and_writes_nothing() {
    let (db, mut session) = with_events(2).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
    let before = cursor_row(&db).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [0; 0]);
    assert_eq!(cursor_row(&db).await, before);
}

#[tokio::test]
async fn a_step_says_when_it_was_made() {
    let (db, mut session) = with_events(2).await;
    run(&mut session, "BEGIN").await;
    poll(&mut session, "totals", 1).await;
    let now: time::OffsetDateTime = sqlx::query_scalar("SELECT now()").fetch_one(&mut session).await.unwrap();
    run(&mut session, "COMMIT").await;
    let updated: time::OffsetDateTime =
        sqlx::query_scalar("SELECT updated_at FROM seqline.event_consumer_cursors")
            .fetch_one(&db.admin())
            .await
            .unwrap();
    assert_eq!(updated, now);
}

#[tokio::test]
async fn what_is_not_committed_is_neither_seen_nor_skipped() {
    let (db, mut session) = with_events(1).await;
    let mut open = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut open, &[event(10)]).await.unwrap();
    append(&db.producer(), [11]).await;
    assert_eq!(poll(&mut session, "totals", 10).await, [1, 2]);
    seqline::commit(open).await.unwrap();
    db.settled().await;
    assert_eq!(poll(&mut session, "totals", 10).await, [3]);
}

#[tokio::test]
async fn the_same_transaction_may_append_and_does_not_get_its_own_events() {
    let (db, _) = with_events(2).await;
    // Polling and appending needs both rights.
    let mut app = db.connect(Role::App).await;
    run(&mut app, &format!("BEGIN; {APPEND}")).await;
    assert_eq!(poll(&mut app, "totals", 10).await, [1, 2]);
    run(&mut app, APPEND).await;
    assert_eq!(poll(&mut app, "totals", 10).await, [0; 0]);
    run(&mut app, "COMMIT").await;
    assert_eq!(cursor(&db, "totals").await, 2);
    assert_eq!(poll(&mut app, "totals", 10).await, [3, 4]);
}

#[tokio::test]
async fn a_call_outside_a_transaction_is_a_round_of_its_own() {
    let (db, mut session) = with_events(3).await;
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
    assert_eq!(cursor(&db, "totals").await, 2);
}

/// The guide warns of it: what the call has returned counts, not what the query keeps of it.
#[tokio::test]
async fn what_the_query_around_the_call_leaves_out_does_not_come_again() {
    let (db, mut session) = with_events(5).await;
    for (query, next) in [
        ("SELECT seq FROM seqline.poll('totals', 2) LIMIT 1", 2),
        ("SELECT seq FROM seqline.poll('totals', 2) WHERE seq > 1000", 4),
    ] {
        sqlx::query(AssertSqlSafe(query)).fetch_all(&mut session).await.unwrap();
        assert_eq!(cursor(&db, "totals").await, next, "{query}");
    }
}

#[tokio::test]
async fn a_batch_goes_on_across_partitions() {
    let db = TestDb::new().await;
    crate::partitions::small_partitions(&db, 3, 5).await;
    append(&db.producer(), 1..=10).await;
    let mut session = session(&db).await;
    register(&mut session, "totals", "2").await;
    assert_eq!(poll(&mut session, "totals", 3).await, [2, 3, 4]);
    assert_eq!(poll(&mut session, "totals", 2).await, [5, 6]);
    assert_eq!(poll(&mut session, "totals", 100).await, [7, 8, 9, 10]);
}

#[tokio::test]
async fn a_consumer_that_is_paused_gets_no_rows_until_it_goes_on() {
    let (db, mut session) = with_events(3).await;
    let mut operator = db.connect(Role::App).await;
    run(&mut operator, "SELECT seqline.set_consumer_paused('totals', true, NULL)").await;
    assert_eq!(poll(&mut session, "totals", 2).await, [] as [i64; 0]);
    assert_eq!(cursor(&db, "totals").await, 0);
    run(&mut operator, "SELECT seqline.set_consumer_paused('totals', false, NULL)").await;
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
}
