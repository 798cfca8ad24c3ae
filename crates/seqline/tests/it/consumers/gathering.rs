//! Another number of lanes: all come to the same place first, or nothing changes.

use seqline::consumer::{LaneKey, Mode, OperateError, divide};

use super::*;

const APPLY: Mode<'_> = Mode::Apply { why: None };

/// Two lanes, of which the first has passed all and the second nothing.
async fn uneven() -> Bench {
    let consumer = probe(plain()).lanes(LaneKey::Resource, 2);
    let bench = Bench::on(database().await, config(), consumer).await;
    append(&bench.db.producer(), 1..=4).await;
    bench.round().await.expect("the round succeeds");
    bench
}

async fn has_barrier(db: &TestDb) -> bool {
    sqlx::query_scalar("SELECT barrier_seq IS NOT NULL FROM seqline.event_consumers")
        .fetch_one(&db.admin())
        .await
        .expect("the consumer can be read")
}

#[tokio::test]
async fn a_lane_that_does_not_come_is_named_and_nothing_is_changed() {
    let bench = uneven().await;
    let mut operator = bench.db.connect(Role::App).await;
    let mut divide =
        async |mode| divide(&mut operator, &Clock::system(), &name(PROBE), (3, None), SHORT, mode).await;
    let plan = divide(Mode::Plan).await.unwrap();
    assert_eq!((plan.lanes_before, plan.last_seq, plan.behind), (2, 4, 1));
    let error = divide(APPLY).await.unwrap_err();
    assert!(error.is_retryable());
    assert!(matches!(error, OperateError::LaneBehind { lane: 1, last_seq: 0, furthest: 4 }), "{error:?}");
    assert!(!has_barrier(&bench.db).await);
    assert_eq!(positions(&bench.db).await, [4, 0]);
    bench.round().await.expect("the round succeeds");
    divide(APPLY).await.unwrap();
    assert_eq!(positions(&bench.db).await, [4, 4, 4]);
    assert!(!has_barrier(&bench.db).await);
}

#[tokio::test]
async fn a_division_that_changes_nothing_holds_nothing_up() {
    let bench = uneven().await;
    let mut operator = bench.db.connect(Role::App).await;
    let same = (2, Some(LaneKey::Resource));
    divide(&mut operator, &Clock::system(), &name(PROBE), same, SHORT, APPLY).await.unwrap();
    assert!(!has_barrier(&bench.db).await);
    assert_eq!(positions(&bench.db).await, [4, 0]);
}

/// Whether a lane is behind can be another thing a moment after it was looked at.
#[tokio::test]
async fn lanes_that_go_on_all_the_time_are_gathered() {
    let db = database().await;
    let consumer = probe(plain()).lanes(LaneKey::Resource, 2);
    let running = Running::on(&db, quick(), Clock::system(), [consumer]);
    cursors_exist(&db).await;
    let stop = CancellationToken::new();
    let producer = tokio::spawn({
        let (pool, stop) = (db.producer(), stop.clone());
        async move {
            while !stop.is_cancelled() {
                append(&pool, 1..=5).await;
            }
        }
    });
    let mut operator = db.connect(Role::App).await;
    for lanes in [3, 2, 4, 1, 2, 3, 2, 4, 2, 3] {
        let wanted = (lanes, None);
        divide(&mut operator, &Clock::system(), &name(PROBE), wanted, DEADLINE, APPLY).await.unwrap();
        assert_eq!(positions(&db).await.len(), lanes as usize);
    }
    stop.cancel();
    producer.await.expect("the producer ends well");
    running.stops().await;
}

async fn cursors_exist(db: &TestDb) {
    eventually(DEADLINE, "the cursors", async || !positions(db).await.is_empty()).await;
}

async fn positions(db: &TestDb) -> Vec<i64> {
    sqlx::query_scalar("SELECT last_seq FROM seqline.event_consumer_cursors ORDER BY lane")
        .fetch_all(&db.admin())
        .await
        .expect("the cursors can be read")
}
