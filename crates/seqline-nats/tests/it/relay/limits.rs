//! What the broker does not take.

use async_nats::jetstream::stream::DiscardPolicy;
use seqline::envelope::Envelope;
use seqline::{NewEvent, Payload};
use seqline_testkit::eventually;
use seqline_testkit::nats::{NatsOptions, NatsServer};

use super::support::{LONG, Stage};

async fn append_large(stage: &Stage, bytes: usize) {
    let payload = Payload::from_json(&format!("{{\"text\": \"{}\"}}", "x".repeat(bytes))).unwrap();
    let event = NewEvent::builder("order.created", "order", "any").payload(payload).build().unwrap();
    let mut tx = seqline::begin(&stage.pool).await.unwrap();
    seqline::append(&mut tx, &[event]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    stage.db.settled().await;
}

async fn assert_left_out(stage: &Stage) {
    stage.append(10).await;
    append_large(stage, 30_000).await;
    stage.append(10).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.assert_once_in_order().await;
    let messages = stage.messages().await;
    for message in &messages {
        let envelope: Envelope = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(envelope.truncated, envelope.seq == Some(11), "{envelope:?}");
        assert!(message.payload.len() < 10_000);
    }
    assert_eq!(stage.incidents().await.get("payload_left_out"), Some(&1));
}

#[tokio::test]
async fn what_the_server_does_not_take_goes_without_its_payload() {
    let server = NatsServer::with(NatsOptions::default().lines("max_payload: 20000")).await;
    assert_left_out(&Stage::new(&server).await).await;
}

#[tokio::test]
async fn what_the_stream_does_not_take_goes_without_its_payload() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|config| config.max_message_size = 20_000).await;
    assert_left_out(&stage).await;
}

/// The stream would acknowledge it, and then drop it with all before it.
#[tokio::test]
async fn what_is_larger_than_the_whole_stream_goes_without_its_payload() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(1).await;
    append_large(&stage, 50_000).await;
    let mut relay = stage.relay_with(|config| config.stream.max_bytes = 40_000);
    relay.drain_once().await.unwrap();
    assert_eq!(stage.positions().await, [1, 2]);
    assert_eq!(stage.incidents().await.get("payload_left_out"), Some(&1));
}

#[tokio::test]
async fn a_limit_below_every_event_stops_it_by_name_until_it_is_raised() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|config| config.max_message_size = 600).await;
    stage.append(10).await;
    let mut relay = stage.relay();
    let error = relay.drain_once().await.unwrap_err();
    assert_eq!(error.kind(), "broker_limit_too_low", "{error}");
    assert_eq!(stage.stalled_by().await.as_deref(), Some("broker_limit_too_low"));
    stage.stream_with(|config| config.max_message_size = -1).await;
    relay.drain_once().await.unwrap();
    assert_eq!(stage.stalled_by().await, None);
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn a_stream_that_is_full_and_takes_nothing_more_is_named_and_it_goes_on_when_there_is_room() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(500).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage
        .stream_with(|config| {
            config.discard = DiscardPolicy::New;
            config.max_messages = 700;
        })
        .await;
    stage.append(500).await;
    let running = super::support::run(relay);
    eventually(LONG, "it says so", async || running.tally.stalled_by() == Some("stream_full")).await;
    eventually(LONG, "the row says so", async || stage.stalled_by().await.as_deref() == Some("stream_full"))
        .await;
    assert_eq!(stage.info().await.state.messages, 700);
    stage
        .stream_with(|config| {
            config.discard = DiscardPolicy::New;
            config.max_messages = -1;
        })
        .await;
    stage.until_published().await;
    eventually(LONG, "it goes on", async || stage.stalled_by().await.is_none()).await;
    running.stop().await;
    stage.assert_once_in_order().await;
}

#[tokio::test]
async fn another_kind_of_stream_is_named() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let config = async_nats::jetstream::stream::Config {
        name: "EVENTS".into(),
        subjects: vec!["events.>".into()],
        retention: async_nats::jetstream::stream::RetentionPolicy::WorkQueue,
        ..Default::default()
    };
    stage.context().await.create_stream(config).await.unwrap();
    stage.append(1).await;
    let mut relay = stage.relay();
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "stream_mismatch");
    assert_eq!(relay.tally().stalled_by(), Some("stream_mismatch"));
}
