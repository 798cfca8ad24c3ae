//! A stream that is not what it was: made anew, purged, an older copy, without its last message; and a log that has dropped events.

use std::time::Duration;

use seqline_testkit::eventually;
use seqline_testkit::nats::NatsServer;

use super::support::{LONG, Stage, copied, put_back};

#[tokio::test]
async fn a_stream_that_was_made_anew_gets_what_the_log_has() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(300).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.context().await.delete_stream("EVENTS").await.unwrap();
    stage.append(50).await;
    // The first pass finds that nobody takes messages any more.
    let _ = relay.drain_once().await;
    relay.drain_once().await.unwrap();
    stage.assert_once_in_order().await;
    assert_eq!(stage.incidents().await.get("stream_recreated"), Some(&1));
    assert_eq!(relay.tally().republished(), 300);
}

#[tokio::test]
async fn one_that_somebody_else_made_anew_is_told_from_the_old_one() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(300).await;
    stage.relay().drain_once().await.unwrap();
    stage.context().await.delete_stream("EVENTS").await.unwrap();
    stage.stream_with(|_| {}).await;
    for _ in 0..400 {
        stage.publish_foreign().await;
    }
    stage.end_lease().await;
    stage.relay().drain_once().await.unwrap();
    stage.assert_once_in_order().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("stream_recreated"), Some(&1), "{incidents:?}");
}

#[tokio::test]
async fn a_stream_that_was_purged_goes_on_behind_what_it_had() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(100).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.purge().await;
    stage.append(10).await;
    relay.drain_once().await.unwrap();
    stage.append(10).await;
    drop(relay);
    stage.end_lease().await;
    stage.purge().await;
    stage.relay().drain_once().await.unwrap();
    assert_eq!(stage.positions().await, (111..=120).collect::<Vec<i64>>());
    assert!(stage.incidents().await.is_empty(), "{:?}", stage.incidents().await);
}

#[tokio::test]
async fn an_older_copy_of_the_stream_gets_what_it_has_lost() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(200).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    let copy = copied(&mut server).await;
    stage.append(100).await;
    // The connection comes back in its own time.
    eventually(LONG, "it is back", async || relay.drain_once().await.is_ok()).await;
    assert_eq!(stage.positions().await.len(), 300);
    put_back(&mut server, &copy).await;
    stage.append(20).await;
    eventually(LONG, "it is back", async || relay.drain_once().await.is_ok()).await;
    stage.assert_once_in_order().await;
    assert_eq!(stage.incidents().await.get("stream_lost_messages"), Some(&100));
    assert_eq!(relay.tally().republished(), 100);
}

/// As after a loss that others have written over since.
#[tokio::test]
async fn other_content_where_the_cursor_is_counts_as_a_loss() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(50).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    let copy = copied(&mut server).await;
    stage.append(10).await;
    eventually(LONG, "it is back", async || relay.drain_once().await.is_ok()).await;
    drop(relay);
    put_back(&mut server, &copy).await;
    for _ in 0..20 {
        stage.publish_foreign().await;
    }
    stage.end_lease().await;
    stage.relay().drain_once().await.unwrap();
    stage.assert_once_in_order().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("stream_lost_messages"), Some(&10), "{incidents:?}");
}

/// Inside what the cursor covers a message that somebody deleted stays deleted.
#[tokio::test]
async fn a_last_message_that_was_deleted_is_not_published_again() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(20).await;
    stage.relay().drain_once().await.unwrap();
    stage.delete_message(20).await;
    stage.append(5).await;
    stage.end_lease().await;
    stage.relay().drain_once().await.unwrap();
    assert_eq!(stage.positions().await, (1..=25).filter(|position| *position != 20).collect::<Vec<i64>>());
    assert!(stage.incidents().await.is_empty());
}

/// Outside of it nobody can know which event it was. A broker that still remembers its id refuses it, and that is taken as an answer.
#[tokio::test]
async fn a_last_message_that_was_deleted_before_the_cursor_was_past_it_is_told() {
    for window in [Duration::from_secs(120), Duration::from_millis(100)] {
        let server = NatsServer::start().await;
        let stage = Stage::new(&server).await;
        stage.stream_with(|config| config.duplicate_window = window).await;
        stage.append(20).await;
        stage.relay().drain_once().await.unwrap();
        stage.set_cursor(17, 17, 17).await;
        stage.delete_message(20).await;
        if window < Duration::from_secs(1) {
            stage.until_forgotten().await;
        }
        stage.append(5).await;
        stage.relay().drain_once().await.unwrap();
        let (positions, incidents) = (stage.positions().await, stage.incidents().await);
        if window > Duration::from_secs(1) {
            assert_eq!(positions, (1..=25).filter(|position| *position != 20).collect::<Vec<i64>>());
            assert!(incidents.is_empty(), "{incidents:?}");
        } else {
            assert_eq!(positions, (1..=25).collect::<Vec<i64>>());
            assert_eq!(incidents.get("published_again"), Some(&1), "{incidents:?}");
        }
    }
}

/// A message from the middle that was deleted looks like a hole, and the broker's memory of ids closes it.
#[tokio::test]
async fn a_message_that_was_deleted_from_the_middle_is_told_too() {
    for window in [Duration::from_secs(120), Duration::from_millis(100)] {
        let server = NatsServer::start().await;
        let stage = Stage::new(&server).await;
        stage.stream_with(|config| config.duplicate_window = window).await;
        stage.append(20).await;
        stage.relay().drain_once().await.unwrap();
        stage.set_cursor(10, 10, 10).await;
        stage.delete_message(15).await;
        if window < Duration::from_secs(1) {
            stage.until_forgotten().await;
        }
        stage.append(5).await;
        stage.relay().drain_once().await.unwrap();
        let (mut positions, incidents) = (stage.positions().await, stage.incidents().await);
        positions.sort_unstable();
        if window > Duration::from_secs(1) {
            assert_eq!(positions, (1..=25).filter(|position| *position != 15).collect::<Vec<i64>>());
            assert!(incidents.is_empty(), "{incidents:?}");
        } else {
            assert_eq!(positions, (1..=25).collect::<Vec<i64>>());
            assert_eq!(incidents.get("published_again"), Some(&1), "{incidents:?}");
        }
    }
}

#[tokio::test]
async fn what_the_log_has_dropped_is_told_and_the_rest_goes_on() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(20).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.append(80).await;
    // As a retention does that did not wait.
    stage.sql("SET session_replication_role = replica; DELETE FROM seqline.event_log WHERE seq <= 50").await;
    let _ = relay.drain_once().await;
    relay.drain_once().await.unwrap();
    let expected: Vec<i64> = (1..=20).chain(51..=100).collect();
    assert_eq!(stage.positions().await, expected);
    let row: (i64, i64, i64) = sqlx::query_as(
        "SELECT count, first_position, last_position FROM seqline.relay_incidents WHERE kind = 'behind_retention'",
    )
    .fetch_one(&stage.pool)
    .await
    .unwrap();
    assert_eq!(row, (30, 21, 50));
}

/// A hole that is open when the end of the stream is lost is still found: the last message of ours does not say that those before it are there.
#[tokio::test]
async fn a_hole_that_was_filled_before_the_end_was_lost_is_filled_again() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    stage.relay().drain_once().await.unwrap();
    let copy = copied(&mut server).await;
    // The state with a hole: 11 and 12 are missing, 13 is there.
    stage.append(3).await;
    put_back(&mut server, &copy).await;
    stage.publish_as_relay(13).await;
    stage.set_cursor(13, 14, 12).await;
    stage.relay().drain_once().await.unwrap();
    stage.assert_once().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("hole_filled_late"), Some(&2), "{incidents:?}");
    assert!(incidents.contains_key("stream_lost_messages"), "{incidents:?}");
}

/// Also while there is nothing to publish.
#[tokio::test]
async fn what_happens_to_the_stream_while_nothing_is_published_is_found() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(30).await;
    let running = stage.run();
    stage.until_published().await;
    stage.context().await.delete_stream("EVENTS").await.unwrap();
    eventually(LONG, "it is there again", async || running.tally.republished() == 30).await;
    running.stop().await;
    stage.assert_once_in_order().await;
    assert_eq!(stage.incidents().await.get("stream_recreated"), Some(&1));
}
