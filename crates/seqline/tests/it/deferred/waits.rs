//! A COMMIT that waits for an idle client's row lock holds nobody else up.

use seqline::CommitError;
use seqline_testkit::{Role, TestDb};
use sqlx::{PgPool, PgTransaction};
use tokio::task::JoinHandle;

use crate::numbering::{backend_pid, locks_numbering, until_blocked};
use crate::support::{append, assert_nothing_staged, event, numbers};

/// Table `child` refers to `parent` by a deferred foreign key (depth 1); a deferred trigger of `note` inserts into `child`
/// (depth 2). Parent 1 exists.
async fn create_tables(app: &PgPool) {
    sqlx::raw_sql(
        "CREATE TABLE parent (id int PRIMARY KEY, note text);
         INSERT INTO parent VALUES (1), (2);
         CREATE TABLE child (parent_id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE note (parent_id int);
         CREATE FUNCTION note_to_child() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO child VALUES (NEW.parent_id);
             RETURN NULL;
         END
         $$;
         CREATE CONSTRAINT TRIGGER note_to_child AFTER INSERT ON note
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note_to_child();",
    )
    .execute(app)
    .await
    .unwrap();
}

/// A client that holds the row lock of parent 1 and does nothing.
async fn idle(app: &PgPool) -> PgTransaction<'static> {
    let mut idle = seqline::begin(app).await.unwrap();
    sqlx::raw_sql("SELECT FROM parent WHERE id = 1 FOR UPDATE").execute(&mut *idle).await.unwrap();
    idle
}

/// A unit with event 1 and these statements before and after it, whose COMMIT waits for the idle client.
async fn commit_that_waits(
    db: &TestDb,
    before: &'static str,
    after: &'static str,
) -> JoinHandle<Result<(), CommitError>> {
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    sqlx::raw_sql(before).execute(&mut *tx).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    sqlx::raw_sql(after).execute(&mut *tx).await.unwrap();
    let pid = backend_pid(&mut tx).await;
    let commit = tokio::spawn(seqline::commit(tx));
    until_blocked(&db.admin(), pid).await;
    assert!(
        !locks_numbering(&mut db.connect(Role::Admin).await, pid).await,
        "it waits without the numbering lock"
    );
    commit
}

/// Others append while the idle client keeps the first unit waiting; that one comes later, whole.
async fn assert_others_go_on(before: &'static str, after: &'static str) {
    let db = TestDb::new().await;
    create_tables(&db.app()).await;
    let idle = idle(&db.app()).await;
    let waiting = commit_that_waits(&db, before, after).await;
    append(&db.producer(), [2]).await;
    append(&db.producer(), [3]).await;
    idle.rollback().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2, 3, 1]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

const CHILD: &str = "INSERT INTO child VALUES (1)";
const NOTE: &str = "INSERT INTO note VALUES (1)";

#[tokio::test]
async fn an_idle_client_that_a_deferred_foreign_key_waits_for_stops_nobody_else() {
    assert_others_go_on("", CHILD).await;
}

#[tokio::test]
async fn nor_when_the_append_came_after_the_row() {
    assert_others_go_on(CHILD, "").await;
}

#[tokio::test]
async fn nor_when_a_deferred_trigger_writes_the_row() {
    assert_others_go_on("", NOTE).await;
}

#[tokio::test]
async fn nor_when_a_deferred_trigger_writes_the_row_and_the_append_came_after() {
    assert_others_go_on(NOTE, "").await;
}

#[tokio::test]
async fn nor_when_constraints_were_immediate_for_a_while() {
    assert_others_go_on(
        "SET CONSTRAINTS ALL IMMEDIATE",
        "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED; INSERT INTO note VALUES (1)",
    )
    .await;
}

#[tokio::test]
async fn nor_when_there_are_many_rows() {
    assert_others_go_on(
        "INSERT INTO note SELECT 2 FROM generate_series(1, 50); INSERT INTO note VALUES (1)",
        NOTE,
    )
    .await;
}

/// The idle client appends itself, while the other waits for its row lock.
async fn assert_no_deadlock(row: &'static str) {
    let db = TestDb::new().await;
    create_tables(&db.app()).await;
    let mut idle = idle(&db.app()).await;
    let waiting = commit_that_waits(&db, "", row).await;
    seqline::append(&mut idle, &[event(2)]).await.unwrap();
    seqline::commit(idle).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2, 1]);
}

#[tokio::test]
async fn a_client_that_appends_while_a_deferred_foreign_key_waits_for_it_is_no_deadlock() {
    assert_no_deadlock(CHILD).await;
}

#[tokio::test]
async fn a_client_that_appends_while_a_deferred_trigger_waits_for_it_is_no_deadlock() {
    assert_no_deadlock(NOTE).await;
}
