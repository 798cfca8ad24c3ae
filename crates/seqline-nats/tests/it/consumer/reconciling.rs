//! What the broker dropped silently is found, and handled once.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use seqline_testkit::{Role, eventually};
use uuid::Uuid;

use super::support::*;

/// A consumer that has handled two events and is stopped.
async fn known() -> (Site, Vec<Uuid>) {
    let site = Site::new().await;
    let ids = site.feed(1..=2).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 2).await;
    running.stops().await;
    (site, ids)
}

async fn finds(site: &Site, ids: &[Uuid], dropped: u64) {
    let probe = Probe::plain();
    let running = site.start(PROBE, probe.clone());
    site.handles(PROBE, ids).await;
    eventually(DEADLINE, "the log is compared", async || {
        site.reconciled_to(PROBE).await == ids.len().cast_signed() as i64
    })
    .await;
    assert_eq!((running.tally.dropped(), site.retries(PROBE).await), (dropped, 0));
    let counted: i64 = sqlx::query_scalar("SELECT dropped FROM seqline.stream_consumers")
        .fetch_one(&site.db.admin())
        .await
        .unwrap();
    assert_eq!(counted.unsigned_abs(), dropped, "whoever did not see it in this process sees it there");
    running.stops().await;
    // Nothing of it is found again.
    sqlx::query("UPDATE seqline.stream_consumers SET reconciled_to = 0")
        .execute(&site.db.admin())
        .await
        .unwrap();
    let running = site.start(PROBE, probe);
    eventually(DEADLINE, "the log is compared again", async || {
        site.reconciled_to(PROBE).await == ids.len().cast_signed() as i64
    })
    .await;
    assert_eq!((running.tally.dropped(), running.tally.handled()), (0, 0));
    running.stops().await;
}

#[tokio::test]
async fn messages_that_were_purged_before_they_were_delivered() {
    let (site, mut ids) = known().await;
    ids.extend(site.feed(3..=12).await);
    site.stream().await.purge().await.unwrap();
    ids.extend(site.feed(13..=14).await);
    finds(&site, &ids, 10).await;
}

#[tokio::test]
async fn messages_that_were_deleted_before_they_were_delivered() {
    let (site, mut ids) = known().await;
    ids.extend(site.feed(3..=12).await);
    let stream = site.stream().await;
    for seq in [4, 5, 9] {
        stream.delete_message(seq).await.unwrap();
    }
    finds(&site, &ids, 3).await;
}

/// The last one too: what lies behind is what says how far it is.
#[tokio::test]
async fn a_last_message_that_was_deleted_is_found_when_another_one_comes() {
    let (site, mut ids) = known().await;
    ids.extend(site.feed(3..=4).await);
    site.stream().await.delete_message(4).await.unwrap();
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids[..3]).await;
    ids.extend(site.feed(5..=5).await);
    site.handles(PROBE, &ids).await;
    assert_eq!(running.tally.dropped(), 1);
    running.stops().await;
}

#[tokio::test]
async fn messages_that_went_at_the_bound_of_the_stream() {
    let (site, mut ids) = known().await;
    let mut settings = site.settings.clone();
    settings.max_bytes = 4_000;
    let site = Site { settings, ..site };
    seqline_nats::stream::ensure_stream(&site.broker, &site.settings).await.unwrap();
    let config: Config = site.stream().await.cached_info().config.clone();
    assert_eq!(config.discard, DiscardPolicy::Old);
    ids.extend(site.feed(3..=40).await);
    let first = site.stream().await.cached_info().state.first_sequence;
    assert!(first > 10, "the stream holds everything");
    finds(&site, &ids, first - 3).await;
}

/// Without another message nothing in the stream says how far it is; a relay does.
#[tokio::test]
async fn a_relay_says_that_messages_were_there_that_are_not() {
    let (site, mut ids) = known().await;
    ids.extend(site.feed(3..=6).await);
    let stream = site.stream().await;
    stream.purge().await.unwrap();
    let created = i64::try_from(stream.cached_info().created.unix_timestamp_nanos()).unwrap();
    sqlx::query(
        "INSERT INTO seqline.relay_cursors (name, stream, epoch, position, stream_created, stream_seq, base_stream_seq, base_position)
         VALUES ('jetstream', 'EVENTS', $1, 6, $2, 6, 0, 0)",
    )
    .bind(site.epoch().await)
    .bind(created)
    .execute(&site.db.admin())
    .await
    .unwrap();
    finds(&site, &ids, 4).await;
}

/// It was dropped for one, and the other has it still in hand.
#[tokio::test]
async fn what_failed_or_was_given_up_was_not_dropped() {
    let site = Site::new().await;
    let ids = site.feed(1..=4).await;
    let probe = Probe::acting(|event, _| {
        let fails = number(event) <= 2;
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    });
    let mut config = quick();
    config.attempts = 2;
    let running = Running::start(site.runtime(PROBE, probe.clone(), config));
    site.handles(PROBE, &ids[2..]).await;
    eventually(DEADLINE, "they are given up", async || running.tally.dead() == 2).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 4).await;
    assert_eq!((running.tally.dropped(), probe.calls_for(1), probe.calls_for(2)), (0, 2, 2));
    running.stops().await;
}

/// A log that is larger than what is compared at once.
#[tokio::test]
async fn it_compares_in_batches() {
    let (site, mut ids) = known().await;
    ids.extend(site.feed(3..=60).await);
    let stream = site.stream().await;
    for seq in (3..=60).filter(|seq| seq % 3 == 0) {
        stream.delete_message(seq).await.unwrap();
    }
    let mut config = quick();
    config.reconcile_batch = 7;
    ids.extend(site.feed(61..=61).await);
    let running = Running::start(site.runtime(PROBE, Probe::plain(), config));
    site.handles(PROBE, &ids).await;
    assert_eq!(running.tally.dropped(), 20);
    running.stops().await;
}

/// What was pruned is not expected: the mark is behind it, and events go from the log before claims do.
#[tokio::test]
async fn claims_that_were_pruned_are_not_missed() {
    let (site, ids) = known().await;
    let mut app = site.db.connect(Role::App).await;
    assert_eq!(seqline::ledger::prune(&mut app, Duration::ZERO, 10).await.unwrap(), 2);
    let running = site.start(PROBE, Probe::plain());
    let more = site.feed(3..=3).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 3).await;
    assert_eq!((running.tally.dropped(), site.effects(PROBE).await), (0, [ids, more].concat()));
    running.stops().await;
}
