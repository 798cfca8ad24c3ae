//! Where an agent begins, what it is given, in which order, how much, and to whom else.

use std::collections::BTreeSet;

use seqline::{NewEvent, Payload};

use super::{Gateway, Rest, SOON, Site, Transport, over_both};
use crate::agents::grant;
use crate::support::PLANTED;

over_both! {
    a_consumer_begins_at_the_head_and_can_acknowledge_that,
    everything_comes_once_and_in_order_and_what_is_for_others_never_blocks,
    delivery_stops_at_the_bound_and_goes_on_with_an_acknowledgement,
    delivery_stops_at_the_bound_of_bytes,
    what_is_overdue_comes_again_and_that_alone_is_marked,
    what_comes_again_after_a_takeover_is_not_marked,
    what_was_overdue_is_not_marked_for_the_next_holder,
}

async fn a_consumer_begins_at_the_head_and_can_acknowledge_that<T: Transport>() {
    let site = Site::new(&[SOON]).await;
    site.append(3).await;
    site.consumer.knows(3).await;
    let (mut agent, begun) = T::begin(&site.place()).await;
    assert_eq!((begun.acked, begun.generation, &begun.resync), (3, 1, &None));
    agent.is_quiet().await;
    let told = format!("{{\"position\": {}}}", begun.position);
    agent.acknowledges(&told).await.expect("what it was told can be acknowledged");
    agent.ack(3).await;
    site.append(2).await;
    assert_eq!(agent.events(2).await, [(4, false), (5, false)]);
    agent.ack(5).await;
    site.stands_at(5).await;
    agent.is_quiet().await;
    let (mut again, begun) = T::begin(&site.place()).await;
    assert_eq!(begun.acked, 5);
    again.is_quiet().await;
    site.stop().await;
}

async fn everything_comes_once_and_in_order_and_what_is_for_others_never_blocks<T: Transport>() {
    let site = Site::new(&[("agent.max_inflight_events", "7"), SOON]).await;
    grant(&site.db, "billing", "invoice.read").await;
    let (mut agent, _) = T::begin(&site.place()).await;
    // Of ten events three are for it: one for all, one that it was granted, one for it alone.
    let event = |n: i64| {
        let (action, audience) = match n % 10 {
            2 => ("any", None),
            3 => ("invoice.read", None),
            7 => ("salary.read", Some("billing")),
            8 => ("any", Some("support")),
            _ => ("salary.read", None),
        };
        let payload = Payload::from_json(&format!("{{\"planted\": \"{PLANTED}\"}}")).unwrap();
        let event = NewEvent::builder("test.happened", "test", action).payload(payload);
        let event = audience.into_iter().fold(event, |event, audience| event.audience(audience));
        event.build().unwrap()
    };
    // In transactions of several sizes, one of which has nothing for it.
    let mut appended = 0;
    for size in [1, 2, 39, 4, 7, 60, 1, 86, 200] {
        let mut tx = seqline::begin(&site.db.app()).await.unwrap();
        let events: Vec<_> = (appended..appended + size).map(|n| event(n + 1)).collect();
        seqline::append(&mut tx, &events).await.unwrap();
        seqline::commit(tx).await.unwrap();
        appended += size;
    }
    site.db.settled().await;
    let expected: Vec<i64> = (1..=appended).filter(|n| [2, 3, 7].contains(&(n % 10))).collect();
    let mut given = Vec::new();
    while given.len() < expected.len() {
        let [event] = agent.events(1).await[..] else { panic!() };
        given.push(event);
        if given.len() % 3 == 0 {
            agent.ack(event.0).await;
        }
    }
    assert_eq!(given, expected.iter().map(|seq| (*seq, false)).collect::<Vec<_>>());
    agent.ack(*expected.last().unwrap()).await;
    agent.is_quiet().await;
    site.append(1).await;
    assert_eq!(agent.events(1).await, [(appended + 1, false)]);
    site.stop().await;
}

async fn delivery_stops_at_the_bound_and_goes_on_with_an_acknowledgement<T: Transport>() {
    let site = Site::new(&[("agent.max_inflight_events", "3")]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(7).await;
    site.consumer.knows(7).await;
    assert_eq!(agent.seqs(3).await, [1, 2, 3]);
    agent.is_quiet().await;
    agent.ack(2).await;
    assert_eq!(agent.seqs(2).await, [4, 5]);
    agent.is_quiet().await;
    agent.ack(5).await;
    assert_eq!(agent.seqs(2).await, [6, 7]);
    agent.is_quiet().await;
    site.stop().await;
}

async fn delivery_stops_at_the_bound_of_bytes<T: Transport>() {
    let site = Site::new(&[("agent.inflight_bytes_max", "4096")]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    let event = |bytes: usize| {
        let payload = Payload::from_json(&format!("{{\"text\": \"{}\"}}", "x".repeat(bytes))).unwrap();
        NewEvent::builder("test.happened", "test", "any").payload(payload).build().unwrap()
    };
    let mut tx = seqline::begin(&site.db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(2500), event(2500), event(10_000), event(10)]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    site.db.settled().await;
    site.consumer.knows(4).await;
    for seq in 1..=4 {
        assert_eq!(agent.seqs(1).await, [seq]);
        agent.is_quiet().await;
        agent.ack(seq).await;
    }
    site.stop().await;
}

/// Whether each of these is marked exactly if it was given before, and comes behind the one before or when the agent's acknowledgement does.
fn are_in_order(events: &[(i64, bool)], given: &mut BTreeSet<i64>, last: &mut i64, acked: &[i64]) {
    for (seq, redelivered) in events {
        assert_eq!(*redelivered, !given.insert(*seq), "{seq} of {events:?}");
        assert!(*seq == *last + 1 || acked.contains(&(*seq - 1)), "{seq} after {last} of {events:?}");
        *last = *seq;
    }
}

async fn what_is_overdue_comes_again_and_that_alone_is_marked<T: Transport>() {
    let site = Site::new(&[("agent.ack_timeout", "500ms"), ("agent.ack_persist_interval", "100ms")]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    let (mut given, mut last) = (BTreeSet::new(), 0);
    let until = async |agent: &mut T, event, given: &mut BTreeSet<i64>, last: &mut i64, acked: &[i64]| loop {
        let came = agent.events(1).await;
        are_in_order(&came, given, last, acked);
        if came == [event] {
            break;
        }
    };
    site.append(3).await;
    until(&mut agent, (3, false), &mut given, &mut last, &[0]).await;
    until(&mut agent, (3, true), &mut given, &mut last, &[0]).await;
    site.append(1).await;
    until(&mut agent, (4, false), &mut given, &mut last, &[0]).await;
    until(&mut agent, (4, true), &mut given, &mut last, &[0]).await;
    // An acknowledgement that comes late counts, and a lower one does not: what it covers does not come any more.
    agent.ack(2).await;
    agent.ack(1).await;
    are_in_order(&agent.came(), &mut given, &mut last, &[0, 2]);
    for _ in 0..4 {
        let [(seq, redelivered)] = agent.events(1).await[..] else { panic!() };
        assert!(seq > 2 && redelivered, "{seq}");
        are_in_order(&[(seq, redelivered)], &mut given, &mut last, &[2]);
    }
    agent.ack(4).await;
    agent.came();
    site.append(1).await;
    assert_eq!(agent.events(1).await, [(5, false)], "nothing comes again but what is overdue");
    agent.ack(5).await;
    site.stands_at(5).await;
    site.stop().await;
}

async fn what_comes_again_after_a_takeover_is_not_marked<T: Transport>() {
    let site = Site::new(&[SOON]).await;
    let (mut mine, begun) = T::begin(&site.place()).await;
    assert_eq!(begun.generation, 1);
    site.append(4).await;
    assert_eq!(mine.seqs(4).await, [1, 2, 3, 4]);
    mine.ack(1).await;
    // Neither how it stands nor an acknowledgement over REST takes it.
    site.consumer.state().await;
    site.consumer.acked(1).await;
    mine.is_quiet().await;
    let (mut other, begun) = T::Other::begin(&site.place()).await;
    assert_eq!((begun.acked, begun.generation), (1, 2));
    assert_eq!(mine.ended().await, "consumer_replaced");
    assert_eq!(other.events(3).await, [(2, false), (3, false), (4, false)]);
    other.ack(2).await;
    let (mut again, begun) = T::begin(&site.place()).await;
    assert_eq!((begun.acked, begun.generation), (2, 3));
    assert_eq!(again.events(2).await, [(3, false), (4, false)]);
    assert_eq!(other.ended().await, "consumer_replaced");
    again.ack(4).await;
    site.stands_at(4).await;
    site.stop().await;
}

async fn what_was_overdue_is_not_marked_for_the_next_holder<T: Transport>() {
    let site = Site::new(&[("agent.ack_timeout", "500ms"), ("agent.ack_persist_interval", "100ms")]).await;
    let (mut mine, _) = T::begin(&site.place()).await;
    site.append(2).await;
    assert_eq!(mine.events(2).await, [(1, false), (2, false)]);
    assert_eq!(mine.events(2).await, [(1, true), (2, true)]);
    let (mut other, _) = T::Other::begin(&site.place()).await;
    assert_eq!(other.events(2).await, [(1, false), (2, false)]);
    assert_eq!(other.events(1).await, [(1, true)]);
    site.stop().await;
}
