//! Many partitions, and retention at the same time.

use seqline_testkit::{Role, TestDb, eventually};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::partitions::{drop_oldest, ensure, set_sizes, small_partitions};
use crate::support::append;

/// The log, three or four of its partitions with seven indexes each, and the small tables: much less than one for every
/// partition.
const A_HANDFUL: i64 = 64;

async fn locks(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation'
         AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
         AND l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'seqline'::regnamespace)",
    )
    .fetch_one(connection)
    .await
    .unwrap()
}

/// 300 partitions of ten numbers, nearly all of them full.
async fn with_300_partitions() -> TestDb {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 300).await;
    append(&db.producer(), 1..=2_995).await;
    // What maintenance does every few minutes.
    set_sizes(&db, 10, 2).await;
    ensure(&db.app()).await;
    db
}

#[tokio::test]
async fn a_call_locks_a_handful_of_relations_with_300_partitions() {
    let db = with_300_partitions().await;
    let mut session = session(&db).await;
    for (name, start, expected) in
        [("first", 1, 5), ("middle", 1_500, 5), ("last", 2_993, 3), ("next", 2_996, 0)]
    {
        register(&mut session, name, &start.to_string()).await;
        // Often enough for PostgreSQL to want a generic plan.
        for _ in 0..8 {
            run(&mut session, "BEGIN").await;
            assert_eq!(poll(&mut session, name, 5).await, (start..start + expected).collect::<Vec<_>>());
            let held = locks(&mut session).await;
            assert!((1..=A_HANDFUL).contains(&held), "{name}: {held} locks");
            run(&mut session, "ROLLBACK").await;
        }
    }
}

#[tokio::test]
async fn a_registration_locks_a_handful_of_relations_with_300_partitions() {
    let db = with_300_partitions().await;
    let mut session = session(&db).await;
    for start_at in ["head", "oldest", "1500"] {
        run(&mut session, "BEGIN").await;
        register(&mut session, "totals", start_at).await;
        let held = locks(&mut session).await;
        assert!((1..=A_HANDFUL).contains(&held), "{start_at}: {held} locks");
        run(&mut session, "ROLLBACK").await;
    }
}

#[tokio::test]
async fn a_call_behind_retention_locks_a_handful_of_relations_with_300_partitions() {
    let db = with_300_partitions().await;
    let mut session = session(&db).await;
    register(&mut session, "totals", "oldest").await;
    for _ in 0..5 {
        assert_eq!(drop_oldest(&db).await, 1);
    }
    for max_events in [5, 60] {
        run(&mut session, "BEGIN").await;
        assert_eq!(poll(&mut session, "totals", max_events).await.first(), Some(&51));
        let held = locks(&mut session).await;
        assert!((1..=2 * A_HANDFUL).contains(&held), "{held} locks");
        run(&mut session, "ROLLBACK").await;
    }
}

/// A call reads what it returns and not what else is in the partition.
#[tokio::test]
async fn a_call_in_a_full_partition_reads_only_what_it_returns() {
    let db = TestDb::new().await;
    for _ in 0..4 {
        append(&db.producer(), 1..=5_000).await;
    }
    run(&mut db.connect(Role::Admin).await, "ANALYZE seqline.event_log").await;
    let mut session = session(&db).await;
    register(&mut session, "totals", "oldest").await;
    let read = "SELECT coalesce(sum(pg_stat_get_xact_tuples_returned(c.oid)), 0)::bigint
        + coalesce(sum(pg_stat_get_xact_tuples_fetched(c.oid)), 0)::bigint
        FROM pg_class c WHERE c.relnamespace = 'seqline'::regnamespace AND c.relname ~ '^event_log_from'";
    for _ in 0..3 {
        run(&mut session, "BEGIN").await;
        poll(&mut session, "totals", 10).await;
        let rows: i64 = sqlx::query_scalar(read).fetch_one(&mut session).await.unwrap();
        assert!(rows < 100, "{rows} rows were read for 10");
        run(&mut session, "COMMIT").await;
    }
}

/// Every number is either handled once or recorded as lost once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_retention_overtakes_again_and_again_accounts_for_every_number() {
    let db = TestDb::new().await;
    small_partitions(&db, 5, 6).await;
    append(&db.producer(), [1]).await;
    // It waits for maintenance like everybody.
    let mut session = db.connect(Role::Consumer).await;
    run(&mut session, "CREATE TABLE effects (seq bigint)").await;
    register(&mut session, "totals", "oldest").await;
    let (mut tasks, done) = (JoinSet::new(), CancellationToken::new());
    for n in 0..2_i64 {
        let (done, producer, app) = (done.clone(), db.pool(Role::Producer, 1), db.pool(Role::App, 1));
        tasks.spawn(async move {
            while !done.is_cancelled() {
                append(&producer, 0..=n).await;
                ensure(&app).await;
            }
        });
    }
    let drop =
        "SELECT outcome FROM seqline.sync_event_log_drop_expired(now(), now(), seqline.head(), '20 ms')";
    let (stopped, app) = (done.clone(), db.pool(Role::App, 1));
    tasks.spawn(async move {
        while !stopped.is_cancelled() {
            // One that is in use stays until the next attempt.
            match sqlx::query_scalar::<_, String>(drop).fetch_one(&app).await {
                Ok(_) => {}
                Err(error) => assert_eq!(refusal(&error).sqlstate, "55P03", "{error}"),
            }
        }
    });
    eventually(DEADLINE, "enough losses and events", async || {
        // A task that fails says why.
        if let Some(ended) = tasks.try_join_next() {
            ended.unwrap();
        }
        let max_events = fastrand::u8(1..20);
        let sql = format!("INSERT INTO effects SELECT seq FROM seqline.poll('totals', {max_events})");
        run(&mut session, &sql).await;
        // A consumer that is slow now and then, or retention would never overtake it.
        if fastrand::u8(0..10) == 0 {
            run(&mut session, "SELECT pg_sleep(0.2)").await;
        }
        let so_far =
            "SELECT (SELECT count(*) FROM seqline.lost_ranges) > 4 AND (SELECT count(*) FROM effects) > 100";
        sqlx::query_scalar(so_far).fetch_one(&db.admin()).await.unwrap()
    })
    .await;
    done.cancel();
    tasks.join_all().await;
    let unaccounted: i64 = sqlx::query_scalar(
        "WITH accounted AS (
             SELECT seq FROM effects
             UNION ALL SELECT generate_series(lost_from, lost_to) FROM seqline.lost_ranges)
         SELECT count(*) FROM generate_series(1, (SELECT last_seq FROM seqline.event_consumer_cursors)) g
         WHERE (SELECT count(*) FROM accounted a WHERE a.seq = g) <> 1",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert_eq!(unaccounted, 0);
}
