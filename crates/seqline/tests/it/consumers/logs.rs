//! What is logged: each failure once and its end once, each loss once, and nothing that a payload could be in.

use tracing::Level;

use super::*;

const FAILED: &str = "event consumer round failed";
const RECOVERED: &str = "event consumer recovered";
const LOST: &str = "event consumer lost events to retention";

#[tokio::test]
async fn a_failure_is_logged_once_and_its_end_once() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let switch = Switch::on();
    let running = Running::on(&db, quick(), Clock::system(), [probe(switch.failing_at(2))]);
    for failures in 1..=2 {
        let attempts = switch.times();
        eventually(DEADLINE, "attempts", async || switch.times() >= attempts + 4).await;
        assert_eq!((captured.count(FAILED), captured.count(RECOVERED)), (failures, failures - 1));
        switch.off();
        reaches(&db, PROBE, 2).await;
        eventually(DEADLINE, "the end is logged", async || captured.count(RECOVERED) == failures).await;
        if failures == 1 {
            switch.on.store(true, Ordering::SeqCst);
            set_cursor(&db, 0).await;
        }
    }
    running.stops().await;
    assert_eq!((captured.count(FAILED), captured.count(RECOVERED)), (2, 2));
    let failed: Vec<String> =
        captured.said(Level::ERROR).into_iter().filter(|line| line.contains(FAILED)).collect();
    assert_eq!(failed.len(), 2, "at error level");
    assert!(failed[0].contains("consumer=\"probe\"") && failed[0].contains("seq=2"), "{failed:?}");
    assert!(failed[0].contains("error.type=\"handler\""), "{failed:?}");
}

#[tokio::test]
async fn what_a_handler_says_is_in_the_log_at_debug_level_only() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), [1]).await;
    let handler = acting(|_, _| Box::pin(async { Err("swordfish".into()) }));
    let running = Running::on(&db, quick(), Clock::system(), [probe(handler)]);
    eventually(DEADLINE, "the failure", async || captured.count(FAILED) == 1).await;
    eventually(DEADLINE, "its text", async || {
        captured.said(Level::DEBUG).iter().any(|line| line.contains("swordfish"))
    })
    .await;
    eventually(DEADLINE, "the record", async || state_of(&db, PROBE).await.last_failure.is_some()).await;
    running.stops().await;
    assert_eq!(captured.count("swordfish"), 0);
    let stored: String = sqlx::query_scalar("SELECT f::text FROM seqline.event_consumer_failures f")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert!(!stored.contains("swordfish"), "{stored}");
}

#[tokio::test]
async fn events_lost_to_retention_are_logged_once() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    crate::partitions::small_partitions(&db, 2, 3).await;
    consumers(db.app(), db.options(Role::App), config(), manual().0, [probe(plain())])
        .ensure()
        .await
        .unwrap();
    append(&db.producer(), 1..=5).await;
    assert_eq!(crate::partitions::drop_oldest(&db).await, 1);
    let switch = Switch::on();
    let config = ConsumerConfig { batch_size: 1, ..quick() };
    let running = Running::on(&db, config, Clock::system(), [probe(switch.failing_at(3))]);
    eventually(DEADLINE, "failures", async || switch.times() >= 3).await;
    assert_eq!(captured.count(LOST), 0, "the round that saw it has failed");
    switch.off();
    reaches(&db, PROBE, 5).await;
    running.stops().await;
    let lines: Vec<String> =
        captured.said(Level::ERROR).into_iter().filter(|line| line.contains(LOST)).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("consumer=\"probe\"") && lines[0].contains(" seq=3 "), "{lines:?}");
}

#[tokio::test]
async fn a_cursor_that_somebody_removed_is_made_anew_and_that_is_logged() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let running = Running::on(&db, quick(), Clock::system(), [Consumer::new(name(PROBE), plain())]);
    eventually(DEADLINE, "the cursor", async || cursors(&db).await == 1).await;
    append(&db.producer(), [3]).await;
    reaches(&db, PROBE, 3).await;
    as_admin(&db, "DELETE FROM seqline.event_consumer_cursors").await;
    eventually(DEADLINE, "a new cursor", async || cursors(&db).await == 1).await;
    append(&db.producer(), [4]).await;
    reaches(&db, PROBE, 4).await;
    eventually(DEADLINE, "the end is logged", async || captured.count(RECOVERED) == 1).await;
    running.stops().await;
    assert_eq!((captured.count(FAILED), captured.count("made anew")), (1, 1));
    assert_eq!(effects(&db).await, twice(3..=4));
}

async fn cursors(db: &TestDb) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM seqline.event_consumer_cursors")
        .fetch_one(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_healthy_consumer_says_nothing() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), 1..=3).await;
    let config = ConsumerConfig { batch_size: 1, ..quick() };
    let mut running = Running::on(&db, config, Clock::system(), [probe(plain())]);
    running.listens(true).await;
    reaches(&db, PROBE, 3).await;
    running.stops().await;
    assert_eq!(captured.said(Level::INFO), [] as [String; 0]);
}
