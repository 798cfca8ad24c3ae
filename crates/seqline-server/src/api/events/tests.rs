use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use seqline::StoredEvent;
use seqline::clock::ClockHand;
use time::OffsetDateTime;

use super::super::hub::reader::tests::{CREDENTIAL, access, event, reader, tail_shows};
use super::super::hub::rendered::Rendered;
use super::super::hub::rendered::tests::EPOCH;
use super::*;

/// Time stands still unless the test moves it, so that it ends nothing.
fn clock() -> (Clock, ClockHand) {
    Clock::manual(OffsetDateTime::UNIX_EPOCH)
}

fn no_place() -> Result<WaitingPlace, Problem> {
    Err(Problem::internal("test", &"nobody is to wait"))
}

/// Many events that alex may see, in memory.
async fn of_events(events: impl IntoIterator<Item = StoredEvent>) -> Reader {
    let (reader, answers) = reader();
    answers.send(access(3, &["order.read"])).await.unwrap();
    tail_shows(&reader, &events.into_iter().collect::<Vec<_>>()).await;
    reader
}

async fn page_of(reader: &Reader, limits: PageLimits, selection: &Selection) -> Page {
    let ((clock, _hand), stop) = (clock(), CancellationToken::new());
    let looking = Looking {
        reader,
        clock: &clock,
        stop: &stop,
        credential: &CREDENTIAL,
        selection,
        wait: Duration::ZERO,
    };
    let mut page = Page::new(0, limits);
    let filled = tokio::time::timeout(Duration::from_secs(30), looking.fill(&mut page, no_place));
    filled.await.expect("the page is filled although time stands still").unwrap();
    page
}

#[tokio::test]
async fn a_page_that_has_its_bytes_is_done_and_not_filled_again() {
    let reader = of_events((1..=10).map(|seq| event(seq, 3))).await;
    let size = Rendered::new(EPOCH, event(1, 3)).envelope().len();
    let limits = PageLimits { events: 100, bytes: 3 * size + size / 2 };
    let page = page_of(&reader, limits, &Selection::default()).await;
    assert_eq!((page.events.len(), page.position), (3, 3));
}

#[tokio::test]
async fn others_have_a_turn_while_a_page_looks_through_memory() {
    let reader = of_events((1..=10_000).map(|seq| event(seq, 3))).await;
    let nothing = Selection {
        resource: Some(Resource { kind: "none".to_owned(), id: "7".to_owned() }),
        ..Selection::default()
    };
    let turns = Arc::new(AtomicU64::new(0));
    let counted = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let page = page_of(&reader, PageLimits { events: 100, bytes: 1_000_000 }, &nothing).await;
    other.abort();
    assert_eq!((page.events.len(), page.position), (0, 10_000));
    assert!(turns.load(Ordering::Relaxed) >= 5, "{turns:?}");
}

/// The end of a process waits for those who ask, and not for a database that says nothing.
#[tokio::test]
async fn at_the_end_a_page_does_not_wait_for_the_database() {
    // What its credential gives is never answered.
    let (reader, _answers) = reader();
    let ((clock, _hand), stop, selection) = (clock(), CancellationToken::new(), Selection::default());
    let looking = Looking {
        reader: &reader,
        clock: &clock,
        stop: &stop,
        credential: &CREDENTIAL,
        selection: &selection,
        wait: Duration::ZERO,
    };
    let mut page = Page::new(0, PageLimits { events: 100, bytes: 1_000_000 });
    let mut filling = Box::pin(looking.fill(&mut page, no_place));
    assert!(futures_util::poll!(&mut filling).is_pending());
    stop.cancel();
    assert!(matches!(futures_util::poll!(&mut filling), std::task::Poll::Ready(Ok(0))));
}
