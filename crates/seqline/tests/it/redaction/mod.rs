//! Redaction: exactly what was named is taken out, once, and those who could see it are told.

mod copies;
mod notices;
mod races;
mod receivers;
mod staged;

use seqline::consumer::Mode;
use seqline::redact::{self, RedactError, Redaction};
use seqline::settings::{MaintenanceMode, set_maintenance};
use seqline::{Actor, ErrorKind, NewEvent, Payload};
use seqline_testkit::{Role, TestDb, settled};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::partitions::small_partitions;
use crate::support::head;

const APPLY: Mode<'_> = Mode::Apply { why: Some("asked to") };

/// What nobody shall find any more.
const PLANTED: &str = "4111-1111";

/// An event about a resource that says something.
fn about(kind: &str, id: &str) -> seqline::event::NewEventBuilder {
    let payload = Payload::from_json(&format!("{{\"card\": \"{PLANTED}\"}}")).unwrap();
    NewEvent::builder("order.paid", kind, "any").resource_id(id).payload(payload)
}

fn order(id: &str) -> NewEvent {
    about("order", id).build().unwrap()
}

/// Appends them in one transaction. When it returns they are in the log.
async fn append(pool: &PgPool, events: impl IntoIterator<Item = NewEvent>) -> Vec<Uuid> {
    let events: Vec<NewEvent> = events.into_iter().collect();
    let mut tx = seqline::begin(pool).await.unwrap();
    let ids = seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    settled(pool).await;
    ids
}

/// In a transaction of its own. When it returns the notices are in the log.
async fn redact_event(pool: &PgPool, id: Uuid, mode: Mode<'_>) -> Result<Redaction, RedactError> {
    let mut tx = seqline::begin(pool).await.unwrap();
    let redaction = redact::event(&mut tx, id, mode).await?;
    seqline::commit(tx).await.unwrap();
    settled(pool).await;
    Ok(redaction)
}

async fn redact_resource(pool: &PgPool, id: &str, mode: Mode<'_>) -> Result<Redaction, RedactError> {
    let mut tx = seqline::begin(pool).await.unwrap();
    let redaction = redact::resource(&mut tx, "order", id, None, mode).await?;
    seqline::commit(tx).await.unwrap();
    settled(pool).await;
    Ok(redaction)
}

/// How many it redacted, how many had been before, and how many wait.
fn counts(redaction: &Redaction) -> (i64, i64, i64) {
    (redaction.events, redaction.already, redaction.waiting)
}

/// All that the table holds of each event, by number.
async fn rows(db: &TestDb) -> Vec<Value> {
    db.settled().await;
    sqlx::query_scalar("SELECT to_jsonb(e) FROM seqline.event_log e ORDER BY seq")
        .fetch_all(&db.reader())
        .await
        .unwrap()
}

/// Numbers of the events that are redacted. No other says nothing, and none of them says anything.
async fn redacted(db: &TestDb) -> Vec<i64> {
    let rows = rows(db).await;
    let redacted = rows.iter().filter(|row| !row["redacted_at"].is_null());
    redacted
        .inspect(|row| assert_eq!(row["payload"], json!({})))
        .map(|row| row["seq"].as_i64().unwrap())
        .collect()
}

/// Who, what and why, as it was recorded.
async fn audit(db: &TestDb) -> Vec<(String, String, String, Value, Value, Option<String>)> {
    sqlx::query_as("SELECT who, action, subject, before, after, why FROM seqline.audit_log ORDER BY id")
        .fetch_all(&db.app())
        .await
        .unwrap()
}

#[tokio::test]
async fn the_payload_of_the_named_event_is_taken_out_and_nothing_else_of_the_log_changes() {
    let db = TestDb::new().await;
    let full = about("order", "17")
        .resource_version(3)
        .schema_version(2)
        .space("shop-1")
        .channel("orders")
        .thread("t-1")
        .actor(Actor::User("alex".to_owned()))
        .audience("robin")
        .client_msg_id("c-9")
        .traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .truncated(true)
        .build()
        .unwrap();
    let ids = append(&db.producer(), [order("17"), full, order("17")]).await;
    let before = rows(&db).await;
    let redaction = redact_event(&db.app(), ids[1], APPLY).await.unwrap();
    assert_eq!((counts(&redaction), redaction.is_about_any()), ((1, 0, 0), true));
    assert_eq!(redaction.partitions, ["event_log_from_0000000000000000001"]);

    let mut after = rows(&db).await;
    assert_eq!(after.split_off(3).len(), 1, "a notice");
    assert_eq!(redacted(&db).await, [2]);
    assert!(after[1]["redacted_at"].is_string());
    after[1]["redacted_at"] = Value::Null;
    after[1]["payload"] = json!({"card": PLANTED});
    assert_eq!(after, before);

    let page = seqline::read::events_after(&mut db.connect(Role::Reader).await, 0, 10).await.unwrap();
    let said: Vec<_> = page.iter().map(|event| (event.redacted, event.payload.as_json().len() > 2)).collect();
    assert_eq!(said, [(false, true), (true, false), (false, true), (false, true)]);
    let (who, why) = (Role::App.login().to_owned(), Some("asked to".to_owned()));
    let done = json!({"events": 1, "first_seq": 2, "last_seq": 2, "notices": 1});
    assert_eq!(audit(&db).await, [(who, "log.redact".to_owned(), ids[1].to_string(), json!({}), done, why)]);
}

#[tokio::test]
async fn a_second_time_changes_nothing_appends_nothing_and_says_so() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), [order("17"), order("17")]).await;
    redact_event(&db.app(), ids[0], APPLY).await.unwrap();
    let (before, head_before) = (rows(&db).await, head(&db).await);
    assert_eq!(counts(&redact_event(&db.app(), ids[0], APPLY).await.unwrap()), (0, 1, 0));
    assert_eq!((rows(&db).await, audit(&db).await.len()), (before, 1));
    // Of a resource that was redacted in part the rest is.
    assert_eq!(counts(&redact_resource(&db.app(), "17", APPLY).await.unwrap()), (1, 1, 0));
    let before = rows(&db).await;
    assert_eq!(before.len() as i64, head_before + 1);
    assert_eq!(counts(&redact_resource(&db.app(), "17", APPLY).await.unwrap()), (0, 2, 0));
    assert_eq!((rows(&db).await, audit(&db).await.len()), (before, 2));
}

#[tokio::test]
async fn it_can_be_asked_what_would_be_done() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), [order("17"), order("18"), order("17")]).await;
    let before = rows(&db).await;
    let plan = redact_resource(&db.app(), "17", Mode::Plan).await.unwrap();
    assert_eq!(counts(&plan), (2, 0, 0));
    assert_eq!(counts(&redact_event(&db.app(), ids[1], Mode::Plan).await.unwrap()), (1, 0, 0));
    assert_eq!((rows(&db).await, audit(&db).await.len()), (before, 0));
    assert_eq!(redact_resource(&db.app(), "17", APPLY).await.unwrap(), plan);
    assert_eq!(redacted(&db).await, [1, 3]);
    // Said in SQL: what is not known to be meant is not done.
    let sql = "SELECT events FROM seqline.redact_resource('order', '18', dry_run => NULL)";
    assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(&db.app()).await.unwrap(), 1);
    assert_eq!(redacted(&db).await, [1, 3]);
}

#[tokio::test]
async fn a_resource_is_redacted_in_all_partitions_and_others_are_not_touched() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 8).await;
    let ids = ["17", "18", "17", "17", "18", "18", "18", "17"];
    append(&db.producer(), ids.map(order)).await;
    append(&db.producer(), [about("invoice", "17").build().unwrap()]).await;
    let redaction = redact_resource(&db.app(), "17", APPLY).await.unwrap();
    assert_eq!(counts(&redaction), (4, 0, 0));
    assert_eq!(redaction.partitions, [1, 3, 7].map(|seq| format!("event_log_from_{seq:019}")));
    assert_eq!(redacted(&db).await, [1, 3, 4, 8]);
    let done = json!({"events": 4, "first_seq": 1, "last_seq": 8, "notices": 1});
    assert_eq!(audit(&db).await[0].4, done);
}

#[tokio::test]
async fn a_part_of_a_resource_can_be_redacted_at_a_time() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 8).await;
    append(&db.producer(), ["17", "18", "17", "17", "17", "18", "17"].map(order)).await;
    let some = async |mode| {
        let app = db.app();
        let mut tx = seqline::begin(&app).await.unwrap();
        let redaction = redact::resource(&mut tx, "order", "17", Some(2), mode).await.unwrap();
        seqline::commit(tx).await.unwrap();
        db.settled().await;
        (redaction.events, redaction.already, redaction.remaining)
    };
    let mut done = Vec::new();
    for already in [0, 2, 4, 5] {
        let expected = ((5 - already).min(2), already, (3 - already).max(0));
        assert_eq!((some(Mode::Plan).await, some(APPLY).await), (expected, expected));
        done.push(redacted(&db).await);
    }
    assert_eq!(done, [vec![1, 3], vec![1, 3, 4, 5], vec![1, 3, 4, 5, 7], vec![1, 3, 4, 5, 7]]);
    assert_eq!((audit(&db).await.len(), head(&db).await), (3, 10));
    let none = "SELECT seqline.redact_resource('order', '17', max_events => 0)";
    let error = sqlx::query(none).execute(&db.app()).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().message(), "max_events is less than 1");
}

/// Of hundreds of partitions a transaction that holds a lock on each could be refused, or refuse others.
#[tokio::test]
async fn only_partitions_in_which_something_is_redacted_are_locked() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 20).await;
    let ids = append(&db.producer(), ["18", "18", "17", "18", "18", "18", "18"].map(order)).await;
    for of_resource in [true, false] {
        let mut tx = seqline::begin(&db.app()).await.unwrap();
        let redaction = match of_resource {
            true => redact::resource(&mut tx, "order", "17", None, APPLY).await.unwrap(),
            false => redact::event(&mut tx, ids[2], APPLY).await.unwrap(),
        };
        assert_eq!(redaction.events, 1);
        let locked: Vec<String> = sqlx::query_scalar(
            "SELECT DISTINCT c.relname::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
             WHERE l.pid = pg_backend_pid() AND c.relkind = 'r' AND c.relname LIKE 'event_log_from_%'",
        )
        .fetch_all(&mut *tx)
        .await
        .unwrap();
        assert_eq!(locked, ["event_log_from_0000000000000000003"], "of a resource: {of_resource}");
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_rolled_back_was_never_redacted() {
    let db = TestDb::new().await;
    append(&db.producer(), [order("17")]).await;
    let before = rows(&db).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    assert_eq!(redact::resource(&mut tx, "order", "17", None, APPLY).await.unwrap().events, 1);
    tx.rollback().await.unwrap();
    assert_eq!((rows(&db).await, audit(&db).await.len()), (before, 0));
}

#[tokio::test]
async fn what_the_transaction_itself_has_appended_stays() {
    let db = TestDb::new().await;
    append(&db.producer(), [order("17")]).await;
    let app = db.app();
    let mut tx = seqline::begin(&app).await.unwrap();
    seqline::append(&mut tx, &[order("17")]).await.unwrap();
    assert_eq!(counts(&redact::resource(&mut tx, "order", "17", None, APPLY).await.unwrap()), (1, 0, 0));
    seqline::append(&mut tx, &[order("17")]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    assert_eq!(redacted(&db).await, [1]);
    assert_eq!(head(&db).await, 4);
}

#[tokio::test]
async fn what_is_not_there_is_told_from_what_was_redacted() {
    let db = TestDb::new().await;
    append(&db.producer(), [order("17")]).await;
    for redaction in [
        redact_event(&db.app(), Uuid::now_v7(), APPLY).await.unwrap(),
        redact_resource(&db.app(), "18", APPLY).await.unwrap(),
    ] {
        assert_eq!((counts(&redaction), redaction.is_about_any()), ((0, 0, 0), false));
        assert_eq!(redaction.partitions, [""; 0]);
    }
    assert_eq!((head(&db).await, audit(&db).await.len()), (1, 0));
}

fn refusal(result: Result<Redaction, RedactError>) -> String {
    match result.unwrap_err() {
        error @ RedactError::Refused { .. } => {
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::ValidationFailed, false));
            error.to_string()
        }
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), [order("17")]).await;
    let app = db.app();
    assert_eq!(
        refusal(redact_resource(&app, "", APPLY).await),
        "the kind or the id of the resource is missing"
    );
    let mut tx = seqline::begin(&app).await.unwrap();
    let unkind = redact::resource(&mut tx, "", "17", None, APPLY).await;
    assert_eq!(refusal(unkind), "the kind or the id of the resource is missing");
    drop(tx);
    let long = "x".repeat(1001);
    let why = Mode::Apply { why: Some(&long) };
    assert_eq!(refusal(redact_event(&app, ids[0], why).await), "the reason has more than 1000 characters");
    let error = sqlx::query("SELECT seqline.redact(NULL)").execute(&app).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().message(), "the id of the event is missing");
    assert_eq!(redacted(&db).await, [0; 0]);
}

#[tokio::test]
async fn nobody_but_the_application_redacts() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), [order("17")]).await;
    for role in [Role::Producer, Role::Reader, Role::Consumer, Role::Nobody] {
        for mode in [Mode::Plan, APPLY] {
            let pool = db.pool(role, 1);
            let mut tx = seqline::begin(&pool).await.unwrap();
            for error in [redact::event(&mut tx, ids[0], mode).await.unwrap_err(), {
                tx = seqline::begin(&db.pool(role, 1)).await.unwrap();
                redact::resource(&mut tx, "order", "17", None, mode).await.unwrap_err()
            }] {
                assert_eq!(error.kind(), ErrorKind::Forbidden, "{role:?}: {error:?}");
            }
        }
    }
    // Nor with the statements that the functions consist of.
    for sql in [
        "UPDATE seqline.event_log SET payload = '{}'",
        "UPDATE seqline.event_log SET redacted_at = now()",
        "SELECT seqline.redact_next(1, 2, NULL, 'order', '17', 1, true)",
        "SELECT seqline.redact_found('order/17', NULL, NULL, NULL, 'order', '17', NULL, false, NULL)",
    ] {
        let error = sqlx::raw_sql(sql).execute(&db.app()).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("42501"), "{sql}");
    }
    assert_eq!(redacted(&db).await, [0; 0]);
}

/// An older snapshot misses events that are in the log, and nobody would know.
#[tokio::test]
async fn a_stricter_isolation_level_is_refused() {
    let db = TestDb::new().await;
    append(&db.producer(), [order("17")]).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for mode in [Mode::Plan, APPLY] {
            let app = db.app();
            let mut tx = seqline::begin(&app).await.unwrap();
            let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
            sqlx::query(sqlx::AssertSqlSafe(set)).execute(&mut *tx).await.unwrap();
            let error = redact::resource(&mut tx, "order", "17", None, mode).await.unwrap_err();
            let expected = format!(
                "redaction needs isolation level read committed, this transaction is {}",
                level.to_lowercase()
            );
            assert!(
                matches!(&error, RedactError::Isolation { message } if *message == expected),
                "{error:?}"
            );
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Internal, false));
        }
    }
    assert_eq!(redacted(&db).await, [0; 0]);
}

#[tokio::test]
async fn while_the_log_is_read_only_nothing_is_redacted() {
    let db = TestDb::new().await;
    append(&db.producer(), [order("17")]).await;
    let set = async |mode| {
        set_maintenance(&mut db.connect(Role::App).await, mode, None).await.unwrap();
    };
    set(MaintenanceMode::ReadOnly).await;
    let error = redact_resource(&db.app(), "17", APPLY).await.unwrap_err();
    assert!(matches!(error, RedactError::ReadOnly { .. }), "{error:?}");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    assert_eq!(redacted(&db).await, [0; 0]);
    // What it would do can be asked all the same, and what is done already is none of its business.
    assert_eq!(counts(&redact_resource(&db.app(), "17", Mode::Plan).await.unwrap()), (1, 0, 0));
    set(MaintenanceMode::Off).await;
    assert_eq!(counts(&redact_resource(&db.app(), "17", APPLY).await.unwrap()), (1, 0, 0));
    set(MaintenanceMode::ReadOnly).await;
    assert_eq!(counts(&redact_resource(&db.app(), "17", APPLY).await.unwrap()), (0, 1, 0));
}
