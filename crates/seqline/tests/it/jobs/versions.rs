//! What another version of River's schema means by a row is not known, so no row is written there.

use serde::{Deserialize, Serialize};

use super::*;
use crate::numbering::{backend_pid, until_blocked};

const OLD: &str = "River's schema queue is older than version 6, which Seqline needs: run River's migrations";
const NEW: &str = "River's schema queue has version 9, this Seqline knows 8 at most: use a newer Seqline";
const UNVERSIONED: &str = "schema queue has River tables and no table river_migration, so their version is not known: run River's migrations";

#[derive(riverqueue::JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send")]
struct SendInvoice {
    seq: i64,
}

async fn set_version(db: &TestDb, version: i64) {
    let delete = format!("DELETE FROM queue.river_migration WHERE line = 'main' AND version > {version}");
    as_admin(db, &delete).await;
    as_admin(
        db,
        &format!("INSERT INTO queue.river_migration (line, version) VALUES ('main', {version}) ON CONFLICT DO NOTHING"),
    )
    .await;
}

/// Inserting is refused with this sentence, and the transaction goes on without the jobs.
async fn assert_refused(db: &TestDb, sink: &River, expected: &str) {
    let before = (jobs(db).await, effects(db).await.len());
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let error = sink.insert(&mut tx, &checked([new_job(1), new_job(2)])).await.expect_err(expected);
    assert_eq!(error.to_string(), expected);
    assert!(!error.is_retryable());
    sqlx::query("INSERT INTO effects (consumer, seq) VALUES ('probe', 0)").execute(&mut *tx).await.unwrap();
    seqline::commit(tx).await.unwrap();
    assert_eq!((jobs(db).await, effects(db).await.len()), (before.0, before.1 + 1), "{expected}");
    let error = sink.health(&mut db.connect(Role::App).await).await.expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn each_version_that_is_known_gets_the_rows_that_the_client_writes() {
    for version in 6..=8 {
        let db = TestDb::new().await;
        bring_up(&db, SCHEMA, Some(version)).await;
        let health = river().health(&mut db.connect(Role::App).await).await.expect("the version is known");
        assert_eq!((health.version, health.paused_queues), (Some(version), vec![]));
        let unique = Some(seqline::job::Unique { by_args: true, ..Default::default() });
        let wanted = [new_job(1), NewJob { unique, ..new_job(2) }, NewJob { unique, ..new_job(2) }];
        let inserted = insert(&db.app(), &river(), &checked(wanted)).await.expect("the version is known");
        assert_eq!((inserted.inserted, inserted.duplicates.len()), (2, 1), "{version}");
        let client = client_in(SCHEMA, db.app()).build().unwrap();
        client.insert(SendInvoice { seq: 1 }).await.expect("the client knows it too");
        let rows: Vec<serde_json::Value> = sqlx::query_scalar(
            "SELECT to_jsonb(j) - 'id' - 'created_at' - 'scheduled_at' FROM queue.river_job j
             WHERE args = '{\"seq\": 1}' ORDER BY id",
        )
        .fetch_all(&db.admin())
        .await
        .unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], rows[1], "{version}");
    }
}

#[tokio::test]
async fn older_versions_are_refused_as_old() {
    for version in 2..=5 {
        let db = consumers::database().await;
        bring_up(&db, SCHEMA, Some(version)).await;
        let error = insert(&db.app(), &river(), &checked([new_job(1)])).await.expect_err("it is too old");
        let JobError::OldRiver { schema, oldest: 6 } = &error else { panic!("{version}: {error:?}") };
        assert_eq!(schema, SCHEMA);
        assert_eq!(jobs(&db).await, [] as [i64; 0]);
    }
    let db = consumers::database().await;
    bring_up(&db, SCHEMA, Some(5)).await;
    assert_refused(&db, &river(), OLD).await;
}

#[tokio::test]
async fn a_version_that_is_not_known_is_refused() {
    let db = database().await;
    set_version(&db, 9).await;
    assert_refused(&db, &river(), NEW).await;
    as_admin(&db, "TRUNCATE queue.river_migration").await;
    assert_refused(&db, &river(), UNVERSIONED).await;
    // Another line has versions of its own.
    set_version(&db, 8).await;
    as_admin(&db, "INSERT INTO queue.river_migration (line, version) VALUES ('other', 99)").await;
    insert(&db.app(), &river(), &checked([new_job(1)])).await.expect("the line of River is known");
}

#[tokio::test]
async fn a_version_that_changes_when_the_sink_is_in_use_is_refused_too() {
    let db = database().await;
    let sink = river();
    for (version, expected) in [(9, NEW), (5, OLD)] {
        set_version(&db, 8).await;
        insert(&db.app(), &sink, &checked([new_job(version)])).await.expect("the version is known");
        set_version(&db, version).await;
        assert_refused(&db, &sink, expected).await;
    }
    set_version(&db, 8).await;
    insert(&db.app(), &sink, &checked([new_job(8)])).await.expect("it is as it was");
    assert_eq!(jobs(&db).await, [9, 5, 8]);
}

#[tokio::test]
async fn tables_that_go_when_the_sink_is_in_use_are_named_by_the_next_call() {
    let db = database().await;
    let sink = river();
    insert(&db.app(), &sink, &checked([new_job(1)])).await.expect("all is well");
    as_admin(&db, "DROP TABLE queue.river_migration").await;
    let error = insert(&db.app(), &sink, &checked([new_job(2)])).await.expect_err("it is gone");
    assert!(matches!(error, JobError::Database(_)), "{error:?}");
    assert_refused(&db, &sink, UNVERSIONED).await;
    as_admin(&db, "DROP TABLE queue.river_job").await;
    let error = insert(&db.app(), &sink, &checked([new_job(2)])).await.expect_err("it is gone");
    assert_eq!(error.to_string(), "schema queue has no River tables: run River's migrations there");
}

#[tokio::test]
async fn a_migration_of_river_under_way_is_waited_for_and_not_stood_in_the_way_of() {
    let db = database().await;
    let used = river();
    let pool = db.app_pool(1);
    // Often enough for a plan that is kept.
    for seq in 1..=10 {
        insert(&pool, &used, &checked([new_job(seq)])).await.expect("all is well");
    }
    for sink in [used, river()] {
        let mut migration = seqline::begin(&db.app()).await.unwrap();
        let first = "ALTER TABLE queue.river_job ALTER COLUMN max_attempts SET DEFAULT 25";
        sqlx::raw_sql(first).execute(&mut *migration).await.unwrap();
        let mut tx = seqline::begin(&pool).await.unwrap();
        let pid = backend_pid(&mut tx).await;
        let wanted = checked([new_job(0)]);
        let migrating = async {
            until_blocked(&db.admin(), pid).await;
            let second = "SET LOCAL lock_timeout = '100 ms';
                ALTER TABLE queue.river_queue ALTER COLUMN updated_at SET DEFAULT CURRENT_TIMESTAMP;
                LOCK TABLE queue.river_migration";
            let migrated = sqlx::raw_sql(second).execute(&mut *migration).await;
            migration.rollback().await.unwrap();
            migrated.map(drop)
        };
        let (inserted, migrated) = tokio::join!(sink.insert(&mut tx, &wanted), migrating);
        migrated.expect("it comes first");
        assert_eq!(inserted.expect("it comes after it").inserted, 1);
    }
}
