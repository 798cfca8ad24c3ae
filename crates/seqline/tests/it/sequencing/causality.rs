//! The order of the log is one in which nothing comes before what it depends on, whatever is mixed.
//!
//! Transactions write down what they depend on, in rows that commit with them: whose row they changed after waiting for it, whose row they
//! read, and who was acknowledged before they began. They append first and wait then, or the other way round, wait in chains of deferred
//! triggers, switch constraints, run in all isolation levels and are prepared, while numbering is changed back and forth.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use seqline::settings::Sequencing;
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{change, sequencer, settled};

const WRITERS: u64 = 12;
const CELLS: i64 = 16;
const TRANSACTIONS: u64 = 2_500;
const CHANGES: u64 = 16;
const DEADLINE: Duration = Duration::from_secs(120);

const SCHEMA: &str = "
    CREATE TABLE cells (id bigint PRIMARY KEY, writer bigint NOT NULL);
    INSERT INTO cells SELECT n, 0 FROM generate_series(1, 16) n;
    CREATE TABLE depends (later bigint NOT NULL, earlier bigint NOT NULL, how text NOT NULL);
    CREATE TABLE chained (tx bigint NOT NULL, cell bigint NOT NULL, depth integer NOT NULL);

    -- Waits for whoever has the row and depends on whoever wrote it last.
    CREATE FUNCTION change_cell(tx bigint, cell bigint, how text) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        v_writer bigint;
    BEGIN
        SELECT writer INTO v_writer FROM cells WHERE id = cell FOR UPDATE;
        UPDATE cells SET writer = tx WHERE id = cell;
        INSERT INTO depends SELECT tx, v_writer, how WHERE v_writer NOT IN (0, tx);
    END $$;

    CREATE FUNCTION read_cell(tx bigint, cell bigint) RETURNS void LANGUAGE sql AS $$
        INSERT INTO depends SELECT tx, writer, 'read' FROM cells WHERE id = cell AND writer NOT IN (0, tx)
    $$;

    CREATE FUNCTION go_on() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM change_cell(NEW.tx, NEW.cell, 'deferred ' || NEW.depth);
        IF NEW.depth > 1 THEN
            INSERT INTO chained VALUES (NEW.tx, NEW.cell % 16 + 1, NEW.depth - 1);
        END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER go_on AFTER INSERT ON chained DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION go_on();
    GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
";

/// What all writers share.
#[derive(Default)]
struct Run {
    next: AtomicI64,
    committed: AtomicU64,
    prepared: AtomicU64,
    /// The last transaction that somebody was told has committed.
    acknowledged: AtomicI64,
    stop: AtomicBool,
}

async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

/// One transaction. An error means that it was rolled back, or is to be.
async fn transaction(
    connection: &mut PgConnection,
    shared: &Run,
    tx: i64,
    random: &mut fastrand::Rng,
) -> Result<(), sqlx::Error> {
    let earlier = shared.acknowledged.load(Ordering::SeqCst);
    let level = ["READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][random.usize(..4)];
    run(connection, &format!("BEGIN ISOLATION LEVEL {level}")).await?;
    if earlier > 0 {
        run(connection, &format!("INSERT INTO depends VALUES ({tx}, {earlier}, 'acknowledged')")).await?;
    }
    // Appended at a random place among the rest: before it waits, between, or after.
    let appends = random.usize(..4);
    for step in 0..4 {
        if step == appends || random.u8(..) < 40 {
            run(
                connection,
                &format!("SELECT seqline.append('test.happened', '{{\"tx\": {tx}}}', 'test', 'any')"),
            )
            .await?;
        }
        let cell = random.i64(1..=CELLS);
        match random.u8(..) {
            0..90 => run(connection, &format!("SELECT change_cell({tx}, {cell}, 'row lock')")).await?,
            90..160 => run(connection, &format!("SELECT read_cell({tx}, {cell})")).await?,
            160..200 => {
                let depth = random.u8(1..=3);
                run(connection, &format!("INSERT INTO chained VALUES ({tx}, {cell}, {depth})")).await?;
            }
            200..230 => run(connection, "SET CONSTRAINTS ALL IMMEDIATE").await?,
            _ => run(connection, "SET CONSTRAINTS ALL DEFERRED").await?,
        }
    }
    if random.u8(..) < 30 {
        run(connection, &format!("PREPARE TRANSACTION 'tx{tx}'")).await?;
        run(connection, &format!("COMMIT PREPARED 'tx{tx}'")).await?;
        shared.prepared.fetch_add(1, Ordering::SeqCst);
    } else {
        run(connection, "COMMIT").await?;
    }
    Ok(())
}

async fn write(db: &TestDb, shared: &Run, seed: u64) -> Vec<i64> {
    let mut connection = db.connect(Role::App).await;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut committed = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        let tx = shared.next.fetch_add(1, Ordering::SeqCst) + 1;
        match transaction(&mut connection, shared, tx, &mut random).await {
            Ok(()) => {
                shared.acknowledged.store(tx, Ordering::SeqCst);
                shared.committed.fetch_add(1, Ordering::SeqCst);
                committed.push(tx);
            }
            Err(error) => {
                let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
                // Conflicts of isolation, deadlocks; levels that numbering inside COMMIT refuses, and to be prepared then.
                assert!(["40001", "40P01", "0A000"].contains(&&*code), "{error}");
                run(&mut connection, "ROLLBACK").await.unwrap();
            }
        }
    }
    committed
}

/// As many changes as there are, spread over the transactions.
async fn keep_changing(db: &TestDb, shared: &Run) {
    for n in 1..=CHANGES {
        let due = TRANSACTIONS * n / CHANGES;
        eventually(DEADLINE, "the next transactions", async || {
            shared.committed.load(Ordering::SeqCst) >= due
        })
        .await;
        change(db, if n % 2 == 1 { Sequencing::AfterCommit } else { Sequencing::AtCommit }).await;
    }
    shared.stop.store(true, Ordering::SeqCst);
}

async fn count(db: &TestDb, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(&db.admin()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_comes_before_what_it_depends_on() {
    let seed = std::env::var("SEQLINE_TEST_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("SEQLINE_TEST_SEED={seed}");
    let server = TestServer::with(seqline::embedded::Durability::Fast, &[("deadlock_timeout", "20ms")]).await;
    let db = Arc::new(TestDb::numbering(&server, Sequencing::AtCommit).await);
    // Otherwise PostgreSQL refuses to prepare what was numbered inside COMMIT, for another reason.
    sqlx::raw_sql("SELECT seqline.set_notification('after_commit', NULL)")
        .execute(&db.admin())
        .await
        .unwrap();
    sqlx::raw_sql(SCHEMA).execute(&db.admin()).await.unwrap();
    let _sequencer = sequencer(&db);
    let shared = Arc::new(Run::default());

    let writers = (0..WRITERS).map(|writer| {
        let (db, shared) = (db.clone(), shared.clone());
        tokio::spawn(async move { write(&db, &shared, seed.wrapping_add(writer)).await })
    });
    let writers: Vec<_> = writers.collect();
    keep_changing(&db, &shared).await;
    let mut committed: Vec<i64> = join_all(writers).await.into_iter().flat_map(Result::unwrap).collect();
    settled(&db).await;
    committed.sort_unstable();

    let logged: Vec<i64> =
        sqlx::query_scalar("SELECT DISTINCT (payload ->> 'tx')::bigint FROM seqline.event_log ORDER BY 1")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(logged, committed, "transactions in the log and those that were acknowledged");
    assert_eq!(count(&db, "SELECT max(seq) - count(*) FROM seqline.event_log").await, 0, "holes");
    let split = "SELECT count(*) FROM (SELECT FROM seqline.event_log GROUP BY payload ->> 'tx'
                 HAVING max(seq) - min(seq) + 1 <> count(*)) t";
    assert_eq!(count(&db, split).await, 0, "transactions with others in between");

    let reversed = "
        WITH placed AS (SELECT (payload ->> 'tx')::bigint AS tx, min(seq) AS first, max(seq) AS last
                        FROM seqline.event_log GROUP BY 1)
        SELECT d.how, count(*), count(*) FILTER (WHERE e.last > l.first)
        FROM depends d JOIN placed l ON l.tx = d.later JOIN placed e ON e.tx = d.earlier
        GROUP BY 1 ORDER BY 1";
    let found: Vec<(String, i64, i64)> = sqlx::query_as(reversed).fetch_all(&db.admin()).await.unwrap();
    println!("{} prepared, {found:?}", shared.prepared.load(Ordering::SeqCst));
    for (how, dependencies, reversed) in &found {
        assert!(*dependencies > 20, "{how}: {dependencies} dependencies are too few to say anything");
        assert_eq!(*reversed, 0, "{how}: of {dependencies} dependencies");
    }
    let kinds: Vec<&str> = found.iter().map(|(how, ..)| how.as_str()).collect();
    assert_eq!(kinds, ["acknowledged", "deferred 1", "deferred 2", "deferred 3", "read", "row lock"]);
    assert!(shared.prepared.load(Ordering::SeqCst) > 20);
}
