//! A paused queue takes jobs and nobody works them, which is said.

use seqline::clock::Clock;
use seqline::limits::PAUSED_QUEUES_MAX;

use super::*;
use crate::consumers::{Captured, PROBE, Running, config, quick, reaches};
use crate::support::append;

const WAITING: &str = "jobs of an event consumer wait in a paused queue";
const OVER: &str = "no queue with jobs of an event consumer is paused any more";

async fn pause(db: &TestDb, queue: &str, paused: bool) {
    let sql = format!(
        "INSERT INTO queue.river_queue (name, paused_at, updated_at)
             VALUES ('{queue}', CASE WHEN {paused} THEN now() END, now())
         ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at"
    );
    as_admin(db, &sql).await;
}

fn queued(queue: &str) -> NewJob {
    NewJob { queue: queue.to_owned(), ..new_job(1) }
}

#[tokio::test]
async fn paused_queues_are_named_and_take_jobs() {
    let db = database().await;
    for (queue, paused) in [("mail", true), ("print", false), ("fax", true), ("slow", true)] {
        pause(&db, queue, paused).await;
    }
    let wanted = checked(["mail", "mail", "print", "default", "slow"].map(queued));
    let inserted = insert(&db.app(), &river(), &wanted).await.expect("they are inserted nevertheless");
    assert_eq!(inserted.inserted, 5);
    assert_eq!(inserted.paused_queues, ["mail", "slow"], "those of these jobs");
    let health = river().health(&mut db.connect(Role::App).await).await.expect("it is well");
    assert_eq!(health.paused_queues, ["fax", "mail", "slow"]);
    for n in 0..PAUSED_QUEUES_MAX {
        pause(&db, &format!("a{n}"), true).await;
    }
    let health = river().health(&mut db.connect(Role::App).await).await.expect("it is well");
    assert_eq!(health.paused_queues.len(), PAUSED_QUEUES_MAX);
}

#[tokio::test]
async fn a_queue_that_is_paused_is_logged_once_and_the_end_of_it_once() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    let running = Running::on(&db, quick(), Clock::system(), [feeding(two_jobs())]);
    let mut seq = 0;
    let handles_three = async |seq: &mut i64| {
        for _ in 0..3 {
            *seq += 1;
            append(&db.producer(), [*seq]).await;
            reaches(&db, PROBE, *seq).await;
        }
    };
    handles_three(&mut seq).await;
    assert_eq!((captured.count(WAITING), captured.count(OVER)), (0, 0));
    for times in 1..=2 {
        pause(&db, "default", true).await;
        handles_three(&mut seq).await;
        assert_eq!((captured.count(WAITING), captured.count(OVER)), (times, times - 1));
        pause(&db, "default", false).await;
        handles_three(&mut seq).await;
        assert_eq!((captured.count(WAITING), captured.count(OVER)), (times, times));
    }
    running.stops().await;
    assert_handled(&db, seq).await;
    let lines = captured.said(tracing::Level::WARN);
    assert!(
        lines.iter().all(|line| line.contains("consumer=\"probe\"") && line.contains("queue=\"default\"")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn rounds_with_jobs_of_another_queue_say_nothing_about_the_paused_one() {
    let (captured, _guard) = Captured::start();
    let handler = acting(|event, round| {
        let queue = if event.seq % 2 == 0 { "print" } else { "mail" };
        let asked = round.jobs().insert(NewJob { queue: queue.to_owned(), ..new_job(event.seq) });
        Box::pin(async move { Ok(asked?) })
    });
    let bench = bench(ConsumerConfig { batch_size: 1, ..config() }, handler).await;
    pause(&bench.db, "mail", true).await;
    append(&bench.db.producer(), 1..=6).await;
    for _ in 0..6 {
        bench.processes(1).await;
    }
    assert_eq!((captured.count(WAITING), captured.count(OVER)), (1, 0));
    pause(&bench.db, "mail", false).await;
    append(&bench.db.producer(), 7..=8).await;
    for _ in 0..2 {
        bench.processes(1).await;
    }
    assert_eq!((captured.count(WAITING), captured.count(OVER)), (1, 1));
}
