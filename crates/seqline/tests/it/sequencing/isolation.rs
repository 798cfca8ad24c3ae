//! Numbered after commit, a transaction may run in any isolation level, and appending alone is no conflict.

use futures_util::future::join_all;
use seqline::settings::Sequencing;
use seqline::{AppendError, NewEvent};
use seqline_testkit::{Role, TestDb};
use uuid::Uuid;

use super::{change, sequencer, settled};
use crate::support::{append, event, numbers};

#[tokio::test]
async fn serializable_transactions_that_only_append_never_fail() {
    const WRITERS: i64 = 16;
    const EACH: i64 = 60;
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let _sequencer = sequencer(&db);
    let pool = db.pool(Role::Producer, WRITERS as u32);
    let write = async |writer: i64| {
        for n in 0..EACH {
            let mut tx = seqline::begin(&pool).await.unwrap();
            sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE").execute(&mut *tx).await.unwrap();
            let events = [event(writer * EACH + n), event(-1)];
            match n % 3 {
                0 => drop(seqline::append(&mut tx, &events).await.unwrap()),
                _ => {
                    seqline::append(&mut tx, &events[..1]).await.unwrap();
                    seqline::append(&mut tx, &events[1..]).await.unwrap();
                }
            }
            seqline::commit(tx).await.unwrap();
        }
    };
    join_all((0..WRITERS).map(write)).await;
    settled(&db).await;
    let mut logged = numbers(&mut db.connect(Role::Reader).await).await;
    assert_eq!(logged.len() as i64, 2 * WRITERS * EACH);
    logged.retain(|n| *n >= 0);
    logged.sort_unstable();
    assert_eq!(logged, (0..WRITERS * EACH).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_transaction_that_reads_and_appends_keeps_its_snapshot() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let _sequencer = sequencer(&db);
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut tx = seqline::begin(&db.app()).await.unwrap();
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *tx).await.unwrap();
        let seen = async |tx: &mut sqlx::PgConnection| -> i64 {
            sqlx::query_scalar("SELECT count(*) FROM seqline.event_log").fetch_one(tx).await.unwrap()
        };
        let before = seen(&mut tx).await;
        append(&db.producer(), [1]).await;
        settled(&db).await;
        seqline::append(&mut tx, &[event(2)]).await.unwrap();
        assert_eq!(seen(&mut tx).await, before);
        seqline::commit(tx).await.unwrap();
        settled(&db).await;
    }
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 1, 2]);
}

#[tokio::test]
async fn an_id_of_ones_own_needs_a_level_that_sees_who_has_it() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let with_id = || NewEvent::builder("test.happened", "test", "any").id(Uuid::now_v7()).build().unwrap();
    for events in [vec![with_id()], vec![with_id(), with_id()]] {
        let mut tx = seqline::begin(&db.producer()).await.unwrap();
        sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *tx).await.unwrap();
        let error = seqline::append(&mut tx, &events).await.unwrap_err();
        assert!(matches!(error, AppendError::Isolation { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "an id of the caller's own needs isolation level read committed, this transaction is repeatable read"
        );
    }
}

/// Both are staged, and neither is in the log, when the second comes.
#[tokio::test]
async fn an_id_that_waits_for_its_number_is_taken() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let id = Uuid::now_v7();
    let event = NewEvent::builder("test.happened", "test", "any").id(id).build().unwrap();
    let append = async || {
        let mut tx = seqline::begin(&db.producer()).await.unwrap();
        let result = seqline::append(&mut tx, std::slice::from_ref(&event)).await;
        match result {
            Ok(_) => seqline::commit(tx).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    };
    append().await.unwrap();
    let taken = format!("event id {id} is already in the log");
    assert_eq!(append().await.unwrap_err(), taken);
    let _sequencer = sequencer(&db);
    settled(&db).await;
    assert_eq!(append().await.unwrap_err(), taken);
    change(&db, Sequencing::AtCommit).await;
    assert_eq!(append().await.unwrap_err(), taken);
}
