//! A caller's id is in the log once, and a marker of another history is noticed.

use seqline::{AppendError, ErrorKind, NewEvent};
use seqline_testkit::{Role, TestDb};
use sqlx::{PgPool, PgTransaction};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{backend_pid, until_blocked};
use crate::support::{append, assert_nothing_staged, log};

fn event_with(id: Uuid) -> NewEvent {
    NewEvent::builder("test.happened", "test", "any").id(id).build().unwrap()
}

async fn append_with(pool: &PgPool, ids: &[Uuid]) {
    let events: Vec<NewEvent> = ids.iter().copied().map(event_with).collect();
    let mut tx = seqline::begin(pool).await.unwrap();
    seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
}

/// The refusal says which id, and the log has no hole because of it.
async fn assert_dense(db: &TestDb, ids: &[Uuid]) {
    let next = append(&db.producer(), [100]).await;
    let expected: Vec<(i64, Uuid)> = (1..).zip(ids.iter().copied().chain(next)).collect();
    assert_eq!(log(&mut db.connect(Role::Reader).await).await, expected);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn an_id_that_is_in_the_log_is_refused_when_it_is_appended() {
    let db = TestDb::new().await;
    let id = Uuid::now_v7();
    append_with(&db.producer(), &[id]).await;
    for batch in [vec![id], vec![Uuid::now_v7(), id]] {
        let events: Vec<NewEvent> = batch.into_iter().map(event_with).collect();
        let mut tx = seqline::begin(&db.producer()).await.unwrap();
        let error = seqline::append(&mut tx, &events).await.unwrap_err();
        assert_eq!(error.to_string(), format!("event id {id} is already in the log"));
        assert!(matches!(error, AppendError::DuplicateId { id: Some(named), .. } if named == id));
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::ValidationFailed, false));
        drop(tx);
    }
    assert_dense(&db, &[id]).await;
}

/// An append on a task, which has to wait for another transaction and does.
async fn waiting_append(
    db: &TestDb,
    ids: &[Uuid],
) -> JoinHandle<Result<PgTransaction<'static>, AppendError>> {
    let events: Vec<NewEvent> = ids.iter().copied().map(event_with).collect();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    let pid = backend_pid(&mut tx).await;
    let appending = tokio::spawn(async move { seqline::append(&mut tx, &events).await.map(|_| tx) });
    until_blocked(&db.admin(), pid).await;
    assert!(!appending.is_finished());
    appending
}

fn assert_is_duplicate(error: &AppendError, id: Uuid) {
    assert!(matches!(error, AppendError::DuplicateId { id: Some(named), .. } if *named == id), "{error:?}");
    assert_eq!((error.had_no_effect(), error.is_retryable()), (true, false));
}

#[tokio::test]
async fn an_id_of_an_open_transaction_is_waited_for_and_refused_when_that_commits() {
    let db = TestDb::new().await;
    let [first, id] = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(first), event_with(id)]).await.unwrap();
    let alone = waiting_append(&db, &[id]).await;
    let in_a_batch = waiting_append(&db, &[Uuid::now_v7(), id]).await;
    seqline::commit(tx).await.unwrap();
    for waiting in [alone, in_a_batch] {
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), format!("event id {id} is already in the log"));
        assert_is_duplicate(&error, id);
    }
    assert_dense(&db, &[first, id]).await;
}

#[tokio::test]
async fn an_id_of_an_open_transaction_is_waited_for_and_free_when_that_is_rolled_back() {
    let db = TestDb::new().await;
    let id = Uuid::now_v7();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(id)]).await.unwrap();
    let waiting = waiting_append(&db, &[id]).await;
    tx.rollback().await.unwrap();
    seqline::commit(waiting.await.unwrap().unwrap()).await.unwrap();
    assert_dense(&db, &[id]).await;
}

#[tokio::test]
async fn an_id_that_came_in_between_two_appends_of_a_transaction_is_refused() {
    let db = TestDb::new().await;
    let [id, other] = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    // Looked up at a lower head than the second.
    seqline::append(&mut tx, &[event_with(other)]).await.unwrap();
    append_with(&db.producer(), &[id]).await;
    assert_is_duplicate(&seqline::append(&mut tx, &[event_with(id)]).await.unwrap_err(), id);
    drop(tx);
    assert_dense(&db, &[id]).await;
}

#[tokio::test]
async fn an_id_that_was_appended_is_the_transactions_own_whatever_it_and_others_do_until_commit() {
    let db = TestDb::new().await;
    let [id, other] = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(id)]).await.unwrap();
    let waiting = waiting_append(&db, &[id]).await;
    // Its second look finds a higher head than the first.
    let between = append(&db.producer(), [1]).await[0];
    seqline::append(&mut tx, &[event_with(other)]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    assert_is_duplicate(&waiting.await.unwrap().unwrap_err(), id);
    assert_dense(&db, &[between, id, other]).await;
}

#[tokio::test]
async fn an_id_twice_in_one_transaction_is_refused_at_the_append() {
    let db = TestDb::new().await;
    let id = Uuid::now_v7();
    for (before, refused) in [
        (None, vec![id, id]),
        (Some(vec![id]), vec![id]),
        (Some(vec![id, Uuid::now_v7()]), vec![Uuid::now_v7(), id]),
    ] {
        let events = |ids: Vec<Uuid>| -> Vec<NewEvent> { ids.into_iter().map(event_with).collect() };
        let mut tx = seqline::begin(&db.producer()).await.unwrap();
        if let Some(ids) = before {
            seqline::append(&mut tx, &events(ids)).await.unwrap();
        }
        let error = seqline::append(&mut tx, &events(refused)).await.unwrap_err();
        assert_is_duplicate(&error, id);
        assert!(error.to_string().contains(&id.to_string()));
    }
    assert_dense(&db, &[]).await;
}

#[tokio::test]
async fn two_transactions_that_want_each_others_ids_do_not_wait_for_ever() {
    let db = TestDb::new().await;
    let [one, two] = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(one)]).await.unwrap();
    let waiting = waiting_append(&db, &[two, one]).await;
    let mine = seqline::append(&mut tx, &[event_with(two)]).await.map(|_| tx);
    // PostgreSQL ends one of the two, as it does with rows that are locked in opposite order.
    let (loser, winner, logged) = match (mine, waiting) {
        (Err(loser), waiting) => (loser, waiting.await.unwrap().unwrap(), [two, one]),
        (Ok(winner), waiting) => (waiting.await.unwrap().unwrap_err(), winner, [one, two]),
    };
    let AppendError::Database(error) = &loser else { panic!("{loser:?}") };
    assert_eq!((error.sqlstate(), loser.is_retryable(), loser.had_no_effect()), (Some("40P01"), true, true));
    seqline::commit(winner).await.unwrap();
    assert_dense(&db, &logged).await;
}

#[tokio::test]
async fn an_id_whose_append_was_rolled_back_may_be_used() {
    let db = TestDb::new().await;
    let [id, again] = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(id)]).await.unwrap();
    tx.rollback().await.unwrap();
    append_with(&db.producer(), &[id]).await;

    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    sqlx::raw_sql("SAVEPOINT s").execute(&mut *tx).await.unwrap();
    seqline::append(&mut tx, &[event_with(again)]).await.unwrap();
    sqlx::raw_sql("ROLLBACK TO s").execute(&mut *tx).await.unwrap();
    seqline::append(&mut tx, &[event_with(again)]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    assert_dense(&db, &[id, again]).await;
}

#[tokio::test]
async fn a_marker_of_another_history_is_refused_and_not_silently_joined() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    let xid: String =
        sqlx::query_scalar("SELECT pg_current_xact_id()::text").fetch_one(&mut *tx).await.unwrap();
    // What a restore of the tables by hand leaves: a row that nobody will number.
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql("ALTER TABLE seqline.pending_transactions DISABLE TRIGGER number_at_commit")
        .execute(&mut admin)
        .await
        .unwrap();
    sqlx::query("INSERT INTO seqline.pending_transactions (xid, started_at) VALUES ($1::text::xid8, now() - interval '1 day')")
        .bind(&xid)
        .execute(&mut admin)
        .await
        .unwrap();
    sqlx::raw_sql("ALTER TABLE seqline.pending_transactions ENABLE ALWAYS TRIGGER number_at_commit")
        .execute(&mut admin)
        .await
        .unwrap();

    let error = seqline::append(&mut tx, &[event_with(Uuid::now_v7())]).await.unwrap_err();
    drop(tx);
    let AppendError::Database(error) = error else { panic!("{error}") };
    assert_eq!(
        error.to_string(),
        format!(
            "transaction id {xid} has a leftover row of an earlier history of this database (SQLSTATE 55000)"
        )
    );
    sqlx::raw_sql("DELETE FROM seqline.pending_transactions").execute(&mut admin).await.unwrap();
    assert_dense(&db, &[]).await;
}
