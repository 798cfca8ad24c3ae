//! Which consumers there are, and where a new one begins.

use seqline::consumer::{EnsureError, RegistrationError};

use super::*;

fn at_head(handler: impl Handler) -> Consumer {
    Consumer::new(name(PROBE), handler)
}

fn of(db: &TestDb, list: impl IntoIterator<Item = Consumer>) -> Consumers {
    consumers(db.app(), db.options(Role::App), config(), manual().0, list)
}

/// Name, kind and position of all cursors.
async fn cursors(db: &TestDb) -> Vec<(String, String, i64)> {
    sqlx::query_as("SELECT name, kind, last_seq FROM seqline.event_consumers JOIN seqline.event_consumer_cursors USING (name) ORDER BY name")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

fn worker(name: &str, last_seq: i64) -> (String, String, i64) {
    (name.to_owned(), "worker".to_owned(), last_seq)
}

#[tokio::test]
async fn a_name_is_registered_once() {
    let db = TestDb::new().await;
    let mut consumers = of(&db, [at_head(plain())]);
    let error = consumers.register(at_head(plain())).unwrap_err();
    assert_eq!(error, RegistrationError::Duplicate(name(PROBE)));
    consumers.register(Consumer::new(name("other"), plain())).unwrap();
}

#[tokio::test]
#[should_panic(expected = "consumer other has to be registered")]
async fn a_round_of_somebody_else_is_a_mistake_of_the_program() {
    let db = TestDb::new().await;
    let _ = of(&db, [at_head(plain())]).round(&name("other")).await;
}

#[tokio::test]
async fn a_new_consumer_gets_what_comes_after_it_and_nothing_else() {
    let db = database().await;
    append(&db.producer(), 1..=3).await;
    let bench = Bench::on(db, config(), at_head(plain())).await;
    assert_eq!(cursor(&bench.db, PROBE).await, 3);
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    append(&bench.db.producer(), 4..=5).await;
    bench.processes(2).await;
    assert_eq!(effects(&bench.db).await, twice(4..=5));
}

#[tokio::test]
async fn ensuring_again_changes_nothing() {
    let db = database().await;
    append(&db.producer(), 1..=3).await;
    let bench = Bench::on(db, config(), at_head(plain())).await;
    append(&bench.db.producer(), 4..=5).await;
    let row = async || -> (String, i64, String) {
        sqlx::query_as("SELECT xmin::text, last_seq, updated_at::text FROM seqline.event_consumer_cursors")
            .fetch_one(&bench.db.admin())
            .await
            .unwrap()
    };
    let before = row().await;
    bench.consumers.ensure().await.unwrap();
    of(&bench.db, [at_head(plain()).start_at(StartAt::Oldest)]).ensure().await.unwrap();
    assert_eq!((row().await, before.1), (before, 3));
}

#[tokio::test]
async fn workers_that_ensure_at_the_same_time_agree_on_one_cursor() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let workers: Vec<_> = (0..8).map(|_| of(&db, [at_head(plain())])).collect();
    let all = workers.iter().map(Consumers::ensure);
    for ensured in futures_util::future::join_all(all).await {
        ensured.unwrap();
    }
    assert_eq!(cursors(&db).await, [worker(PROBE, 3)]);
}

/// One is about to be made by somebody else when it is ensured here.
async fn ensure_behind_somebody_else(db: &TestDb, options: PgConnectOptions) -> Result<(), EnsureError> {
    append(&db.producer(), 1..=3).await;
    let mut other = seqline::begin(&db.app()).await.unwrap();
    sqlx::query("SELECT seqline.ensure_consumer($1, 'worker', 'oldest')")
        .bind(PROBE)
        .execute(&mut *other)
        .await
        .unwrap();
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options.application_name("second"));
    let consumers = consumers(pool, db.options(Role::App), config(), manual().0, [at_head(plain())]);
    let ensured = tokio::spawn(async move { consumers.ensure().await });
    eventually(DEADLINE, "the second waits for the first", async || {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
                            WHERE application_name = 'second' AND wait_event_type = 'Lock'
                              AND datname = current_database())",
        )
        .fetch_one(&db.admin())
        .await
        .unwrap()
    })
    .await;
    other.commit().await.unwrap();
    ensured.await.unwrap()
}

#[tokio::test]
async fn a_worker_that_is_slower_takes_the_cursor_of_the_faster() {
    let db = TestDb::new().await;
    ensure_behind_somebody_else(&db, db.options(Role::App)).await.unwrap();
    assert_eq!(cursors(&db).await, [worker(PROBE, 0)]);
}

#[tokio::test]
async fn a_worker_that_is_slower_takes_the_cursor_of_the_faster_whatever_the_default_isolation_is() {
    for isolation in ["repeatable read", "serializable"] {
        let db = TestDb::new().await;
        let options = db.options(Role::App).options([("default_transaction_isolation", isolation)]);
        let ensured = ensure_behind_somebody_else(&db, options).await;
        assert!(ensured.is_ok(), "{isolation}: {ensured:?}");
        assert_eq!(cursors(&db).await, [worker(PROBE, 0)]);
    }
}

#[tokio::test]
async fn a_consumer_can_begin_with_the_oldest_event_or_at_a_number() {
    let db = TestDb::new().await;
    crate::partitions::small_partitions(&db, 2, 3).await;
    append(&db.producer(), 1..=5).await;
    assert_eq!(crate::partitions::drop_oldest(&db).await, 1);
    let starts = [
        ("head", StartAt::Head, 5),
        ("oldest", StartAt::Oldest, 2),
        ("first", StartAt::Seq(3), 2),
        ("middle", StartAt::Seq(4), 3),
        ("next", StartAt::Seq(6), 5),
    ];
    let list = starts.map(|(text, start_at, _)| Consumer::new(name(text), plain()).start_at(start_at));
    of(&db, list).ensure().await.unwrap();
    let mut expected = starts.map(|(text, _, last_seq)| worker(text, last_seq)).to_vec();
    expected.sort();
    assert_eq!(cursors(&db).await, expected);
}

#[tokio::test]
async fn a_consumer_cannot_begin_outside_of_the_log() {
    let db = TestDb::new().await;
    crate::partitions::small_partitions(&db, 2, 3).await;
    append(&db.producer(), 1..=5).await;
    assert_eq!(crate::partitions::drop_oldest(&db).await, 1);
    for seq in [i64::MIN, -1, 0, 1, 2, 7, 1_000_000, i64::MAX] {
        let ensured = of(&db, [at_head(plain()).start_at(StartAt::Seq(seq))]).ensure().await;
        let error = ensured.expect_err(&format!("start at {seq}"));
        assert!(matches!(error, EnsureError::Start { .. }), "start at {seq}: {error:?}");
        assert!(!error.is_retryable());
    }
    assert_eq!(cursors(&db).await, []);
}

#[tokio::test]
async fn consumers_on_an_empty_log_begin_before_the_first_event() {
    let db = TestDb::new().await;
    let list = [("head", StartAt::Head), ("oldest", StartAt::Oldest), ("seq", StartAt::Seq(1))];
    let list = list.map(|(text, start_at)| Consumer::new(name(text), plain()).start_at(start_at));
    of(&db, list).ensure().await.unwrap();
    assert_eq!(cursors(&db).await, [worker("head", 0), worker("oldest", 0), worker("seq", 0)]);
}

#[tokio::test]
async fn a_consumer_that_somebody_polls_is_not_ours() {
    let db = TestDb::new().await;
    sqlx::query("SELECT seqline.register_consumer('polled', 'head')").execute(&db.consumer()).await.unwrap();
    let ensured = of(&db, [Consumer::new(name("polled"), plain())]).ensure().await;
    let Err(error @ EnsureError::OtherKind { .. }) = ensured else { panic!("{ensured:?}") };
    assert!(error.to_string().contains("polled"), "{error}");
    let run = of(&db, [Consumer::new(name("polled"), plain())]).run(CancellationToken::new()).await;
    assert!(matches!(run, Err(ConsumersError::Ensure(EnsureError::OtherKind { .. }))), "{run:?}");
}

#[tokio::test]
async fn our_consumer_is_nobodys_to_poll() {
    let db = TestDb::new().await;
    of(&db, [at_head(plain())]).ensure().await.unwrap();
    append(&db.producer(), [1]).await;
    for sql in ["SELECT seqline.register_consumer('probe', 'head')", "SELECT seqline.poll('probe', 1)"] {
        assert!(sqlx::query(sql).execute(&db.consumer()).await.is_err(), "{sql}");
    }
    assert_eq!(cursors(&db).await, [worker(PROBE, 0)]);
}

#[tokio::test]
async fn cursors_are_made_all_or_none() {
    let db = TestDb::new().await;
    sqlx::query("SELECT seqline.register_consumer('m', 'head')").execute(&db.consumer()).await.unwrap();
    let before = cursors(&db).await;
    for bad in
        [Consumer::new(name("m"), plain()), Consumer::new(name("n"), plain()).start_at(StartAt::Seq(9))]
    {
        let list = [Consumer::new(name("a"), plain()), bad, Consumer::new(name("z"), plain())];
        assert!(of(&db, list).ensure().await.is_err());
        assert_eq!(cursors(&db).await, before);
    }
}

#[tokio::test]
async fn no_consumer_at_all_runs_until_it_is_stopped() {
    let db = TestDb::new().await;
    let mut running = Running::on(&db, config(), manual().0, []);
    running.listens(true).await;
    assert!(!running.task.is_finished());
    running.stops().await;
}

#[tokio::test]
async fn a_role_without_the_rights_of_the_application_cannot_run_consumers() {
    let db = TestDb::new().await;
    for role in [Role::Reader, Role::Producer, Role::Consumer, Role::Nobody] {
        let pool = db.pool(role, 1);
        let consumers = consumers(pool, db.options(role), config(), manual().0, [at_head(plain())]);
        let Err(EnsureError::Database(error)) = consumers.ensure().await else { panic!("{role:?}") };
        assert_eq!(error.sqlstate(), Some("42501"), "{role:?}");
    }
    assert_eq!(cursors(&db).await, []);
}
