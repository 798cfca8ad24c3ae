//! Redaction beside others: another redaction of the same, retention, and autovacuum.

use std::time::Duration;

use seqline::embedded::Durability;
use seqline_testkit::{TestServer, eventually};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;

use super::*;
use crate::partitions::{drop_oldest, ranges};
use crate::support::assert_nothing_staged;

const SOON: Duration = Duration::from_secs(60);

async fn count(db: &TestDb, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&db.admin()).await.unwrap()
}

#[tokio::test]
async fn two_who_redact_the_same_do_it_once() {
    let db = TestDb::new().await;
    append(&db.producer(), ["17", "18", "17"].map(order)).await;
    let app = db.app();
    let mut first = seqline::begin(&app).await.unwrap();
    assert_eq!(redact::resource(&mut first, "order", "17", None, APPLY).await.unwrap().events, 2);
    let pool = db.app_pool(1);
    let second = tokio::spawn(async move { redact_resource(&pool, "17", APPLY).await.unwrap() });
    eventually(SOON, "the second waits for the first", async || {
        count(&db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").await == 1
    })
    .await;
    seqline::commit(first).await.unwrap();
    assert_eq!(counts(&second.await.unwrap()), (0, 2, 0));
    assert_eq!((redacted(&db).await, head(&db).await, audit(&db).await.len()), (vec![1, 3], 4, 1));
}

#[tokio::test]
async fn the_second_does_what_the_first_takes_back() {
    let db = TestDb::new().await;
    append(&db.producer(), ["17", "18", "17"].map(order)).await;
    let app = db.app();
    let mut first = seqline::begin(&app).await.unwrap();
    redact::resource(&mut first, "order", "17", None, APPLY).await.unwrap();
    let pool = db.app_pool(1);
    let second = tokio::spawn(async move { redact_resource(&pool, "17", APPLY).await.unwrap() });
    eventually(SOON, "the second waits for the first", async || {
        count(&db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").await == 1
    })
    .await;
    first.rollback().await.unwrap();
    assert_eq!(counts(&second.await.unwrap()), (2, 0, 0));
    assert_eq!((redacted(&db).await, head(&db).await, audit(&db).await.len()), (vec![1, 3], 4, 1));
}

#[tokio::test]
async fn many_at_once_redact_and_name_each_event_once() {
    let db = TestDb::new().await;
    small_partitions(&db, 50, 8).await;
    let ids = append(&db.producer(), (0..200).map(|n| order(if n % 2 == 0 { "17" } else { "18" }))).await;
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (pool, ids) = (db.app_pool(1), ids.clone());
        tasks.spawn(async move {
            let mut events = 0;
            for _ in 0..3 {
                events += redact_resource(&pool, if task % 2 == 0 { "17" } else { "18" }, APPLY)
                    .await
                    .unwrap()
                    .events;
                events += redact_event(&pool, ids[task], APPLY).await.unwrap().events;
            }
            events
        });
    }
    let done: i64 = tasks.join_all().await.into_iter().sum();
    assert_eq!(done, 200);
    let named = "SELECT count(DISTINCT n.id) * 1000 + count(*) FROM seqline.event_log e,
        jsonb_to_recordset(e.payload -> 'events') AS n (id uuid) WHERE e.type = 'log.redacted'";
    assert_eq!(count(&db, named).await, 200_200);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn what_retention_has_dropped_is_not_there_and_the_rest_is_redacted() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 5).await;
    let ids = append(&db.producer(), ["17"; 7].map(order)).await;
    assert_eq!(drop_oldest(&db).await, 1);
    assert!(!redact_event(&db.app(), ids[0], APPLY).await.unwrap().is_about_any());
    assert_eq!(counts(&redact_resource(&db.app(), "17", APPLY).await.unwrap()), (5, 0, 0));
}

/// Like anybody who has read the log: the drop is tried again with the next run.
#[tokio::test]
async fn a_drop_waits_for_a_redaction_and_takes_what_it_left() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 5).await;
    append(&db.producer(), ["17"; 5].map(order)).await;
    let app = db.app();
    let mut tx = seqline::begin(&app).await.unwrap();
    assert_eq!(redact::resource(&mut tx, "order", "17", None, APPLY).await.unwrap().events, 5);
    let sql =
        "SELECT outcome FROM seqline.sync_event_log_drop_expired(now(), now(), seqline.head(), '100 ms')";
    let error = sqlx::query(sql).execute(&db.pool(Role::App, 1)).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("55P03"));
    seqline::commit(tx).await.unwrap();
    db.settled().await;
    assert_eq!(drop_oldest(&db).await, 1);
    assert_eq!(ranges(&db).await[0], (3, 5));
    assert_eq!(redacted(&db).await, [3, 4, 5]);
}

/// Dropped between the look at which partitions there are and the look into them.
#[tokio::test]
async fn a_drop_meanwhile_leaves_nothing_to_redact() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 40).await;
    append(&db.producer(), (0..60).map(|n| order(if n % 2 == 0 { "17" } else { "18" }))).await;
    let pool = db.app_pool(1);
    let redacting = tokio::spawn(async move {
        let mut events = 0;
        while events < 1_000 {
            let mut tx = seqline::begin(&pool).await.unwrap();
            let redaction = redact::resource(&mut tx, "order", "17", None, APPLY).await.unwrap();
            tx.rollback().await.unwrap();
            events += 100;
            assert_eq!((redaction.already, redaction.waiting), (0, 0));
        }
    });
    let mut dropped = 0;
    while dropped < 20 {
        let sql = "SELECT (outcome = 'dropped')::int
            FROM seqline.sync_event_log_drop_expired(now(), now(), seqline.head(), '5 s')";
        dropped += sqlx::query_scalar::<_, i32>(sql).fetch_one(&db.app()).await.unwrap();
    }
    redacting.await.unwrap();
    assert_eq!(counts(&redact_resource(&db.app(), "17", APPLY).await.unwrap()), (10, 0, 0));
}

/// What an event said is in a dead row until it is vacuumed. That does not wait for more of them.
#[tokio::test]
async fn one_redacted_event_is_enough_for_autovacuum() {
    let settings = [("autovacuum_naptime", "1s")];
    let server = TestServer::with(Durability::Fast, &settings).await;
    let db = TestDb::on(&server).await;
    let long = Payload::from_json(&format!("{{\"card\": \"{}\"}}", random_text(20_000))).unwrap();
    let large =
        NewEvent::builder("order.paid", "order", "any").resource_id("18").payload(long).build().unwrap();
    append(&db.producer(), std::iter::repeat_n(order("17"), 500).chain([large])).await;
    let ids: Vec<Uuid> =
        sqlx::query_scalar("SELECT id FROM seqline.event_log WHERE seq IN (7, 501) ORDER BY seq")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    // The payload of the second is in a table of its own.
    for id in ids {
        assert_eq!(redact_event(&db.app(), id, APPLY).await.unwrap().events, 1);
    }
    let dead = "SELECT count(*) FROM pg_stat_all_tables s WHERE s.autovacuum_count > 0 AND s.relid IN (
        SELECT unnest(ARRAY[c.oid, c.reltoastrelid]) FROM pg_class c WHERE c.relname = 'event_log_from_0000000000000000001')";
    eventually(SOON, "both tables are vacuumed", async || count(&db, dead).await == 2).await;
}

/// That does not compress well.
fn random_text(bytes: usize) -> String {
    std::iter::repeat_with(|| Uuid::new_v4().simple().to_string())
        .flat_map(|text| text.into_bytes())
        .take(bytes)
        .map(char::from)
        .collect()
}

#[tokio::test]
async fn partitions_of_before_are_vacuumed_as_soon_as_new_ones() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    let options: Vec<(String, String)> = sqlx::query_as(
        "SELECT array_to_string(c.reloptions, ' '), array_to_string(t.reloptions, ' ')
         FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class t ON t.oid = c.reltoastrelid
         WHERE i.inhparent = 'seqline.event_log'::regclass",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    let soon = "vacuum_truncate=off autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=0";
    let of_toast = "autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=0 vacuum_truncate=off";
    assert_eq!(options, vec![(soon.to_owned(), of_toast.to_owned()); 3]);
}
