//! Partitions: there is always room ahead of the head, and when there is none the error says so.

mod missing;

use seqline::Clock;
use seqline::maintenance::{Maintenance, MaintenanceConfig, Partition, partitions};
use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::task::JoinSet;

use crate::support::{append, log};

/// Replaces the partitions of an empty log by small ones.
pub(crate) async fn small_partitions(db: &TestDb, size: i64, ahead: i32) {
    drop_all_partitions(db).await;
    set_sizes(db, size, ahead).await;
    ensure(&db.app()).await;
}

pub(crate) async fn set_sizes(db: &TestDb, size: i64, ahead: i32) {
    sqlx::query("UPDATE seqline.settings SET event_log_partition_size = $1, event_log_partitions_ahead = $2")
        .bind(size)
        .bind(ahead)
        .execute(&db.admin())
        .await
        .expect("a superuser changes the settings");
}

async fn drop_all_partitions(db: &TestDb) {
    for partition in bounds(db).await {
        as_owner(db, &format!("DROP TABLE seqline.\"{}\"", partition.name)).await;
    }
}

/// Runs SQL that only the owner may.
pub(crate) async fn as_owner(db: &TestDb, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; SET LOCAL ROLE seqline_owner; {sql}; COMMIT")))
        .execute(&mut db.connect(Role::Admin).await)
        .await
        .expect("the owner may do it");
}

pub(crate) async fn ensure(pool: &PgPool) -> i32 {
    let maintenance = Maintenance::new(pool.clone(), MaintenanceConfig::default(), Clock::system());
    maintenance.ensure().await.expect("partitions can be ensured")
}

/// Drops the oldest partition if all of it is below the head, however young it is and whoever keeps it, and returns how many
/// went.
pub(crate) async fn drop_oldest(db: &TestDb) -> i32 {
    let sql = "SELECT (outcome = 'dropped')::int
               FROM seqline.sync_event_log_drop_expired(now(), now(), seqline.head(), '5 s')";
    sqlx::query_scalar(sql).fetch_one(&db.app()).await.expect("the application may drop what has expired")
}

pub(crate) async fn bounds(db: &TestDb) -> Vec<Partition> {
    partitions(&mut db.connect(Role::App).await).await.expect("partitions can be listed")
}

pub(crate) async fn ranges(db: &TestDb) -> Vec<(i64, i64)> {
    bounds(db).await.iter().map(|partition| (partition.lower_bound, partition.upper_bound)).collect()
}

async fn sqlstate_of(pool: &PgPool, sql: &'static str) -> String {
    let error = sqlx::raw_sql(sql).execute(pool).await.expect_err(sql);
    let code = error.as_database_error().and_then(|error| error.code()).expect("the server answered");
    code.into_owned()
}

#[tokio::test]
async fn partitions_are_created_ahead_of_the_head() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 3).await;
    assert_eq!(ranges(&db).await, [(1, 11), (11, 21), (21, 31)]);
    append(&db.app(), 1..=11).await;
    assert_eq!(ensure(&db.app()).await, 2);
    assert_eq!(ranges(&db).await[3..], [(31, 41), (41, 51)]);
}

#[tokio::test]
async fn a_second_ensure_creates_nothing() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 3).await;
    let before = bounds(&db).await;
    assert_eq!(ensure(&db.app()).await, 0);
    assert_eq!(bounds(&db).await, before);
}

#[tokio::test]
async fn the_runtime_role_creates_partitions_that_belong_to_the_owner() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 2).await;
    let owners: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT c.relowner::regrole::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'seqline.event_log'::regclass",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    assert_eq!(owners, ["seqline_owner"]);
}

#[tokio::test]
async fn the_runtime_role_has_no_ddl() {
    let db = TestDb::new().await;
    for sql in [
        "CREATE TABLE seqline.mine ()",
        "CREATE TABLE seqline.mine PARTITION OF seqline.event_log FOR VALUES FROM (5000000) TO (6000000)",
        "ALTER TABLE seqline.event_log DETACH PARTITION seqline.event_log_from_0000000000000000001",
        "DROP TABLE seqline.event_log_from_0000000000000000001",
        "TRUNCATE seqline.event_log",
        "CREATE INDEX ON seqline.event_log (type)",
        "ALTER FUNCTION seqline.head() RENAME TO tail",
        "SELECT seqline.create_partition(5000000, 6000000)",
        "SELECT seqline.attach_partition('event_log_from_0000000000000000001', 1, 2)",
        "SELECT seqline.refresh_log_bounds()",
        "SET ROLE seqline_owner",
    ] {
        assert_eq!(sqlstate_of(&db.app(), sql).await, "42501", "{sql}");
    }
}

#[tokio::test]
async fn a_changed_size_applies_to_new_partitions_and_leaves_no_hole() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 1).await;
    set_sizes(&db, 7, 3).await;
    ensure(&db.app()).await;
    set_sizes(&db, 100, 1).await;
    ensure(&db.app()).await;
    assert_eq!(ranges(&db).await, [(1, 11), (11, 18), (18, 25), (25, 125)]);
    append(&db.app(), 1..=30).await;
    assert_eq!(log(&mut db.connect(Role::Reader).await).await.len(), 30);
}

#[tokio::test]
async fn bounds_come_from_the_catalog_and_not_from_names() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 1).await;
    as_owner(
        &db,
        "CREATE TABLE seqline.\"An odd; name\" (LIKE seqline.event_log INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
         ALTER TABLE seqline.event_log ATTACH PARTITION seqline.\"An odd; name\" FOR VALUES FROM (11) TO (14)",
    )
    .await;
    append(&db.app(), 1..=12).await;
    ensure(&db.app()).await;
    assert_eq!(ranges(&db).await, [(1, 11), (11, 14), (14, 24)]);
    append(&db.app(), 13..=15).await;
    assert_eq!((drop_oldest(&db).await, drop_oldest(&db).await), (1, 1));
    assert_eq!(ranges(&db).await, [(14, 24)]);
}

#[tokio::test]
async fn names_hold_the_lower_bound_with_all_its_digits() {
    let db = TestDb::new().await;
    small_partitions(&db, 1_000_000_000_000, 2).await;
    let names: Vec<String> = bounds(&db).await.into_iter().map(|partition| partition.name).collect();
    assert_eq!(names, ["event_log_from_0000000000000000001", "event_log_from_0000001000000000001"]);
}

#[tokio::test]
async fn a_partition_has_the_checks_of_the_log_and_no_other() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 1).await;
    let checks = async |table: &str| -> Vec<(String, String)> {
        sqlx::query_as(
            "SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint
             WHERE conrelid = $1::regclass AND contype = 'c' ORDER BY conname",
        )
        .bind(table)
        .fetch_all(&db.admin())
        .await
        .unwrap()
    };
    let expected = checks("seqline.event_log").await;
    assert!(!expected.is_empty());
    assert_eq!(checks("seqline.event_log_from_0000000000000000001").await, expected);
}

#[tokio::test]
async fn a_partition_has_every_index_of_the_log() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 1).await;
    let indexes = async |table: &str| -> Vec<(String, bool, String)> {
        sqlx::query_as(
            "SELECT regexp_replace(pg_get_indexdef(i.indexrelid), '^.* USING', 'USING'), i.indisunique,
                    coalesce((SELECT contype::text FROM pg_constraint c WHERE c.conindid = i.indexrelid), '')
             FROM pg_index i WHERE i.indrelid = $1::regclass AND i.indisvalid ORDER BY 1, 2",
        )
        .bind(table)
        .fetch_all(&db.admin())
        .await
        .unwrap()
    };
    let expected = indexes("seqline.event_log").await;
    assert_eq!(expected.iter().filter(|(_, unique, _)| *unique).count(), 2);
    assert!(expected.iter().any(|(definition, ..)| definition.starts_with("USING brin")));
    assert_eq!(indexes("seqline.event_log_from_0000000000000000001").await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_ensures_at_once_create_each_partition_once() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 1).await;
    set_sizes(&db, 10, 21).await;
    let pool = db.app_pool(8);
    let mut runs = JoinSet::new();
    for _ in 0..8 {
        let pool = pool.clone();
        runs.spawn(async move { ensure(&pool).await });
    }
    assert_eq!(runs.join_all().await.iter().sum::<i32>(), 20);
    let expected: Vec<(i64, i64)> = (0..21).map(|n| (10 * n + 1, 10 * n + 11)).collect();
    assert_eq!(ranges(&db).await, expected);
}

#[tokio::test]
async fn a_migrated_database_takes_events_at_once() {
    let db = TestDb::empty().await;
    let migrated = seqline::migrate::migrate(&mut db.connect(Role::Admin).await).await.unwrap();
    assert_eq!(migrated.partitions_created, 2);
    assert_eq!(ranges(&db).await, [(1, 1_000_001), (1_000_001, 2_000_001)]);
    append(&db.app(), [1]).await;
}

#[tokio::test]
async fn a_head_that_does_not_exist_creates_no_partitions() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 2).await;
    let created: i32 = sqlx::query_scalar("SELECT seqline.sync_event_log_ensure_partitions(10, 2, 1000000)")
        .fetch_one(&db.app())
        .await
        .unwrap();
    assert_eq!(created, 0);
}

#[tokio::test]
async fn sizes_and_numbers_out_of_range_are_refused() {
    let db = TestDb::new().await;
    for sql in [
        "SELECT seqline.sync_event_log_ensure_partitions(0, 2, 0)",
        "SELECT seqline.sync_event_log_ensure_partitions(-1, 2, 0)",
        "SELECT seqline.sync_event_log_ensure_partitions(1000000000001, 2, 0)",
        "SELECT seqline.sync_event_log_ensure_partitions(NULL, 2, 0)",
        "SELECT seqline.sync_event_log_ensure_partitions(10, 0, 0)",
        "SELECT seqline.sync_event_log_ensure_partitions(10, 1001, 0)",
        "SELECT seqline.sync_event_log_ensure_partitions(10, NULL, 0)",
    ] {
        assert_eq!(sqlstate_of(&db.app(), sql).await, "22023", "{sql}");
    }
}
