//! Pages of what somebody may see: nothing is left out and nothing is there that is not theirs, whatever the size of a page.

use proptest::prelude::*;
use seqline::access::{Grant, of_principal};
use seqline::consumer::Filter;
use seqline::{ReadError, StoredEvent, read};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;
use uuid::Uuid;

use super::random::{PRINCIPALS, Random};
use super::{grant, users};
use crate::partitions::{drop_oldest, small_partitions};
use crate::support::append;
use crate::tail::insert_as_owner;

const EVERYTHING: u32 = 1_000_000;

fn seqs(events: &[StoredEvent]) -> Vec<i64> {
    events.iter().map(|event| event.seq).collect()
}

fn filter() -> impl Strategy<Value = Filter> {
    let list = |values: &[&'static str]| {
        let some = prop::sample::subsequence(values.to_vec(), 1..=values.len());
        prop::option::weighted(0.3, some)
    };
    let types = list(&["order.*", "order.paid", "orders.counted", "message.posted", "message.line.*"]);
    (types, list(&["a", "b", "c"]), list(&["a", "b"]), list(&["order", "report", "nothing"])).prop_map(
        |(types, spaces, channels, kinds)| {
            let mut filter = Filter::everything();
            if let Some(types) = types {
                filter = filter.types(types);
            }
            if let Some(spaces) = spaces {
                filter = filter.spaces(spaces);
            }
            if let Some(channels) = channels {
                filter = filter.channels(channels);
            }
            if let Some(kinds) = kinds {
                filter = filter.resource_kinds(kinds);
            }
            filter
        },
    )
}

/// All that the principal sees, read in pages.
async fn all_pages(
    app: &mut PgConnection,
    principal: &str,
    filter: &Filter,
    limit: u32,
    scan: u32,
) -> Vec<i64> {
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let page = read::visible_after(app, principal, after, filter, limit, scan).await.unwrap();
        assert!(page.events.len() <= limit as usize && page.position - after <= i64::from(scan));
        assert!(page.events.iter().all(|event| (after + 1..=page.position).contains(&event.seq)));
        if page.events.len() == limit as usize {
            assert_eq!(page.events.last().unwrap().seq, page.position, "what comes behind was not looked at");
        }
        if page.position == after {
            return seen;
        }
        after = page.position;
        seen.extend(seqs(&page.events));
    }
}

#[tokio::test]
async fn pages_of_any_size_hold_what_the_pure_decisions_let_through() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    let mut random = Random::new();
    let events = random.log(&db, 120).await;
    let mut some = 0;
    for _ in 0..40 {
        let grants = random.grants(&mut app).await;
        let filter = random.one(filter());
        assert!(filter.check().is_ok(), "{filter:?}");
        let (limit, scan) = random.one((1_u32..60, 1_u32..150));
        for principal in PRINCIPALS {
            let access = of_principal(&mut app, principal).await.unwrap();
            let sees = |event: &StoredEvent| access.as_ref().is_some_and(|access| access.viewer.sees(event));
            let expected: Vec<i64> = events
                .iter()
                .filter(|event| sees(event) && filter.matches(event))
                .map(|event| event.seq)
                .collect();
            let read = all_pages(&mut app, principal, &filter, limit, scan).await;
            assert_eq!(read, expected, "{principal}, {grants:?}, {filter:?}, {limit} of {scan}");
            some += read.len();
        }
    }
    assert!(some > 500, "{some}: they agree about nothing much");
}

#[tokio::test]
async fn histories_hold_what_the_pure_decision_lets_through() {
    let db = TestDb::new().await;
    small_partitions(&db, 25, 6).await;
    let mut app = db.connect(Role::App).await;
    let mut random = Random::new();
    let events = random.log(&db, 120).await;
    let mut some = 0;
    for _ in 0..25 {
        let grants = random.grants(&mut app).await;
        let limit = random.one(1_u32..20);
        for principal in PRINCIPALS {
            let access = of_principal(&mut app, principal).await.unwrap();
            for (kind, id) in [("order", "1"), ("report", "1"), ("order", "3")] {
                let sees = |event: &&StoredEvent| {
                    access.as_ref().is_some_and(|access| access.viewer.sees(event))
                        && (event.resource_kind.as_str(), event.resource_id.as_deref()) == (kind, Some(id))
                };
                let expected: Vec<i64> = events.iter().filter(sees).map(|event| event.seq).collect();
                let (mut after, mut seen) = (0, Vec::new());
                while after < 120 {
                    let page =
                        read::history_after(&mut app, principal, kind, id, after, limit).await.unwrap();
                    assert!(page.events.len() == limit as usize || page.position == 120, "{page:?}");
                    seen.extend(seqs(&page.events));
                    assert!(page.position > after);
                    after = page.position;
                }
                assert_eq!(seen, expected, "{principal}, {grants:?}, {kind} {id}, {limit}");
                some += seen.len();
            }
        }
    }
    assert!(some > 300, "{some}: they agree about nothing much");
}

#[tokio::test]
async fn one_event_is_there_for_those_who_may_see_it() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    let mut random = Random::new();
    let events = random.log(&db, 60).await;
    random.grants(&mut app).await;
    grant(&mut app, "sam", Grant::of("order.read").thread("b")).await;
    for principal in PRINCIPALS {
        let access = of_principal(&mut app, principal).await.unwrap();
        for event in &events {
            let read = read::visible_event(&mut app, principal, event.id).await.unwrap();
            let sees = access.as_ref().is_some_and(|access| access.viewer.sees(event));
            assert_eq!(read.map(|event| event.seq), sees.then_some(event.seq), "{principal}: {event:?}");
        }
    }
    assert!(read::visible_event(&mut app, "alex", Uuid::now_v7()).await.unwrap().is_none());
}

#[tokio::test]
async fn permissions_are_those_of_the_moment_of_reading() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    append(&db.producer(), 1..=3).await;
    let everything = Filter::everything();
    let page = read::visible_after(&mut app, "alex", 0, &everything, 10, 10).await.unwrap();
    assert_eq!((seqs(&page.events), page.position), (vec![1, 2, 3], 3));
    seqline::access::disable_principal(&mut app, "alex", None).await.unwrap();
    let page = read::visible_after(&mut app, "alex", 0, &everything, 10, 10).await.unwrap();
    assert_eq!((seqs(&page.events), page.position), (vec![], 3), "the position moves all the same");
}

#[tokio::test]
async fn a_position_that_cannot_be_continued_is_an_error_and_not_a_page() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    append(&db.producer(), 1..=5).await;
    assert_eq!(drop_oldest(&db).await, 1);
    let everything = Filter::everything();
    for scan in [1, 2, 100] {
        let error = read::visible_after(&mut app, "alex", 0, &everything, 10, scan).await.unwrap_err();
        assert!(matches!(error, ReadError::Expired { next_seq: 1, min_retained: 3 }), "{scan}: {error:?}");
    }
    let error = read::history_after(&mut app, "alex", "test", "1", 1, 10).await.unwrap_err();
    assert!(matches!(error, ReadError::Expired { next_seq: 2, min_retained: 3 }), "{error:?}");
    let page = read::visible_after(&mut app, "alex", 2, &everything, 10, 100).await.unwrap();
    assert_eq!((seqs(&page.events), page.position), (vec![3, 4, 5], 5));

    let ahead = read::visible_after(&mut app, "alex", 6, &everything, 10, 100).await.unwrap_err();
    assert!(matches!(ahead, ReadError::AheadOfHead { after: 6, head: 5 }), "{ahead:?}");
    let ahead = read::history_after(&mut app, "alex", "test", "1", i64::MAX, 10).await.unwrap_err();
    assert!(matches!(ahead, ReadError::AheadOfHead { head: 5, .. }), "{ahead:?}");
    let page = read::history_after(&mut app, "alex", "test", "1", 5, 10).await.unwrap();
    assert_eq!((page.events.len(), page.position), (0, 5));
}

#[tokio::test]
async fn a_hole_is_found_also_where_nothing_is_seen() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    append(&db.producer(), [1]).await;
    insert_as_owner(&db, &[2, 3, 5, 6]).await;
    let everything = Filter::everything();
    // Nobody has this id, so every event is only looked at.
    let page = read::visible_after(&mut app, "nobody", 0, &everything, 10, 3).await.unwrap();
    assert_eq!((page.events.len(), page.position), (0, 3));
    for (after, scan) in [(0, EVERYTHING), (1, 4), (3, 5), (3, 1)] {
        let error = read::visible_after(&mut app, "nobody", after, &everything, 10, scan).await.unwrap_err();
        let ReadError::Gap(gap) = error else { panic!("{error:?}") };
        assert_eq!((gap.expected, gap.found), (4, 5), "after {after} of {scan}");
    }
}

/// A page that the database cannot make is none, each time it is asked for. So it ends before that.
#[tokio::test]
async fn a_history_of_large_events_comes_in_smaller_pages() {
    let db = TestDb::new().await;
    small_partitions(&db, 30, 4).await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    // It compresses to about a half, which nobody knows who has not unpacked it.
    let text: String =
        std::iter::repeat_with(|| Uuid::new_v4().simple().to_string().repeat(2)).take(900).collect();
    let payload = seqline::Payload::from_json(&format!("{{\"text\": \"{text}\"}}")).unwrap();
    let event = || {
        seqline::NewEvent::builder("test.happened", "test", "any")
            .resource_id("1")
            .payload(payload.clone())
            .build()
            .unwrap()
    };
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &(0..80).map(|_| event()).collect::<Vec<_>>()).await.unwrap();
    seqline::commit(tx).await.unwrap();
    db.settled().await;
    // As many as there are, while payloads of this size are the largest.
    let page = read::history_after(&mut app, "alex", "test", "1", 0, 100).await.unwrap();
    assert_eq!((page.events.len(), page.position), (80, 80));

    sqlx::query("UPDATE seqline.settings SET event_payload_max_bytes = 16777216")
        .execute(&db.admin())
        .await
        .unwrap();
    let (mut after, mut seen, mut pages) = (0, Vec::new(), 0);
    while after < 80 {
        let page = read::history_after(&mut app, "alex", "test", "1", after, 100).await.unwrap();
        assert_eq!(page.events.last().unwrap().seq, page.position);
        seen.extend(seqs(&page.events));
        after = page.position;
        pages += 1;
    }
    assert_eq!(seen, (1..=80).collect::<Vec<_>>());
    assert!((2..20).contains(&pages), "{pages} pages");
}
