//! Two workers with pools of their own, while several write: each event has its jobs once.

use seqline::clock::Clock;
use seqline::consumer::Outcome;
use seqline_testkit::eventually;
use tokio::task::JoinSet;

use super::*;
use crate::consumers::{DEADLINE, Gate, PROBE, Running, config, consumers, name, quick};
use crate::support::{append, head};

#[tokio::test]
async fn each_event_has_its_two_jobs_whoever_works() {
    let db = database().await;
    // One at the gate, so that the other is locked out.
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let handler = inserting(move |event, _| {
        let (gate, seq) = (at_gate.clone(), event.seq);
        Box::pin(async move {
            gate.pass(seq).await;
            Ok(())
        })
    });
    let first = Bench::on(db, config(), feeding(handler)).await;
    let db = &first.db;
    let list = [feeding(two_jobs())];
    let second = consumers(db.app_pool(2), db.options(Role::App), config(), Clock::system(), list);
    append(&db.producer(), 1..=3).await;
    let locked_out = async {
        gate.is_reached(1).await;
        let result = second.round(&name(PROBE)).await.unwrap();
        assert_eq!((result.outcome, result.jobs), (Outcome::Locked, 0));
        gate.open();
    };
    let (result, ()) = tokio::join!(first.round(), locked_out);
    assert_eq!(result.unwrap().jobs, 6);
    assert_handled(db, 3).await;

    let config = ConsumerConfig { batch_size: 7, ..quick() };
    let workers = [0, 1].map(|_| Running::on(db, config.clone(), Clock::system(), [feeding(two_jobs())]));
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let pool = db.producer();
        writers.spawn(async move {
            for n in 0..25 {
                append(&pool, 0..=(writer + n) % 4).await;
            }
        });
    }
    writers.join_all().await;
    let head = head(db).await;
    assert!(head > 200, "{head}");
    eventually(DEADLINE, "the head", async || cursor(db, PROBE).await == head).await;
    for worker in workers {
        worker.stops().await;
    }
    assert_handled(db, head).await;
    let unplaced: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM queue.river_job WHERE args -> 'seq' IS DISTINCT FROM metadata -> 'seqline:seq'",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert_eq!(unplaced, 0);
}
