//! What is rolled back was never there: no event, no number, no hole.

use seqline::CommitError;
use seqline_testkit::{Role, TestDb};
use sqlx::AssertSqlSafe;

use super::create_late_refusal;
use crate::support::{append, assert_nothing_staged, event, head, log, numbers};

/// Runs this script as the application, then appends one more event, and asserts what is in the log.
async fn assert_logged(script: &str, expected: &[i64]) {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql(
        "CREATE FUNCTION put(n bigint) RETURNS uuid LANGUAGE sql AS
         $$ SELECT seqline.append('test.happened', jsonb_build_object('n', n), 'test', 'any') $$",
    )
    .execute(&mut app)
    .await
    .unwrap();
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut app).await.unwrap();
    append(&db.producer(), [100]).await;
    let expected: Vec<i64> = expected.iter().copied().chain([100]).collect();
    assert_eq!(numbers(&mut app).await, expected);
    let seqs: Vec<i64> = log(&mut app).await.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=i64::try_from(expected.len()).unwrap()).collect::<Vec<_>>());
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_rolled_back_append_is_never_seen() {
    assert_logged("BEGIN; SELECT put(1); SELECT put(2); ROLLBACK", &[]).await;
}

#[tokio::test]
async fn a_dropped_transaction_is_never_seen() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    drop(tx);
    append(&db.app(), [2]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2]);
}

#[tokio::test]
async fn a_savepoint_rolled_back_takes_its_appends_with_it() {
    assert_logged(
        "BEGIN; SELECT put(1); SAVEPOINT a; SELECT put(2); ROLLBACK TO a; SELECT put(3); COMMIT",
        &[1, 3],
    )
    .await;
}

#[tokio::test]
async fn a_first_append_in_a_savepoint_that_is_rolled_back_is_never_seen() {
    assert_logged("BEGIN; SAVEPOINT a; SELECT put(1); ROLLBACK TO a; COMMIT", &[]).await;
}

#[tokio::test]
async fn appends_go_on_after_the_first_was_rolled_back_with_its_savepoint() {
    assert_logged(
        "BEGIN; SAVEPOINT a; SELECT put(1); ROLLBACK TO a; SELECT put(2); SAVEPOINT b; SELECT put(3); RELEASE b; COMMIT",
        &[2, 3],
    )
    .await;
}

#[tokio::test]
async fn a_released_savepoint_keeps_its_appends() {
    assert_logged(
        "BEGIN; SAVEPOINT a; SELECT put(1); SAVEPOINT b; SELECT put(2); RELEASE a; SELECT put(3); COMMIT",
        &[1, 2, 3],
    )
    .await;
}

#[tokio::test]
async fn an_outer_savepoint_rolled_back_takes_a_released_inner_one_with_it() {
    assert_logged(
        "BEGIN; SELECT put(1); SAVEPOINT a; SELECT put(2); SAVEPOINT b; SELECT put(3); RELEASE b; ROLLBACK TO a;
         SELECT put(4); SAVEPOINT c; SELECT put(5); ROLLBACK TO c; ROLLBACK TO c; SELECT put(6); COMMIT",
        &[1, 4, 6],
    )
    .await;
}

#[tokio::test]
async fn a_caught_exception_takes_the_appends_of_its_block_with_it() {
    assert_logged(
        "DO $$
         BEGIN
             BEGIN
                 PERFORM put(1);
                 RAISE EXCEPTION 'caught';
             EXCEPTION WHEN raise_exception THEN
                 PERFORM put(2);
             END;
             FOR n IN 3..8 LOOP
                 BEGIN
                     PERFORM put(n);
                     BEGIN
                         PERFORM put(10 + n);
                         PERFORM 1 / (n % 2);
                     EXCEPTION WHEN division_by_zero THEN NULL;
                     END;
                     PERFORM 1 / (n % 3);
                 EXCEPTION WHEN division_by_zero THEN NULL;
                 END;
             END LOOP;
         END
         $$",
        &[2, 4, 5, 15, 7, 17, 8],
    )
    .await;
}

#[tokio::test]
async fn a_refused_append_does_not_disturb_others_of_the_same_transaction() {
    assert_logged(
        "DO $$
         BEGIN
             PERFORM put(1);
             BEGIN
                 PERFORM seqline.append('Wrong', '{}', 'test', 'any');
             EXCEPTION WHEN invalid_parameter_value THEN NULL;
             END;
             PERFORM put(2);
         END
         $$",
        &[1, 2],
    )
    .await;
}

#[tokio::test]
async fn a_rollback_after_numbering_leaves_no_hole() {
    let db = TestDb::new().await;
    create_late_refusal(&db).await;
    for n in 1..=3 {
        append(&db.app(), [n]).await;
        let mut tx = seqline::begin(&db.app()).await.unwrap();
        sqlx::query("INSERT INTO late DEFAULT VALUES").execute(&mut *tx).await.unwrap();
        seqline::append(&mut tx, &[event(10), event(11)]).await.unwrap();
        let error = seqline::commit(tx).await.unwrap_err();
        assert!(error.to_string().contains("refused after numbering"), "{error}");
        assert!(error.had_no_effect() && !error.is_retryable());
    }
    append(&db.app(), [4]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3, 4]);
    assert_eq!(head(&db).await, 4);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_failed_commit_leaves_its_numbers_to_the_next() {
    let db = TestDb::new().await;
    sqlx::raw_sql("CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (p int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
        .execute(&db.app())
        .await
        .unwrap();
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    sqlx::query("INSERT INTO child VALUES (1)").execute(&mut *tx).await.unwrap();
    let error = seqline::commit(tx).await.unwrap_err();
    assert!(error.to_string().contains("foreign key"), "{error}");
    append(&db.app(), [2]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2]);
}

#[tokio::test]
async fn a_commit_of_a_transaction_that_already_failed_is_not_acknowledged() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    // Somebody swallows an error: PostgreSQL turns the COMMIT into a rollback and reports no error.
    sqlx::query("SELECT 1 / 0").execute(&mut *tx).await.unwrap_err();
    let error = seqline::commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::AlreadyFailed), "{error}");
    assert!(error.had_no_effect());
}
