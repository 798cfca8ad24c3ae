//! What the log says: counts and names, and nothing of what events say.

use seqline_nats::consumer::{Recorder, StreamConsumer};
use seqline_testkit::eventually;

use super::support::*;
use crate::logged::capture;

#[tokio::test]
async fn garbage_is_logged_once_and_no_payload_ever() {
    let site = Site::new().await;
    site.send_garbage("{\"secret\": \"open sesame\"}").await;
    let ids = site.feed([770_077, 1]).await;
    let (lines, _guard) = capture();
    let probe = Probe::acting(|event, context| {
        let fails = number(event) == 770_077 && context.attempt() < 3;
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    });
    let running = site.start(PROBE, probe);
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the garbage is given up", async || running.tally.terminated() == 1).await;
    running.stops().await;
    // Nor when it comes again, because the broker has not heard that it is done with.
    site.stream().await.delete_consumer(PROBE).await.unwrap();
    let running = site.start(PROBE, Probe::plain());
    eventually(DEADLINE, "the garbage comes again", async || running.tally.terminated() == 1).await;
    assert_eq!((running.tally.dead(), site.dead_letters(PROBE).await.len()), (0, 1));
    running.stops().await;
    let text = lines.text();
    assert_eq!(lines.count("stream consumer gave messages up"), 1, "{text}");
    assert!(text.contains("reason=\"unreadable\" count=1 stream_seq=1"), "{text}");
    assert_eq!(lines.count("ERROR"), 1, "{text}");
    assert_eq!(lines.count("handler of a stream consumer fails"), 1, "{text}");
    assert!(text.contains("handled=1"), "{text}");
    assert!(!text.contains("sesame") && !text.contains("770077"), "{text}");
}

#[tokio::test]
async fn a_broker_that_is_away_is_said_once_and_its_return_once() {
    let mut site = Site::new().await;
    let ids = site.feed(1..=2).await;
    let (lines, _guard) = capture();
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    site.nats.kill().await;
    eventually(DEADLINE, "it is noticed", async || running.tally.failures() > 5).await;
    site.nats.restart().await;
    eventually(DEADLINE, "it goes on", async || lines.count("stream consumer goes on") > 0).await;
    running.stops().await;
    let said = ["stream consumer cannot go on", "stream consumer goes on"].map(|line| lines.count(line));
    assert_eq!(said, [1, 1], "{}", lines.text());
}

#[tokio::test]
async fn the_recorder_writes_down_what_comes_and_not_what_it_says() {
    let site = Site::new().await;
    let payload = seqline::Payload::from_json("{\"n\": 770077}").unwrap();
    let event = seqline::NewEvent::builder("order.created", "order", "any").space("shop-1").payload(payload);
    let ids = append(&site.db.producer(), [event.build().unwrap()]).await;
    site.publish(&ids).await;
    let (lines, _guard) = capture();
    let consumer = StreamConsumer::new(Recorder::NAME, Recorder).unwrap();
    let runtime = site.runtime_of(consumer, quick());
    assert_eq!(runtime.poll_once().await.unwrap().handled, 1);
    let line = format!("event id={} type=\"order.created\" space=\"shop-1\" attempt=1", ids[0]);
    assert_eq!(lines.count(&line), 1, "{}", lines.text());
    assert!(!lines.text().contains("770077"));
}
