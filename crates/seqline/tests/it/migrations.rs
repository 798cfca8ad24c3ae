//! The schema and its versions: from nothing, again, at once, by hand, and the refusals, which change nothing.

mod refusals;
mod rights;
mod script;

use std::time::Duration;

use seqline::migrate::{MigrateError, Migrated, migrate, newest_version};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;

use crate::support::{append, numbers};

const DEADLINE: Duration = Duration::from_secs(60);

/// What the second and every further run reports.
fn current() -> Migrated {
    Migrated { from: newest_version(), to: newest_version(), partitions_created: 0 }
}

/// Everything in the schema, as text: relations with columns, constraints, indexes, functions, triggers, types, rights.
async fn catalog(connection: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar(
        "WITH ns AS (SELECT oid FROM pg_namespace WHERE nspname = 'seqline')
         SELECT format('schema %s %s', nspowner::regrole, nspacl) FROM pg_namespace WHERE nspname = 'seqline'
         UNION ALL
         SELECT format('relation %s %s %s %s %s %s', relname, relkind, relpersistence, relowner::regrole, relacl, reloptions)
         FROM pg_class WHERE relnamespace IN (SELECT oid FROM ns)
         UNION ALL
         SELECT format('column %s.%s %s %s %s %s %s %s', c.relname, a.attnum, a.attname,
             format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attacl, pg_get_expr(d.adbin, d.adrelid))
         FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE c.relnamespace IN (SELECT oid FROM ns) AND a.attnum > 0 AND NOT a.attisdropped
         UNION ALL
         SELECT format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
         FROM pg_constraint WHERE connamespace IN (SELECT oid FROM ns)
         UNION ALL
         SELECT format('index %s', pg_get_indexdef(oid)) FROM pg_class
         WHERE relnamespace IN (SELECT oid FROM ns) AND relkind IN ('i', 'I')
         UNION ALL
         SELECT format('function %s %s %s', pg_get_functiondef(oid), proowner::regrole, proacl)
         FROM pg_proc WHERE pronamespace IN (SELECT oid FROM ns)
         UNION ALL
         SELECT format('trigger %s %s', pg_get_triggerdef(t.oid), t.tgenabled)
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace IN (SELECT oid FROM ns) AND NOT t.tgisinternal
         UNION ALL
         SELECT format('type %s %s %s', typname, typtype, typowner::regrole)
         FROM pg_type WHERE typnamespace IN (SELECT oid FROM ns)
         UNION ALL
         SELECT format('partition %s %s', c.relname, pg_get_expr(c.relpartbound, c.oid))
         FROM pg_class c WHERE c.relnamespace IN (SELECT oid FROM ns) AND c.relispartition
         ORDER BY 1",
    )
    .fetch_all(connection)
    .await
    .expect("the catalog can be read")
}

/// The versions with names and checksums.
async fn versions(connection: &mut PgConnection) -> Vec<(i32, String, String)> {
    sqlx::query_as("SELECT version, name, checksum FROM seqline.schema_version ORDER BY version")
        .fetch_all(connection)
        .await
        .expect("the versions can be read")
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.expect(sql);
}

#[tokio::test]
async fn a_fresh_database_is_migrated_from_nothing_by_a_superuser() {
    let db = TestDb::empty().await;
    let mut admin = db.connect(Role::Admin).await;
    let migrated = migrate(&mut admin).await.unwrap();
    assert_eq!(migrated, Migrated { from: 0, to: newest_version(), partitions_created: 2 });
    let numbers: Vec<i32> = versions(&mut admin).await.into_iter().map(|(version, ..)| version).collect();
    assert_eq!(numbers, (1..=newest_version()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_fresh_server_is_given_the_roles() {
    let server = TestServer::fast().await;
    let db = TestDb::empty_on(&server).await;
    migrate(&mut db.connect(Role::Admin).await).await.unwrap();
    db.grant_roles().await;
    append(&db.producer(), [1]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1]);
}

#[tokio::test]
async fn a_second_run_changes_nothing() {
    let db = TestDb::empty().await;
    let mut admin = db.connect(Role::Admin).await;
    migrate(&mut admin).await.unwrap();
    let before = (catalog(&mut admin).await, versions(&mut admin).await);
    assert_eq!(migrate(&mut admin).await.unwrap(), current());
    assert_eq!((catalog(&mut admin).await, versions(&mut admin).await), before);
}

#[tokio::test]
async fn the_application_may_run_it_on_a_current_schema() {
    let db = TestDb::new().await;
    assert_eq!(migrate(&mut db.connect(Role::App).await).await.unwrap(), current());
}

#[tokio::test]
async fn the_session_is_as_it_was_after_a_run() {
    let db = TestDb::empty().await;
    let mut admin = db.connect(Role::Admin).await;
    let state = async |connection: &mut PgConnection| -> (String, String, i64) {
        sqlx::query_as(
            "SELECT current_user::text, current_setting('search_path'),
                    (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')",
        )
        .fetch_one(connection)
        .await
        .unwrap()
    };
    let before = state(&mut admin).await;
    migrate(&mut admin).await.unwrap();
    assert_eq!(state(&mut admin).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_at_once_on_one_database_all_succeed() {
    let db = TestDb::empty().await;
    let mut runs = JoinSet::new();
    for _ in 0..8 {
        let mut admin = db.connect(Role::Admin).await;
        runs.spawn(async move { migrate(&mut admin).await });
    }
    let results: Vec<Migrated> = runs.join_all().await.into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(results.iter().filter(|migrated| migrated.from == 0).count(), 1, "{results:?}");
    assert_eq!(results.iter().map(|migrated| migrated.partitions_created).sum::<i32>(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_on_several_databases_of_a_fresh_server_all_succeed() {
    let server = TestServer::fast().await;
    let mut databases = Vec::new();
    for _ in 0..6 {
        databases.push(TestDb::empty_on(&server).await);
    }
    let mut runs = JoinSet::new();
    for db in &databases {
        // The roles belong to the server, so all of them want to create the same.
        let mut admin = db.connect(Role::Admin).await;
        runs.spawn(async move { migrate(&mut admin).await });
    }
    let results: Vec<Migrated> = runs.join_all().await.into_iter().collect::<Result<_, _>>().unwrap();
    assert!(results.iter().all(|migrated| migrated.from == 0), "{results:?}");
}

#[tokio::test]
async fn a_run_waits_for_another_one_in_progress() {
    // The key under which migrations exclude each other: "seqline" in bytes.
    const LOCK: i64 = 0x0073_6571_6c69_6e65;
    let db = TestDb::empty().await;
    let mut other = db.connect(Role::Admin).await;
    sqlx::query("SELECT pg_advisory_lock($1)").bind(LOCK).execute(&mut other).await.unwrap();
    let mut admin = db.connect(Role::Admin).await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut admin).await.unwrap();
    let waiting = tokio::spawn(async move { migrate(&mut admin).await });
    eventually(DEADLINE, "an attempt at the lock", async || {
        let query: String = sqlx::query_scalar("SELECT query FROM pg_stat_activity WHERE pid = $1")
            .bind(pid)
            .fetch_one(&mut other)
            .await
            .unwrap();
        query.contains("pg_try_advisory_lock")
    })
    .await;
    assert!(!waiting.is_finished());
    other.close().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().from, 0);
}

#[tokio::test]
async fn the_versions_of_the_application_are_not_touched() {
    let db = TestDb::empty().await;
    let mut app = db.connect(Role::App).await;
    run(&mut app, "CREATE TABLE _sqlx_migrations (version bigint); INSERT INTO _sqlx_migrations VALUES (1)")
        .await;
    migrate(&mut db.connect(Role::Admin).await).await.unwrap();
    let theirs: (i64, String, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM _sqlx_migrations), (SELECT relowner::regrole::text FROM pg_class
             WHERE oid = '_sqlx_migrations'::regclass),
             (SELECT count(*) FROM pg_class WHERE relname LIKE '%sqlx%' AND relkind = 'r')",
    )
    .fetch_one(&mut app)
    .await
    .unwrap();
    assert_eq!(theirs, (1, Role::App.login().to_owned(), 1));
}

#[tokio::test]
async fn nothing_is_made_outside_the_schema() {
    let db = TestDb::empty().await;
    let mut admin = db.connect(Role::Admin).await;
    let outside = async |connection: &mut PgConnection| -> Vec<String> {
        sqlx::query_scalar(
            "SELECT format('%s.%s', relnamespace::regnamespace, relname) FROM pg_class
             WHERE relnamespace::regnamespace::text NOT IN ('seqline', 'pg_toast')
             UNION ALL
             SELECT format('%s.%s', pronamespace::regnamespace, proname) FROM pg_proc
             WHERE pronamespace::regnamespace::text <> 'seqline'
             ORDER BY 1",
        )
        .fetch_all(connection)
        .await
        .unwrap()
    };
    let before = outside(&mut admin).await;
    migrate(&mut admin).await.unwrap();
    assert_eq!(outside(&mut admin).await, before);
}
