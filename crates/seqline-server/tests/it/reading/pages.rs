//! Pages: what is in them, what is not, and where they go on.

use seqline::access::Grant;
use seqline::{NewEvent, Payload};
use seqline_testkit::eventually;
use serde_json::json;

use super::client::number;
use super::{Site, append_all, order};
use crate::support::{DEADLINE, PLANTED, append};

#[tokio::test]
async fn everything_is_read_page_by_page_once_each_and_the_last_page_says_so() {
    let site = Site::new(&[]).await;
    append(&site.db.app(), 1..=25).await;
    site.db.settled().await;
    let alex = site.user("alex", &[]).await;
    eventually(DEADLINE, "the server knows them", async || number(&alex.page("after=head").await.head) == 25)
        .await;
    let (mut after, mut seqs, mut pages) = ("oldest".to_owned(), Vec::new(), 0);
    loop {
        let page = alex.page(&format!("after={after}&limit=10")).await;
        seqs.extend(page.seqs());
        (after, pages) = (page.next.clone(), pages + 1);
        assert_eq!(number(&page.head), 25);
        if page.caught_up {
            break;
        }
        assert_eq!(page.seqs().last(), Some(&number(&page.next)));
    }
    assert_eq!((seqs, pages), ((1..=25).collect(), 3));
    assert_eq!(number(&after), 25);
    let page = alex.page("after=head").await;
    assert_eq!((page.seqs(), page.next, page.caught_up), (Vec::new(), after, true));
    site.stop().await;
}

/// A ring of ten events, so that each page but the last is of the database.
#[tokio::test]
async fn what_memory_has_and_what_the_database_has_are_one_list() {
    let site = Site::new(&[("api.hub_events_max", "10"), ("api.catch_up_scan_size", "7")]).await;
    let alex = site.user("alex", &[]).await;
    append(&site.db.app(), 1..=40).await;
    append(&site.db.app(), 41..=60).await;
    // The ring has the last of them.
    let head = alex.page("after=oldest&wait=30&limit=1").await;
    let epoch = head.next.split_once(':').unwrap().0.to_owned();
    alex.page(&format!("after={epoch}:59&wait=30")).await;
    for limit in [1, 3, 10, 1000] {
        let (mut after, mut seqs) = (format!("{epoch}:0"), Vec::new());
        while seqs.last() != Some(&60) {
            let page = alex.page(&format!("after={after}&limit={limit}")).await;
            assert!((1..=limit).contains(&page.events.len()), "{page:?}");
            seqs.extend(page.seqs());
            after = page.next;
        }
        assert_eq!(seqs, (1..=60).collect::<Vec<_>>(), "by {limit}");
    }
    site.stop().await;
}

#[tokio::test]
async fn who_reads_sees_what_is_for_them_from_memory_as_from_the_database() {
    for hub_events_max in ["1", "1000"] {
        let site = Site::new(&[("api.hub_events_max", hub_events_max)]).await;
        let all = site.user("alex", &[Grant::of("order.read")]).await;
        let one = site.user("sam", &[Grant::of("order.read").space("shop-1")]).await;
        let none = site.user("robin", &[]).await;
        let for_sam = NewEvent::builder("note.sent", "note", "self").audience("sam").build().unwrap();
        let for_any = NewEvent::builder("note.sent", "note", "any").build().unwrap();
        append_all(
            &site.db.app(),
            &[
                order("order.created", "1", "shop-1"),
                order("order.created", "2", "shop-2"),
                for_sam,
                for_any,
                order("order.paid", "1", "shop-1"),
            ],
        )
        .await;
        for (reader, seqs) in [(&all, &[1, 2, 4, 5][..]), (&one, &[1, 3, 4, 5]), (&none, &[4])] {
            // When the last one is there, all are.
            let page = reader.page("after=oldest&wait=30&limit=1").await;
            let rest = reader.page(&format!("after={}&wait=1", page.next)).await;
            assert_eq!([page.seqs(), rest.seqs()].concat(), seqs, "with {hub_events_max} in memory");
            // Also when there is nothing for somebody, it is known how far that is.
            assert_eq!(number(&rest.next), 5);
        }
        let audience = one.page("after=oldest&type=note.sent&limit=1").await.events[0].clone();
        assert_eq!((&audience["audience"], &audience["resource"]["kind"]), (&json!("self"), &json!("note")));
        site.stop().await;
    }
}

#[tokio::test]
async fn filters_choose_among_what_may_be_seen_and_a_page_goes_on_behind_what_does_not_match() {
    for hub_events_max in ["1", "1000"] {
        let site = Site::new(&[("api.hub_events_max", hub_events_max)]).await;
        let alex = site.user("alex", &[Grant::of("order.read").space("shop-1")]).await;
        let event = |event_type: &str, kind: &str, channel: Option<&str>| {
            let event = NewEvent::builder(event_type, kind, "any").space("shop-1");
            let event = channel.into_iter().fold(event, |event, channel| event.channel(channel));
            event.resource_id("7").build().unwrap()
        };
        append_all(
            &site.db.app(),
            &[
                order("order.created", "7", "shop-1"),
                order("order.created", "7", "shop-2"),
                event("order.line.added", "order", Some("support")),
                event("invoice.paid", "invoice", None),
                event("orders.counted", "order", Some("sales")),
            ],
        )
        .await;
        let first = alex.page("after=oldest&wait=30").await;
        assert_eq!(first.head, alex.page("after=head").await.next);
        for (query, seqs) in [
            ("", &[1, 3, 4, 5][..]),
            ("&type=order.*", &[1, 3]),
            ("&type=order.created", &[1]),
            ("&type=invoice.paid&type=orders.*", &[4, 5]),
            ("&space_id=shop-2", &[]),
            ("&channel_id=support&channel_id=sales", &[3, 5]),
            ("&resource_kind=order", &[1, 3, 5]),
            ("&resource_kind=order&resource_id=7&type=order.*", &[1, 3]),
            ("&resource_kind=order&resource_id=8", &[]),
            ("&resource_kind=invoice&resource_id=7", &[4]),
        ] {
            let page = alex.page(&format!("after=oldest{query}")).await;
            assert_eq!((page.seqs(), number(&page.next)), (seqs.to_vec(), 5), "{query} {hub_events_max}");
            assert!(page.caught_up);
        }
        site.stop().await;
    }
}

#[tokio::test]
async fn the_history_of_a_resource_is_read_from_its_beginning_and_followed() {
    for hub_events_max in ["1", "1000"] {
        let site = Site::new(&[("api.hub_events_max", hub_events_max)]).await;
        let alex = site.user("alex", &[Grant::of("order.read").space("shop-1")]).await;
        let sam = site.user("sam", &[]).await;
        append_all(
            &site.db.app(),
            &[
                order("order.created", "a/b", "shop-1"),
                order("order.created", "8", "shop-1"),
                order("order.paid", "a/b", "shop-1"),
                order("order.noted", "a/b", "shop-2"),
            ],
        )
        .await;
        let path = "/v1/resources/order/a%2Fb/events";
        alex.page("after=oldest&wait=30").await;
        let page = alex.page_of(path, "limit=1").await;
        assert_eq!((page.seqs(), page.caught_up), (vec![1], false));
        let page = alex.page_of(path, &format!("after={}", page.next)).await;
        assert_eq!((page.seqs(), page.caught_up, number(&page.next)), (vec![3], true, 4));
        let waiting = {
            let (alex, after) = (alex.clone(), page.next);
            tokio::spawn(async move { alex.page_of(path, &format!("after={after}&wait=30")).await.seqs() })
        };
        append_all(&site.db.app(), &[order("order.paid", "8", "shop-1")]).await;
        append_all(&site.db.app(), &[order("order.sent", "a/b", "shop-1")]).await;
        assert_eq!(waiting.await.unwrap(), [6]);
        // Nobody learns whether there is something that is not for them.
        for path in [path, "/v1/resources/order/none/events", "/v1/resources/nothing/7/events"] {
            let page = sam.page_of(path, "").await;
            assert_eq!((page.seqs(), page.caught_up), (Vec::new(), true));
        }
        site.stop().await;
    }
}

#[tokio::test]
async fn a_page_ends_when_it_has_its_bytes_and_with_one_event_at_least() {
    for hub_events_max in ["1", "1000"] {
        let site =
            Site::new(&[("api.page_bytes_max", "10000"), ("api.hub_events_max", hub_events_max)]).await;
        let alex = site.user("alex", &[]).await;
        let event = |bytes: usize| {
            let payload = Payload::from_json(&format!("{{\"text\": \"{}\"}}", "x".repeat(bytes))).unwrap();
            NewEvent::builder("file.stored", "file", "any").payload(payload).build().unwrap()
        };
        append_all(&site.db.app(), &[4_000, 4_000, 4_000, 50_000, 10, 10].map(event)).await;
        let first = alex.page("after=oldest&wait=30").await;
        let second = alex.page(&format!("after={}", first.next)).await;
        let third = alex.page(&format!("after={}", second.next)).await;
        let fourth = alex.page(&format!("after={}", third.next)).await;
        assert_eq!(
            [first.seqs(), second.seqs(), third.seqs(), fourth.seqs()],
            [vec![1, 2], vec![3], vec![4], vec![5, 6]],
            "with {hub_events_max} in memory"
        );
        assert_eq!(
            [first.caught_up, second.caught_up, third.caught_up, fourth.caught_up],
            [false, false, false, true]
        );
        site.stop().await;
    }
}

#[tokio::test]
async fn what_a_query_says_wrong_is_named_and_nothing_is_guessed() {
    let site = Site::new(&[]).await;
    let alex = site.user("alex", &[]).await;
    for (query, pointers) in [
        ("", &["/after"][..]),
        ("after=17", &["/after"]),
        ("after=oldest&typ=order.created", &["/typ"]),
        ("after=oldest&limit=0&wait=x", &["/limit", "/wait"]),
        ("after=oldest&type=Order", &["/type"]),
        ("after=oldest&space_id=%00", &["/space_id"]),
        ("after=oldest&resource_id=7", &["/resource_id"]),
        ("after=oldest&after=head", &["/after"]),
    ] {
        let (status, document) = alex.refused(query).await;
        let named: Vec<_> =
            document["errors"].as_array().unwrap().iter().map(|error| &error["pointer"]).collect();
        assert_eq!((status, document["code"].as_str()), (422, Some("validation_failed")), "{query}");
        assert_eq!(named, pointers, "{query}");
    }
    let (status, _) = alex.stream_refused("after=oldest&limit=1").await;
    assert_eq!(status, 422, "a stream has no limit");
    for path in ["/v1/resources/%00/7/events", "/v1/resources/order/%0A/events"] {
        assert_eq!(alex.get(path).await.refusal().0, 422, "{path}");
    }
    let (status, document) = alex.get("/v1/resources/%FF/7/events").await.refusal();
    assert!((400..500).contains(&status), "{document}");
    site.stop().await;
}

#[tokio::test]
async fn what_was_redacted_is_handed_out_no_more_although_it_was_in_memory() {
    use seqline::consumer::Mode;

    let site = Site::new(&[]).await;
    let alex = site.user("alex", &[Grant::of("order.read")]).await;
    append_all(
        &site.db.app(),
        &[order("order.created", "1", "shop-1"), order("order.created", "2", "shop-1")],
    )
    .await;
    let before = alex.page("after=oldest&wait=30").await;
    assert_eq!(before.events[0]["payload"]["planted"], PLANTED);
    let mut tx = seqline::begin(&site.db.app()).await.unwrap();
    let why = Mode::Apply { why: Some("asked to") };
    seqline::redact::resource(&mut tx, "order", "1", None, why).await.unwrap();
    seqline::commit(tx).await.unwrap();
    // Whoever has had the notice gets nothing of before.
    let mut stream = alex.stream(&format!("after={}", before.next)).await;
    assert_eq!(stream.event().await["type"], "log.redacted");
    let after = alex.page("after=oldest").await;
    assert_eq!(after.seqs(), [1, 2, 3]);
    assert_eq!((&after.events[0]["payload"], &after.events[0]["redacted"]), (&json!({}), &json!(true)));
    assert_eq!(after.events[1]["payload"]["planted"], PLANTED);
    site.stop().await;
}
