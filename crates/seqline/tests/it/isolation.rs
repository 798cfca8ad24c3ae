//! Isolation levels, read-only and prepared transactions: what can be numbered at COMMIT and what is refused at once.

use futures_util::future::join_all;
use seqline::{AppendError, ErrorKind};
use seqline_testkit::{Role, TestDb};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};

use crate::support::{append, assert_nothing_staged, event, numbers};

const PUT: &str = "SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any')";
const PUT_BATCH: &str = "SELECT seqline.append_batch('[{\"type\": \"test.happened\", \"payload\": {\"n\": 1}, \
                         \"resource_kind\": \"test\", \"receive_action\": \"any\"}]')";

async fn assert_refused(level: &str, begin: &[&'static str], append: &'static str, db: &TestDb) {
    let mut producer = db.connect(Role::Producer).await;
    for statement in begin {
        sqlx::raw_sql(*statement).execute(&mut producer).await.unwrap();
    }
    let error = sqlx::raw_sql(append).execute(&mut producer).await.unwrap_err();
    let pg: &sqlx::postgres::PgDatabaseError = error.as_database_error().unwrap().downcast_ref();
    let message = format!("append needs isolation level read committed, this transaction is {level}");
    assert_eq!((pg.code(), pg.message()), ("0A000", message.as_str()));
    let hint = "Begin the transaction with ISOLATION LEVEL READ COMMITTED, or number after commit: seqline settings \
                sequencing after_commit.";
    assert_eq!(pg.hint(), Some(hint));
}

#[tokio::test]
async fn a_stricter_level_is_refused_at_the_append() {
    let db = TestDb::at_commit().await;
    for append in [PUT, PUT_BATCH] {
        assert_refused("repeatable read", &["BEGIN ISOLATION LEVEL REPEATABLE READ"], append, &db).await;
        assert_refused("serializable", &["BEGIN ISOLATION LEVEL SERIALIZABLE"], append, &db).await;
    }
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_stricter_level_by_default_is_refused_too() {
    let db = TestDb::at_commit().await;
    let serializable = ["SET default_transaction_isolation = serializable", "BEGIN"];
    assert_refused("serializable", &serializable, PUT, &db).await;
    assert_refused("repeatable read", &["SET default_transaction_isolation = 'repeatable read'"], PUT, &db)
        .await;
}

#[tokio::test]
async fn any_level_will_do_where_events_are_numbered_after_commit() {
    let db = TestDb::after_commit().await;
    let mut producer = db.connect(Role::Producer).await;
    for (level, append) in [("REPEATABLE READ", PUT), ("SERIALIZABLE", PUT_BATCH)] {
        let script = format!("BEGIN ISOLATION LEVEL {level}; SELECT 1; {PUT}; {append}; COMMIT");
        sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut producer).await.unwrap();
    }
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1; 4]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

/// With an older snapshot it could not be seen whether the id is in the log.
#[tokio::test]
async fn an_id_of_the_callers_own_needs_read_committed_in_both_ways_to_number() {
    let append = format!("{}, id => gen_random_uuid())", PUT.trim_end_matches(')'));
    let batch = PUT_BATCH.replace("[{", "[{\"id\": \"01980000-0000-7000-8000-000000000001\", ");
    let at_commit = "append needs isolation level read committed, this transaction is serializable";
    let after_commit =
        "an id of the caller's own needs isolation level read committed, this transaction is serializable";
    for (db, message) in
        [(TestDb::at_commit().await, at_commit), (TestDb::after_commit().await, after_commit)]
    {
        for append in [&append, &batch] {
            let mut producer = db.connect(Role::Producer).await;
            sqlx::raw_sql("BEGIN ISOLATION LEVEL SERIALIZABLE").execute(&mut producer).await.unwrap();
            let error =
                sqlx::raw_sql(AssertSqlSafe(append.as_str())).execute(&mut producer).await.unwrap_err();
            let pg: &sqlx::postgres::PgDatabaseError = error.as_database_error().unwrap().downcast_ref();
            assert_eq!((pg.code(), pg.message()), ("0A000", message), "{append}");
            let error = AppendError::from(error);
            assert!(matches!(error, AppendError::Isolation { .. }), "{error:?}");
            assert_eq!(error.to_string(), message);
        }
        let mut producer = db.connect(Role::Producer).await;
        for append in [&append, &batch] {
            let script = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {append}; COMMIT");
            sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut producer).await.unwrap();
        }
        assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 1]);
    }
}

#[tokio::test]
async fn a_prepared_transaction_gets_its_numbers_when_it_is_committed_where_that_comes_after_commit() {
    let db = TestDb::after_commit().await;
    let mut producer = db.connect(Role::Producer).await;
    let name = db.name();
    for (n, end) in [(0, "ROLLBACK PREPARED"), (1, "COMMIT PREPARED")] {
        let script = format!("BEGIN; {PUT}; PREPARE TRANSACTION '{name}'");
        sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut producer).await.unwrap();
        append(&db.producer(), [2 + n]).await;
        let end = format!("{end} '{name}'");
        sqlx::raw_sql(AssertSqlSafe(end)).execute(&mut producer).await.unwrap();
    }
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2, 3, 1]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

/// A pool whose sessions have this setting.
fn pool_with(db: &TestDb, setting: (&str, &str)) -> PgPool {
    PgPoolOptions::new().max_connections(1).connect_lazy_with(db.options(Role::Producer).options([setting]))
}

#[tokio::test]
async fn the_library_names_the_refusal_of_a_level() {
    let db = TestDb::at_commit().await;
    let pool = pool_with(&db, ("default_transaction_isolation", "serializable"));
    let mut tx = seqline::begin(&pool).await.unwrap();
    let error = seqline::append(&mut tx, &[event(1)]).await.unwrap_err();
    assert!(matches!(error, AppendError::Isolation { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "append needs isolation level read committed, this transaction is serializable"
    );
    assert_eq!((error.is_retryable(), error.had_no_effect()), (false, true));
}

#[tokio::test]
async fn read_committed_asked_for_overrides_a_stricter_default() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    sqlx::raw_sql("SET default_transaction_isolation = serializable").execute(&mut producer).await.unwrap();
    let script = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {PUT}; COMMIT");
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut producer).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1]);
}

#[tokio::test]
async fn read_uncommitted_is_accepted() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let script = format!("BEGIN ISOLATION LEVEL READ UNCOMMITTED; {PUT}; {PUT}; COMMIT");
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut producer).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 1]);
}

#[tokio::test]
async fn a_read_only_transaction_cannot_append() {
    let db = TestDb::new().await;
    let pool = pool_with(&db, ("default_transaction_read_only", "on"));
    let mut tx = seqline::begin(&pool).await.unwrap();
    let error = seqline::append(&mut tx, &[event(1)]).await.unwrap_err();
    let AppendError::Database(database) = &error else { panic!("{error:?}") };
    assert_eq!(database.sqlstate(), Some("25006"), "{error}");
    // A server that follows another one answers the same, and another connection may lead to one that takes writes.
    assert!(database.is_read_only_server());
    assert_eq!((error.is_retryable(), error.kind()), (true, ErrorKind::Unavailable));
}

/// What a prepared transaction would keep.
async fn assert_nothing_prepared(db: &TestDb) {
    let left: (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()),
                (SELECT count(*) FROM pg_locks WHERE relation = 'seqline.numbering'::regclass
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert_eq!(left, (0, 0), "prepared transactions and numbering locks");
}

#[tokio::test]
async fn a_prepared_transaction_cannot_take_the_numbering_lock_with_it() {
    let db = TestDb::at_commit().await;
    let mut producer = db.connect(Role::Producer).await;
    sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {PUT}"))).execute(&mut producer).await.unwrap();
    let name = format!("PREPARE TRANSACTION '{}'", db.name());
    let error = sqlx::raw_sql(AssertSqlSafe(name)).execute(&mut producer).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("0A000"), "{error}");
    assert_nothing_prepared(&db).await;
    append(&db.producer(), [2]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn immediate_constraints_do_not_let_a_transaction_be_prepared() {
    let db = TestDb::at_commit().await;
    let mut producer = db.connect(Role::Producer).await;
    let script = format!("BEGIN; {PUT}; SET CONSTRAINTS ALL IMMEDIATE; PREPARE TRANSACTION '{}'", db.name());
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut producer).await.unwrap_err();
    assert_nothing_prepared(&db).await;
    append(&db.producer(), [2]).await;
}

#[tokio::test]
async fn a_prepared_transaction_whose_appends_were_rolled_back_stops_nobody() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let name = db.name();
    let script = format!("BEGIN; SAVEPOINT a; {PUT}; ROLLBACK TO a; PREPARE TRANSACTION '{name}'");
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut producer).await.unwrap();
    append(&db.producer(), [2]).await;
    sqlx::raw_sql(AssertSqlSafe(format!("COMMIT PREPARED '{name}'"))).execute(&mut producer).await.unwrap();
    append(&db.producer(), [3]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [2, 3]);
}

#[tokio::test]
async fn a_serializable_neighbour_is_not_disturbed_by_appenders() {
    let db = TestDb::new().await;
    let app = db.app_pool(8);
    sqlx::raw_sql("CREATE TABLE report (id int PRIMARY KEY, events bigint); INSERT INTO report SELECT generate_series(1, 8), 0")
        .execute(&app)
        .await
        .unwrap();
    let appenders = join_all((0..4).map(|n| {
        let app = app.clone();
        async move {
            for _ in 0..30 {
                append(&app, [n, n]).await;
            }
        }
    }));
    // Reads the log and writes a row of its own; nothing but an appender could make it fail.
    let neighbour = async {
        for _ in 0..30 {
            let mut tx = seqline::begin(&app).await.unwrap();
            sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").execute(&mut *tx).await.unwrap();
            sqlx::query("UPDATE report SET events = (SELECT count(*) FROM seqline.event_log) WHERE id = 1")
                .execute(&mut *tx)
                .await
                .unwrap();
            seqline::commit(tx).await.unwrap();
        }
    };
    tokio::join!(appenders, neighbour);
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await.len(), 240);
}
