//! What the tests of the log share.

use std::sync::LazyLock;

use seqline::{NewEvent, Payload};
use seqline_testkit::{Role, TestDb, settled, settled_behind};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// A valid event of type `test.happened` whose payload is `{"n": n}`.
pub(crate) fn event(n: i64) -> NewEvent {
    let payload = Payload::from_json(&format!("{{\"n\": {n}}}")).expect("the payload is an object");
    NewEvent::builder("test.happened", "test", "any").payload(payload).build().expect("the event is valid")
}

/// Appends events with these payload numbers in one transaction and returns their ids. When it does they are in the log.
pub(crate) async fn append(pool: &PgPool, numbers: impl IntoIterator<Item = i64>) -> Vec<Uuid> {
    let events: Vec<NewEvent> = numbers.into_iter().map(event).collect();
    let mut tx = seqline::begin(pool).await.expect("a transaction begins");
    let ids = seqline::append(&mut tx, &events).await.expect("the events are appended");
    seqline::commit(tx).await.expect("the transaction commits");
    settled(pool).await;
    ids
}

/// The last number of the log, once everything that was committed has one.
pub(crate) async fn head(db: &TestDb) -> i64 {
    db.settled().await;
    seqline::read::head(&mut db.connect(Role::Reader).await).await.expect("the head can be read")
}

/// Every number of the log with the id of its event, in order, once everything that was committed has one.
pub(crate) async fn log(connection: &mut PgConnection) -> Vec<(i64, Uuid)> {
    settled_behind(connection).await;
    sqlx::query_as("SELECT seq, id FROM seqline.event_log ORDER BY seq")
        .fetch_all(connection)
        .await
        .expect("the log can be read")
}

/// The payload numbers in the order of the log, once everything that was committed is in it.
pub(crate) async fn numbers(connection: &mut PgConnection) -> Vec<i64> {
    settled_behind(connection).await;
    sqlx::query_scalar("SELECT (payload ->> 'n')::bigint FROM seqline.event_log ORDER BY seq")
        .fetch_all(connection)
        .await
        .expect("the log can be read")
}

/// Nothing is left behind in the staging tables, whatever happened, once everything that was committed is in the log.
pub(crate) async fn assert_nothing_staged(admin: &mut PgConnection) {
    settled_behind(admin).await;
    let staged: (i64, i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM seqline.pending_events), (SELECT count(*) FROM seqline.pending_transactions),
                (SELECT count(*) FROM seqline.staged_events), (SELECT count(*) FROM seqline.staged_transactions)",
    )
    .fetch_one(admin)
    .await
    .expect("the owner's tables can be read by a superuser");
    assert_eq!(staged, (0, 0, 0, 0), "pending events and transactions, staged events and transactions");
}

/// For whoever listens on a thread of their own. While there is but one subscriber, a place that logs and is first met by a thread without
/// one is taken for one that nobody listens to.
pub(crate) fn more_subscribers() {
    static OTHERS: LazyLock<[tracing::Dispatch; 2]> =
        LazyLock::new(|| [(), ()].map(|()| tracing::Dispatch::new(tracing_subscriber::registry())));
    LazyLock::force(&OTHERS);
}
