//! While the log is read only for maintenance nothing is appended, in no way there is, and all else goes on.

use std::time::Duration;

use seqline::consumer::{FailurePolicy, Outcome};
use seqline::maintenance::{Maintenance, MaintenanceConfig};
use seqline::settings::{MaintenanceChange, MaintenanceMode, Sequencing, set_maintenance, settings};
use seqline::{AppendError, Clock, CommitError, ErrorKind, NewEvent, read};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::{PgConnection, PgPool};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::consumers::{Bench, acting, config, database, plain, probe};
use crate::sequencing::{change, sequencer, settled};
use crate::support::{append, assert_nothing_staged, event, head, numbers};

const SOON: Duration = Duration::from_secs(30);

const MESSAGE: &str =
    "append refused: the log is read only for maintenance, until seqline settings maintenance off";

async fn set(db: &TestDb, mode: MaintenanceMode) -> MaintenanceChange {
    set_maintenance(&mut db.connect(Role::App).await, mode, None).await.unwrap()
}

async fn read_only(db: &TestDb) -> MaintenanceChange {
    let change = set(db, MaintenanceMode::ReadOnly).await;
    assert!(change.complete, "{change:?}");
    change
}

/// The change on a task, which waits for somebody.
fn setting(db: &TestDb) -> JoinHandle<MaintenanceChange> {
    let pool = db.app_pool(1);
    tokio::spawn(async move {
        let mut connection = pool.acquire().await.unwrap();
        set_maintenance(&mut connection, MaintenanceMode::ReadOnly, None).await.unwrap()
    })
}

/// Until the setting shows, for whoever begins now.
async fn until_refused(db: &TestDb) {
    let mut connection = db.connect(Role::App).await;
    eventually(SOON, "the setting", async || {
        settings(&mut connection).await.unwrap().maintenance == MaintenanceMode::ReadOnly
    })
    .await;
}

fn with_id() -> NewEvent {
    NewEvent::builder("test.happened", "test", "any").id(Uuid::now_v7()).build().unwrap()
}

/// What an append is answered with that nobody can make.
fn assert_read_only(error: &sqlx::Error, form: &str) {
    let error = error.as_database_error().unwrap().downcast_ref::<sqlx::postgres::PgDatabaseError>();
    let said = (error.code(), error.schema(), error.constraint(), error.message());
    assert_eq!(said, ("53400", Some("seqline"), Some("seqline_read_only"), MESSAGE), "{form}");
    assert!(error.hint().unwrap().contains("retry when the maintenance is over"), "{form}");
}

/// All forms that an append has in SQL.
const FORMS: [(&str, &str); 7] = [
    ("one event", "SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any')"),
    // Not plain, so it goes the longer way.
    (
        "an event to look closer at",
        "SELECT seqline.append('test.happened', '{\"n\": \"null\"}', 'test', 'any')",
    ),
    ("an id", "SELECT seqline.append('test.happened', '{}', 'test', 'any', id => gen_random_uuid())"),
    (
        "a batch",
        "SELECT seqline.append_batch('[{\"type\": \"test.happened\", \"payload\": {}, \"resource_kind\": \"test\", \"receive_action\": \"any\"}]')",
    ),
    (
        "a batch with an id",
        "SELECT seqline.append_batch(('[{\"type\": \"test.happened\", \"payload\": {}, \"resource_kind\": \"test\", \"receive_action\": \"any\", \"id\": \"' || gen_random_uuid() || '\"}]')::jsonb)",
    ),
    (
        "in a block",
        "DO $$ BEGIN PERFORM seqline.append('test.happened', '{\"n\": 1}', 'test', 'any'); END $$",
    ),
    (
        "in a savepoint",
        "BEGIN; SAVEPOINT a; SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any'); COMMIT",
    ),
];

async fn every_form_is_refused(db: TestDb) {
    append(&db.producer(), [1]).await;
    let change = read_only(&db).await;
    assert_eq!((change.changed, change.head), (true, 1));
    let mut producer = db.connect(Role::Producer).await;
    for (form, sql) in FORMS {
        let error = sqlx::raw_sql(sql).execute(&mut producer).await.unwrap_err();
        assert_read_only(&error, form);
        sqlx::raw_sql("ROLLBACK").execute(&mut producer).await.unwrap();
    }
    for events in [vec![event(2)], vec![with_id()], vec![event(2), event(3)], vec![with_id(), event(3)]] {
        let mut tx = seqline::begin(&db.producer()).await.unwrap();
        let error = seqline::append(&mut tx, &events).await.unwrap_err();
        assert!(matches!(error, AppendError::ReadOnly { .. }), "{error:?}");
        assert_eq!((error.to_string().as_str(), error.kind()), (MESSAGE, ErrorKind::Unavailable));
        assert!(error.is_retryable() && error.had_no_effect());
    }
    // No event, nothing to refuse.
    sqlx::raw_sql("SELECT seqline.append_batch('[]')").execute(&mut producer).await.unwrap();
    assert_eq!(head(&db).await, 1);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
    assert!(set(&db, MaintenanceMode::Off).await.changed);
    for (_, sql) in FORMS {
        sqlx::raw_sql(sql).execute(&mut producer).await.unwrap();
    }
    db.settled().await;
    settled(&db).await;
    assert_eq!(head(&db).await, 1 + FORMS.len() as i64);
}

#[tokio::test]
async fn every_form_of_an_append_is_refused_and_taken_again_afterwards() {
    every_form_is_refused(TestDb::at_commit().await).await;
}

#[tokio::test]
async fn every_form_of_an_append_is_refused_with_numbering_after_commit_too() {
    every_form_is_refused(TestDb::after_commit().await).await;
}

/// It has plans for everything it calls.
#[tokio::test]
async fn a_session_that_has_appended_before_finds_out_at_once() {
    for db in [TestDb::at_commit().await, TestDb::after_commit().await] {
        let mut producer = db.connect(Role::Producer).await;
        let one = "SELECT seqline.append('test.happened', $1::jsonb, 'test', 'any')";
        let batch = "SELECT seqline.append_batch($1::jsonb)";
        let events =
            r#"[{"type": "test.happened", "payload": {}, "resource_kind": "test", "receive_action": "any"}]"#;
        let calls = [(one, r#"{"n": 1}"#), (one, r#"{"n": "null"}"#), (batch, events)];
        for _ in 0..7 {
            for (sql, argument) in calls {
                sqlx::query(sql).bind(argument).execute(&mut producer).await.unwrap();
            }
        }
        read_only(&db).await;
        for (sql, argument) in calls {
            let error = sqlx::query(sql).bind(argument).execute(&mut producer).await.unwrap_err();
            assert_read_only(&error, argument);
        }
        set(&db, MaintenanceMode::Off).await;
        for (sql, argument) in calls {
            sqlx::query(sql).bind(argument).execute(&mut producer).await.unwrap();
        }
        assert_eq!(head(&db).await, 24);
    }
}

#[tokio::test]
async fn what_was_appended_before_is_numbered_and_waited_for_and_nothing_after_it() {
    for db in [TestDb::at_commit().await, TestDb::after_commit().await] {
        let mut first = seqline::begin(&db.producer()).await.unwrap();
        seqline::append(&mut first, &[event(1)]).await.unwrap();
        let mut second = seqline::begin(&db.producer()).await.unwrap();
        seqline::append(&mut second, &[event(2), with_id()]).await.unwrap();
        let setting = setting(&db);
        until_refused(&db).await;
        // One more of the same transaction is refused as well; the savepoint saves what came before.
        sqlx::raw_sql("SAVEPOINT a").execute(&mut *first).await.unwrap();
        let error = seqline::append(&mut first, &[event(3)]).await.unwrap_err();
        assert!(matches!(error, AppendError::ReadOnly { .. }), "{error:?}");
        sqlx::raw_sql("ROLLBACK TO a").execute(&mut *first).await.unwrap();
        seqline::commit(first).await.unwrap();
        assert!(!setting.is_finished());
        seqline::commit(second).await.unwrap();
        let change = setting.await.unwrap();
        assert!(change.changed && change.complete && change.head == 3, "{change:?}");
        assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
        assert_eq!(head(&db).await, 3);
    }
}

/// Whoever tries again and again does not keep the change from being complete.
#[tokio::test]
async fn nobody_who_is_refused_is_waited_for() {
    let db = TestDb::at_commit().await;
    let (pool, stop) = (db.pool(Role::Producer, 4), tokio_util::sync::CancellationToken::new());
    let writers: Vec<JoinHandle<()>> = (0..4)
        .map(|n| {
            let (pool, stop) = (pool.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    let mut tx = seqline::begin(&pool).await.unwrap();
                    match seqline::append(&mut tx, &[event(n), event(n)][..1 + n as usize % 2]).await {
                        Ok(_) => seqline::commit(tx).await.unwrap(),
                        Err(error) => assert!(matches!(error, AppendError::ReadOnly { .. }), "{error:?}"),
                    }
                }
            })
        })
        .collect();
    let mut reader = db.connect(Role::Reader).await;
    for _ in 0..20 {
        let before = read::head(&mut reader).await.unwrap();
        eventually(SOON, "appends", async || read::head(&mut reader).await.unwrap() > before).await;
        let change = read_only(&db).await;
        // As late as it can be: whoever would still append has had the time to.
        set_maintenance(&mut db.connect(Role::App).await, MaintenanceMode::ReadOnly, None).await.unwrap();
        assert_eq!(read::head(&mut reader).await.unwrap(), change.head);
        set(&db, MaintenanceMode::Off).await;
    }
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn what_waits_for_the_sequencer_is_numbered_without_one() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    append_and_leave(&db.producer(), 1..=3).await;
    let change = read_only(&db).await;
    assert_eq!((change.drained, change.head), (3, 3));
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3]);
}

async fn append_and_leave(pool: &PgPool, events: impl IntoIterator<Item = i64>) {
    for n in events {
        let mut tx = seqline::begin(pool).await.unwrap();
        seqline::append(&mut tx, &[event(n)]).await.unwrap();
        seqline::commit(tx).await.unwrap();
    }
}

/// It does not see the change, so its append is taken and its COMMIT is not.
#[tokio::test]
async fn a_transaction_with_an_older_snapshot_is_refused_at_its_commit() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let db = TestDb::after_commit().await;
        let mut older = begin_at(&db.producer(), level).await;
        let mut appended = begin_at(&db.producer(), level).await;
        seqline::append(&mut appended, &[event(1)]).await.unwrap();
        let setting = setting(&db);
        until_refused(&db).await;
        // What was appended before the change is numbered here too.
        seqline::commit(appended).await.unwrap();
        let change = setting.await.unwrap();
        assert!(change.complete && change.head == 1, "{change:?}");
        for events in [vec![event(2)], vec![event(2), event(3)]] {
            seqline::append(&mut older, &events).await.unwrap();
        }
        let error = seqline::commit(older).await.unwrap_err();
        assert!(error.is_retryable() && error.had_no_effect(), "{error:?}");
        let CommitError::Database(error) = error else { panic!("{error:?}") };
        assert_eq!(
            error.to_string(),
            "the log was made read only, or numbering changed to at_commit, after this transaction began (SQLSTATE 40001)"
        );
        let mut again = begin_at(&db.producer(), level).await;
        let error = seqline::append(&mut again, &[event(2)]).await.unwrap_err();
        assert!(matches!(error, AppendError::ReadOnly { .. }), "{error:?}");
        drop(again);
        assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
        assert_eq!(head(&db).await, 1);
        // Afterwards it is as it was, in every isolation level.
        set(&db, MaintenanceMode::Off).await;
        let mut after = begin_at(&db.producer(), level).await;
        seqline::append(&mut after, &[event(2)]).await.unwrap();
        seqline::commit(after).await.unwrap();
        append(&db.producer(), [3]).await;
        assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3]);
    }
}

/// With a snapshot.
async fn begin_at(pool: &PgPool, level: &str) -> sqlx::PgTransaction<'static> {
    let mut tx = seqline::begin(pool).await.unwrap();
    let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1");
    sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *tx).await.unwrap();
    tx
}

/// A prepared transaction, and one that nobody ends: both can still make the log longer, and that is said.
#[tokio::test]
async fn a_change_that_somebody_keeps_open_is_not_complete_until_they_have_ended() {
    let server = TestServer::durable().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    change(&db, Sequencing::AfterCommit).await;
    let _sequencer = sequencer(&db);
    let mut session = db.connect(Role::Producer).await;
    let prepare =
        "BEGIN; SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any'); PREPARE TRANSACTION 'p'";
    sqlx::raw_sql(prepare).execute(&mut session).await.unwrap();
    let change = set(&db, MaintenanceMode::ReadOnly).await;
    assert!(change.changed && !change.complete && change.head == 0, "{change:?}");
    let error = sqlx::raw_sql(FORMS[0].1).execute(&mut session).await.unwrap_err();
    assert_read_only(&error, "while the change is not complete");
    sqlx::raw_sql("COMMIT PREPARED 'p'").execute(&mut session).await.unwrap();
    let change = set(&db, MaintenanceMode::ReadOnly).await;
    assert!(!change.changed && change.complete && change.head == 1, "{change:?}");
}

#[tokio::test]
async fn rounds_polls_and_retention_go_on() {
    let db = database().await;
    append(&db.producer(), 1..=3).await;
    let mut consumer = db.connect(Role::Consumer).await;
    sqlx::raw_sql("SELECT seqline.register_consumer('polls', 'oldest')")
        .execute(&mut consumer)
        .await
        .unwrap();
    let bench = Bench::on(db, config(), probe(plain())).await;
    let db = &bench.db;
    read_only(db).await;
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Processed);
    assert_eq!(poll(&mut consumer).await, [1, 2, 3]);
    let run = Maintenance::new(db.app_pool(1), MaintenanceConfig::default(), Clock::system()).run().await;
    run.unwrap();
    set(db, MaintenanceMode::Off).await;
}

async fn poll(consumer: &mut PgConnection) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM seqline.poll('polls', 10)").fetch_all(consumer).await.unwrap()
}

/// It is not the event's fault, so it is not parked for it.
#[tokio::test]
async fn a_consumer_that_appends_waits_until_it_may_again() {
    let db = database().await;
    append(&db.producer(), [1]).await;
    let appends = acting(|seen, round| {
        let again = seen.seq == 1;
        Box::pin(async move {
            if again {
                seqline::append(round.transaction(), &[event(2)]).await?;
            }
            Ok(())
        })
    });
    let policy = FailurePolicy::Park { after_attempts: 1, backoff: Duration::from_millis(1) };
    let consumer = probe(appends).may_append().on_failure(policy);
    read_only(&db).await;
    let bench = Bench::on(db, config(), consumer).await;
    for _ in 0..3 {
        let error = bench.round().await.unwrap_err();
        assert_eq!((error.error_type(), error.seq()), ("handler", Some(1)));
    }
    set(&bench.db, MaintenanceMode::Off).await;
    let result = bench.round().await.unwrap();
    assert_eq!((result.outcome, result.parked), (Outcome::Processed, 0));
    assert_eq!(head(&bench.db).await, 2);
}

#[tokio::test]
async fn the_change_is_audited_and_only_for_those_who_may() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    set_maintenance(&mut app, MaintenanceMode::ReadOnly, Some("upgrade")).await.unwrap();
    set_maintenance(&mut app, MaintenanceMode::ReadOnly, Some("again")).await.unwrap();
    set_maintenance(&mut app, MaintenanceMode::Off, None).await.unwrap();
    let audited: Vec<(String, String, String, Option<String>)> = sqlx::query_as(
        "SELECT action, before #>> '{}', after #>> '{}', why FROM seqline.audit_log ORDER BY id",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    let row = |before: &str, after: &str, why: Option<&str>| {
        ("settings.maintenance".to_owned(), before.to_owned(), after.to_owned(), why.map(str::to_owned))
    };
    assert_eq!(audited, [row("off", "read_only", Some("upgrade")), row("read_only", "off", None)]);
    let refused =
        set_maintenance(&mut db.connect(Role::Producer).await, MaintenanceMode::ReadOnly, None).await;
    assert_eq!(refused.unwrap_err().sqlstate(), Some("42501"));
    let unknown = sqlx::raw_sql("SELECT seqline.set_maintenance('on', NULL)").execute(&mut app).await;
    assert_eq!(unknown.unwrap_err().as_database_error().unwrap().code().as_deref(), Some("22023"));
}
