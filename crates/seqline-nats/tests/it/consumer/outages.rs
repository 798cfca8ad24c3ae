//! Broker and database away: nothing is lost, nothing is handled twice, nothing is given back.

use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::StreamExt;
use seqline_nats::consumer::StreamConsumer;
use seqline_testkit::{FaultProxy, Role, TestServer, eventually};
use sqlx::postgres::PgPoolOptions;

use super::support::*;
use crate::older::older_broker;

fn impatient() -> seqline_nats::consumer::StreamConsumerConfig {
    let mut config = quick();
    config.ack_wait = Duration::from_secs(2);
    config.statement_timeout = Duration::from_secs(1);
    config
}

/// As long as the broker waits for word, more than five times: so often it gives a message out again that somebody else keeps quiet about.
async fn outlasts(running: &Running, site: &Site) {
    let config = pull::Config {
        durable_name: Some("silent".into()),
        ack_wait: impatient().ack_wait,
        ..Default::default()
    };
    let silent = site.stream().await.create_consumer(config).await.unwrap();
    let mut given = silent.stream().max_messages_per_batch(1).messages().await.unwrap();
    let mut times = 0;
    while times < 7 {
        let message = given.next().await.unwrap().unwrap();
        times = message.info().unwrap().delivered;
    }
    drop(given);
    site.stream().await.delete_consumer("silent").await.unwrap();
    assert!(running.tally.failures() > 0);
    let info = site.info(PROBE).await;
    assert_eq!((info.num_ack_pending, info.num_redelivered), (25, 0), "what was in hand was not kept there");
    assert_eq!(info.delivered.consumer_sequence, 25, "more was fetched");
    // Nor does anybody else get it.
    let durable: PullConsumer = site.stream().await.get_consumer(PROBE).await.unwrap();
    let others = durable.fetch().max_messages(100).messages().await.unwrap();
    assert_eq!(others.count().await, 0, "what was in hand was given to somebody else");
}

#[tokio::test]
async fn a_database_that_is_away_for_long_costs_no_delivery() {
    let mut server = TestServer::fast().await;
    let site = Site::on(&server).await;
    let mut ids = site.feed(1..=25).await;
    let (entered, leave) =
        (tokio_util::sync::CancellationToken::new(), tokio_util::sync::CancellationToken::new());
    let probe = {
        let (entered, leave) = (entered.clone(), leave.clone());
        Probe::acting(move |event, _| {
            let (waits, entered, leave) = (number(event) == 10, entered.clone(), leave.clone());
            Box::pin(async move {
                if waits {
                    entered.cancel();
                    leave.cancelled().await;
                }
                Ok(())
            })
        })
    };
    let pool = PgPoolOptions::new()
        .max_connections(3)
        .acquire_timeout(Duration::from_millis(500))
        .connect_lazy_with(site.db.options(Role::App));
    let consumer = StreamConsumer::new(PROBE, probe.clone()).unwrap();
    let running = Running::start(site.runtime_with(pool, consumer, impatient()));
    entered.cancelled().await;
    server.kill().await;
    leave.cancel();
    outlasts(&running, &site).await;
    server.start_again().await;
    ids.extend(site.feed(26..=60).await);
    site.handles(PROBE, &ids).await;
    let info = site.settled_info(PROBE).await;
    assert_eq!((info.delivered.consumer_sequence, running.tally.redelivered()), (60, 0));
    assert_eq!(
        (running.tally.handled(), running.tally.retried(), site.dead_letters(PROBE).await.len()),
        (60, 0, 0)
    );
    running.stops().await;
}

/// A network that says nothing, in place of a server that is gone.
#[tokio::test]
async fn a_database_that_is_silent_for_long_costs_no_delivery() {
    let server = TestServer::fast().await;
    let site = Site::on(&server).await;
    let mut ids = site.feed(1..=25).await;
    let target = format!("127.0.0.1:{}", server.postgres().port()).parse().unwrap();
    let proxy = FaultProxy::start(target).await.unwrap();
    let options = site.db.options(Role::App).port(proxy.addr().port());
    let pool = PgPoolOptions::new()
        .max_connections(3)
        .acquire_timeout(Duration::from_millis(500))
        .connect_lazy_with(options);
    let (entered, leave) =
        (tokio_util::sync::CancellationToken::new(), tokio_util::sync::CancellationToken::new());
    let probe = {
        let (entered, leave) = (entered.clone(), leave.clone());
        Probe::acting(move |event, _| {
            let (waits, entered, leave) = (number(event) == 25, entered.clone(), leave.clone());
            Box::pin(async move {
                if waits {
                    entered.cancel();
                    leave.cancelled().await;
                }
                Ok(())
            })
        })
    };
    let consumer = StreamConsumer::new(PROBE, probe).unwrap();
    let running = Running::start(site.runtime_with(pool, consumer, impatient()));
    entered.cancelled().await;
    proxy.black_hole();
    leave.cancel();
    outlasts(&running, &site).await;
    proxy.cut();
    proxy.heal();
    ids.extend(site.feed(26..=60).await);
    site.handles(PROBE, &ids).await;
    let info = site.settled_info(PROBE).await;
    assert_eq!((info.delivered.consumer_sequence, running.tally.redelivered()), (60, 0));
    running.stops().await;
}

#[tokio::test]
async fn a_broker_that_is_killed_and_comes_back_loses_nothing() {
    let mut site = Site::new().await;
    let slow = Probe::acting(|_, context| {
        Box::pin(async {
            sqlx::query("SELECT pg_sleep(0.005)").execute(context.connection()).await?;
            Ok(())
        })
    });
    let ids = site.feed(1..=200).await;
    let running = site.start(PROBE, slow.clone());
    for least in [20, 80, 140] {
        eventually(DEADLINE, "some are handled", async || site.effects(PROBE).await.len() >= least).await;
        site.nats.kill().await;
        site.nats.restart().await;
    }
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    let mut calls = slow.calls();
    calls.sort_unstable();
    assert_eq!(calls, (1..=200).collect::<Vec<_>>());
    running.stops().await;
}

/// Its connections stay, and nothing comes over them.
#[tokio::test]
async fn a_broker_that_says_nothing_for_a_while_loses_nothing() {
    let mut site = Site::new().await;
    let mut ids = site.feed(1..=30).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    site.nats.pause();
    eventually(DEADLINE, "it is noticed", async || running.tally.failures() > 0).await;
    site.nats.resume();
    ids.extend(site.feed(31..=60).await);
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
}

#[tokio::test]
async fn it_starts_without_a_broker_and_begins_when_there_is_one() {
    let mut site = Site::new().await;
    let ids = site.feed(1..=3).await;
    site.nats.stop().await;
    let running = site.start(PROBE, Probe::plain());
    eventually(DEADLINE, "it tries", async || running.tally.failures() > 2).await;
    site.nats.restart().await;
    site.handles(PROBE, &ids).await;
    running.stops().await;
}

#[tokio::test]
async fn a_consumer_that_was_deleted_at_the_broker_is_made_again() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=30).await;
    let probe = Probe::plain();
    let mut config = quick();
    config.reconcile_interval = Duration::from_secs(3600);
    let running = Running::start(site.runtime(PROBE, probe.clone(), config));
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    site.stream().await.delete_consumer(PROBE).await.unwrap();
    ids.extend(site.feed(31..=40).await);
    site.handles(PROBE, &ids).await;
    let info = site.settled_info(PROBE).await;
    assert_eq!(info.ack_floor.stream_sequence, 40);
    assert_eq!((probe.calls().len(), running.tally.duplicates()), (40, 30));
    running.stops().await;
}

#[tokio::test]
async fn a_stream_that_was_deleted_is_made_again_with_its_consumer() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=5).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    site.broker.jetstream().await.unwrap().delete_stream("EVENTS").await.unwrap();
    eventually(DEADLINE, "it is there again", async || {
        seqline_nats::stream::info(&site.broker, "EVENTS").await.unwrap().is_some()
    })
    .await;
    ids.extend(site.feed(6..=8).await);
    site.handles(PROBE, &ids).await;
    running.stops().await;
}

/// The broker comes back with an older copy of its disk.
#[tokio::test]
async fn a_stream_that_lost_its_end_is_read_again() {
    let mut site = Site::new().await;
    let mut ids = site.feed(1..=4).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    site.nats.stop().await;
    let copy = site.nats.copy_store();
    site.nats.restart().await;
    let more = site.feed(5..=9).await;
    let running = site.start(PROBE, Probe::plain());
    ids.extend(&more);
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    site.nats.stop().await;
    site.nats.restore_store(&copy);
    site.nats.restart().await;
    let last = site.feed(10..=12).await;
    let running = site.start(PROBE, Probe::plain());
    ids.extend(&last);
    site.handles(PROBE, &ids).await;
    running.stops().await;
}

/// The broker has an older copy of the messages, and knows what was delivered of those that are lost. What is published takes their numbers. Newer
/// brokers find that out themselves when they start.
#[tokio::test]
async fn a_stream_that_lost_more_than_its_consumer_knows_is_read_anew() {
    let Some(nats) = older_broker().await else { return };
    let mut site = Site::with(TestServer::shared().await, nats).await;
    let mut ids = site.feed(1..=4).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    site.nats.stop().await;
    let copy = site.nats.copy_store();
    site.nats.restart().await;
    ids.extend(site.feed(5..=9).await);
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    site.nats.stop().await;
    let delivered = site.nats.store_dir().join("jetstream/$G/streams/EVENTS/obs");
    let kept = tempfile::tempdir().unwrap();
    std::fs::rename(&delivered, kept.path().join("obs")).unwrap();
    site.nats.restore_store(&copy);
    std::fs::remove_dir_all(&delivered).unwrap();
    std::fs::rename(kept.path().join("obs"), &delivered).unwrap();
    site.nats.restart().await;
    ids.extend(site.feed(10..=12).await);
    assert_eq!(site.stream().await.cached_info().state.last_sequence, 7);
    assert_eq!(site.info(PROBE).await.delivered.stream_sequence, 9);
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    running.stops().await;
}

/// As in a database that was restored to a time before the consumer began.
#[tokio::test]
async fn a_consumer_that_the_database_does_not_know_any_more_is_recorded_again() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=2).await;
    let probe = Probe::acting(|event, _| {
        let fails = number(event) == 3;
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    });
    let mut config = quick();
    config.attempts = 2;
    let running = Running::start(site.runtime(PROBE, probe, config));
    site.handles(PROBE, &ids).await;
    sqlx::query("DELETE FROM seqline.stream_consumers").execute(&site.db.admin()).await.unwrap();
    ids.extend(site.feed(3..=4).await);
    eventually(DEADLINE, "it is given up", async || !site.dead_letters(PROBE).await.is_empty()).await;
    site.handles(PROBE, &[ids[0], ids[1], ids[3]]).await;
    running.stops().await;
}
