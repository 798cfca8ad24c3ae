//! Who did what, and for whom.

use seqline::audit::{act_for, entries};
use seqline::consumer::{ConsumerName, pause, resume};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

fn mine() -> ConsumerName {
    ConsumerName::new("mine").expect("the name is valid")
}

async fn registered() -> TestDb {
    let db = TestDb::new().await;
    let register = "SELECT seqline.register_consumer('mine')";
    sqlx::raw_sql(register).execute(&mut db.connect(Role::Consumer).await).await.expect("it is registered");
    db
}

/// Action and principal of each row, the newest first.
async fn recorded(connection: &mut PgConnection) -> Vec<(String, Option<String>)> {
    let entries = entries(connection, None, 100).await.expect("the audit log can be read");
    entries.into_iter().map(|entry| (entry.action, entry.principal)).collect()
}

#[tokio::test]
async fn a_login_acts_for_somebody_until_the_end_of_its_transaction() {
    let db = registered().await;
    let pool = db.app_pool(1);
    let mut tx = seqline::begin(&pool).await.unwrap();
    act_for(&mut tx, "Sam").await.unwrap();
    assert!(pause(&mut tx, &mine(), None).await.unwrap());
    tx.commit().await.unwrap();
    let mut tx = seqline::begin(&pool).await.unwrap();
    assert!(resume(&mut tx, &mine(), None).await.unwrap());
    tx.commit().await.unwrap();
    // What was rolled back was done by nobody.
    let mut tx = seqline::begin(&pool).await.unwrap();
    act_for(&mut tx, "Robin").await.unwrap();
    assert!(pause(&mut tx, &mine(), None).await.unwrap());
    tx.rollback().await.unwrap();
    let rows = [("consumer.resume".to_owned(), None), ("consumer.pause".to_owned(), Some("Sam".to_owned()))];
    assert_eq!(recorded(&mut db.connect(Role::App).await).await, rows);
}

#[tokio::test]
async fn a_name_that_cannot_be_a_principal_fails_the_change() {
    let db = registered().await;
    let pool = db.app_pool(1);
    let mut tx = seqline::begin(&pool).await.unwrap();
    act_for(&mut tx, &"x".repeat(129)).await.unwrap();
    assert!(pause(&mut tx, &mine(), None).await.is_err());
    drop(tx);
    assert_eq!(recorded(&mut db.connect(Role::App).await).await, []);
}

#[tokio::test]
async fn rows_are_read_from_the_newest_on_and_behind_a_row() {
    let db = registered().await;
    let mut app = db.connect(Role::App).await;
    for _ in 0..3 {
        pause(&mut app, &mine(), Some("because")).await.unwrap();
        resume(&mut app, &mine(), None).await.unwrap();
    }
    let first = entries(&mut app, None, 2).await.unwrap();
    assert!(first[0].id > first[1].id);
    assert_eq!(
        (first[1].action.as_str(), first[1].subject.as_str(), first[1].why.as_deref()),
        ("consumer.pause", "mine", Some("because"))
    );
    assert_eq!(first[1].who, Role::App.login());
    let rest = entries(&mut app, Some(first[1].id), 100).await.unwrap();
    assert_eq!(rest.len(), 4);
    assert!(rest.iter().all(|entry| entry.id < first[1].id));
}

/// Nobody who may not do something to a job can say that it was done.
#[tokio::test]
async fn only_what_is_done_to_a_job_can_be_noted_and_only_by_the_server() {
    let db = registered().await;
    let mut app = db.connect(Role::App).await;
    for wrong in [
        "SELECT seqline.note_job('consumer.pause', 1, '{}', '{}', NULL)",
        "SELECT seqline.note_job('job.retry', NULL, '{}', '{}', NULL)",
        "SELECT seqline.note_job('job.retry', 1, '{}', '{}', repeat('x', 1001))",
    ] {
        assert!(sqlx::raw_sql(wrong).execute(&mut app).await.is_err(), "{wrong}");
    }
    let note = "SELECT seqline.note_job('job.retry', 17, '{}', '{}', 'because')";
    for role in [Role::Producer, Role::Reader, Role::Consumer] {
        assert!(sqlx::raw_sql(note).execute(&mut db.connect(role).await).await.is_err(), "{role:?}");
    }
    assert_eq!(recorded(&mut app).await, []);
    sqlx::raw_sql(note).execute(&mut app).await.unwrap();
    assert_eq!(recorded(&mut app).await, [("job.retry".to_owned(), None)]);
}
