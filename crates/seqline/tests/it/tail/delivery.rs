//! What is delivered, to whom, in which portions.

use super::*;
use crate::support::append;

#[tokio::test]
async fn a_tail_starts_at_the_head() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let mut tail = Running::on(&db, config(Start::Head), manual().0).await;
    assert_eq!(tail.position(), 3);
    tail.listens(true).await;
    append(&db.producer(), [4]).await;
    tail.reaches(4).await;
    assert_eq!(tail.taken.seqs(), [4]);
}

#[tokio::test]
async fn an_event_between_the_making_and_the_running_of_a_tail_is_delivered() {
    let db = TestDb::new().await;
    let tail =
        Tail::new(db.reader(), db.options(Role::Reader), config(Start::Head), manual().0).await.unwrap();
    append(&db.producer(), [1]).await;
    let mut tail = Running::of(tail, vec![], Taken::default(), watch::Sender::new(true));
    tail.reaches(1).await;
}

#[tokio::test]
async fn a_tail_starts_after_a_number() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=5).await;
    let mut tail = Running::on(&db, config(Start::After(2)), manual().0).await;
    tail.reaches(5).await;
    assert_eq!(tail.taken.seqs(), [3, 4, 5]);
}

#[tokio::test]
async fn what_was_appended_is_delivered_whole() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), 1..=3).await;
    let mut tail = Running::on(&db, config(Start::After(0)), manual().0).await;
    tail.reaches(3).await;
    assert_eq!(tail.taken.events(), [(1, ids[0]), (2, ids[1]), (3, ids[2])]);
}

#[tokio::test]
async fn a_backlog_is_drained_in_batches_without_waiting() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=25).await;
    let mut tail = Running::on(&db, config(Start::After(0)), manual().0).await;
    tail.reaches(25).await;
    let batches: Vec<(usize, Vec<i64>)> =
        vec![(0, (1..=10).collect()), (0, (11..=20).collect()), (0, (21..=25).collect())];
    assert_eq!(tail.taken.batches(), batches);
}

#[tokio::test]
async fn a_backlog_that_ends_with_a_full_batch_is_drained() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=20).await;
    let mut tail = Running::on(&db, config(Start::After(0)), manual().0).await;
    tail.reaches(20).await;
    tail.listens(true).await;
    append(&db.producer(), [21]).await;
    tail.reaches(21).await;
    assert_eq!(tail.taken.seqs(), (1..=21).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_batch_size_above_the_largest_page_is_drained_without_waiting() {
    let db = TestDb::new().await;
    let more = i64::from(seqline::limits::READ_EVENTS_MAX) + 1;
    append(&db.producer(), 1..=more).await;
    // No listener, so that only the drain itself can go on.
    let proxy = proxy_for(&db).await;
    proxy.refuse();
    let config = TailConfig { batch_size: u32::MAX, ..config(Start::After(0)) };
    let mut tail = Running::start(db.reader(), through(&proxy, &db, Role::Reader), config, manual().0).await;
    tail.reaches(more).await;
}

#[tokio::test]
async fn sinks_are_called_in_their_order_batch_by_batch() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=15).await;
    let (taken, open) = (Taken::default(), watch::Sender::new(true));
    let sinks = (0..3).map(|place| {
        Box::new(Recorder { place, taken: taken.clone(), open: open.subscribe() }) as Box<dyn Sink>
    });
    let tail =
        Tail::new(db.reader(), db.options(Role::Reader), config(Start::After(0)), manual().0).await.unwrap();
    let mut tail = Running::of(tail, sinks.collect(), taken, open);
    tail.reaches(15).await;
    let places: Vec<(usize, usize)> =
        tail.taken.batches().into_iter().map(|(place, seqs)| (place, seqs.len())).collect();
    assert_eq!(places, [(0, 10), (1, 10), (2, 10), (0, 5), (1, 5), (2, 5)]);
}

#[tokio::test]
async fn the_position_moves_only_after_all_sinks_have_accepted() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    let taken = Taken::default();
    let (always, open) = (watch::Sender::new(true), watch::Sender::new(false));
    let sinks: Vec<Box<dyn Sink>> = vec![
        Box::new(Recorder { place: 0, taken: taken.clone(), open: always.subscribe() }),
        Box::new(Recorder { place: 1, taken: taken.clone(), open: open.subscribe() }),
    ];
    let tail =
        Tail::new(db.reader(), db.options(Role::Reader), config(Start::After(0)), manual().0).await.unwrap();
    let mut tail = Running::of(tail, sinks, taken, open);
    eventually(DEADLINE, "the second sink has the batch", async || tail.taken.batches().len() == 2).await;
    assert_eq!(tail.position(), 0);
    tail.open.send_replace(true);
    tail.reaches(1).await;
}

#[tokio::test]
async fn a_tail_without_sinks_follows_the_head() {
    let db = TestDb::new().await;
    let tail =
        Tail::new(db.reader(), db.options(Role::Reader), config(Start::Head), manual().0).await.unwrap();
    let mut tail = Running::of(tail, vec![], Taken::default(), watch::Sender::new(true));
    tail.listens(true).await;
    append(&db.producer(), 1..=2).await;
    tail.reaches(2).await;
}

#[tokio::test]
async fn the_listening_connection_is_not_one_of_the_pool() {
    let db = TestDb::new().await;
    let pool = db.pool(Role::Reader, 1);
    let mut tail =
        Running::start(pool.clone(), db.options(Role::Reader), config(Start::Head), manual().0).await;
    tail.listens(true).await;
    // It would be taken if the listener had it.
    let mut only = pool.acquire().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *only).await.unwrap();
    let listening = listening_backends(&db).await;
    assert_eq!(listening.len(), 1);
    assert_ne!(listening[0], pid);
}

#[tokio::test]
async fn a_tail_that_goes_on_after_a_position_repeats_and_skips_nothing() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=5).await;
    let mut first = Running::on(&db, config(Start::After(0)), manual().0).await;
    first.reaches(5).await;
    first.stop.cancel();
    let (position, mut seqs) = (first.position(), first.taken.seqs());
    first.ends().await.unwrap();
    append(&db.producer(), 6..=9).await;
    let mut second = Running::on(&db, config(Start::After(position)), manual().0).await;
    second.reaches(9).await;
    seqs.extend(second.taken.seqs());
    assert_eq!(seqs, (1..=9).collect::<Vec<i64>>());
}
