//! A caller's id is in the log once, and a marker of another history is noticed.

use seqline::{AppendError, CommitError, ErrorKind, NewEvent};
use seqline_testkit::{Role, TestDb};
use sqlx::PgPool;
use uuid::Uuid;

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

#[tokio::test]
async fn an_id_that_came_in_between_append_and_commit_is_refused() {
    let db = TestDb::new().await;
    let [first, id] = [Uuid::now_v7(), Uuid::now_v7()];
    append_with(&db.producer(), &[first]).await;
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(Uuid::now_v7()), event_with(id)]).await.unwrap();
    append_with(&db.producer(), &[id]).await;
    let error = seqline::commit(tx).await.unwrap_err();
    assert_eq!(error.to_string(), format!("event id {id} is already in the log"));
    assert!(matches!(error, CommitError::DuplicateId { id: Some(named), .. } if named == id));
    assert_eq!((error.had_no_effect(), error.is_retryable()), (true, false));
    assert_dense(&db, &[first, id]).await;
}

#[tokio::test]
async fn an_id_that_came_in_between_two_appends_of_a_transaction_is_refused() {
    let db = TestDb::new().await;
    let [id, other] = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(id)]).await.unwrap();
    append_with(&db.producer(), &[id]).await;
    // Looked up at a higher head than the first: the lower one counts.
    seqline::append(&mut tx, &[event_with(other)]).await.unwrap();
    let error = seqline::commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::DuplicateId { id: Some(named), .. } if named == id), "{error}");
    assert_dense(&db, &[id]).await;
}

#[tokio::test]
async fn an_id_twice_in_one_transaction_is_refused() {
    let db = TestDb::new().await;
    let id = Uuid::now_v7();
    for calls in [
        vec![vec![id, id]],
        vec![vec![id], vec![id]],
        vec![vec![id, Uuid::now_v7()], vec![Uuid::now_v7(), id]],
    ] {
        let mut tx = seqline::begin(&db.producer()).await.unwrap();
        for ids in calls {
            let events: Vec<NewEvent> = ids.into_iter().map(event_with).collect();
            seqline::append(&mut tx, &events).await.unwrap();
        }
        let error = seqline::commit(tx).await.unwrap_err();
        assert!(matches!(error, CommitError::DuplicateId { id: Some(named), .. } if named == id), "{error}");
        assert!(error.to_string().contains(&id.to_string()));
    }
    assert_dense(&db, &[]).await;
}

#[tokio::test]
async fn an_id_whose_transaction_was_rolled_back_may_be_used() {
    let db = TestDb::new().await;
    let id = Uuid::now_v7();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &[event_with(id)]).await.unwrap();
    tx.rollback().await.unwrap();
    append_with(&db.producer(), &[id]).await;
    assert_dense(&db, &[id]).await;
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
