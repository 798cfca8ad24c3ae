//! Waiting for the numbering lock: how long, on whom, and what is known when it goes wrong.

use seqline::{CommitError, ErrorKind};
use seqline_testkit::{FaultProxy, Role, TestDb, TestServer, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection};

use super::{DEADLINE, backend_pid, hold_numbering_lock, locks_numbering, until_blocked, until_gone};
use crate::support::{append, assert_nothing_staged, event, numbers};

/// A database in which the wait is short, because it is going to be in vain.
async fn impatient() -> TestDb {
    let db = TestDb::at_commit().await;
    sqlx::query("UPDATE seqline.settings SET numbering_lock_timeout_ms = 50")
        .execute(&db.admin())
        .await
        .unwrap();
    db
}

async fn commit_in_vain(db: &TestDb) -> CommitError {
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    seqline::commit(tx).await.unwrap_err()
}

#[tokio::test]
async fn a_wait_in_vain_names_the_session_that_holds_the_lock() {
    let db = impatient().await;
    let mut holder = hold_numbering_lock(&db).await;
    let pid = backend_pid(&mut holder).await;
    let error = commit_in_vain(&db).await;
    let message =
        format!("numbering lock not obtained within 50 ms, held by process {pid} (application 'holder')");
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn a_dump_that_only_reads_is_not_taken_for_the_holder() {
    let db = impatient().await;
    let mut dump = db.connect(Role::Admin).await;
    sqlx::raw_sql("BEGIN; LOCK TABLE seqline.numbering IN ACCESS SHARE MODE")
        .execute(&mut dump)
        .await
        .unwrap();
    let mut holder = hold_numbering_lock(&db).await;
    let mut later_dump = db.connect(Role::Admin).await;
    sqlx::raw_sql("BEGIN; LOCK TABLE seqline.numbering IN ACCESS SHARE MODE")
        .execute(&mut later_dump)
        .await
        .unwrap();
    let pid = backend_pid(&mut holder).await;
    let error = commit_in_vain(&db).await.to_string();
    assert!(error.ends_with(&format!("held by process {pid} (application 'holder')")), "{error}");
}

#[tokio::test]
async fn a_wait_in_vain_can_be_retried_and_had_no_effect() {
    let db = impatient().await;
    let mut holder = hold_numbering_lock(&db).await;
    let error = commit_in_vain(&db).await;
    assert!(matches!(error, CommitError::NumberingLock { .. }), "{error}");
    assert_eq!((error.is_retryable(), error.had_no_effect()), (true, true));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    append(&db.producer(), [2]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_wait_in_vain_has_the_sqlstate_of_a_lock_timeout() {
    let db = impatient().await;
    let _holder = hold_numbering_lock(&db).await;
    let error = sqlx::query("SELECT seqline.append('test.happened', '{}', 'test', 'any')")
        .execute(&db.producer())
        .await
        .unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("55P03"));
    let error = CommitError::from(error);
    assert!(matches!(error, CommitError::NumberingLock { .. }), "{error}");
}

#[tokio::test]
async fn the_session_keeps_its_own_lock_timeout() {
    let db = impatient().await;
    let mut producer = db.connect(Role::Producer).await;
    let shown = async |producer: &mut PgConnection| -> String {
        sqlx::query_scalar("SHOW lock_timeout").fetch_one(producer).await.unwrap()
    };
    sqlx::raw_sql("SET lock_timeout = '1234ms'; SELECT seqline.append('test.happened', '{}', 'test', 'any')")
        .execute(&mut producer)
        .await
        .unwrap();
    assert_eq!(shown(&mut producer).await, "1234ms");
    let _holder = hold_numbering_lock(&db).await;
    let in_vain = sqlx::raw_sql("SELECT seqline.append('test.happened', '{}', 'test', 'any')");
    in_vain.execute(&mut producer).await.unwrap_err();
    assert_eq!(shown(&mut producer).await, "1234ms");
}

#[tokio::test]
async fn a_lock_timeout_of_the_session_does_not_shorten_the_wait() {
    let db = TestDb::at_commit().await;
    let mut holder = hold_numbering_lock(&db).await;
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    sqlx::raw_sql("SET LOCAL lock_timeout = '1ms'").execute(&mut *tx).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    let pid = backend_pid(&mut tx).await;
    let commit = tokio::spawn(seqline::commit(tx));
    until_blocked(&db.admin(), pid).await;
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    commit.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_unit_that_waited_goes_on_where_the_other_has_stopped() {
    let db = TestDb::at_commit().await;
    // Keeps a unit in COMMIT, when it has its numbers, until the test lets it go.
    sqlx::raw_sql(
        "CREATE TABLE slow (pass int NOT NULL DEFAULT 0);
         CREATE FUNCTION wait_late() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF NEW.pass < 20 THEN
                 UPDATE slow SET pass = NEW.pass + 1 WHERE ctid = NEW.ctid;
             ELSE
                 PERFORM pg_advisory_xact_lock(1);
             END IF;
             RETURN NULL;
         END
         $$;
         CREATE CONSTRAINT TRIGGER wait_late AFTER INSERT OR UPDATE ON slow
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_late();",
    )
    .execute(&db.app())
    .await
    .unwrap();
    let mut gate = db.connect(Role::App).await;
    sqlx::raw_sql("SELECT pg_advisory_lock(1)").execute(&mut gate).await.unwrap();

    let mut first = seqline::begin(&db.app()).await.unwrap();
    sqlx::raw_sql("INSERT INTO slow DEFAULT VALUES").execute(&mut *first).await.unwrap();
    seqline::append(&mut first, &[event(1), event(2)]).await.unwrap();
    let first_pid = backend_pid(&mut first).await;
    let first = tokio::spawn(seqline::commit(first));
    until_blocked(&db.admin(), first_pid).await;
    assert!(locks_numbering(&mut gate, first_pid).await);

    let mut second = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut second, &[event(3)]).await.unwrap();
    let second_pid = backend_pid(&mut second).await;
    let second = tokio::spawn(seqline::commit(second));
    until_blocked(&db.admin(), second_pid).await;

    gate.close().await.unwrap();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3]);
}

#[tokio::test]
async fn an_open_transaction_that_appended_does_not_hold_the_lock() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1), event(2)]).await.unwrap();
    let pid = backend_pid(&mut tx).await;
    assert!(!locks_numbering(&mut tx, pid).await);
    append(&db.app(), [3]).await;
    seqline::commit(tx).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [3, 1, 2]);
}

#[tokio::test]
async fn a_backend_terminated_while_it_waits_leaves_the_outcome_unknown_to_its_client() {
    let db = TestDb::at_commit().await;
    let mut holder = hold_numbering_lock(&db).await;
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    let pid = backend_pid(&mut tx).await;
    let commit = tokio::spawn(seqline::commit(tx));
    until_blocked(&db.admin(), pid).await;
    sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(&db.admin()).await.unwrap();
    let error = commit.await.unwrap().unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error}");
    assert_eq!((error.is_retryable(), error.had_no_effect()), (false, false));
    until_gone(&db.admin(), pid).await;
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    append(&db.producer(), [2]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_connection_cut_during_commit_leaves_the_outcome_unknown_and_the_commit_may_happen() {
    let db = TestDb::at_commit().await;
    let port = TestServer::shared().await.postgres().port();
    let proxy = FaultProxy::start(([127, 0, 0, 1], port).into()).await.unwrap();
    let options = db.options(Role::Producer).host("127.0.0.1").port(proxy.addr().port());
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut holder = hold_numbering_lock(&db).await;
    let mut tx = seqline::begin(&pool).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    let pid = backend_pid(&mut tx).await;
    let commit = tokio::spawn(seqline::commit(tx));
    until_blocked(&db.admin(), pid).await;
    proxy.cut();
    let error = commit.await.unwrap().unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error}");
    assert!(!error.is_retryable() && !error.had_no_effect());
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    let mut reader = db.connect(Role::Reader).await;
    eventually(DEADLINE, "the commit whose client was cut off", async || {
        seqline::read::head(&mut reader).await.unwrap() == 1
    })
    .await;
}
