//! What waits is bounded and visible, and a partition that is missing is made.

use seqline::settings::Sequencing;
use seqline::{AppendError, sequencer as sequencing, status};
use seqline_testkit::{Role, TestDb, TestServer};
use sqlx::PgPool;

use super::{change, sequencer, settled};
use crate::support::{append, event, numbers};

const SOON: std::time::Duration = std::time::Duration::from_secs(20);

async fn set_max(db: &TestDb, max: i64) {
    sqlx::query("UPDATE seqline.settings SET staged_transactions_max = $1")
        .bind(max)
        .execute(&db.admin())
        .await
        .unwrap();
}

async fn refused(pool: &PgPool) -> AppendError {
    let mut tx = seqline::begin(pool).await.unwrap();
    seqline::append(&mut tx, &[event(0)]).await.unwrap_err()
}

/// One that nobody ends counts as one, however many come after it.
#[tokio::test]
async fn a_prepared_transaction_does_not_use_up_the_limit() {
    let server = TestServer::durable().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    change(&db, Sequencing::AfterCommit).await;
    set_max(&db, 3).await;
    let mut producer = db.connect(Role::Producer).await;
    let prepare =
        "BEGIN; SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any'); PREPARE TRANSACTION 'p'";
    sqlx::raw_sql(prepare).execute(&mut producer).await.unwrap();
    let (pool, mut app) = (db.producer(), db.connect(Role::App).await);
    for n in 2..=8 {
        append(&pool, [n]).await;
        assert_eq!(sequencing::drain(&mut app).await.unwrap(), 1);
    }
    // Each of those begins where the one before was, and none looks at what is done with.
    let progress: (i64, Vec<i64>) = sqlx::query_as("SELECT high, missing FROM seqline.sequencer_progress()")
        .fetch_one(&mut app)
        .await
        .unwrap();
    assert_eq!(progress, (8, vec![1]));
    append(&pool, [9]).await;
    append(&pool, [10]).await;
    // Nothing that waits can be passed over, and no number that is none be waited for.
    for (sql, state) in [
        ("SELECT seqline.note_progress(10, '{1}')", "55000"),
        ("SELECT seqline.note_progress(11, '{1,9,10}')", "55000"),
        ("SELECT seqline.note_progress(10, '{NULL}')", "22023"),
        ("SELECT seqline.note_progress(10, '{1,9,10,11}')", "22023"),
    ] {
        let error = sqlx::raw_sql(sql).execute(&mut app).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some(state), "{sql}");
    }
    let AppendError::Database(error) = refused(&pool).await else { panic!("another refusal") };
    assert!(error.to_string().starts_with("append refused: 3 transactions wait"), "{error}");

    sqlx::raw_sql("COMMIT PREPARED 'p'").execute(&mut producer).await.unwrap();
    let passed_over = sqlx::raw_sql("SELECT seqline.note_progress(10, '{9,10}')").execute(&mut app).await;
    assert_eq!(passed_over.unwrap_err().as_database_error().unwrap().code().as_deref(), Some("55000"));
    assert_eq!(sequencing::drain(&mut app).await.unwrap(), 3);
    assert_eq!(numbers(&mut app).await, [2, 3, 4, 5, 6, 7, 8, 1, 9, 10]);
}

#[tokio::test]
async fn above_the_limit_appends_are_refused_until_a_sequencer_has_come() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    set_max(&db, 3).await;
    let pool = db.producer();
    for n in 1..=2 {
        append(&pool, [n]).await;
    }
    let mut open = seqline::begin(&pool).await.unwrap();
    seqline::append(&mut open, &[event(3)]).await.unwrap();
    append(&pool, [4]).await;

    let AppendError::Database(error) = refused(&pool).await else { panic!("another refusal") };
    assert_eq!(
        error.to_string(),
        "append refused: 3 transactions wait for the sequencer, staged_transactions_max is 3 (SQLSTATE 53400)"
    );
    assert!(error.is_retryable());
    // One that has begun to append may go on: it is one transaction either way.
    seqline::append(&mut open, &[event(5)]).await.unwrap();
    seqline::commit(open).await.unwrap();

    let mut app = db.connect(Role::App).await;
    let staged = status::staged(&mut app).await.unwrap();
    assert_eq!((staged.transactions, staged.sequencer), (4, None));
    assert!(staged.oldest_at.is_some());
    assert_eq!(sequencing::drain(&mut app).await.unwrap(), 5);
    append(&pool, [6]).await;
    sequencing::drain(&mut app).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 4, 3, 5, 6]);
    let staged = status::staged(&mut app).await.unwrap();
    assert_eq!((staged.transactions, staged.oldest_at), (0, None));
}

/// They have drawn a place and gave it up; counted for ever they would fill the limit one by one.
#[tokio::test]
async fn transactions_that_failed_in_their_last_pass_do_not_count_for_long() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    set_max(&db, 5).await;
    // Fails after everything that waits, when the place is drawn.
    let schema = "
        CREATE TABLE failing (depth integer);
        CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.depth = 0 THEN RAISE EXCEPTION 'too late'; END IF;
            INSERT INTO failing VALUES (NEW.depth - 1);
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER fails AFTER INSERT ON failing DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION fails();
        GRANT ALL ON failing TO PUBLIC";
    sqlx::raw_sql(schema).execute(&db.admin()).await.unwrap();
    let _sequencer = sequencer(&db);
    for n in 1..=20 {
        let (app, pool) = (db.app(), db.producer());
        seqline_testkit::eventually(SOON, "there is room for one that fails", async || {
            let mut tx = seqline::begin(&app).await.unwrap();
            if seqline::append(&mut tx, &[event(0)]).await.is_err() {
                return false;
            }
            sqlx::raw_sql("INSERT INTO failing VALUES (9)").execute(&mut *tx).await.unwrap();
            seqline::commit(tx).await.unwrap_err();
            true
        })
        .await;
        seqline_testkit::eventually(SOON, "there is room", async || {
            let mut tx = seqline::begin(&pool).await.unwrap();
            match seqline::append(&mut tx, &[event(n)]).await {
                Ok(_) => seqline::commit(tx).await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }
    settled(&db).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, (1..=20).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_sequencer_makes_the_partition_that_it_needs() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    sqlx::raw_sql("UPDATE seqline.settings SET event_log_partition_size = 50")
        .execute(&db.admin())
        .await
        .unwrap();
    let upper: i64 = sqlx::query_scalar("SELECT upper_bound FROM seqline.log_bounds")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    // The last number that there is a partition for, without writing all before.
    let sql =
        "INSERT INTO seqline.event_log (seq, id, type, schema_version, permission_version, resource_kind,
                   receive_action, payload)
               SELECT $1, gen_random_uuid(), 'test.happened', 1, 0, 'test', 'any', '{\"n\": 0}'";
    sqlx::query(sql).bind(upper - 2).execute(&db.admin()).await.unwrap();
    sqlx::query("UPDATE seqline.log_bounds SET head_floor = (SELECT max(lower_bound) FROM seqline.event_log_partitions()),
                     head_ceiling = upper_bound")
        .execute(&db.admin())
        .await
        .unwrap();
    let pool = db.producer();
    for n in 1..=5 {
        append(&pool, [n]).await;
    }
    let _sequencer = sequencer(&db);
    settled(&db).await;
    let head = seqline::read::head(&mut db.connect(Role::Reader).await).await.unwrap();
    assert_eq!(head, upper + 3);
    // What has committed cannot be refused any more, however much it is.
    append(&pool, 0..1_000).await;
    append(&pool, [1_000]).await;
    settled(&db).await;
    let head = seqline::read::head(&mut db.connect(Role::Reader).await).await.unwrap();
    assert_eq!(head, upper + 1_004);
}
