//! Processes of one consumer that differ, as while a new version is rolled out.

use seqline_nats::consumer::{Runtime, StartAt, StreamConsumer};

use super::support::*;

fn of_types(site: &Site, types: &[&str]) -> Runtime {
    let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap().types(types.iter().copied()).unwrap();
    site.runtime_of(consumer, quick())
}

/// The old process gets events of the new type, and says that it does not ask for them.
#[tokio::test]
async fn what_only_the_new_process_asks_for_is_handled_though_the_old_one_got_it() {
    let site = Site::new().await;
    let first = site.feed(1..=2).await;
    let (old, new) = (of_types(&site, &["order.created"]), of_types(&site, &["order.created", "order.paid"]));
    assert_eq!(old.poll_once().await.unwrap().handled, 2);
    new.poll_once().await.unwrap();
    let paid = append(&site.db.producer(), [event_of("order.paid", 3), event_of("order.paid", 4)]).await;
    site.publish(&paid).await;
    let mut skipped = 0;
    // It compares now and then.
    for _ in 0..10 {
        skipped += old.poll_once().await.unwrap().skipped;
    }
    assert_eq!((skipped, site.effects(PROBE).await), (2, first.clone()));
    let running = Running::start(new);
    site.handles(PROBE, &[first, paid].concat()).await;
    assert_eq!(running.tally.dropped(), 2);
    running.stops().await;
}

/// One that connects anew while the other one is there does not take back what that one asks for.
#[tokio::test]
async fn a_process_says_once_what_it_asks_for() {
    let site = Site::new().await;
    site.feed(1..=2).await;
    let (old, new) = (of_types(&site, &["order.created"]), of_types(&site, &["order.created", "order.paid"]));
    old.poll_once().await.unwrap();
    new.poll_once().await.unwrap();
    // The broker loses it, so that both make it again.
    site.stream().await.delete_consumer(PROBE).await.unwrap();
    for _ in 0..3 {
        let _ = old.poll_once().await;
    }
    let types: Vec<String> = sqlx::query_scalar("SELECT types FROM seqline.stream_consumers")
        .fetch_one(&site.db.admin())
        .await
        .unwrap();
    assert_eq!(types, ["order.created", "order.paid"]);
}

/// The first process ends between making the consumer at the broker and knowing where it begins.
#[tokio::test]
async fn what_came_after_a_new_consumer_is_handled_by_whoever_comes_next() {
    let site = Site::new().await;
    let consumer = || StreamConsumer::new(PROBE, Probe::plain()).unwrap().start_at(StartAt::New);
    let first = site.runtime_of(consumer(), quick());
    first.poll_once().await.unwrap();
    drop(first);
    let ids = site.feed(1..=10).await;
    let running = Running::start(site.runtime_of(consumer(), quick()));
    site.handles(PROBE, &ids).await;
    assert_eq!(running.tally.skipped(), 0);
    running.stops().await;
}
