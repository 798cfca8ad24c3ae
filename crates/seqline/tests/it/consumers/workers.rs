//! Several workers for the same consumer: each event has its effects once, whoever handles it.

use tokio::task::JoinSet;

use super::wakes::write_until;
use super::*;

/// Exactly two effects for each number and nothing else, and all of them.
async fn assert_exactly_once(db: &TestDb) {
    let head = head(db).await;
    assert_eq!(cursor(db, PROBE).await, head);
    assert_eq!(effects(db).await, twice(1..=head));
    let others: i64 = sqlx::query_scalar("SELECT count(*) FROM effects WHERE consumer <> $1")
        .bind(PROBE)
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert_eq!(others, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_and_four_writers_with_rollbacks_make_each_effect_once() {
    const EVENTS: i64 = 400;
    let db = database().await;
    let config = ConsumerConfig { batch_size: 7, ..quick() };
    // One has the consumer in hand, and the other is made to look.
    let gate = Gate::closed();
    append(&db.producer(), [0]).await;
    let pool = db.app_pool(2);
    let first =
        consumers(pool, db.options(Role::App), config.clone(), Clock::system(), [probe(gate.handler())]);
    let pool = db.app_pool(2);
    let second = consumers(pool, db.options(Role::App), config, Clock::system(), [probe(plain())]);
    first.ensure().await.unwrap();
    let first = Running::start(first);
    gate.is_reached(1).await;
    let done = CancellationToken::new();
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        writers.spawn(write_until(done.clone(), db.pool(Role::Producer, 1), writer));
    }
    assert_eq!(second.round(&name(PROBE)).await.unwrap().outcome, Outcome::Locked);
    gate.open();
    let second = Running::start(second);
    eventually(DEADLINE, "enough events", async || head(&db).await >= EVENTS).await;
    done.cancel();
    writers.join_all().await;
    let head = head(&db).await;
    reaches(&db, PROBE, head).await;
    assert_exactly_once(&db).await;
    first.stops().await;
    second.stops().await;
    assert_exactly_once(&db).await;
}

#[tokio::test]
async fn workers_whose_clocks_are_an_hour_apart_share_the_events() {
    const HOUR: Duration = Duration::from_secs(3600);
    let db = database().await;
    let now = Clock::system().now();
    let ((early, _early_hand), (late, _late_hand)) = (Clock::manual(now), Clock::manual(now + HOUR));
    let config = ConsumerConfig { batch_size: 3, ..config() };
    let mut first = Running::on(&db, config.clone(), early, [probe(plain())]);
    let mut second = Running::on(&db, config, late, [probe(plain())]);
    first.listens(true).await;
    second.listens(true).await;
    for n in 0..20 {
        append(&db.producer(), 5 * n + 1..=5 * n + 5).await;
    }
    let head = head(&db).await;
    // One that was locked out waits for the next notification.
    eventually(DEADLINE, "all events", async || {
        let behind = cursor(&db, PROBE).await < head;
        if behind {
            sqlx::query("SELECT pg_notify('event_log', '')").execute(&db.producer()).await.unwrap();
        }
        !behind
    })
    .await;
    assert_exactly_once(&db).await;
    let state = state_of(&db, PROBE).await;
    assert!(
        state.updated_at <= Clock::system().now() + Duration::from_secs(60),
        "the time is the database's"
    );
    first.stops().await;
    second.stops().await;
}

#[tokio::test]
async fn a_worker_takes_over_when_the_one_that_worked_is_gone() {
    let db = database().await;
    append(&db.producer(), 1..=3).await;
    let gate = Gate::closed();
    let first = Running::on(&db, config(), manual().0, [probe(gate.handler())]);
    gate.is_reached(1).await;
    let deaf = Deaf::start(&db, config(), [probe(plain())]).await;
    has_nothing_to_do(&db).await;
    first.task.abort();
    eventually(DEADLINE, "the first is gone", async || open_transactions(&db).await == 0).await;
    deaf.advances_until(&db, PROBE, 3).await;
    assert_exactly_once(&db).await;
    deaf.running.stops().await;
}
