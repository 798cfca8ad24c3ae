//! What stays the same when there is more of it: large transactions, many partitions, snapshots held for long.

use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::numbering::DEADLINE;
use crate::support::{append, assert_nothing_staged};

/// Runs the script, which appends 100,000 events with payload numbers from 1 in one transaction, and checks the log.
async fn assert_one_unit_of_100_000(script: &'static str) {
    let db = TestDb::new().await;
    sqlx::query("UPDATE seqline.settings SET append_batch_max_events = 100000")
        .execute(&db.admin())
        .await
        .unwrap();
    let mut listener = PgListener::connect_with(&db.reader()).await.unwrap();
    listener.listen("event_log").await.unwrap();
    append(&db.producer(), [0]).await;
    sqlx::raw_sql(script).execute(&db.producer()).await.unwrap();
    append(&db.producer(), [100_001]).await;

    let log: (i64, i64, i64, i64) = sqlx::query_as(
        "SELECT count(*), min(seq), max(seq), count(*) FILTER (WHERE (payload ->> 'n')::bigint = seq - 1)
         FROM seqline.event_log",
    )
    .fetch_one(&db.reader())
    .await
    .unwrap();
    assert_eq!(log, (100_002, 1, 100_002, 100_002), "events, first and last number, events in their place");
    let mut announced = Vec::new();
    for _ in 0..3 {
        announced.push(
            tokio::time::timeout(DEADLINE, listener.recv()).await.unwrap().unwrap().payload().to_owned(),
        );
    }
    assert_eq!(announced, ["1", "100001", "100002"]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_batch_of_100_000_events_is_one_unit() {
    assert_one_unit_of_100_000(
        "SELECT cardinality(seqline.append_batch((
             SELECT jsonb_agg(jsonb_build_object('type', 'test.happened', 'resource_kind', 'test',
                 'receive_action', 'any', 'payload', jsonb_build_object('n', n)) ORDER BY n)
             FROM generate_series(1, 100000) n)))",
    )
    .await;
}

#[tokio::test]
async fn a_transaction_of_100_000_appends_is_one_unit() {
    assert_one_unit_of_100_000(
        "DO $$
         BEGIN
             FOR n IN 1..100000 LOOP
                 PERFORM seqline.append('test.happened', jsonb_build_object('n', n), 'test', 'any');
             END LOOP;
         END
         $$",
    )
    .await;
}

/// What reading the staging tables has cost until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reads {
    sequential_scans: i64,
    index_entries: i64,
    staged: i64,
}

async fn reads(admin: &PgPool) -> Reads {
    let (sequential_scans, index_entries, staged) = sqlx::query_as(
        "SELECT (SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables WHERE relname ~ '^(pending|staged)_'),
                (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname ~ '^(pending|staged)_'),
                (SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'pending_transactions')",
    )
    .fetch_one(admin)
    .await
    .unwrap();
    Reads { sequential_scans, index_entries, staged }
}

/// Appends so many events in transactions of their own and in a session of its own, whose plans are therefore new, and
/// gives what that cost.
async fn cost_of_appends(db: &TestDb, count: i64, append: &str) -> Reads {
    let (admin, before) = (db.admin(), reads(&db.admin()).await);
    let mut session = db.connect(Role::Producer).await;
    for _ in 0..count {
        sqlx::raw_sql(AssertSqlSafe(append)).execute(&mut session).await.unwrap();
    }
    // A session reports what it did at its end.
    session.close().await.unwrap();
    let mut after = before;
    eventually(DEADLINE, "the statistics of the session", async || {
        after = reads(&admin).await;
        after.staged >= before.staged + count
    })
    .await;
    Reads {
        sequential_scans: after.sequential_scans - before.sequential_scans,
        index_entries: after.index_entries - before.index_entries,
        staged: after.staged - before.staged,
    }
}

const PUT: &str = "SELECT seqline.append('test.happened', '{}', 'test', 'any')";

/// In a database whose staging tables are empty and vacuumed, with a snapshot held that keeps every dead row there is:
/// what the first appends cost, and what they cost when many dead rows have piled up.
async fn first_and_later_cost(append: &str) -> (Reads, Reads) {
    let db = TestDb::at_commit().await;
    let mut admin = db.connect(Role::Admin).await;
    for table in ["pending_events", "pending_transactions", "staged_events", "staged_transactions"] {
        let vacuum = format!("VACUUM ANALYZE seqline.{table}");
        sqlx::query(AssertSqlSafe(vacuum)).execute(&mut admin).await.unwrap();
    }
    let mut report = db.connect(Role::Reader).await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM seqline.event_log")
        .execute(&mut report)
        .await
        .unwrap();
    let first = cost_of_appends(&db, 100, append).await;
    cost_of_appends(&db, 300, append).await;
    let later = cost_of_appends(&db, 100, append).await;
    report.close().await.unwrap();
    (first, later)
}

#[tokio::test]
async fn an_append_never_scans_the_staging_tables() {
    let (first, later) = first_and_later_cost(PUT).await;
    assert_eq!((first.sequential_scans, later.sequential_scans), (0, 0));
}

#[tokio::test]
async fn an_append_costs_the_same_however_long_a_snapshot_is_held() {
    let (first, later) = first_and_later_cost(PUT).await;
    assert!(first.index_entries > 0, "{first:?}");
    assert!(later.index_entries <= first.index_entries + 100, "{first:?}, later {later:?}");
}

#[tokio::test]
async fn a_batch_with_ids_never_scans_the_staging_tables() {
    let batch = "SELECT seqline.append_batch(jsonb_build_array(jsonb_build_object('type', 'test.happened',
        'resource_kind', 'test', 'receive_action', 'any', 'payload', '{}'::jsonb, 'id', gen_random_uuid())))";
    let (first, later) = first_and_later_cost(batch).await;
    assert_eq!((first.sequential_scans, later.sequential_scans), (0, 0));
    assert!(later.index_entries <= first.index_entries + 100, "{first:?}, later {later:?}");
}

#[tokio::test]
async fn a_function_that_forbids_scans_forbids_compiling_too() {
    // Before PostgreSQL 18 a scan that cannot be avoided then looks so expensive that it is compiled each time: 50 ms, in
    // COMMIT and under the numbering lock.
    let compiled: Vec<String> = sqlx::query_scalar(
        "SELECT proname::text FROM pg_proc WHERE pronamespace = 'seqline'::regnamespace
         AND 'enable_seqscan=off' = ANY (proconfig) AND NOT 'jit=off' = ANY (proconfig)",
    )
    .fetch_all(&TestDb::new().await.admin())
    .await
    .unwrap();
    assert_eq!(compiled, [""; 0]);
}

/// How many locks on tables, partitions and their indexes this transaction holds, those of this query aside.
const LOCKS: &str =
    "SELECT count(*) FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation'
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
     AND l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'seqline'::regnamespace)";

async fn locks(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar(LOCKS).fetch_one(connection).await.unwrap()
}

/// The log and the three or four partitions at its head, with seven indexes each, and the small tables: much less than one
/// for every partition.
const A_HANDFUL: i64 = 64;

/// Replaces the partitions of an empty log by 300 for ten events each.
async fn with_300_partitions(db: &TestDb) {
    let drop_all = "DO $$
    DECLARE
        v_name text;
    BEGIN
        FOR v_name IN SELECT name FROM seqline.event_log_partitions() LOOP
            EXECUTE format('DROP TABLE seqline.%I', v_name);
        END LOOP;
    END
    $$";
    sqlx::raw_sql(drop_all).execute(&db.admin()).await.unwrap();
    sqlx::query("UPDATE seqline.settings SET event_log_partition_size = 10")
        .execute(&db.admin())
        .await
        .unwrap();
    ensure_partitions(db, 300).await;
    let partitions: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.event_log_partitions()")
        .fetch_one(&db.app())
        .await
        .unwrap();
    assert!(partitions >= 300, "{partitions}");
}

async fn ensure_partitions(db: &TestDb, ahead: i32) {
    sqlx::query("SELECT seqline.sync_event_log_ensure_partitions(10, $1, seqline.head())")
        .bind(ahead)
        .execute(&db.app())
        .await
        .unwrap();
}

/// The locks of a transaction that has appended one event and numbered it: a deferred trigger counts them late in COMMIT, and
/// only then makes sure that the event has its number, because a look at the log takes locks too.
async fn locks_of_numbering(db: &TestDb) -> i64 {
    let mut app = db.connect(Role::App).await;
    let watch = format!(
        "CREATE TABLE watch (head bigint, pass int NOT NULL DEFAULT 0, locks bigint);
         CREATE FUNCTION watch_locks() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF NEW.pass < 20 THEN
                 UPDATE watch SET pass = NEW.pass + 1 WHERE ctid = NEW.ctid;
             ELSIF NEW.locks IS NULL THEN
                 UPDATE watch SET locks = ({LOCKS}) WHERE ctid = NEW.ctid;
             ELSIF seqline.head() <> NEW.head + 1 THEN
                 RAISE EXCEPTION 'counted before numbering';
             END IF;
             RETURN NULL;
         END
         $$;
         CREATE CONSTRAINT TRIGGER watch_locks AFTER INSERT OR UPDATE ON watch
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION watch_locks();"
    );
    sqlx::raw_sql(AssertSqlSafe(watch)).execute(&mut app).await.unwrap();
    let head = seqline::read::head(&mut app).await.unwrap();
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    sqlx::query("INSERT INTO watch VALUES ($1)").bind(head).execute(&mut *tx).await.unwrap();
    sqlx::raw_sql(PUT).execute(&mut *tx).await.unwrap();
    seqline::commit(tx).await.unwrap();
    sqlx::query_scalar("SELECT locks FROM watch").fetch_one(&mut app).await.unwrap()
}

async fn assert_locks_a_handful(what: &str, locks: i64) {
    assert!((1..=A_HANDFUL).contains(&locks), "{what} took {locks} locks");
}

/// In the middle of 300 partitions: most of them are behind the head.
async fn full_log(db: TestDb) -> TestDb {
    with_300_partitions(&db).await;
    append(&db.producer(), 1..=2_995).await;
    // What maintenance does every few minutes.
    ensure_partitions(&db, 2).await;
    db
}

#[tokio::test]
async fn numbering_locks_a_handful_of_relations_with_300_partitions_behind() {
    let db = full_log(TestDb::at_commit().await).await;
    assert_locks_a_handful("numbering", locks_of_numbering(&db).await).await;
}

#[tokio::test]
async fn numbering_locks_a_handful_of_relations_with_300_partitions_ahead() {
    let db = TestDb::at_commit().await;
    with_300_partitions(&db).await;
    append(&db.producer(), 1..=5).await;
    assert_locks_a_handful("numbering", locks_of_numbering(&db).await).await;
}

async fn assert_reads_lock_a_handful(db: &TestDb) {
    let mut reader = db.connect(Role::Reader).await;
    let head = seqline::read::head(&mut reader).await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut reader).await.unwrap();
    assert_eq!(seqline::read::head(&mut reader).await.unwrap(), head);
    assert_locks_a_handful("head", locks(&mut reader).await).await;
    sqlx::raw_sql("COMMIT; BEGIN").execute(&mut reader).await.unwrap();
    assert_eq!(seqline::read::min_retained(&mut reader).await.unwrap(), 1);
    assert_locks_a_handful("min_retained", locks(&mut reader).await).await;
    for after in [0, head / 2, head - 3] {
        sqlx::raw_sql("COMMIT; BEGIN").execute(&mut reader).await.unwrap();
        // Often enough for PostgreSQL to want a generic plan, which would lock everything.
        for _ in 0..8 {
            let page = seqline::read::events_after(&mut reader, after, 5).await.unwrap();
            assert_eq!(page.first().map(|event| event.seq), Some(after + 1));
        }
        assert_locks_a_handful("a page", locks(&mut reader).await).await;
    }
}

#[tokio::test]
async fn reading_locks_a_handful_of_relations_with_300_partitions_behind() {
    assert_reads_lock_a_handful(&full_log(TestDb::new().await).await).await;
}

#[tokio::test]
async fn reading_locks_a_handful_of_relations_with_300_partitions_ahead() {
    let db = TestDb::new().await;
    with_300_partitions(&db).await;
    append(&db.producer(), 1..=5).await;
    assert_reads_lock_a_handful(&db).await;
}

#[tokio::test]
async fn an_open_page_in_each_of_150_transactions_leaves_room_in_the_lock_table() {
    // A server of its own, because all tests share the connections and the lock table of the other.
    let server = TestServer::fast().await;
    let db = TestDb::on(&server).await;
    with_300_partitions(&db).await;
    append(&db.producer(), 1..=2_995).await;
    ensure_partitions(&db, 2).await;
    let mut open = Vec::new();
    for n in 0..150 {
        let mut reader = db.connect(Role::Reader).await;
        sqlx::raw_sql("BEGIN").execute(&mut reader).await.unwrap();
        let page = seqline::read::events_after(&mut reader, n * 19, 10)
            .await
            .unwrap_or_else(|error| panic!("{n}: {error}"));
        assert_eq!(page.len(), 10);
        open.push(reader);
    }
    append(&db.producer(), [2_996]).await;
}

#[tokio::test]
async fn an_id_of_the_callers_choice_locks_a_handful_of_relations_with_300_partitions() {
    let db = full_log(TestDb::new().await).await;
    let mut producer = db.connect(Role::Producer).await;
    sqlx::raw_sql("BEGIN").execute(&mut producer).await.unwrap();
    sqlx::raw_sql("SELECT seqline.append('test.happened', '{}', 'test', 'any', id => gen_random_uuid())")
        .execute(&mut producer)
        .await
        .unwrap();
    assert_locks_a_handful("an append with an id", locks(&mut producer).await).await;
    sqlx::raw_sql("COMMIT").execute(&mut producer).await.unwrap();

    let mut reader = db.connect(Role::Reader).await;
    sqlx::raw_sql("BEGIN").execute(&mut reader).await.unwrap();
    for seq in [1, 2_995] {
        let id = sqlx::query_scalar("SELECT id FROM seqline.event_log WHERE seq = $1")
            .bind(seq)
            .persistent(false)
            .fetch_one(&mut db.connect(Role::Reader).await)
            .await
            .unwrap();
        assert_eq!(seqline::read::seq_of(&mut reader, id).await.unwrap(), Some(seq));
    }
    assert_eq!(locks(&mut reader).await, 0, "locks that a look-up by id keeps");
}

#[tokio::test]
async fn many_ids_of_the_callers_choice_are_looked_up_by_their_index() {
    let db = TestDb::new().await;
    sqlx::raw_sql(
        "SELECT cardinality(seqline.append_batch((
             SELECT jsonb_agg(jsonb_build_object('type', 'test.happened', 'resource_kind', 'test',
                 'receive_action', 'any', 'payload', '{}'::jsonb)) FROM generate_series(1, 10000))))",
    )
    .execute(&db.producer())
    .await
    .unwrap();
    sqlx::raw_sql("ANALYZE seqline.event_log").execute(&db.admin()).await.unwrap();
    let read = "SELECT coalesce(sum(seq_tup_read), 0)::bigint
        + (SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes WHERE relname ~ '^event_log_from')
        FROM pg_stat_user_tables WHERE relname ~ '^event_log_from'";
    let before: i64 = sqlx::query_scalar(read).fetch_one(&db.admin()).await.unwrap();
    let mut session = db.connect(Role::Producer).await;
    sqlx::raw_sql(
        "SELECT cardinality(seqline.append_batch((
             SELECT jsonb_agg(jsonb_build_object('type', 'test.happened', 'resource_kind', 'test', 'id', gen_random_uuid(),
                 'receive_action', 'any', 'payload', '{}'::jsonb)) FROM generate_series(1, 1000))))",
    )
    .execute(&mut session)
    .await
    .unwrap();
    session.close().await.unwrap();
    let mut after = before;
    let inserted = "SELECT sum(n_tup_ins)::bigint FROM pg_stat_user_tables WHERE relname ~ '^event_log_from'";
    eventually(DEADLINE, "the statistics of the session", async || {
        let appended: i64 = sqlx::query_scalar(inserted).fetch_one(&db.admin()).await.unwrap();
        after = sqlx::query_scalar(read).fetch_one(&db.admin()).await.unwrap();
        appended >= 11_000
    })
    .await;
    assert!(after - before < 5_000, "{} rows were read", after - before);
}
