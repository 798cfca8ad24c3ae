//! The way to number is changed while transactions are open.

use seqline::settings::{Sequencing, settings};
use seqline_testkit::{Role, TestDb};
use sqlx::{Connection, PgConnection};

use super::{change, sequencer, settled};
use crate::support::{append, event, numbers};

async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

const APPEND: &str =
    "SELECT seqline.append('test.happened', jsonb_build_object('n', $1::bigint), 'test', 'any')";

async fn append_in(connection: &mut PgConnection, n: i64) {
    sqlx::query(APPEND).bind(n).execute(connection).await.unwrap();
}

async fn logged(db: &TestDb) -> Vec<i64> {
    numbers(&mut db.connect(Role::Reader).await).await
}

#[tokio::test]
async fn a_transaction_goes_by_the_way_that_holds_when_it_commits() {
    let db = TestDb::at_commit().await;
    let mut open = db.connect(Role::Producer).await;
    run(&mut open, "BEGIN").await;
    append_in(&mut open, 1).await;
    let changed = change(&db, Sequencing::AfterCommit).await;
    assert!(changed.changed && changed.complete);
    append_in(&mut open, 2).await;
    run(&mut open, "COMMIT").await;
    assert_eq!(
        logged(&db).await,
        [0; 0],
        "it waits for a sequencer, with what it appended before the change"
    );
    run(&mut open, "BEGIN").await;
    append_in(&mut open, 3).await;

    let changed = change(&db, Sequencing::AtCommit).await;
    assert_eq!((changed.changed, changed.drained, changed.complete), (true, 2, true));
    assert_eq!(logged(&db).await, [1, 2]);
    append_in(&mut open, 4).await;
    run(&mut open, "COMMIT").await;
    assert_eq!(logged(&db).await, [1, 2, 3, 4], "what it staged before the change too, in order");
    assert!(!settings(&mut db.connect(Role::App).await).await.unwrap().staging_open);
}

#[tokio::test]
async fn a_change_to_what_is_set_is_none_and_each_change_is_recorded() {
    let db = TestDb::at_commit().await;
    assert!(!change(&db, Sequencing::AtCommit).await.changed);
    let mut app = db.connect(Role::App).await;
    for sequencing in [Sequencing::AfterCommit, Sequencing::AfterCommit, Sequencing::AtCommit] {
        seqline::settings::set_sequencing(&mut app, sequencing, Some("a long import")).await.unwrap();
    }
    let audit: Vec<(String, String, String, Option<String>)> = sqlx::query_as(
        "SELECT action, before #>> '{}', after #>> '{}', why FROM seqline.audit_log ORDER BY id",
    )
    .fetch_all(&mut app)
    .await
    .unwrap();
    let row = |before: &str, after: &str| {
        (
            "settings.sequencing".to_owned(),
            before.to_owned(),
            after.to_owned(),
            Some("a long import".to_owned()),
        )
    };
    assert_eq!(audit, [row("at_commit", "after_commit"), row("after_commit", "at_commit")]);
}

#[tokio::test]
async fn a_backlog_is_numbered_in_batches_before_anybody_numbers_at_commit() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let pool = db.producer();
    for n in 0..30 {
        append(&pool, n * 100..(n + 1) * 100).await;
    }
    let changed = change(&db, Sequencing::AtCommit).await;
    assert_eq!((changed.drained, changed.complete), (3_000, true));
    append(&pool, [3_000]).await;
    assert_eq!(logged(&db).await, (0..=3_000).collect::<Vec<i64>>());
}

/// Prepared, it has its place in the order, and may come at any time.
#[tokio::test]
async fn a_commit_after_the_change_first_numbers_what_was_staged_before_it() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let mut prepared = db.connect(Role::Producer).await;
    run(&mut prepared, "BEGIN").await;
    append_in(&mut prepared, 1).await;
    run(&mut prepared, "PREPARE TRANSACTION 'late'").await;

    let changed = change(&db, Sequencing::AtCommit).await;
    assert!(changed.changed && !changed.complete, "one that stages is open");
    append(&db.producer(), [2]).await;
    run(&mut prepared, "COMMIT PREPARED 'late'").await;
    // It has seen the other one's end, so it comes after it.
    append(&db.producer(), [3]).await;
    assert_eq!(logged(&db).await, [2, 1, 3]);

    // Nobody stages any more: the sequencer finds that out.
    let _sequencer = sequencer(&db);
    let app = db.app();
    seqline_testkit::eventually(std::time::Duration::from_secs(20), "staging is closed", async || {
        !settings(&mut app.acquire().await.unwrap()).await.unwrap().staging_open
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_of_before_the_change_cannot_stage_behind_it() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let mut old = db.connect(Role::Producer).await;
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    sqlx::query("SELECT count(*) FROM pg_class").execute(&mut old).await.unwrap();
    assert!(change(&db, Sequencing::AtCommit).await.complete);
    // In its snapshot events wait for a sequencer.
    append_in(&mut old, 1).await;
    let error = sqlx::raw_sql("COMMIT").execute(&mut old).await.unwrap_err();
    let error = error.as_database_error().unwrap();
    assert_eq!(error.code().unwrap(), "40001");
    assert_eq!(
        error.message(),
        "the log was made read only, or numbering changed to at_commit, after this transaction began"
    );
    old.close().await.unwrap();
    append(&db.producer(), [2]).await;
    assert_eq!(logged(&db).await, [2]);
}

/// Deferred work so deep that it comes after the last pass: it waits for a row, and appends events 2 to 4, each in another form.
const DEEP: &str = "
        CREATE TABLE rows (id integer PRIMARY KEY, n integer);
        INSERT INTO rows VALUES (1, 0);
        CREATE TABLE deep (depth integer);
        CREATE FUNCTION deeper() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.depth > 0 THEN
                INSERT INTO deep VALUES (NEW.depth - 1);
            ELSE
                UPDATE rows SET n = n + 1;
                PERFORM seqline.append('test.happened', '{\"n\": 2}', 'test', 'any');
                PERFORM seqline.append('test.happened', '{\"n\": 3}', 'test', 'any');
                PERFORM seqline.append('test.happened', '{\"n\": 4}', 'test', 'any', id => gen_random_uuid());
            END IF;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER deeper AFTER INSERT ON deep DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION deeper();
        GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC";

/// Appends event 1 and commits; returns when it waits for the row.
async fn commit_deep(db: &TestDb) -> tokio::task::JoinHandle<Result<(), sqlx::Error>> {
    let mut late = db.connect(Role::App).await;
    run(&mut late, "BEGIN; INSERT INTO deep VALUES (8)").await;
    append_in(&mut late, 1).await;
    let committing = tokio::spawn(async move { sqlx::raw_sql("COMMIT").execute(&mut late).await.map(drop) });
    let admin = db.admin();
    seqline_testkit::eventually(
        std::time::Duration::from_secs(20),
        "the other waits for the row",
        async || {
            let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN
                   (SELECT pid FROM pg_stat_activity WHERE datname = current_database())";
            sqlx::query_scalar::<_, i64>(sql).fetch_one(&admin).await.unwrap() == 1
        },
    )
    .await;
    committing
}

/// Something of the application that comes even after the last pass appends once more, after it has waited.
#[tokio::test]
async fn a_transaction_that_appends_after_its_last_pass_draws_its_place_again() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    sqlx::raw_sql(DEEP).execute(&db.admin()).await.unwrap();
    let mut first = seqline::begin(&db.app()).await.unwrap();
    sqlx::raw_sql("UPDATE rows SET n = n + 1").execute(&mut *first).await.unwrap();

    let committing = commit_deep(&db).await;
    // It has drawn by now, and waits. Whoever it waits for draws later and comes before it.
    seqline::append(&mut first, &[event(0)]).await.unwrap();
    first.commit().await.unwrap();
    committing.await.unwrap().unwrap();
    let _sequencer = sequencer(&db);
    settled(&db).await;
    assert_eq!(logged(&db).await, [0, 1, 2, 3, 4]);
}

/// Whoever numbers what waits does not see everything at once: one that it did not see can have been waited for by one that it sees later.
#[tokio::test]
async fn what_appears_while_others_are_numbered_keeps_its_place() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let mut producer = db.connect(Role::Producer).await;
    run(&mut producer, "BEGIN").await;
    append_in(&mut producer, 1).await;
    run(&mut producer, "PREPARE TRANSACTION 'first'").await;
    append(&db.producer(), [0]).await;
    // At commit and back, while somebody waits inside COMMIT who was to number there. Without what the command does besides.
    let mut admin = db.connect(Role::Admin).await;
    run(&mut admin, "SELECT seqline.set_sequencing('at_commit', NULL)").await;
    run(&mut admin, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let mut holds = db.connect(Role::Admin).await;
    run(&mut holds, "BEGIN; LOCK TABLE seqline.event_log_from_0000000000000000001 IN SHARE MODE").await;
    let waiter = db.producer();
    let numbers_others = tokio::spawn(async move { append(&waiter, [3]).await });
    let pool = db.admin();
    let waits_for = async |table: &str| {
        let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass";
        sqlx::query_scalar::<_, i64>(sql).bind(table).fetch_one(&pool).await.unwrap() == 1
    };
    let soon = std::time::Duration::from_secs(20);
    seqline_testkit::eventually(soon, "it waits to number", async || waits_for("seqline.numbering").await)
        .await;
    run(&mut admin, "SELECT seqline.set_sequencing('after_commit', NULL); COMMIT").await;
    let partition = "seqline.event_log_from_0000000000000000001";
    seqline_testkit::eventually(soon, "it has looked, and writes", async || waits_for(partition).await).await;

    run(&mut producer, "COMMIT PREPARED 'first'").await;
    // Began when the other had ended.
    append(&db.producer(), [2]).await;
    run(&mut holds, "COMMIT").await;
    numbers_others.await.unwrap();
    let _sequencer = sequencer(&db);
    settled(&db).await;
    assert_eq!(logged(&db).await, [0, 3, 1, 2]);
}

#[tokio::test]
async fn a_transaction_that_was_staged_and_is_then_numbered_stays_in_one_piece() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    sqlx::raw_sql(DEEP).execute(&db.admin()).await.unwrap();
    let mut row = seqline::begin(&db.app()).await.unwrap();
    sqlx::raw_sql("UPDATE rows SET n = n + 1").execute(&mut *row).await.unwrap();
    let committing = commit_deep(&db).await;
    let mut prepared = db.connect(Role::Producer).await;
    run(&mut prepared, "BEGIN").await;
    append_in(&mut prepared, 7).await;
    run(&mut prepared, "PREPARE TRANSACTION 'between'").await;
    assert!(!change(&db, Sequencing::AtCommit).await.complete);
    run(&mut prepared, "COMMIT PREPARED 'between'").await;
    row.rollback().await.unwrap();
    committing.await.unwrap().unwrap();
    append(&db.producer(), [8]).await;
    assert_eq!(logged(&db).await, [7, 1, 2, 3, 4, 8]);
}
