//! Positions that cannot be read from: told at once, with where to go on, to pages and streams alike.

use seqline::access::Grant;
use seqline_testkit::{TestDb, eventually};
use serde_json::Value;
use uuid::Uuid;

use super::client::{Client, number};
use super::{Site, append_all, order};
use crate::support::{DEADLINE, append, as_admin, small_partitions};

/// A tail that sees nothing of what is appended after its start, as long as a test takes.
const LATE_TAIL: [(&str, &str); 5] = [
    ("database.listen", "false"),
    ("database.listen_reconnect_backoff_cap", "1h"),
    ("sync.log_poll_interval", "30m"),
    ("ops.ready_lag_max", "1h"),
    ("alert.fanout_lag", "1h"),
];

/// Both ways to read refuse this position for this reason. Where to go on is a position of theirs.
async fn told(client: &Client, position: &str, reason: &str) -> Value {
    let mut told = Vec::new();
    for query in [format!("after={position}"), format!("after={position}&wait=30&type=none.such")] {
        told.push(client.refused(&query).await);
    }
    told.push(client.stream_refused(&format!("after={position}")).await);
    for (status, document) in &told {
        assert_eq!((*status, document["code"].as_str()), (410, Some("resync_required")), "{document}");
        assert_eq!(document["reason"], reason, "{document}");
        for end in ["oldest", "head"] {
            let page = client.page(&format!("after={}", document[end].as_str().unwrap())).await;
            assert!(page.next.starts_with(document["epoch"].as_str().unwrap()), "{document}");
        }
    }
    told.remove(0).1
}

#[tokio::test]
async fn a_position_behind_retention_is_told_where_the_log_begins_now() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 5).await;
    append(&db.app(), 1..=25).await;
    db.settled().await;
    let site = Site::on(db, &[]).await;
    let alex = site.user("alex", &[]).await;
    let begin = alex.page("after=oldest&limit=3").await;
    assert_eq!(begin.seqs(), [1, 2, 3]);
    as_admin(
        &site.db,
        "DO $$ BEGIN EXECUTE format('DROP TABLE seqline.%I',
             (SELECT name FROM seqline.event_log_partitions() ORDER BY lower_bound LIMIT 1)); END $$",
    )
    .await;
    let document = told(&alex, &begin.next, "retention").await;
    let oldest = document["oldest"].as_str().unwrap();
    let first = alex.page(&format!("after={oldest}&limit=1")).await.seqs()[0];
    assert_eq!((number(oldest), number(document["head"].as_str().unwrap())), (first - 1, 25));
    assert_eq!(alex.page("after=oldest&limit=1").await.seqs(), [first]);
    let (status, _) = alex.get(&format!("/v1/resources/test/7/events?after={}", begin.next)).await.refusal();
    assert_eq!(status, 410);
    site.stop().await;
}

#[tokio::test]
async fn a_position_beyond_the_head_is_refused_and_one_that_another_process_gave_is_waited_for() {
    let site = Site::new(&[]).await;
    let alex = site.user("alex", &[]).await;
    append(&site.db.app(), 1..=3).await;
    let page = alex.page("after=oldest&wait=30").await;
    let epoch = page.next.split_once(':').unwrap().0.to_owned();
    let document = told(&alex, &format!("{epoch}:4"), "cursor_ahead").await;
    assert_eq!(
        (number(document["oldest"].as_str().unwrap()), number(document["head"].as_str().unwrap())),
        (0, 3)
    );
    told(&alex, &format!("{epoch}:{}", i64::MAX), "cursor_ahead").await;

    // A process whose tail is late knows less than others have given out.
    let late = Site::on(TestDb::new().await, &LATE_TAIL).await;
    let alex = late.user("alex", &[]).await;
    let epoch = alex.page("after=head").await.next.split_once(':').unwrap().0.to_owned();
    append(&late.db.app(), 1..=3).await;
    late.db.settled().await;
    let page = alex.page(&format!("after={epoch}:3")).await;
    assert_eq!((page.seqs(), number(&page.next), page.caught_up), (Vec::new(), 3, true));
    assert_eq!(page.head, page.next);
    let mut stream = alex.stream(&format!("after={epoch}:3")).await;
    assert_eq!(stream.next().await.unwrap().data, None);
    site.stop().await;
    late.stop().await;
}

/// What its tail has had is durable. Of the rest that is not known.
#[tokio::test]
async fn nothing_is_given_out_of_the_database_that_the_tail_has_not_had() {
    let db = TestDb::new().await;
    append_all(&db.app(), &[order("order.created", "7", "shop-1"), order("order.paid", "7", "shop-1")]).await;
    db.settled().await;
    let late = Site::on(db, &LATE_TAIL).await;
    let alex = late.user("alex", &[Grant::of("order.read")]).await;
    append_all(&late.db.app(), &[order("order.sent", "7", "shop-1")]).await;
    late.db.settled().await;
    for page in [
        alex.page("after=oldest").await,
        alex.page("after=oldest&type=order.*").await,
        alex.page("after=oldest&resource_kind=order&resource_id=7").await,
        alex.page_of("/v1/resources/order/7/events", "").await,
    ] {
        assert_eq!((page.seqs(), number(&page.next), page.caught_up), (vec![1, 2], 2, true));
    }
    late.stop().await;
}

#[tokio::test]
async fn a_position_that_is_too_far_behind_is_refused_if_that_is_set() {
    let site = Site::new(&[("api.catch_up_events_max", "10"), ("api.hub_events_max", "2")]).await;
    let alex = site.user("alex", &[]).await;
    let start = alex.page("after=oldest").await.next;
    append(&site.db.app(), 1..=11).await;
    site.db.settled().await;
    eventually(DEADLINE, "it has seen them", async || number(&alex.page("after=head").await.head) == 11)
        .await;
    let (epoch, _) = start.split_once(':').unwrap();
    let (status, document) = alex.refused(&format!("after={start}")).await;
    assert_eq!((status, &document["reason"]), (410, &"too_far_behind".into()));
    assert_eq!(alex.stream_refused(&format!("after={start}")).await.0, 410);
    // The oldest event is farther still: nobody is sent there.
    assert_eq!((&document["oldest"], number(document["head"].as_str().unwrap())), (&Value::Null, 11));
    assert!(document["detail"].as_str().unwrap().ends_with("go on at head"), "{document}");
    assert_eq!(alex.refused("after=oldest").await.0, 410);
    let page = alex.page(&format!("after={epoch}:1")).await;
    assert_eq!(page.seqs(), (2..=11).collect::<Vec<_>>());
    // The history of one resource costs what it holds, however long the log is.
    append_all(&site.db.app(), &[order("order.created", "7", "shop-1")]).await;
    append(&site.db.app(), 12..=30).await;
    let sam = site.user("sam", &[Grant::of("order.read")]).await;
    let page = sam.page_of("/v1/resources/order/7/events", "wait=30").await;
    assert_eq!(page.seqs(), [12]);
    site.stop().await;
}

#[tokio::test]
async fn a_position_of_another_epoch_is_refused_whatever_its_number() {
    let site = Site::new(&[("ops.look_interval", "100ms")]).await;
    let alex = site.user("alex", &[]).await;
    append(&site.db.app(), 1..=3).await;
    let before = alex.page("after=oldest&wait=30").await.next;
    let other = Uuid::from_u128(7);
    for seq in [0, 3, 4, i64::MAX] {
        told(&alex, &format!("{other}:{seq}"), "epoch_changed").await;
    }
    // The epoch ends under a stream, and under one who waits.
    let mut stream = alex.stream(&format!("after={before}")).await;
    let waiting = {
        let (alex, before) = (alex.clone(), before.clone());
        tokio::spawn(async move { alex.get(&format!("/v1/events?after={before}&wait=60")).await })
    };
    assert!(stream.next().await.unwrap().retry.is_some());
    as_admin(&site.db, "UPDATE seqline.log_identity SET epoch = gen_random_uuid()").await;
    assert_eq!(stream.next().await, None, "a stream ends with its epoch");
    let page = waiting.await.unwrap().page();
    assert_eq!((page.seqs(), &page.next), (Vec::new(), &before), "nothing of another epoch is in it");
    eventually(DEADLINE, "the next epoch is answered in", async || {
        let answer = alex.get("/v1/events?after=head").await;
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        answer.status == 200
    })
    .await;
    let document = told(&alex, &before, "epoch_changed").await;
    assert_eq!(number(document["head"].as_str().unwrap()), 3);
    site.stop().await;
}
