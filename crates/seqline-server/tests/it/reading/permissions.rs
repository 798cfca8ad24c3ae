//! Somebody loses what they had while they read.

use seqline::NewEvent;
use seqline::access::{Grant, disable_principal, grant, revoke_token, ungrant};
use seqline_testkit::Role;

use super::client::{number, seq};
use super::{Site, append_all, order};
use crate::support::append;

/// So long that only what the tail shows can be the reason.
const REMEMBERED: (&str, &str) = ("api.permissions_max_age", "10m");

#[tokio::test]
async fn an_event_that_was_committed_after_a_grant_was_taken_back_is_not_given_to_whoever_had_it() {
    let site = Site::new(&[REMEMBERED, ("api.stream_heartbeat_interval", "10m")]).await;
    let read = Grant::of("order.read").space("shop-1");
    let alex = site.user("alex", std::slice::from_ref(&read)).await;
    let mut stream = alex.stream("after=oldest").await;
    append_all(&site.db.app(), &[order("order.created", "1", "shop-1")]).await;
    assert_eq!(stream.event().await["seq"], 1);
    let head = alex.page("after=head").await.next;
    let waiting = {
        let alex = alex.clone();
        tokio::spawn(async move { alex.page(&format!("after={head}&wait=60")).await })
    };
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 1.0).await;
    let connection = &mut site.db.connect(Role::App).await;
    let marker = NewEvent::builder("test.marked", "test", "any").build().unwrap();
    for n in 0..20 {
        assert!(ungrant(connection, "alex", &read, None).await.unwrap());
        append_all(&site.db.app(), &[order("order.paid", "1", "shop-1"), marker.clone()]).await;
        let event = stream.event().await;
        assert_eq!((&event["seq"], &event["type"]), (&(3 + 3 * n).into(), &"test.marked".into()));
        assert!(grant(connection, "alex", &read, None).await.unwrap());
        append_all(&site.db.app(), &[order("order.sent", "1", "shop-1")]).await;
        let event = stream.event().await;
        assert_eq!((&event["seq"], &event["type"]), (&(4 + 3 * n).into(), &"order.sent".into()));
    }
    assert_eq!(waiting.await.unwrap().seqs(), [3]);
    site.stop().await;
}

#[tokio::test]
async fn a_token_that_was_revoked_ends_streams_and_waits_with_the_next_event() {
    let site = Site::new(&[REMEMBERED, ("api.stream_heartbeat_interval", "10m")]).await;
    let (alex, token) = site.user_with_token("alex", &[]).await;
    let sam = site.user("sam", &[]).await;
    let mut stream = alex.stream("after=head").await;
    let mut other = sam.stream("after=head").await;
    let head = alex.page("after=head").await.next;
    let waiting = {
        let alex = alex.clone();
        tokio::spawn(async move { alex.get(&format!("/v1/events?after={head}&wait=60")).await.refusal() })
    };
    append(&site.db.app(), [1]).await;
    assert_eq!(
        (stream.event().await["seq"].clone(), other.event().await["seq"].clone()),
        (1.into(), 1.into())
    );
    waiting.abort();
    let waiting = {
        let (alex, position) = (alex.clone(), stream.last_id.clone().unwrap());
        tokio::spawn(async move { alex.get(&format!("/v1/events?after={position}&wait=60")).await.refusal() })
    };
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 1.0).await;
    assert!(revoke_token(&mut site.db.connect(Role::App).await, token, None).await.unwrap());
    append(&site.db.app(), [2]).await;
    let (events, problem) = stream.end().await;
    assert_eq!((events.len(), &problem["code"]), (0, &"unauthenticated".into()));
    let (status, document) = waiting.await.unwrap();
    assert_eq!((status, &document["code"]), (401, &"unauthenticated".into()));
    assert_eq!(other.event().await["seq"], 2);
    assert_eq!(alex.refused("after=oldest").await.0, 401);
    site.stop().await;
}

#[tokio::test]
async fn an_idle_stream_ends_at_its_next_heartbeat_when_its_principal_is_disabled() {
    let site =
        Site::new(&[("api.permissions_max_age", "100ms"), ("api.stream_heartbeat_interval", "200ms")]).await;
    let alex = site.user("alex", &[]).await;
    let mut stream = alex.stream("after=head").await;
    assert_eq!(number(&stream.heartbeat().await), 0);
    assert!(disable_principal(&mut site.db.connect(Role::App).await, "alex", None).await.unwrap());
    let (events, problem) = stream.end().await;
    assert_eq!((events.len(), &problem["code"]), (0, &"unauthenticated".into()));
    site.stop().await;
}

/// The stream is read slowly, so that its backlog takes longer than the permissions are remembered.
#[tokio::test]
async fn a_token_that_was_revoked_in_the_middle_of_a_backlog_gets_no_more_of_it() {
    let site = Site::new(&[("api.permissions_max_age", "50ms"), ("api.hub_events_max", "10")]).await;
    let (alex, token) = site.user_with_token("alex", &[]).await;
    for _ in 0..50 {
        append(&site.db.app(), 0..200).await;
    }
    let mut stream = alex.stream("after=oldest").await;
    for expected in 1..=10 {
        assert_eq!(stream.event().await["seq"], expected);
    }
    assert!(revoke_token(&mut site.db.connect(Role::App).await, token, None).await.unwrap());
    let (events, problem) = stream.end().await;
    assert_eq!(problem["code"], "unauthenticated");
    let seqs: Vec<i64> = events.iter().map(seq).collect();
    assert_eq!(seqs, (11..).take(seqs.len()).collect::<Vec<_>>());
    assert!(seqs.len() < 9_000, "it got {} of 9,990", seqs.len());
    site.stop().await;
}
