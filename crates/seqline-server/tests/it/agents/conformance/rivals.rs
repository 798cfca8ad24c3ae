//! Two instances of an agent that take its consumer from each other, at two servers.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use seqline_testkit::eventually;

use super::{Gateway, Place, Rest, SOON, Site, Transport};
use crate::support::DEADLINE;

/// How many events there are at least, and how many of them come at once.
const EVENTS: i64 = 300;
const AT_ONCE: i64 = 10;
/// How often each comes back after it was replaced.
const TRIES: usize = 8;

/// What both have handled, and the last event, once it is known.
struct Work {
    handled: Mutex<BTreeSet<i64>>,
    last: AtomicI64,
}

/// Handles and acknowledges event after event, and takes the consumer back a few times. Counts how often it was replaced.
async fn instance<T: Transport>(place: Place, work: &Work, replaced: &AtomicUsize) {
    let is_last = |seq: i64| seq == work.last.load(Ordering::SeqCst);
    loop {
        let (mut agent, begun) = T::begin(&place).await;
        let unhandled = |acked: i64| (1..=acked).find(|seq| !work.handled.lock().unwrap().contains(seq));
        assert_eq!(unhandled(begun.acked), None, "acknowledged and handled by nobody");
        let mut last = begun.acked;
        while !is_last(last) {
            let Ok((seq, redelivered)) = agent.next().await else { break };
            assert_eq!((seq, redelivered), (last + 1, false));
            work.handled.lock().unwrap().insert(seq);
            last = seq;
            let answer = agent.acknowledges(&format!("{{\"seq\": {seq}}}")).await;
            if answer.is_err_and(|refusal| refusal.ended) {
                break;
            }
        }
        if is_last(last) || replaced.fetch_add(1, Ordering::SeqCst) >= TRIES {
            return;
        }
    }
}

async fn rivals<A: Transport, B: Transport>() {
    let keys = [
        SOON,
        ("agent.max_inflight_events", "20"),
        ("agent.acks_per_second", "100000"),
        ("agent.acks_burst", "100000"),
    ];
    let site = Site::new(&keys).await;
    let (other, there) = site.another_server(&keys).await;
    let work = Work { handled: Mutex::default(), last: AtomicI64::new(i64::MAX) };
    let (first, second) = (AtomicUsize::new(0), AtomicUsize::new(0));
    A::begin(&site.place()).await;
    let elsewhere = site.place_of(&site.token, &there);
    let appending = async {
        let mut appended = 0;
        eventually(DEADLINE, "each was replaced by the other", async || {
            site.append(AT_ONCE).await;
            appended += AT_ONCE;
            appended >= EVENTS && [&first, &second].iter().all(|replaced| replaced.load(Ordering::SeqCst) > 0)
        })
        .await;
        work.last.store(appended + AT_ONCE, Ordering::SeqCst);
        site.append(AT_ONCE).await;
    };
    tokio::join!(
        instance::<A>(site.place(), &work, &first),
        instance::<B>(elsewhere, &work, &second),
        appending
    );
    let last = work.last.into_inner();
    assert_eq!(work.handled.into_inner().unwrap(), (1..=last).collect());
    site.stands_at(last).await;
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn two_connections_take_it_from_each_other_and_lose_nothing() {
    rivals::<Gateway, Gateway>().await;
}

#[tokio::test]
async fn a_connection_and_one_that_asks_take_it_from_each_other_and_lose_nothing() {
    rivals::<Gateway, Rest>().await;
}
