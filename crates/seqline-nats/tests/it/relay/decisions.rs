//! What an operator decides: pause, go on, publish again.

use std::time::Duration;

use seqline_testkit::nats::NatsServer;
use seqline_testkit::{FaultProxy, eventually};

use super::support::{LONG, Load, Stage, copied, put_back};

#[tokio::test]
async fn a_pause_keeps_the_lease_and_sends_nothing_until_it_is_over() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let running = stage.run();
    stage.append(100).await;
    stage.until_published().await;
    stage.sql("SELECT seqline.set_relay_paused('jetstream', true, 'a look')").await;
    stage.append(50).await;
    // Two looks later it knows.
    eventually(LONG, "it knows", async || running.tally.behind() == 50).await;
    let clock = seqline::Clock::system();
    eventually(LONG, "the lease would have run out", async || clock.elapsed() > Duration::from_secs(2)).await;
    // Not by now for certain, on a busy machine; but who does not prolong it never has it again.
    let held = "SELECT leased_until > clock_timestamp() FROM seqline.relay_cursors";
    eventually(LONG, "it holds the lease", async || {
        sqlx::query_scalar::<_, bool>(held).fetch_one(&stage.pool).await.unwrap() && running.tally.active()
    })
    .await;
    assert_eq!((stage.position().await, stage.positions().await.len()), (100, 100));
    stage.sql("SELECT seqline.set_relay_paused('jetstream', false, 'seen')").await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn a_pause_under_load_stops_it_in_the_middle_of_its_work() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let load = Load::start(&stage.pool, 50, Duration::from_millis(2));
    let running = stage.run();
    for _ in 0..5 {
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before + 100).await;
        stage.sql("SELECT seqline.set_relay_paused('jetstream', true, 'a look')").await;
        // Who does not rest sends something between two looks at the log.
        let (mut last, mut behind, mut looks) = (0, 0, 0);
        eventually(LONG, "more comes in and it rests", async || {
            let (now, more) = (stage.info().await.state.last_sequence, running.tally.behind());
            looks = if now == last { looks + u32::from(more > behind) } else { 0 };
            (last, behind) = (now, more);
            looks > 5
        })
        .await;
        stage.sql("SELECT seqline.set_relay_paused('jetstream', false, 'seen')").await;
    }
    load.stop().await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn what_somebody_wants_again_is_published_again_behind_the_end() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(100).await;
    let running = stage.run();
    stage.until_published().await;
    for _ in 0..2 {
        stage.sql("SELECT seqline.rewind_relay('jetstream', 40, true, 'a consumer was wrong')").await;
        eventually(LONG, "it is rewound", async || {
            let asked: Option<i64> = sqlx::query_scalar("SELECT rewind_to FROM seqline.relay_cursors")
                .fetch_one(&stage.pool)
                .await
                .unwrap();
            asked.is_none()
        })
        .await;
        stage.until_published().await;
    }
    stage.append(10).await;
    stage.until_published().await;
    assert_eq!(running.tally.republished(), 120);
    running.stop().await;
    let expected: Vec<i64> = (1..=100).chain(41..=100).chain(41..=110).collect();
    assert_eq!(stage.positions().await, expected);
    // Whoever comes next does not go back before the rewind.
    stage.append(10).await;
    let running = stage.run();
    stage.until_published().await;
    running.stop().await;
    assert_eq!(stage.positions().await.len(), expected.len() + 10);
    assert!(stage.incidents().await.is_empty());
}

/// After a rewind the end of the stream is lost: what was published before the rewind does not count for what was published since.
#[tokio::test]
async fn a_loss_after_a_rewind_is_made_good_from_the_rewind_on() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(100).await;
    stage.relay().drain_once().await.unwrap();
    let copy = copied(&mut server).await;
    stage.end_lease().await;
    stage.sql("SELECT seqline.rewind_relay('jetstream', 90, true, 'a consumer was wrong')").await;
    stage.relay().drain_once().await.unwrap();
    assert_eq!(stage.positions().await.len(), 110);
    put_back(&mut server, &copy).await;
    stage.end_lease().await;
    stage.relay().drain_once().await.unwrap();
    let expected: Vec<i64> = (1..=100).chain(91..=100).collect();
    assert_eq!(stage.positions().await, expected);
}

/// As many as are filled are told of, and the next one fills the rest.
#[tokio::test]
async fn a_stop_while_it_fills_what_is_missing_hides_nothing() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    stage.relay().drain_once().await.unwrap();
    stage.end_lease().await;
    // The state with a hole: all but the last are missing.
    stage.append(600).await;
    stage.publish_as_relay(610).await;
    proxy.delay(Duration::from_millis(20));
    let running = stage.run_through(&proxy, |_| {});
    let filled = async || stage.info().await.state.last_sequence - 11;
    eventually(LONG, "it fills", async || filled().await > 5).await;
    running.stop().await;
    let told =
        async || stage.incidents().await.get("hole_filled_late").map_or(0, |count| count.unsigned_abs());
    assert_eq!(told().await, filled().await);
    assert!(filled().await < 599, "it was stopped in the middle");
    stage.relay().drain_once().await.unwrap();
    assert_eq!(told().await, 599);
    stage.assert_once().await;
}

/// What is missing in the middle is not published either while it is to stand still.
#[tokio::test]
async fn one_that_hears_of_a_pause_while_it_looks_at_the_stream_fills_nothing() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let stage = Stage::at(&format!("nats://{}", proxy.addr())).await;
    stage.append(10).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.append(3).await;
    // The state with a hole: 11 and 12 are missing, 13 is there.
    let direct = Stage { url: server.url(), replicas: 1, pool: stage.pool.clone(), db: stage.db };
    direct.publish_as_relay(13).await;
    proxy.cut();
    direct.sql("SELECT seqline.set_relay_paused('jetstream', true, 'a look')").await;
    let paused = async || relay.drain_once().await.is_ok_and(|done| done.behind == 3);
    eventually(LONG, "it is back, and knows", paused).await;
    assert_eq!(direct.info().await.state.last_sequence, 11);
    direct.sql("SELECT seqline.set_relay_paused('jetstream', false, 'seen')").await;
    relay.drain_once().await.unwrap();
    relay.drain_once().await.unwrap();
    direct.assert_once().await;
}

#[tokio::test]
async fn a_pause_where_the_log_has_dropped_what_comes_next_hides_nothing_of_the_backlog() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(20).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.append(80).await;
    stage.sql("SELECT seqline.set_relay_paused('jetstream', true, 'a look')").await;
    relay.drain_once().await.unwrap();
    // As a retention does that did not wait.
    stage.sql("SET session_replication_role = replica; DELETE FROM seqline.event_log WHERE seq <= 50").await;
    assert_eq!(relay.drain_once().await.unwrap().behind, 80);
    assert_eq!(relay.tally().behind(), 80);
}
