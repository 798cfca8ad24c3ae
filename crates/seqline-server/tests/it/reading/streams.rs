//! Streams: what comes over them, how a client comes back, and that they are what pages are.

use seqline::{NewEvent, Payload};
use seqline_testkit::eventually;

use super::client::number;
use super::{Site, append_all};
use crate::support::{DEADLINE, append};

#[tokio::test]
async fn a_stream_begins_with_what_was_missed_and_goes_on_with_what_comes() {
    for hub_events_max in ["5", "1000"] {
        let site =
            Site::new(&[("api.hub_events_max", hub_events_max), ("api.catch_up_scan_size", "7")]).await;
        let alex = site.user("alex", &[]).await;
        append(&site.db.app(), 1..=30).await;
        alex.page("after=oldest&wait=30").await;
        let mut stream = alex.stream("after=oldest").await;
        let retry: u64 = stream.next().await.unwrap().retry.unwrap().parse().unwrap();
        assert!((1_000..=5_000).contains(&retry), "{retry}");
        for seq in 1..=30 {
            assert_eq!(stream.event().await["seq"], seq);
            assert_eq!(number(stream.last_id.as_ref().unwrap()), seq);
        }
        for seq in 31..=35 {
            append(&site.db.app(), [seq]).await;
            assert_eq!(stream.event().await["seq"], seq);
        }
        site.stop().await;
    }
}

#[tokio::test]
async fn a_client_comes_back_with_the_last_id_which_goes_before_the_position_in_the_query() {
    let site = Site::new(&[]).await;
    let alex = site.user("alex", &[]).await;
    append(&site.db.app(), 1..=10).await;
    let mut stream = alex.stream("after=oldest").await;
    for seq in 1..=4 {
        assert_eq!(stream.event().await["seq"], seq);
    }
    let last_id = stream.last_id.clone().unwrap();
    drop(stream);
    let mut stream = alex.resume("after=oldest", &last_id).await;
    for seq in 5..=10 {
        assert_eq!(stream.event().await["seq"], seq);
    }
    let mut without = alex.resume("", &last_id).await;
    assert_eq!(without.event().await["seq"], 5);
    let mut fresh = alex.resume("after=oldest", "").await;
    assert_eq!(fresh.event().await["seq"], 1);
    let refused = alex.ask("/v1/events/stream?after=oldest", &[("last-event-id", "7")]).await;
    assert_eq!(refused.status(), 422);
    site.stop().await;
}

#[tokio::test]
async fn a_heartbeat_says_how_far_it_has_looked_although_nothing_matches() {
    let site = Site::new(&[("api.stream_heartbeat_interval", "300ms")]).await;
    let alex = site.user("alex", &[]).await;
    let mut stream = alex.stream("after=oldest&type=order.*").await;
    assert_eq!(number(&stream.heartbeat().await), 0);
    append(&site.db.app(), 1..=10).await;
    let mut position = String::new();
    while position.is_empty() || number(&position) < 10 {
        position = stream.heartbeat().await;
    }
    let event = NewEvent::builder("order.created", "order", "any").build().unwrap();
    append_all(&site.db.app(), &[event]).await;
    assert_eq!(stream.event().await["seq"], 11);
    // Whoever comes back with the id of a heartbeat has missed nothing.
    let mut stream = alex.resume("type=order.*", &position).await;
    assert_eq!(stream.event().await["seq"], 11);
    site.stop().await;
}

#[tokio::test]
async fn an_event_is_the_same_bytes_over_every_way_and_from_every_place() {
    let long = "x".repeat(60_000);
    let payloads = [
        r#"{"text": "two\nlines\r\n", "quote": "\" \\ /", "n": 1.50, "big": 123456789012345678901234567890}"#,
        r#"{"emoji": "\ud83d\ude00 \u00e9", "separators": "\u2028\u2029", "control": "\u0001"}"#,
        "{}",
    ];
    let long = format!("{{\"long\": \"{long}\"}}");
    let site = Site::new(&[("api.hub_events_max", "10")]).await;
    let alex = site.user("alex", &[]).await;
    let mut live = alex.stream("after=head").await;
    let events: Vec<NewEvent> = payloads
        .into_iter()
        .chain([long.as_str()])
        .map(|payload| {
            let payload = Payload::from_json(payload).unwrap();
            NewEvent::builder("test.happened", "test", "any")
                .payload(payload)
                .resource_id("7")
                .build()
                .unwrap()
        })
        .collect();
    append_all(&site.db.app(), &events).await;
    let mut texts = Vec::new();
    for _ in 0..4 {
        texts.push(live.event_text().await);
    }
    let paged = async |path: &str| {
        let page = alex.page_of(path, "after=oldest&limit=4").await;
        let all = format!("{{\"events\":[{}],", texts.join(","));
        assert!(page.text.starts_with(&all), "{path}: {} {all}", page.text);
    };
    paged("/v1/events").await;
    // Out of memory, so that the database has them.
    append(&site.db.app(), 1..=20).await;
    eventually(DEADLINE, "they fall out of memory", async || {
        number(&alex.page("after=head").await.head) == 24
    })
    .await;
    paged("/v1/events").await;
    paged("/v1/resources/test/7/events").await;
    let mut again = alex.stream("after=oldest").await;
    for text in &texts {
        assert_eq!(again.event_text().await, *text);
    }
    site.stop().await;
}
