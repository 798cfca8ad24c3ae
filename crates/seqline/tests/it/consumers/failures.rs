//! What people are shown: who lags, who fails, since when, and whether it is over.

use seqline::consumer::Failure;

use super::*;

async fn failure(db: &TestDb) -> Option<Failure> {
    state_of(db, PROBE).await.last_failure
}

async fn fails_with(db: &TestDb, error_type: &str) -> Failure {
    let what = format!("the failure {error_type}");
    eventually(DEADLINE, &what, async || {
        failure(db).await.is_some_and(|failure| failure.error_type == error_type)
    })
    .await;
    failure(db).await.expect("it was there")
}

async fn is_over(db: &TestDb) {
    eventually(DEADLINE, "the end of the failure", async || {
        failure(db).await.is_some_and(|failure| !failure.current)
    })
    .await;
}

#[tokio::test]
async fn a_state_says_where_a_consumer_stands_and_what_waits() {
    let bench = Bench::new(config(), plain()).await;
    let state = state_of(&bench.db, PROBE).await;
    assert_eq!((state.kind.as_str(), state.last_seq, state.head_seq, state.lag()), ("worker", 0, 0, 0));
    assert_eq!((state.oldest_pending_at, state.last_failure, state.lost), (None, None, 0));
    append(&bench.db.producer(), 1..=2).await;
    bench.processes(2).await;
    append(&bench.db.producer(), [3]).await;
    append(&bench.db.producer(), [4]).await;
    let occurred: Vec<time::OffsetDateTime> =
        sqlx::query_scalar("SELECT occurred_at FROM seqline.event_log ORDER BY seq")
            .fetch_all(&bench.db.admin())
            .await
            .unwrap();
    let state = state_of(&bench.db, PROBE).await;
    assert_eq!((state.last_seq, state.head_seq, state.lag()), (2, 4, 2));
    assert_eq!(state.oldest_pending_at, Some(occurred[2]));
    assert!(!state.is_ahead_of_head());
    bench.processes(2).await;
    let later = state_of(&bench.db, PROBE).await;
    assert_eq!((later.lag(), later.oldest_pending_at), (0, None));
    assert!(later.updated_at > state.updated_at);
}

#[tokio::test]
async fn what_waits_behind_retention_is_what_is_left() {
    let db = database().await;
    crate::partitions::small_partitions(&db, 2, 3).await;
    let bench = Bench::on(db, config(), probe(plain())).await;
    append(&bench.db.producer(), 1..=3).await;
    assert_eq!(crate::partitions::drop_oldest(&bench.db).await, 1);
    let occurred: time::OffsetDateTime =
        sqlx::query_scalar("SELECT occurred_at FROM seqline.event_log WHERE seq = 3")
            .fetch_one(&bench.db.admin())
            .await
            .unwrap();
    let state = state_of(&bench.db, PROBE).await;
    assert_eq!((state.lag(), state.oldest_pending_at), (3, Some(occurred)));
}

#[tokio::test]
async fn a_failure_is_recorded_and_is_over_when_the_event_is_passed() {
    let db = database().await;
    append(&db.producer(), 1..=3).await;
    let switch = Switch::on();
    let running = Running::on(&db, quick(), Clock::system(), [probe(switch.failing_at(2))]);
    let first = fails_with(&db, "handler").await;
    assert_eq!((first.seq, first.current), (Some(2), true));
    let attempts = switch.times();
    eventually(DEADLINE, "more attempts", async || switch.times() >= attempts + 3).await;
    assert_eq!(failure(&db).await, Some(first.clone()), "it failed at once in this way, and still does");
    switch.off();
    reaches(&db, PROBE, 3).await;
    is_over(&db).await;
    assert_eq!(failure(&db).await, Some(Failure { current: false, ..first }));
    running.stops().await;
}

#[tokio::test]
async fn another_failure_takes_the_place_of_the_first() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let (error, panic) = (Switch::on(), Switch::on());
    let (errs, panics) = (error.clone(), panic.clone());
    let handler = acting(move |event, _| {
        let (errs, panics) = (event.seq == 1 && errs.acts(), event.seq == 2 && panics.acts());
        Box::pin(async move {
            if panics {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            if errs { Err("refused".into()) } else { Ok(()) }
        })
    });
    let running = Running::on(&db, quick(), Clock::system(), [probe(handler)]);
    let first = fails_with(&db, "handler").await;
    error.off();
    let second = fails_with(&db, "panic").await;
    assert_eq!((first.seq, second.seq, second.current), (Some(1), Some(2), true));
    assert!(second.failed_at > first.failed_at);
    panic.off();
    is_over(&db).await;
    running.stops().await;
}

#[tokio::test]
async fn a_failure_of_a_process_that_is_gone_is_over_when_another_one_passes_the_event() {
    let db = database().await;
    let other = Running::on(&db, quick(), Clock::system(), [Consumer::new(name("idle"), plain())]);
    append(&db.producer(), [1]).await;
    let switch = Switch::on();
    let first = Running::on(&db, quick(), Clock::system(), [probe(switch.failing_at(1))]);
    fails_with(&db, "handler").await;
    first.stops().await;
    assert!(failure(&db).await.unwrap().current);
    let second = Running::on(&db, quick(), Clock::system(), [probe(plain())]);
    reaches(&db, PROBE, 1).await;
    is_over(&db).await;
    second.stops().await;
    other.stops().await;
}

#[tokio::test]
async fn a_failure_without_an_event_is_over_when_another_process_has_moved_the_cursor() {
    let db = database().await;
    let sql = "CREATE TABLE positive (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    sqlx::raw_sql(sql).execute(&db.app()).await.unwrap();
    // It has looked, found nothing wrong, and waits.
    let healthy = Deaf::start(&db, config(), [probe(plain())]).await;
    has_nothing_to_do(&db).await;
    let refused = acting(|_, round| {
        Box::pin(async {
            sqlx::query("INSERT INTO positive VALUES (1), (1)").execute(round.connection()).await?;
            Ok(())
        })
    });
    append(&db.producer(), [1]).await;
    let failing = Running::on(&db, quick(), Clock::system(), [probe(refused)]);
    let seen = fails_with(&db, "commit").await;
    assert_eq!((seen.seq, seen.current), (None, true));
    failing.stops().await;
    healthy.hand.advance(POLL);
    reaches(&db, PROBE, 1).await;
    is_over(&db).await;
}

#[tokio::test]
async fn a_cursor_above_the_head_is_a_failure_that_is_shown_and_ends_when_it_is_set() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let running = Running::on(&db, quick(), Clock::system(), [probe(plain())]);
    reaches(&db, PROBE, 2).await;
    set_cursor(&db, 9).await;
    let seen = fails_with(&db, "ahead_of_head").await;
    assert_eq!((seen.seq, seen.current), (None, true));
    append(&db.producer(), [3]).await;
    Witness::of(&db).await.sees_an_event().await;
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (9, twice(1..=2)));
    set_cursor(&db, 2).await;
    reaches(&db, PROBE, 5).await;
    is_over(&db).await;
    assert_eq!(effects(&db).await, twice(1..=5));
    running.stops().await;
}

#[tokio::test]
async fn a_hole_stalls_its_consumer_visibly_until_it_is_closed() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    insert_as_owner(&db, &[4]).await;
    let running = Running::on(&db, quick(), Clock::system(), [probe(plain())]);
    let seen = fails_with(&db, "gap").await;
    assert_eq!((seen.seq, seen.current), (Some(3), true));
    assert_eq!((cursor(&db, PROBE).await, effects(&db).await), (0, twice([])));
    insert_as_owner(&db, &[3]).await;
    reaches(&db, PROBE, 4).await;
    is_over(&db).await;
    assert_eq!(effects(&db).await, twice(1..=4));
    running.stops().await;
}

#[tokio::test]
async fn a_consumer_that_never_failed_has_no_failure() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let running = Running::on(&db, quick(), Clock::system(), [probe(plain())]);
    reaches(&db, PROBE, 2).await;
    running.stops().await;
    assert_eq!(failure(&db).await, None);
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.event_consumer_failures")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert_eq!(rows, 0);
}
