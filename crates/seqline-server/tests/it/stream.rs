//! What needs a broker: `seqline stream`, and servers with a relay.

mod forget;
mod serve;
mod walk;

use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Recorder, Runtime, StreamConsumer, StreamConsumerConfig};
use seqline_nats::report::{StreamReport, report};
use seqline_nats::stream::{StreamSettings, ensure_stream};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{TestDb, eventually};
use serde_json::Value;

use crate::support::{DEADLINE, masked, seqline};

/// What a broker says of the stream, if there is one.
async fn stream_of(nats: &NatsServer) -> Option<StreamReport> {
    let broker = Broker::new(BrokerConfig::new(nats.url()));
    let report = report(&broker, "EVENTS").await.expect("the broker answers");
    broker.close().await;
    report
}

#[tokio::test]
async fn a_broker_that_is_away_or_no_url_is_said_in_a_sentence_without_the_login() {
    let info = |url: &str| seqline(["stream", "info", "--nats-url", url]);
    let sentence = info("nats://alex:hunter2@127.0.0.1:1").refused(3).await;
    assert_eq!(sentence, "the broker at 127.0.0.1:1 does not answer");
    let sentence = info("http s://hunter2").refused(2).await;
    assert!(
        sentence.starts_with("the URL of the broker is none") && !sentence.contains("hunter2"),
        "{sentence}"
    );
    let unreadable = info("nats://127.0.0.1:1").args(["--set", "nats.credentials_file=/nowhere/user.creds"]);
    assert_eq!(unreadable.refused(4).await, "the file /nowhere/user.creds cannot be used: it cannot be read");
}

#[tokio::test]
async fn the_stream_is_shown_as_the_broker_has_it() {
    let nats = NatsServer::start().await;
    let url = nats.url();
    let info = |json: bool| {
        let info = seqline(["stream", "info"]).env("SEQLINE_NATS_URL", &url);
        if json { info.arg("--json") } else { info }
    };
    let sentence = info(false).refused(4).await;
    assert!(sentence.contains("has no stream EVENTS: a relay makes it"), "{sentence}");
    let broker = Broker::new(BrokerConfig::new(&url));
    ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
    let shown = masked(&info(false).ok().await);
    insta::assert_snapshot!(shown);
    let shown: Value = serde_json::from_str(&info(true).ok().await).unwrap();
    assert_eq!(shown["max_messages"], Value::Null, "none is no number");
    assert_eq!(shown["max_bytes"], 1_073_741_824_u64);
    assert_eq!(shown["fixed_at_creation"], serde_json::json!(["retention", "storage"]));
    broker.close().await;
}

#[tokio::test]
async fn a_stream_with_events_and_a_consumer_is_shown_with_them() {
    let (db, nats) = walk::copied(7).await;
    consume(&db, &nats, "mail", 3).await;
    let info = || seqline(["stream", "info"]).env("SEQLINE_NATS_URL", nats.url());
    let shown: Value = serde_json::from_str(&info().arg("--json").ok().await).unwrap();
    assert_eq!(
        (&shown["messages"], &shown["first_seq"], &shown["last_seq"]),
        (&7.into(), &1.into(), &7.into())
    );
    let consumer = &shown["consumers"][0];
    assert_eq!((&consumer["name"], &consumer["pending"]), (&"mail".into(), &4.into()));
    assert_eq!((&consumer["ack_pending"], &consumer["ack_floor"]), (&0.into(), &3.into()));
    assert_eq!(consumer["max_deliver"], Value::Null, "none is no number");
    let text = masked(&info().ok().await);
    let bytes = text.lines().find(|line| line.starts_with("bytes ")).expect("it says how many");
    insta::assert_snapshot!(text.replace(bytes, "bytes             [bytes]"));
}

/// Has a consumer handle so many events, and stop.
async fn consume(db: &TestDb, nats: &NatsServer, name: &str, events: u32) {
    let broker = Broker::new(BrokerConfig::new(nats.url()));
    let mut config = StreamConsumerConfig::default();
    config.batch = events;
    let consumer = StreamConsumer::new(name, Recorder).unwrap();
    let (stream, clock) = (StreamSettings::default(), Clock::system());
    let runtime = Runtime::new(db.app(), broker.clone(), stream, consumer, config, clock);
    eventually(DEADLINE, "it handles them", async || {
        runtime.poll_once().await.unwrap().handled == u64::from(events)
    })
    .await;
    broker.close().await;
    eventually(DEADLINE, "the broker knows", async || {
        let stream = stream_of(nats).await.expect("there is a stream");
        stream.consumers.iter().any(|it| it.name == name && it.ack_pending == 0)
    })
    .await;
}
