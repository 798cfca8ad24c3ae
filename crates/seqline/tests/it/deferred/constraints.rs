//! SET CONSTRAINTS, and triggers of the application that append.

use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::numbering::{backend_pid, hold_numbering_lock, locks_numbering};
use crate::support::{append, assert_nothing_staged, event, log, numbers};

/// Fails if anything has been numbered in this transaction, or the lock for it taken.
const NOT_YET: &str = "DO $$
BEGIN
    IF seqline.head() <> 0 THEN
        RAISE EXCEPTION 'numbered before COMMIT';
    ELSIF EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'seqline.numbering'::regclass) THEN
        RAISE EXCEPTION 'numbering lock taken before COMMIT';
    END IF;
END
$$;";

async fn app_with_put(db: &TestDb) -> PgConnection {
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql(
        "CREATE FUNCTION put(n bigint) RETURNS uuid LANGUAGE sql AS
         $$ SELECT seqline.append('test.happened', jsonb_build_object('n', n), 'test', 'any') $$",
    )
    .execute(&mut app)
    .await
    .unwrap();
    app
}

/// Runs the statements one by one and then all in one string, in a transaction: nothing is numbered before its COMMIT, and
/// then all of it.
async fn assert_numbered_at_commit(statements: &[&str], expected: &[i64]) {
    let script = format!("BEGIN; {}; {NOT_YET} COMMIT", statements.join("; "));
    let one_by_one = [&["BEGIN"][..], statements, &[NOT_YET, "COMMIT"]].concat();
    for strings in [one_by_one, vec![script.as_str()]] {
        let db = TestDb::new().await;
        let mut app = app_with_put(&db).await;
        for string in &strings {
            sqlx::raw_sql(AssertSqlSafe(*string))
                .execute(&mut app)
                .await
                .unwrap_or_else(|error| panic!("{string}: {error}"));
        }
        assert_eq!(numbers(&mut app).await, expected, "{strings:?}");
        append(&db.producer(), [100]).await;
        let seqs: Vec<i64> = log(&mut app).await.iter().map(|(seq, _)| *seq).collect();
        assert!(seqs.iter().copied().eq(1..=i64::try_from(expected.len() + 1).unwrap()), "{seqs:?}");
        assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
    }
}

const IMMEDIATE: &str = "SET CONSTRAINTS ALL IMMEDIATE";
const DEFERRED: &str = "SET CONSTRAINTS ALL DEFERRED";

#[tokio::test]
async fn immediate_constraints_before_an_append_do_not_number_it_early() {
    assert_numbered_at_commit(&[IMMEDIATE, "SELECT put(1)", "SELECT put(2)"], &[1, 2]).await;
}

#[tokio::test]
async fn immediate_constraints_after_an_append_do_not_number_it_early() {
    assert_numbered_at_commit(&["SELECT put(1)", "SELECT put(2)", IMMEDIATE], &[1, 2]).await;
}

#[tokio::test]
async fn immediate_constraints_between_appends_do_not_number_them_early() {
    assert_numbered_at_commit(
        &["SELECT put(1)", IMMEDIATE, "SELECT put(2)", IMMEDIATE, "SELECT put(3)"],
        &[1, 2, 3],
    )
    .await;
}

#[tokio::test]
async fn no_number_of_switches_adds_up_to_a_last_pass() {
    let mut statements = vec!["SELECT put(1)"];
    for _ in 0..10 {
        statements.extend([IMMEDIATE, DEFERRED, IMMEDIATE, IMMEDIATE]);
    }
    statements.push("SELECT put(2)");
    statements.extend([IMMEDIATE; 10]);
    assert_numbered_at_commit(&statements, &[1, 2]).await;
}

#[tokio::test]
async fn a_switch_of_the_trigger_by_its_name_does_not_number_early() {
    let named = "SET CONSTRAINTS seqline.number_at_commit IMMEDIATE";
    assert_numbered_at_commit(&[named, "SELECT put(1)", named, named, "SELECT put(2)", named], &[1, 2]).await;
}

#[tokio::test]
async fn a_switch_in_a_savepoint_that_is_rolled_back_does_not_number_early() {
    assert_numbered_at_commit(
        &[
            "SELECT put(1)",
            "SAVEPOINT a",
            IMMEDIATE,
            "SELECT put(2)",
            IMMEDIATE,
            "ROLLBACK TO a",
            "SELECT put(3)",
            "SAVEPOINT b",
            IMMEDIATE,
            "ROLLBACK TO b",
            IMMEDIATE,
            "SAVEPOINT c",
            IMMEDIATE,
            "SELECT put(4)",
            "RELEASE c",
        ],
        &[1, 3, 4],
    )
    .await;
}

#[tokio::test]
async fn a_first_append_under_immediate_constraints_in_a_rolled_back_savepoint_is_gone() {
    assert_numbered_at_commit(
        &["SAVEPOINT a", IMMEDIATE, "SELECT put(1)", IMMEDIATE, "ROLLBACK TO a", "SELECT put(2)", IMMEDIATE],
        &[2],
    )
    .await;
}

#[tokio::test]
async fn a_switch_inside_a_function_does_not_number_early() {
    let block = "DO $$
    BEGIN
        FOR n IN 1..6 LOOP
            SET CONSTRAINTS ALL IMMEDIATE;
            PERFORM put(n);
            SET CONSTRAINTS ALL IMMEDIATE;
        END LOOP;
    END
    $$";
    assert_numbered_at_commit(&[block], &[1, 2, 3, 4, 5, 6]).await;
}

#[tokio::test]
async fn immediate_constraints_take_no_lock_that_others_wait_for() {
    let db = TestDb::new().await;
    let _holder = hold_numbering_lock(&db).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    for _ in 0..6 {
        // Somebody holds the lock all the time: it would wait, and fail.
        sqlx::raw_sql(IMMEDIATE).execute(&mut *tx).await.unwrap();
    }
    let pid = backend_pid(&mut tx).await;
    assert!(!locks_numbering(&mut tx, pid).await);
}

/// A table `work` whose trigger appends; `%` is how it is declared.
async fn work_that_appends(app: &mut PgConnection, declared: &str) {
    let script = "CREATE TABLE work (n bigint);
         CREATE FUNCTION work_appends() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM put(NEW.n);
             RETURN NULL;
         END
         $$;
         CREATE % FOR EACH ROW EXECUTE FUNCTION work_appends();";
    sqlx::raw_sql(AssertSqlSafe(script.replace('%', declared))).execute(app).await.unwrap();
}

async fn assert_triggers_append(declared: &str, script: &str, expected: &[i64]) {
    let db = TestDb::new().await;
    let mut app = app_with_put(&db).await;
    work_that_appends(&mut app, declared).await;
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut app).await.unwrap();
    assert_eq!(numbers(&mut app).await, expected);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

const AFTER_ROW: &str = "TRIGGER work_appends AFTER INSERT OR UPDATE ON work";
const AT_COMMIT: &str =
    "CONSTRAINT TRIGGER work_appends AFTER INSERT OR UPDATE ON work DEFERRABLE INITIALLY DEFERRED";

#[tokio::test]
async fn an_append_in_a_trigger_counts_where_it_happened() {
    let script = "BEGIN; SELECT put(1); INSERT INTO work VALUES (2), (3); SELECT put(4); COMMIT";
    assert_triggers_append(AFTER_ROW, script, &[1, 2, 3, 4]).await;
}

#[tokio::test]
async fn an_append_in_a_trigger_under_immediate_constraints_is_numbered_at_commit() {
    let script = format!(
        "BEGIN; SET CONSTRAINTS ALL IMMEDIATE; INSERT INTO work VALUES (1); SET CONSTRAINTS ALL IMMEDIATE;
         INSERT INTO work VALUES (2); SET CONSTRAINTS ALL IMMEDIATE; {NOT_YET} COMMIT"
    );
    assert_triggers_append(AFTER_ROW, &script, &[1, 2]).await;
}

#[tokio::test]
async fn an_append_in_a_deferred_trigger_comes_last() {
    let script =
        "BEGIN; INSERT INTO work VALUES (2), (3); SELECT put(1); COMMIT; INSERT INTO work VALUES (4)";
    assert_triggers_append(AT_COMMIT, script, &[1, 2, 3, 4]).await;
}

#[tokio::test]
async fn an_append_in_a_deferred_trigger_made_immediate_is_numbered_at_commit() {
    let script = format!(
        "BEGIN; INSERT INTO work VALUES (1); SET CONSTRAINTS work_appends IMMEDIATE; INSERT INTO work VALUES (2);
         SET CONSTRAINTS ALL IMMEDIATE; {NOT_YET} SELECT put(3); SET CONSTRAINTS ALL DEFERRED;
         INSERT INTO work VALUES (4); COMMIT"
    );
    assert_triggers_append(AT_COMMIT, &script, &[1, 2, 3, 4]).await;
}

#[tokio::test]
async fn a_deferred_trigger_that_switches_constraints_during_commit_changes_nothing() {
    let db = TestDb::new().await;
    let mut app = app_with_put(&db).await;
    sqlx::raw_sql(
        "CREATE TABLE work (n bigint);
         CREATE FUNCTION work_appends() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             SET CONSTRAINTS ALL IMMEDIATE;
             PERFORM put(NEW.n);
             SET CONSTRAINTS ALL IMMEDIATE;
             IF seqline.head() > 0 THEN RAISE EXCEPTION 'numbered early'; END IF;
             RETURN NULL;
         END
         $$;
         CREATE CONSTRAINT TRIGGER work_appends AFTER INSERT ON work
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION work_appends();",
    )
    .execute(&mut app)
    .await
    .unwrap();
    sqlx::raw_sql("BEGIN; SELECT put(1); INSERT INTO work VALUES (2), (3), (4); COMMIT")
        .execute(&mut app)
        .await
        .unwrap();
    assert_eq!(numbers(&mut app).await, [1, 2, 3, 4]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn an_append_that_a_cascading_update_causes_during_commit_is_numbered() {
    let db = TestDb::new().await;
    let mut app = app_with_put(&db).await;
    sqlx::raw_sql("CREATE TABLE parent (id int PRIMARY KEY)").execute(&mut app).await.unwrap();
    work_that_appends(&mut app, "TRIGGER work_appends AFTER UPDATE ON work").await;
    sqlx::raw_sql(
        "ALTER TABLE work ADD COLUMN parent_id int REFERENCES parent ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED;
         INSERT INTO parent VALUES (1); INSERT INTO work VALUES (2, 1), (3, 1);
         BEGIN; UPDATE parent SET id = 7; SELECT put(1); COMMIT",
    )
    .execute(&mut app)
    .await
    .unwrap();
    let mut logged = numbers(&mut app).await;
    logged.sort_unstable();
    assert_eq!(logged, [1, 2, 3]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}
