//! Copies of what an event said that PostgreSQL makes by itself: rows for planning, and dead rows of the tables in which events wait.

use std::time::Duration;

use seqline::embedded::Durability;
use seqline::migrate::{migrate, script};
use seqline::settings::Sequencing;
use seqline_testkit::{TestServer, eventually};
use sqlx::{AssertSqlSafe, PgConnection};

use super::*;
use crate::partitions::as_owner;
use crate::sequencing::{change, sequencer};

const SOON: Duration = Duration::from_secs(60);

/// Where events wait for their numbers.
const WAITING: [&str; 4] = ["pending_transactions", "pending_events", "staged_transactions", "staged_events"];

/// The tables of whose payloads there is a statistic.
async fn sampled(connection: &mut PgConnection) -> Vec<String> {
    let sql = "SELECT DISTINCT s.tablename::text FROM pg_stats s WHERE s.schemaname = 'seqline' AND s.attname = 'payload' ORDER BY 1";
    sqlx::query_scalar(sql).fetch_all(connection).await.unwrap()
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.expect(sql);
}

#[tokio::test]
async fn no_payload_is_kept_for_planning() {
    let db = TestDb::new().await;
    small_partitions(&db, 200, 3).await;
    append(&db.producer(), (0..400).map(|n| order(&n.to_string()))).await;
    as_owner(&db, "ANALYZE seqline.event_log").await;
    let mut admin = db.connect(Role::Admin).await;
    let others: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stats s WHERE s.tablename LIKE 'event\\_log%' AND s.attname = 'resource_id'",
    )
    .fetch_one(&mut admin)
    .await
    .unwrap();
    assert_eq!(others, 3, "of the log and two partitions: it was analyzed");
    assert_eq!(sampled(&mut admin).await, [""; 0]);

    // While events wait for their numbers, of either kind.
    for sequencing in [Sequencing::AtCommit, Sequencing::AfterCommit] {
        let db = TestDb::at_commit().await;
        change(&db, sequencing).await;
        let mut tx = seqline::begin(&db.admin()).await.unwrap();
        seqline::append(&mut tx, &[order("17")]).await.unwrap();
        seqline::append(&mut tx, &[order("17"), order("18")]).await.unwrap();
        if sequencing == Sequencing::AfterCommit {
            seqline::commit(tx).await.unwrap();
            tx = seqline::begin(&db.admin()).await.unwrap();
        }
        for table in WAITING {
            run(&mut tx, &format!("ANALYZE seqline.{table}")).await;
        }
        let seen: i64 = sqlx::query_scalar(
            "SELECT count(DISTINCT s.tablename) FROM pg_stats s WHERE s.schemaname = 'seqline' AND s.attname = 'xid'",
        )
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        assert_eq!(seen, 2, "{sequencing}: there was something to analyze");
        assert_eq!(sampled(&mut tx).await, [""; 0], "{sequencing}");
    }
}

/// A log that has been in use and analyzed by an older version.
async fn of_before() -> TestDb {
    TestDb::new().await; // the roles are there
    let db = TestDb::empty().await;
    let whole = script(0);
    let at = whole.find("\n-- Migration 26 ").expect("there is a migration after version 25");
    let before: String =
        whole[..at].lines().filter(|line| !line.starts_with('\\')).map(|line| format!("{line}\n")).collect();
    let mut admin = db.connect(Role::Admin).await;
    run(&mut admin, &format!("{before}COMMIT;")).await;
    run(&mut admin, "SELECT seqline.sync_event_log_ensure_partitions(4, 3, 0)").await;
    for n in 1..=6 {
        let append =
            format!("SELECT seqline.append('order.paid', '{{\"card\": \"{PLANTED}-{n}\"}}', 'order', 'any')");
        run(&mut admin, &append).await;
    }
    run(&mut admin, "ANALYZE seqline.event_log").await;
    assert_eq!(sampled(&mut admin).await.len(), 3, "of the log and two partitions");
    db
}

#[tokio::test]
async fn what_was_kept_for_planning_is_removed_by_the_migration() {
    let db = of_before().await;
    let mut admin = db.connect(Role::Admin).await;
    let files = "SELECT array_agg(pg_relation_filenode(c.oid) ORDER BY c.oid) FROM pg_class c
        WHERE c.relkind = 'r' AND c.relname LIKE 'event\\_log\\_from%'";
    let before: Vec<Option<i64>> =
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT unnest(({files}))::bigint")))
            .fetch_all(&mut admin)
            .await
            .unwrap();
    migrate(&mut admin).await.unwrap();
    assert_eq!(sampled(&mut admin).await, [""; 0]);
    let after: Vec<Option<i64>> =
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT unnest(({files}))::bigint")))
            .fetch_all(&mut admin)
            .await
            .unwrap();
    assert_eq!(after[..before.len()], before, "no table was written anew");
    run(&mut admin, "ANALYZE seqline.event_log").await;
    assert_eq!(sampled(&mut admin).await, [""; 0]);
}

/// Where it cannot, the migration goes on, and the guide has the statement.
#[tokio::test]
async fn a_view_over_payloads_does_not_stop_the_migration() {
    let db = of_before().await;
    let mut admin = db.connect(Role::Admin).await;
    run(&mut admin, "CREATE VIEW public.said AS SELECT payload FROM seqline.event_log").await;
    migrate(&mut admin).await.unwrap();
    let page = include_str!("../../../../../docs/guide/redaction.md");
    let statement = page.split("```sql\n").find(|block| block.starts_with("DELETE FROM pg_statistic"));
    run(&mut admin, statement.expect("it is there").split("```").next().unwrap()).await;
    assert_eq!(sampled(&mut admin).await, [""; 0]);
}

/// They are deleted when the events have their numbers, and what they said was in them until somebody came by.
#[tokio::test]
async fn tables_in_which_events_wait_are_vacuumed_soon() {
    let server = TestServer::with(Durability::Fast, &[("autovacuum_naptime", "1s")]).await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    append(&db.producer(), [order("17"), order("17")]).await;
    change(&db, Sequencing::AfterCommit).await;
    let sequencer = sequencer(&db);
    append(&db.producer(), [order("17"), order("17")]).await;
    let vacuumed = "SELECT s.relname::text FROM pg_stat_all_tables s
        WHERE s.schemaname = 'seqline' AND s.relname = ANY ($1) AND s.autovacuum_count > 0 AND s.n_dead_tup = 0";
    eventually(SOON, "all four are vacuumed", async || {
        let done: Vec<String> = sqlx::query_scalar(vacuumed)
            .bind(WAITING.map(str::to_owned))
            .fetch_all(&db.admin())
            .await
            .unwrap();
        done.len() == WAITING.len()
    })
    .await;
    drop(sequencer);
}

/// Of a kind and an id that are frequent, but not together, planning knows no better than to read the partition in its order.
#[tokio::test]
async fn a_resource_that_shares_its_id_with_many_is_found_by_the_index() {
    let db = TestDb::new().await;
    small_partitions(&db, 30_000, 2).await;
    let batch = "SELECT seqline.append_batch((SELECT jsonb_agg(jsonb_build_object('type', 'order.paid', 'receive_action', 'any',
        'resource_kind', CASE WHEN n % 2 = 0 THEN 'order' ELSE 'invoice' END,
        'resource_id', CASE WHEN n % 2 = 0 THEN '17' ELSE 'i-' || n END, 'payload', '{}'::jsonb)) FROM generate_series(1, 10000) n))";
    for _ in 0..2 {
        sqlx::query(batch).execute(&db.producer()).await.unwrap();
    }
    append(&db.producer(), (0..5).map(|_| about("invoice", "17").build().unwrap())).await;
    as_owner(&db, "ANALYZE seqline.event_log").await;
    let read = "SELECT pg_stat_get_xact_tuples_returned(i.indexrelid)::bigint
        FROM pg_index i WHERE i.indrelid = 'seqline.event_log_from_0000000000000000001'::regclass AND i.indisprimary";
    let app = db.admin();
    let mut tx = seqline::begin(&app).await.unwrap();
    let redaction = redact::resource(&mut tx, "invoice", "17", Some(5), APPLY).await.unwrap();
    assert_eq!(redaction.events, 5);
    let read: i64 = sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
    assert!(read < 1000, "{read} entries of the primary key for five events");
}
