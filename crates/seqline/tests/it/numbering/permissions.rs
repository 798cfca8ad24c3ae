//! The permission version of a row is the one at its commit, and never decreases along the log.

use futures_util::future::join_all;
use seqline_testkit::{Role, TestDb, settled_behind};
use sqlx::{PgConnection, PgPool};

use super::{backend_pid, hold_numbering_lock, until_blocked};
use crate::support::{append, event};

const BUMP: &str = "UPDATE seqline.sequence_counters SET value = value + 1 WHERE name = 'permission_version'";

async fn versions(connection: &mut PgConnection) -> Vec<i64> {
    settled_behind(connection).await;
    sqlx::query_scalar("SELECT permission_version FROM seqline.event_log ORDER BY seq")
        .fetch_all(connection)
        .await
        .unwrap()
}

async fn bump(admin: &PgPool) {
    sqlx::query(BUMP).execute(admin).await.unwrap();
}

#[tokio::test]
async fn rows_carry_the_permission_version_at_commit() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event(2), event(3)]).await.unwrap();
    bump(&db.admin()).await;
    seqline::commit(tx).await.unwrap();
    db.settled().await;
    bump(&db.admin()).await;
    append(&db.producer(), [4]).await;
    assert_eq!(versions(&mut db.connect(Role::Reader).await).await, [0, 1, 1, 2]);
}

#[tokio::test]
async fn a_version_committed_while_the_unit_waited_for_its_numbers_counts() {
    let db = TestDb::at_commit().await;
    let mut holder = hold_numbering_lock(&db).await;
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    let pid = backend_pid(&mut tx).await;
    let commit = tokio::spawn(seqline::commit(tx));
    until_blocked(&db.admin(), pid).await;
    sqlx::query(BUMP).execute(&mut holder).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut holder).await.unwrap();
    commit.await.unwrap().unwrap();
    assert_eq!(versions(&mut db.connect(Role::Reader).await).await, [1]);
}

#[tokio::test]
async fn the_version_never_decreases_along_the_log() {
    let db = TestDb::new().await;
    let (admin, app) = (db.pool(Role::Admin, 8), db.app_pool(8));
    let writers = join_all((0..6).map(|n| {
        let app = app.clone();
        async move {
            for _ in 0..25 {
                append(&app, [n]).await;
            }
        }
    }));
    // A bump by itself, and one in the transaction that also appends, before and after its append.
    let bumpers = join_all((0..3).map(|kind| {
        let admin = admin.clone();
        async move {
            for _ in 0..25 {
                let mut tx = seqline::begin(&admin).await.unwrap();
                if kind == 1 {
                    seqline::append(&mut tx, &[event(kind)]).await.unwrap();
                }
                sqlx::query(BUMP).execute(&mut *tx).await.unwrap();
                if kind == 2 {
                    seqline::append(&mut tx, &[event(kind)]).await.unwrap();
                }
                seqline::commit(tx).await.unwrap();
            }
        }
    }));
    tokio::join!(writers, bumpers);
    let versions = versions(&mut db.connect(Role::Reader).await).await;
    assert_eq!(versions.len(), 200);
    assert!(versions.is_sorted(), "{versions:?}");
}
