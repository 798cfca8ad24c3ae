//! An append for whose numbers there is no partition.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use seqline::{AppendError, CommitError, ErrorKind, NewEvent, Payload};
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::*;
use crate::support::{event, numbers};

const SECRET: &str = "swordfish";

fn secret_event() -> NewEvent {
    let payload = Payload::from_json(&format!("{{\"n\": 1, \"secret\": \"{SECRET}\"}}")).unwrap();
    NewEvent::builder("test.happened", "test", "any").payload(payload).build().unwrap()
}

/// Every event of the log of the program, as its level and its fields.
#[derive(Debug, Clone, Default)]
struct Captured(Arc<Mutex<Vec<(tracing::Level, String)>>>);

impl<S: tracing::Subscriber> Layer<S> for Captured {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push((*event.metadata().level(), line.0));
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

/// Commits these events in one transaction.
async fn try_append(pool: &PgPool, events: &[NewEvent]) -> Result<(), CommitError> {
    let mut tx = seqline::begin(pool).await.unwrap();
    seqline::append(&mut tx, events).await.unwrap();
    seqline::commit(tx).await
}

/// A log with room for five events only.
async fn five_places(db: &TestDb) {
    small_partitions(db, 5, 1).await;
    append(&db.app(), 1..=4).await;
}

#[tokio::test]
async fn appends_go_from_one_partition_to_the_next_one_by_one() {
    let db = TestDb::at_commit().await;
    small_partitions(&db, 3, 4).await;
    let pool = db.producer();
    for n in 1..=10 {
        crate::support::append(&pool, [n]).await;
    }
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, (1..=10).collect::<Vec<_>>());
}

/// A table that is no partition any more takes no event, whatever its name is.
#[tokio::test]
async fn an_append_does_not_go_into_a_partition_that_was_taken_out_by_hand() {
    let db = TestDb::at_commit().await;
    append(&db.producer(), [1]).await;
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql(
        "ALTER TABLE seqline.event_log DETACH PARTITION seqline.event_log_from_0000000000000000001",
    )
    .execute(&mut admin)
    .await
    .unwrap();
    let error = try_append(&db.producer(), &[event(2)]).await.unwrap_err();
    assert!(matches!(error, CommitError::NoPartition { .. }), "{error:?}");
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.event_log_from_0000000000000000001")
        .fetch_one(&mut admin)
        .await
        .unwrap();
    assert_eq!(kept, 1);
}

/// The hints are only hints: whatever keeps them from being brought up to date keeps nobody from appending.
#[tokio::test]
async fn an_event_trigger_that_refuses_functions_stops_no_append() {
    let db = TestDb::at_commit().await;
    small_partitions(&db, 3, 4).await;
    sqlx::raw_sql(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no functions today'; END $$;
         CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE FUNCTION') EXECUTE FUNCTION refuse()",
    )
    .execute(&db.admin())
    .await
    .unwrap();
    let pool = db.producer();
    for n in 1..=8 {
        crate::support::append(&pool, [n]).await;
    }
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, (1..=8).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_append_beyond_the_last_partition_names_its_numbers() {
    let db = TestDb::at_commit().await;
    five_places(&db).await;
    let error = try_append(&db.producer(), &[event(5), event(6), event(7)]).await.unwrap_err();
    let CommitError::NoPartition { first_seq: 5, last_seq: 7 } = error else { panic!("{error:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.had_no_effect());
}

#[tokio::test]
async fn an_append_without_any_partition_is_unavailable() {
    let db = TestDb::at_commit().await;
    drop_all_partitions(&db).await;
    // The hint of the newest partition is stale, so PostgreSQL itself has to refuse.
    let error = try_append(&db.producer(), &[event(1)]).await.unwrap_err();
    let CommitError::NoPartition { first_seq: 1, last_seq: 1 } = error else { panic!("{error:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_missing_partition_is_logged_as_an_error_with_its_numbers_and_without_payload() {
    let db = TestDb::at_commit().await;
    five_places(&db).await;
    let captured = Captured::default();
    let events = [secret_event(), secret_event()];
    let subscriber = tracing_subscriber::registry().with(captured.clone());
    let error = try_append(&db.producer(), &events).with_subscriber(subscriber).await.unwrap_err();
    let lines = captured.0.lock().unwrap().clone();
    let errors: Vec<&String> =
        lines.iter().filter(|(level, _)| *level == tracing::Level::ERROR).map(|(_, line)| line).collect();
    assert!(errors.len() == 1 && errors[0].contains("first_seq=5 last_seq=6"), "{lines:?}");
    assert!(!format!("{lines:?}{error:?}{error}").contains(SECRET));
}

#[tokio::test]
async fn the_same_append_succeeds_after_partitions_were_ensured() {
    let db = TestDb::at_commit().await;
    five_places(&db).await;
    let events = [event(5), event(6), event(7)];
    try_append(&db.producer(), &events).await.unwrap_err();
    assert!(ensure(&db.app()).await > 0);
    try_append(&db.producer(), &events).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn the_last_place_of_the_last_partition_can_be_taken() {
    let db = TestDb::at_commit().await;
    five_places(&db).await;
    try_append(&db.producer(), &[event(5)]).await.unwrap();
    try_append(&db.producer(), &[event(6)]).await.unwrap_err();
}

#[tokio::test]
async fn one_transaction_may_reach_over_several_partitions() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 4).await;
    append(&db.producer(), 1..=7).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn a_violated_check_of_the_log_is_not_a_missing_partition() {
    let db = TestDb::at_commit().await;
    as_owner(
        &db,
        "ALTER TABLE seqline.event_log ADD CONSTRAINT odd CHECK (type <> 'test.happened') NOT VALID",
    )
    .await;
    let error = try_append(&db.producer(), &[secret_event()]).await.unwrap_err();
    let CommitError::Database(refused) = &error else { panic!("{error:?}") };
    assert_eq!(refused.sqlstate(), Some("23514"));
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(!error.is_retryable());
    assert!(!format!("{error:?}{error}").contains(SECRET));
}

#[tokio::test]
async fn a_violated_check_of_the_application_is_not_a_missing_partition() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    let error: AppendError = sqlx::raw_sql("CREATE TABLE t (n int CHECK (n > 0)); INSERT INTO t VALUES (0)")
        .execute(&mut *tx)
        .await
        .unwrap_err()
        .into();
    assert_eq!(error.kind(), ErrorKind::Internal);
}
