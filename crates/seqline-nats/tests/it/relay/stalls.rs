//! What lasts for ever is named, although it looks like what is over in a moment.

use std::time::Duration;

use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::relay::Relay;
use seqline_testkit::eventually;
use seqline_testkit::nats::{NatsOptions, NatsServer};

use super::support::{LONG, Stage, config, run};
use crate::logged::capture;

/// A broker on which a relay may do everything but publish on one subject.
async fn without(subject: &str) -> NatsServer {
    let lines = format!(
        "authorization {{ users: [
           {{ user: admin, password: secret }},
           {{ user: relay, password: secret, permissions: {{ publish: {{ deny: [\"{subject}\"] }} }} }}
         ] }}
         no_auth_user: admin"
    );
    NatsServer::with(NatsOptions::default().lines(&lines)).await
}

/// A relay with that login, which gives up a message soon, and a request after so long.
fn limited(stage: &Stage, request_timeout: Duration) -> Relay {
    let mut to = BrokerConfig::new(stage.url.replace("nats://", "nats://relay:secret@"));
    to.request_timeout = request_timeout;
    let config = config(|config| config.ack_timeout = Duration::from_millis(200));
    Relay::new(stage.pool.clone(), Broker::new(to), config, Clock::system())
}

async fn is_stalled_by(stage: &Stage, kind: &str) {
    eventually(LONG, "the row says so", async || stage.stalled_by().await.as_deref() == Some(kind)).await;
}

/// A broker does not answer who may not publish. Whatever kept the relay from going on before is over, and not shown any more.
#[tokio::test]
async fn who_may_not_publish_is_named_once() {
    let server = without("events.>").await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    stage.relay().drain_once().await.unwrap();
    stage
        .sql("UPDATE seqline.relay_cursors SET leased_until = now(), stalled_by = 'stream_full', stalled_since = now()")
        .await;
    stage.append(10).await;
    let (lines, _guard) = capture();
    let running = run(limited(&stage, LONG));
    is_stalled_by(&stage, "unacknowledged").await;
    assert_eq!(running.tally.stalled_by(), Some("unacknowledged"));
    running.stop().await;
    assert_eq!(lines.count("the relay stands still, trying again"), 1, "{}", lines.text());
    stage.relay().drain_once().await.unwrap();
    assert_eq!(stage.stalled_by().await, None);
}

#[tokio::test]
async fn who_may_not_read_the_stream_is_named() {
    let server = without("$JS.API.STREAM.MSG.GET.>").await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    stage.relay().drain_once().await.unwrap();
    stage.set_cursor(7, 7, 7).await;
    let running = run(limited(&stage, Duration::from_millis(500)));
    is_stalled_by(&stage, "unread").await;
    running.stop().await;
}

#[tokio::test]
async fn a_gap_in_the_log_is_named() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    stage.relay().drain_once().await.unwrap();
    stage.append(10).await;
    stage
        .sql(
            "UPDATE seqline.relay_cursors SET leased_until = now();
             SET session_replication_role = replica; DELETE FROM seqline.event_log WHERE seq = 15",
        )
        .await;
    let running = stage.run();
    is_stalled_by(&stage, "log").await;
    running.stop().await;
}

/// Nobody takes the messages any more, until the relay has looked at what the stream takes.
#[tokio::test]
async fn a_stream_whose_subjects_somebody_has_changed_gets_them_back() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    let running = stage.run();
    stage.until_published().await;
    stage.stream_with(|config| config.subjects = vec!["elsewhere.>".to_owned()]).await;
    stage.append(10).await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn a_stream_that_became_another_kind_while_the_relay_ran_is_named() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.stream_with(|config| config.max_messages_per_subject = 1).await;
    // Somebody in between has it look again.
    stage.publish_foreign().await;
    stage.append(10).await;
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "conflict");
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "stream_mismatch");
    assert_eq!(stage.stalled_by().await.as_deref(), Some("stream_mismatch"));
    let mut mended = stage.info().await.config;
    mended.max_messages_per_subject = -1;
    stage.context().await.update_stream(mended).await.unwrap();
    relay.drain_once().await.unwrap();
    assert_eq!(stage.stalled_by().await, None);
}
