//! Waiting until a consumer has handled an event.

use seqline::consumer::{OperateError, wait_for};

use super::*;

#[tokio::test]
async fn it_returns_when_the_consumer_has_passed_the_event() {
    // Made before the worker begins, so that it is there when it is waited for.
    let Bench { db, .. } = Bench::on(database().await, config(), probe(plain())).await;
    let running = Running::on(&db, quick(), Clock::system(), [probe(plain())]);
    let mut session = db.connect(Role::Producer).await;
    for n in 1..=5 {
        append(&db.producer(), [n]).await;
        assert!(wait_for(&mut session, &name(PROBE), n, DEADLINE).await.unwrap());
        assert_eq!(effects(&db).await, twice(1..=n), "what comes of it is there");
    }
    assert!(wait_for(&mut session, &name(PROBE), 1, Duration::ZERO).await.unwrap());
    running.stops().await;
}

#[tokio::test]
async fn it_gives_up_when_the_time_is_over() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), [1]).await;
    let mut session = bench.db.connect(Role::Reader).await;
    for timeout in [Duration::ZERO, Duration::from_millis(50)] {
        assert!(!wait_for(&mut session, &name(PROBE), 1, timeout).await.unwrap());
    }
    bench.processes(1).await;
    assert!(wait_for(&mut session, &name(PROBE), 1, Duration::ZERO).await.unwrap());
    assert!(!wait_for(&mut session, &name(PROBE), 2, Duration::ZERO).await.unwrap());
}

#[tokio::test]
async fn what_cannot_come_true_is_refused() {
    let bench = Bench::new(config(), plain()).await;
    let mut session = bench.db.connect(Role::Consumer).await;
    let refused = async |session: &mut PgConnection, consumer: &str, timeout: Duration| match wait_for(
        session,
        &name(consumer),
        1,
        timeout,
    )
    .await
    {
        Err(OperateError::Refused { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    let unknown = refused(&mut session, "nobody", Duration::ZERO).await;
    assert_eq!(unknown, "there is no consumer of this name");
    let long = refused(&mut session, PROBE, Duration::from_secs(61)).await;
    assert_eq!(long, "timeout is not between 0 and 1 minute");
    let uncommitted = sqlx::raw_sql("SELECT seqline.wait_for('probe', NULL)").execute(&mut session).await;
    let said = uncommitted.unwrap_err().to_string();
    assert!(said.contains("seq is missing: the event is not in the log"), "{said}");
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut session).await.unwrap();
    let blind = refused(&mut session, PROBE, Duration::from_secs(1)).await;
    assert_eq!(blind, "the transaction sees nothing that is committed after its beginning");
    let error = wait_for(&mut bench.db.connect(Role::Nobody).await, &name(PROBE), 1, Duration::ZERO).await;
    let Err(OperateError::Database(error)) = error else { panic!("{error:?}") };
    assert_eq!(error.sqlstate(), Some("42501"));
}

#[tokio::test]
async fn without_a_number_it_waits_for_all_that_is_there() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    let caught_up = async || -> bool {
        sqlx::query_scalar("SELECT seqline.wait_for_head('probe', timeout => '0')")
            .fetch_one(&mut bench.db.connect(Role::Producer).await)
            .await
            .unwrap()
    };
    assert!(!caught_up().await);
    bench.processes(2).await;
    assert!(caught_up().await);
    append(&bench.db.producer(), [3]).await;
    assert!(!caught_up().await);
}
