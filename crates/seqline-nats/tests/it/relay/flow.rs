//! Where nothing goes wrong, and where the relay itself dies.

use std::sync::Arc;
use std::time::Duration;

use seqline_nats::message::{EPOCH, EVENT_ID, POSITION};
use seqline_nats::relay::{Drained, RelayError, RelayStart};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{FaultProxy, eventually};

use super::support::{LONG, Stage, patient};

#[tokio::test]
async fn every_event_arrives_once_in_order_as_what_it_is() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(2000).await;
    let mut relay = stage.relay();
    let drained = relay.drain_once().await.unwrap();
    assert_eq!(drained, Drained { published: 2000, position: 2000, behind: 0 });
    stage.assert_once_in_order().await;
    assert_eq!(relay.drain_once().await.unwrap(), Drained { published: 0, position: 2000, behind: 0 });

    let (messages, log, epoch) = (stage.messages().await, stage.log().await, stage.epoch().await);
    let (first, event) = (&messages[0], &log[0]);
    let header = |name: &str| first.headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Nats-Msg-Id"), Some(format!("{epoch}:{}", event.1)));
    assert_eq!(header(EPOCH), Some(epoch.to_string()));
    assert_eq!((header(POSITION), header(EVENT_ID)), (Some("1".into()), Some(event.1.to_string())));
    assert_eq!(header("Nats-Expected-Last-Sequence").as_deref(), Some("0"));
    assert_eq!(header("Nats-Expected-Stream").as_deref(), Some("EVENTS"));
    let envelope: serde_json::Value = serde_json::from_slice(&first.payload).unwrap();
    assert_eq!((&envelope["seq"], &envelope["type"]), (&1.into(), &"order.created".into()));
    let subjects: Vec<&str> = messages[..3].iter().map(|message| message.subject.as_str()).collect();
    assert_eq!(
        subjects,
        ["events.order.created.shop-1", "events.msg.sent._", "events.order.line.added.shop%201%2Ea"]
    );
    assert_eq!((relay.tally().published(), relay.tally().republished()), (2000, 0));
    assert!(stage.incidents().await.is_empty());
}

#[tokio::test]
async fn it_goes_on_where_it_was_and_begins_where_it_is_told() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(30).await;
    let running = stage.run_with(|config| config.start = RelayStart::Head);
    eventually(LONG, "it has begun at the head", async || stage.position().await == 30).await;
    stage.append(20).await;
    stage.until_published().await;
    running.stop().await;
    stage.append(10).await;
    // It has a cursor by now, and begins nowhere else.
    let running = stage.run();
    stage.until_published().await;
    running.stop().await;
    assert_eq!(stage.positions().await, (31..=60).collect::<Vec<i64>>());
    assert!(stage.incidents().await.is_empty());
}

#[tokio::test]
async fn one_without_a_cursor_finds_its_place_in_a_stream_that_holds_its_log() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(40).await;
    stage.relay().drain_once().await.unwrap();
    stage.publish_foreign().await;
    stage.sql("DELETE FROM seqline.relay_cursors").await;
    stage.append(5).await;
    let mut relay = stage.relay();
    assert_eq!(relay.drain_once().await.unwrap().published, 5);
    stage.assert_once_in_order().await;
}

/// What was published and not saved is not published again, also when the broker has forgotten the ids.
#[tokio::test]
async fn what_was_published_and_not_saved_before_a_crash_is_there_once() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    // It saves when everything is acknowledged, and from the second time on nothing is.
    let running = stage.run_through(&proxy, |config| {
        config.save_interval = Duration::from_secs(600);
        config.lease = Duration::from_secs(600);
        config.window = 500;
        config.ack_timeout = LONG;
    });
    stage.append(10).await;
    stage.until_published().await;
    proxy.hold_answers();
    stage.append(3000).await;
    let stored = async || stage.info().await.state.last_sequence;
    eventually(LONG, "the window is full", async || stored().await == 510).await;
    running.crash().await;
    assert_eq!(stage.position().await, 10);
    stage.until_forgotten().await;
    stage.end_lease().await;
    let running = stage.run();
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
}

#[tokio::test]
async fn crashes_anywhere_under_load_leave_each_event_once_in_order() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    let load = super::support::Load::start(&stage.pool, 40, Duration::from_millis(2));
    for round in 0..20 {
        let running = stage.run_with(|config| config.lease = Duration::from_millis(30));
        let published = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > published + 7 * round).await;
        running.crash().await;
    }
    load.stop().await;
    let running = stage.run();
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

/// As many as the window holds are stored before the relay has heard of the first of them, and no more.
#[tokio::test]
async fn many_messages_are_under_way_at_once() {
    for window in [500, 3] {
        let server = NatsServer::start().await;
        let proxy = FaultProxy::start(server.addr()).await.unwrap();
        let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
        let running = stage.run_with(|config| {
            config.window = window;
            config.ack_timeout = LONG;
        });
        stage.append(10).await;
        stage.until_published().await;
        proxy.hold_answers();
        stage.append(6000).await;
        let direct = patient(&server.url());
        let under_way = async || {
            let info = seqline_nats::stream::info(&direct, "EVENTS").await.unwrap().unwrap();
            info.state.last_sequence - running.tally.published()
        };
        let window = u64::from(window);
        eventually(LONG, "the window is full", async || under_way().await >= window).await;
        assert_eq!(under_way().await, window);
        assert!(stage.head().await.unsigned_abs() > running.tally.published() + window, "it is at the end");
        proxy.heal();
        stage.until_published().await;
        running.stop().await;
        stage.assert_once_in_order().await;
    }
}

#[tokio::test]
async fn only_one_of_a_name_is_active_and_another_takes_over() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    let mut first = stage.relay_with(|config| config.lease = Duration::from_secs(5));
    first.drain_once().await.unwrap();
    let mut second = stage.relay();
    let refused = second.drain_once().await.unwrap_err();
    assert!(matches!(refused, RelayError::HeldElsewhere), "{refused}");
    assert!(first.tally().active() && !second.tally().active());
    drop(first);
    stage.append(10).await;
    eventually(LONG, "the lease has run out", async || second.drain_once().await.is_ok()).await;
    assert!(second.tally().active());
    stage.assert_once_in_order().await;
}

/// What is under way is waited for, the cursor is saved and the lease given back: the next one has nothing to find out.
#[tokio::test]
async fn a_stop_in_the_middle_leaves_nothing_open() {
    const WINDOW: u32 = 500;
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::new(&server).await;
    for round in 1..=3 {
        let running = stage.run_through(&proxy, |config| {
            config.window = WINDOW;
            config.ack_timeout = LONG;
        });
        stage.append(10).await;
        stage.until_published().await;
        proxy.hold_answers();
        stage.append(3000).await;
        let settled = u64::try_from(stage.position().await).unwrap();
        let under_way = async || stage.info().await.state.last_sequence - settled;
        eventually(LONG, "the window is full", async || under_way().await == u64::from(WINDOW)).await;
        let stopping = async {
            let stopping = running.stop();
            tokio::pin!(stopping);
            // It is told to stop before any of that is answered.
            assert!(futures_util::poll!(&mut stopping).is_pending());
            proxy.heal();
            stopping.await;
        };
        stopping.await;
        let row: (i64, i64, Option<i64>, Option<uuid::Uuid>) =
            sqlx::query_as("SELECT position, stream_seq, position_at_seq, holder FROM seqline.relay_cursors")
                .fetch_one(&stage.pool)
                .await
                .unwrap();
        let last = i64::try_from(settled + u64::from(WINDOW)).unwrap();
        assert_eq!(row, (last, last, Some(last), None), "in round {round}");
        assert!(last < stage.head().await, "it was stopped in the middle");
    }
    let running = stage.run();
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

/// No more than what was under way and the next window, however fast the answers come that it could go on with.
#[tokio::test]
async fn a_stop_is_heard_while_answers_keep_coming() {
    const WINDOW: u32 = 1000;
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(60_000).await;
    for _ in 0..6 {
        let running = stage.run_with(|config| config.window = WINDOW);
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before).await;
        let told = running.tally.published();
        let tally = Arc::clone(&running.tally);
        running.stop().await;
        let after = tally.published() - told;
        assert!(after <= 2 * u64::from(WINDOW), "it published {after} more");
    }
}
