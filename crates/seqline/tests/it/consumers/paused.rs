//! A paused consumer: no round of it begins, here or anywhere, until it goes on where it stands.

use seqline::consumer::{OperateError, pause, resume};

use super::*;

async fn audited(db: &TestDb) -> Vec<(String, String, String, Option<String>)> {
    sqlx::query_as("SELECT who, action, subject, why FROM seqline.audit_log ORDER BY id")
        .fetch_all(&db.admin())
        .await
        .expect("the audit can be read")
}

#[tokio::test]
async fn no_round_begins_until_it_goes_on_where_it_stands() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    bench.processes(2).await;
    let mut operator = bench.db.connect(Role::App).await;
    assert!(pause(&mut operator, &name(PROBE), Some("the mail server is away")).await.unwrap());
    assert!(!pause(&mut operator, &name(PROBE), Some("again")).await.unwrap());
    append(&bench.db.producer(), 3..=4).await;
    for _ in 0..2 {
        let result = bench.round().await.unwrap();
        assert_eq!((result.outcome, result.last_seq), (Outcome::Paused, None));
    }
    bench.assert_handled(2).await;
    assert!(state_of(&bench.db, PROBE).await.paused_at.is_some());
    assert!(resume(&mut operator, &name(PROBE), None).await.unwrap());
    assert!(!resume(&mut operator, &name(PROBE), None).await.unwrap());
    assert!(state_of(&bench.db, PROBE).await.paused_at.is_none());
    bench.processes(2).await;
    bench.assert_handled(4).await;
    let who = Role::App.login();
    let row = |action: &str, why: Option<&str>| {
        (who.to_owned(), action.to_owned(), PROBE.to_owned(), why.map(str::to_owned))
    };
    let expected = [row("consumer.pause", Some("the mail server is away")), row("consumer.resume", None)];
    assert_eq!(audited(&bench.db).await, expected);
}

#[tokio::test]
async fn pausing_waits_for_the_round_that_runs() {
    let (entered, mut inside) = watch::channel(false);
    let (release, gate) = watch::channel(false);
    let handler = acting(move |_, _| {
        let (entered, mut gate) = (entered.clone(), gate.clone());
        Box::pin(async move {
            entered.send_replace(true);
            gate.wait_for(|open| *open).await?;
            Ok(())
        })
    });
    let bench = Arc::new(Bench::new(config(), handler).await);
    append(&bench.db.producer(), [1]).await;
    let running = tokio::spawn({
        let bench = bench.clone();
        async move { bench.round().await }
    });
    inside.wait_for(|inside| *inside).await.unwrap();
    let mut operator = bench.db.connect(Role::App).await;
    sqlx::raw_sql("SET lock_timeout = '100ms'").execute(&mut operator).await.unwrap();
    let error = pause(&mut operator, &name(PROBE), None).await.unwrap_err();
    let OperateError::Database(error) = error else { panic!("{error:?}") };
    assert_eq!(error.sqlstate(), Some("55P03"));
    sqlx::raw_sql("SET lock_timeout = 0").execute(&mut operator).await.unwrap();
    let pausing = async { pause(&mut operator, &name(PROBE), None).await };
    let releasing = async {
        eventually(DEADLINE, "it waits", async || {
            let waiting = sqlx::query_scalar::<_, i64>(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%set_consumer_paused%'",
            );
            waiting.fetch_one(&bench.db.admin()).await.unwrap() == 1
        })
        .await;
        release.send_replace(true);
    };
    let (paused, ()) = tokio::join!(pausing, releasing);
    assert!(paused.unwrap());
    assert_eq!(running.await.unwrap().unwrap().processed, 1);
    append(&bench.db.producer(), [2]).await;
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Paused);
    bench.assert_handled(1).await;
}

/// The look before a round is not enough: it can be paused in between.
#[tokio::test]
async fn it_is_seen_behind_the_lock_too() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), [1]).await;
    let mut session = bench.db.connect(Role::App).await;
    pause(&mut session, &name(PROBE), None).await.unwrap();
    let state: String = sqlx::query_scalar("SELECT state FROM seqline.lock_consumer('probe', 0, 0)")
        .fetch_one(&mut session)
        .await
        .unwrap();
    assert_eq!(state, "locked");
}

#[tokio::test]
async fn a_worker_says_it_once_and_goes_on_by_itself() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    let running = Running::on(&db, quick(), Clock::system(), [probe(plain())]);
    append(&db.producer(), [1]).await;
    reaches(&db, PROBE, 1).await;
    let mut operator = db.connect(Role::App).await;
    pause(&mut operator, &name(PROBE), None).await.unwrap();
    append(&db.producer(), [2]).await;
    eventually(DEADLINE, "it is said", async || captured.count("event consumer is paused") > 0).await;
    append(&db.producer(), [3]).await;
    // Whatever is woken by it has done so when another consumer has handled it.
    let other = Running::on(
        &db,
        quick(),
        Clock::system(),
        [Consumer::new(name("other"), plain()).start_at(StartAt::Oldest)],
    );
    reaches(&db, "other", 3).await;
    other.stops().await;
    assert_eq!(effects(&db).await, twice([1]));
    resume(&mut operator, &name(PROBE), None).await.unwrap();
    reaches(&db, PROBE, 3).await;
    running.stops().await;
    assert_eq!(effects(&db).await, twice([1, 2, 3]));
    let said = ["event consumer is paused", "event consumer goes on", "round failed"];
    assert_eq!(said.map(|text| captured.count(text)), [1, 1, 0]);
}

#[tokio::test]
async fn one_that_does_not_exist_cannot_be_paused_and_only_workers_may() {
    let db = database().await;
    let error = pause(&mut db.connect(Role::App).await, &name("nobody"), None).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no consumer of this name");
    for role in [Role::Producer, Role::Reader, Role::Consumer, Role::Nobody] {
        let error = pause(&mut db.connect(role).await, &name("nobody"), None).await.unwrap_err();
        let OperateError::Database(error) = error else { panic!("{error:?}") };
        assert_eq!(error.sqlstate(), Some("42501"), "{role:?}");
    }
    let long = "x".repeat(1001);
    let error = pause(&mut db.connect(Role::App).await, &name("nobody"), Some(&long)).await.unwrap_err();
    assert_eq!(error.to_string(), "the reason has more than 1000 characters");
}

#[tokio::test]
async fn draining_handles_everything_that_is_there() {
    let bench = Bench::new(ConsumerConfig { batch_size: 2, ..config() }, plain()).await;
    assert_eq!(seqline_testkit::drain(&bench.consumers, &name(PROBE)).await.unwrap(), 0);
    append(&bench.db.producer(), 1..=5).await;
    assert_eq!(seqline_testkit::drain(&bench.consumers, &name(PROBE)).await.unwrap(), 5);
    bench.assert_handled(5).await;
}

#[tokio::test]
#[should_panic(expected = "consumer probe is paused")]
async fn draining_a_paused_consumer_is_no_success() {
    let bench = Bench::new(config(), plain()).await;
    pause(&mut bench.db.connect(Role::App).await, &name(PROBE), None).await.unwrap();
    let _ = seqline_testkit::drain(&bench.consumers, &name(PROBE)).await;
}
