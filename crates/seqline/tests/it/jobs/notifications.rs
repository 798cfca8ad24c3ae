//! Who is told about jobs, and when: one word for each queue, with the commit.

use seqline::clock::Clock;
use sqlx::postgres::PgListener;
use time::Duration;

use super::*;

/// Listens to what River's clients listen to.
async fn listener(db: &TestDb) -> PgListener {
    let mut listener = PgListener::connect_with(&db.app_pool(1)).await.expect("the listener connects");
    listener.listen(&format!("{SCHEMA}.river_insert")).await.expect("it listens");
    listener
}

/// What is heard until somebody says that it is the end.
async fn heard(db: &TestDb, listener: &mut PgListener) -> Vec<String> {
    as_admin(db, &format!("SELECT pg_notify('{SCHEMA}.river_insert', 'the end')")).await;
    let mut heard = Vec::new();
    loop {
        let notification = listener.recv().await.expect("it hears");
        if notification.payload() == "the end" {
            return heard;
        }
        heard.push(notification.payload().to_owned());
    }
}

#[tokio::test]
async fn each_queue_is_told_once_for_a_call() {
    let db = database().await;
    let mut listener = listener(&db).await;
    let queued = ["mail", "print", "mail", "mail", "print"];
    let jobs = queued.map(|queue| NewJob { queue: queue.to_owned(), ..new_job(1) });
    insert(&db.app(), &river(), &checked(jobs)).await.expect("the jobs are inserted");
    assert_eq!(heard(&db, &mut listener).await, [r#"{"queue":"mail"}"#, r#"{"queue":"print"}"#]);
}

#[tokio::test]
async fn nobody_is_told_about_jobs_that_run_later() {
    let db = database().await;
    let mut listener = listener(&db).await;
    let now = Clock::system().now();
    let at = |queue: &str, run_at| NewJob { queue: queue.to_owned(), run_at, ..new_job(1) };
    let later = [at("mail", Some(now + Duration::HOUR)), at("mail", Some(now - Duration::HOUR))];
    insert(&db.app(), &river(), &checked(later)).await.expect("the jobs are inserted");
    assert_eq!(heard(&db, &mut listener).await, [] as [String; 0]);
    let mixed = [at("mail", Some(now + Duration::HOUR)), at("print", None)];
    insert(&db.app(), &river(), &checked(mixed)).await.expect("the jobs are inserted");
    assert_eq!(heard(&db, &mut listener).await, [r#"{"queue":"print"}"#]);
}

#[tokio::test]
async fn a_transaction_that_is_rolled_back_tells_nobody_and_leaves_nothing() {
    let db = database().await;
    let mut listener = listener(&db).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    river().insert(&mut tx, &checked([new_job(1)])).await.expect("the job is inserted");
    assert_eq!(heard(&db, &mut listener).await, [] as [String; 0], "before the commit");
    tx.rollback().await.unwrap();
    assert_eq!(heard(&db, &mut listener).await, [] as [String; 0]);
    assert_eq!(jobs(&db).await, [] as [i64; 0]);
}

#[tokio::test]
async fn a_call_without_jobs_says_and_does_nothing() {
    let db = TestDb::new().await;
    let mut listener = listener(&db).await;
    let inserted = insert(&db.app(), &river(), &[]).await.expect("River is not even needed");
    assert_eq!(inserted, InsertedJobs::default());
    assert_eq!(heard(&db, &mut listener).await, [] as [String; 0]);
}
