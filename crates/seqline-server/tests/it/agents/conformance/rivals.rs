//! Two instances of an agent that take its consumer from each other, at two servers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::{Gateway, Place, Rest, SOON, Site, Transport};

/// How many events there are.
const EVENTS: i64 = 300;
/// How often each comes back after it was replaced.
const TRIES: usize = 8;

/// What both have handled.
type Handled = Arc<Mutex<BTreeSet<i64>>>;

/// Handles and acknowledges event after event, and takes the consumer back a few times.
async fn instance<T: Transport>(place: Place, handled: Handled) -> usize {
    let mut replaced = 0;
    loop {
        let (mut agent, begun) = T::begin(&place).await;
        let unhandled = |acked: i64| (1..=acked).find(|seq| !handled.lock().unwrap().contains(seq));
        assert_eq!(unhandled(begun.acked), None, "acknowledged and handled by nobody");
        let mut last = begun.acked;
        while last < EVENTS {
            let Ok((seq, redelivered)) = agent.next().await else { break };
            assert_eq!((seq, redelivered), (last + 1, false));
            handled.lock().unwrap().insert(seq);
            last = seq;
            let answer = agent.acknowledges(&format!("{{\"seq\": {seq}}}")).await;
            if answer.is_err_and(|refusal| refusal.ended) {
                break;
            }
        }
        if last == EVENTS {
            return replaced;
        }
        replaced += 1;
        if replaced > TRIES {
            return replaced;
        }
    }
}

async fn rivals<A: Transport + 'static, B: Transport + 'static>() {
    let keys = [
        SOON,
        ("agent.max_inflight_events", "20"),
        ("agent.acks_per_second", "100000"),
        ("agent.acks_burst", "100000"),
    ];
    let site = Site::new(&keys).await;
    let (other, there) = site.another_server(&keys).await;
    let handled = Handled::default();
    A::begin(&site.place()).await;
    let elsewhere = site.place_of(&site.token, &there);
    let appending = async {
        for _ in 0..EVENTS / 10 {
            site.append(10).await;
        }
    };
    let (first, second, ()) = tokio::join!(
        instance::<A>(site.place(), handled.clone()),
        instance::<B>(elsewhere, handled.clone()),
        appending
    );
    assert!(first > 0 && second > 0, "they did not take it from each other: {first} {second}");
    assert_eq!(*handled.lock().unwrap(), (1..=EVENTS).collect());
    site.stands_at(EVENTS).await;
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
