//! How a tail ends: because it was told to, or with an error that says why nobody may go on as if nothing was.

use seqline::read;

use super::*;
use crate::partitions::{drop_oldest, small_partitions};
use crate::support::append;

/// Refuses everything.
struct Refusal;

impl Sink for Refusal {
    fn accept<'a>(&'a mut self, _: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async { Err("no room".into()) })
    }
}

#[tokio::test]
async fn a_sink_that_refuses_ends_the_tail_and_is_named_with_the_batch() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let (taken, open) = (Taken::default(), watch::Sender::new(true));
    let first = Recorder { place: 0, taken: taken.clone(), open: open.subscribe() };
    let tail =
        Tail::new(db.reader(), db.options(Role::Reader), config(Start::After(1)), manual().0).await.unwrap();
    let tail = Running::of(tail, vec![Box::new(first), Box::new(Refusal)], taken, open);
    let head = tail.head.clone();
    let error = tail.ends().await.unwrap_err();
    let TailError::Sink { sink: 1, first_seq: 2, last_seq: 3, source } = error else { panic!("{error:?}") };
    assert_eq!(source.to_string(), "no room");
    assert_eq!(*head.borrow(), 1, "the position after a refused batch");
}

#[tokio::test]
async fn a_jump_of_the_numbers_ends_the_tail_and_nothing_of_that_batch_is_delivered() {
    let db = TestDb::new().await;
    let (clock, hand) = manual();
    let mut tail = Running::on(&db, config(Start::Head), clock).await;
    append(&db.producer(), [1]).await;
    advance_until(&hand, POLL, "the first event", || tail.position() == 1).await;
    insert_as_owner(&db, &[2, 4]).await;
    advance_until(&hand, POLL, "the end of the tail", || tail.task.is_finished()).await;
    let taken = tail.taken.clone();
    tail.listening.mark_unchanged();
    let error = tail.ends().await.unwrap_err();
    let TailError::Gap(gap) = error else { panic!("{error:?}") };
    assert_eq!((gap.expected, gap.found), (2 + 1, 4));
    assert_eq!(taken.seqs(), [1]);
}

#[tokio::test]
async fn a_hole_wider_than_a_batch_is_a_gap_that_names_the_number_behind_it() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    insert_as_owner(&db, &[100]).await;
    let config = TailConfig { batch_size: 2, ..config(Start::After(1)) };
    let error = Running::on(&db, config, manual().0).await.ends().await.unwrap_err();
    let TailError::Gap(gap) = error else { panic!("{error:?}") };
    assert_eq!((gap.expected, gap.found), (2, 100));
}

#[tokio::test]
async fn a_tail_behind_retention_is_told_what_is_left() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.producer(), 1..=5).await;
    assert_eq!(drop_oldest(&db).await, 1);
    let error = Running::on(&db, config(Start::After(0)), manual().0).await.ends().await.unwrap_err();
    let TailError::Expired { next_seq: 1, min_retained: 3 } = error else { panic!("{error:?}") };
}

#[tokio::test]
async fn a_tail_far_behind_retention_is_told_what_is_left() {
    let db = TestDb::new().await;
    small_partitions(&db, 20, 2).await;
    append(&db.producer(), 1..=21).await;
    assert_eq!(drop_oldest(&db).await, 1);
    // What is left begins behind the whole batch.
    let config = TailConfig { batch_size: 5, ..config(Start::After(3)) };
    let error = Running::on(&db, config, manual().0).await.ends().await.unwrap_err();
    let TailError::Expired { next_seq: 4, min_retained: 21 } = error else { panic!("{error:?}") };
}

#[tokio::test]
async fn a_tail_above_the_head_belongs_to_another_history() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=2).await;
    let error = Running::on(&db, config(Start::After(7)), manual().0).await.ends().await.unwrap_err();
    let TailError::AheadOfHead { position: 7, head: 2 } = error else { panic!("{error:?}") };
}

#[tokio::test]
async fn pages_of_a_reader_report_the_same_as_the_tail() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.producer(), 1..=5).await;
    drop_oldest(&db).await;
    let mut reader = db.connect(Role::Reader).await;
    let page = read::events_after(&mut reader, 2, 100).await.unwrap();
    assert_eq!(page.iter().map(|event| event.seq).collect::<Vec<_>>(), [3, 4, 5]);
    assert!(read::events_after(&mut reader, 5, 100).await.unwrap().is_empty());
    let ahead = read::events_after(&mut reader, 6, 100).await.unwrap_err();
    assert!(matches!(ahead, seqline::ReadError::AheadOfHead { after: 6, head: 5 }), "{ahead:?}");
}

#[tokio::test]
async fn a_stop_ends_an_idle_tail() {
    let db = TestDb::new().await;
    let mut tail = Running::on(&db, config(Start::Head), manual().0).await;
    tail.listens(true).await;
    tail.stop.cancel();
    tail.ends().await.unwrap();
}

#[tokio::test]
async fn a_stop_lets_a_batch_be_delivered_to_its_end() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=15).await;
    let (taken, open) = (Taken::default(), watch::Sender::new(false));
    let sink = Recorder { place: 0, taken: taken.clone(), open: open.subscribe() };
    let tail =
        Tail::new(db.reader(), db.options(Role::Reader), config(Start::After(0)), manual().0).await.unwrap();
    let tail = Running::of(tail, vec![Box::new(sink)], taken, open);
    eventually(DEADLINE, "the sink has the batch", async || !tail.taken.batches().is_empty()).await;
    tail.stop.cancel();
    tail.open.send_replace(true);
    let (head, taken) = (tail.head.clone(), tail.taken.clone());
    tail.ends().await.unwrap();
    assert_eq!((*head.borrow(), taken.seqs()), (10, (1..=10).collect()));
}

#[tokio::test]
async fn a_stop_ends_a_tail_whose_database_is_silent() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let pool = pool_through(&proxy, &db, Role::Reader, 2);
    let (clock, hand) = manual();
    let mut tail = Running::start(pool, through(&proxy, &db, Role::Reader), config(Start::Head), clock).await;
    tail.listens(true).await;
    proxy.black_hole();
    // Into a read that gets no answer.
    hand.advance(POLL);
    tail.stop.cancel();
    tail.ends().await.unwrap();
}

#[tokio::test]
async fn a_stop_ends_a_tail_whose_database_is_gone() {
    let db = TestDb::new().await;
    let proxy = proxy_for(&db).await;
    let pool = pool_through(&proxy, &db, Role::Reader, 2);
    let mut tail =
        Running::start(pool, through(&proxy, &db, Role::Reader), config(Start::Head), manual().0).await;
    tail.listens(true).await;
    proxy.refuse();
    proxy.cut();
    tail.listens(false).await;
    tail.stop.cancel();
    tail.ends().await.unwrap();
}

#[tokio::test]
async fn a_tail_that_is_dropped_leaves_no_backend_behind() {
    let db = TestDb::new().await;
    let mut tail = Running::on(&db, config(Start::Head), manual().0).await;
    tail.listens(true).await;
    assert_eq!(listening_backends(&db).await.len(), 1);
    tail.task.abort();
    eventually(DEADLINE, "the listening backend is gone", async || listening_backends(&db).await.is_empty())
        .await;
}

#[tokio::test]
async fn tails_dropped_at_any_moment_leave_the_pool_as_it_was() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=50).await;
    let pool = db.pool(Role::Reader, 1);
    for moment in 0..100_u64 {
        let config = TailConfig { batch_size: 1, ..config(Start::After(0)) };
        let tail = Tail::new(pool.clone(), db.options(Role::Reader), config, manual().0).await.unwrap();
        let run = tail.run(vec![], CancellationToken::new());
        let _ = tokio::time::timeout(Duration::from_micros(moment * 100), run).await;
    }
    assert!(hands_out_fresh_connections(&pool).await);
    eventually(DEADLINE, "the listening backends are gone", async || {
        listening_backends(&db).await.is_empty()
    })
    .await;
}
