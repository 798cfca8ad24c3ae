//! What needs a broker: `seqline stream`, and servers with a relay.

mod serve;
mod walk;

use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::report::{StreamReport, report};
use seqline_nats::stream::{StreamSettings, ensure_stream};
use seqline_testkit::nats::NatsServer;
use serde_json::Value;

use crate::support::{masked, seqline};

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
