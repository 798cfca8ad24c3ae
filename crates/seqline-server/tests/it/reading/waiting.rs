//! Waiting for the next event: what it costs, how it ends, and how many may.

use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use seqline::access::Grant;
use seqline_testkit::{Role, TestDb, eventually};

use super::client::{Answer, number};
use super::{Site, append_all, order};
use crate::support::{DEADLINE, Sessions, append};

/// How many threads a process has.
fn threads_of(pid: i32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).expect("it is said");
    threads.trim().parse().expect("it is a number")
}

#[tokio::test]
async fn a_thousand_wait_without_a_thread_or_a_connection_to_the_database_each_and_all_get_the_event() {
    const WAITING: usize = 1_000;
    let site = Site::new(&[("database.max_connections", "5")]).await;
    let alex = site.user("alex", &[]).await;
    let head = alex.page("after=head").await.next;
    let threads = threads_of(site.server.running.pid());
    let waiting: Vec<_> = (0..WAITING)
        .map(|_| {
            let (alex, head) = (alex.clone(), head.clone());
            tokio::spawn(async move { alex.page(&format!("after={head}&wait=60")).await })
        })
        .collect();
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 1_000.0).await;
    // The pool, and those beside it: the tail, the watch and the figures. None of them is at work for those who wait.
    let sessions = Sessions::of(&site.db, Role::App);
    let open = sessions.count("true").await;
    assert!(open <= 5 + 3, "{open} sessions");
    assert_eq!(sessions.count("state = 'idle in transaction'").await, 0);
    // Some are made when they are needed, as for a file, and none for somebody who waits.
    let more = threads_of(site.server.running.pid()).saturating_sub(threads);
    assert!(more <= 4, "{more} threads more than {threads}");
    append(&site.db.producer(), [1]).await;
    for page in join_all(waiting).await {
        let page = page.unwrap();
        assert_eq!((page.seqs(), number(&page.next)), (vec![1], 1));
    }
    assert!(sessions.count("true").await <= 5 + 3);
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 0.0).await;
    site.stop().await;
}

#[tokio::test]
async fn whoever_waits_gets_the_next_event_for_them_and_not_those_of_others() {
    let site = Site::new(&[]).await;
    let alex = site.user("alex", &[Grant::of("order.read").space("shop-1")]).await;
    let head = alex.page("after=head").await.next;
    let ask = |query: &str| {
        let (alex, query) = (alex.clone(), format!("after={head}&wait=60{query}"));
        tokio::spawn(async move { alex.page(&query).await })
    };
    let (any, paid) = (ask(""), ask("&type=order.paid"));
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 2.0).await;
    append_all(&site.db.app(), &[order("order.created", "1", "shop-2")]).await;
    append_all(&site.db.app(), &[order("order.created", "1", "shop-1")]).await;
    append_all(&site.db.app(), &[order("order.paid", "1", "shop-1"), order("order.sent", "1", "shop-1")])
        .await;
    assert_eq!(any.await.unwrap().seqs()[0], 2);
    let paid = paid.await.unwrap();
    assert_eq!((paid.seqs(), number(&paid.next)), (vec![3], 4));
    site.stop().await;
}

#[tokio::test]
async fn a_wait_ends_when_its_time_is_up_and_the_server_bounds_it() {
    let site = Site::new(&[("api.wait_max", "1s")]).await;
    let alex = site.user("alex", &[]).await;
    append(&site.db.app(), 1..=3).await;
    let head = alex.page("after=oldest&wait=30&type=test.happened").await.next;
    for wait in ["1", "100000"] {
        let page = alex.page(&format!("after={head}&wait={wait}")).await;
        assert_eq!((page.seqs(), &page.next, page.caught_up), (Vec::new(), &head, true));
    }
    site.stop().await;
}

#[tokio::test]
async fn as_many_wait_as_a_principal_may_and_the_next_is_told_to_come_again() {
    let site = Site::new(&[("api.waiting_max", "3")]).await;
    let alex = site.user("alex", &[]).await;
    let sam = site.user("sam", &[]).await;
    let head = alex.page("after=head").await.next;
    let mut stream = alex.stream(&format!("after={head}")).await;
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let (alex, head) = (alex.clone(), head.clone());
            tokio::spawn(async move { alex.page(&format!("after={head}&wait=60")).await.seqs() })
        })
        .collect();
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 2.0).await;
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"stream\"}", 1.0).await;
    for path in [format!("/v1/events?after={head}&wait=60"), format!("/v1/events/stream?after={head}")] {
        let answer = alex.get(&path).await;
        assert!(answer.retry_after.is_some(), "{answer:?}");
        let (status, document) = answer.refusal();
        assert_eq!((status, document["code"].as_str()), (429, Some("rate_limited")));
    }
    // Only whoever would have to wait is sent away, and others have places of their own.
    assert_eq!(alex.page("after=head").await.next, head);
    let mut other = sam.stream(&format!("after={head}")).await;
    // A client that goes away leaves its place.
    let gone = alex.clone();
    drop(stream.next().await);
    drop(stream);
    eventually(DEADLINE, "there is a place again", async || {
        let answer = gone.ask(&format!("/v1/events/stream?after={head}"), &[]).await;
        answer.status() == 200
    })
    .await;
    append(&site.db.app(), [1]).await;
    for seqs in join_all(waiting).await {
        assert_eq!(seqs.unwrap(), [1]);
    }
    assert_eq!(other.event().await["seq"], 1);
    site.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_waits_no_longer() {
    let site = Site::new(&[]).await;
    let alex = site.user("alex", &[]).await;
    let head = alex.page("after=head").await.next;
    let waiting = {
        let (alex, path) = (alex.clone(), format!("/v1/events?after={head}&wait=60"));
        tokio::spawn(async move { Answer::read(alex.ask(&path, &[]).await).await })
    };
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 1.0).await;
    waiting.abort();
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 0.0).await;
    site.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_answers_those_who_wait_and_ends_streams() {
    let site = Site::on(TestDb::new().await, &[("shutdown.total_timeout", "20s")]).await;
    let alex = site.user("alex", &[]).await;
    let head = alex.page("after=head").await.next;
    let waiting = {
        let (alex, head) = (alex.clone(), head.clone());
        tokio::spawn(async move { alex.page(&format!("after={head}&wait=60")).await })
    };
    let mut stream = alex.stream(&format!("after={head}")).await;
    assert!(stream.next().await.unwrap().retry.is_some());
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"request\"}", 1.0).await;
    // Far less than whoever waits would take.
    let stopping = tokio::time::timeout(Duration::from_secs(15), site.server.stop());
    let (log, (page, end)) = tokio::join!(stopping, async { (waiting.await.unwrap(), stream.next().await) });
    let log = log.expect("nobody is waited for");
    assert_eq!((page.seqs(), page.next), (Vec::new(), head));
    assert_eq!(end, None, "it ends as a stream ends, and not in the middle");
    assert!(!log.iter().any(|line| line["level"] == "WARN" || line["level"] == "ERROR"), "{log:#?}");
}
