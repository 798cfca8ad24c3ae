//! Acknowledgements: what counts, what does not, and how many there may be.

use super::{Gateway, Rest, SOON, Site, Transport, over_both};
use crate::support::DEADLINE;

over_both! {
    an_acknowledgement_covers_everything_below_it_also_what_was_not_given,
    repeated_and_lower_acknowledgements_change_nothing,
    numbers_that_cannot_be_acknowledged_are_refused_and_the_agent_goes_on,
    what_is_no_number_is_refused_and_changes_nothing,
    who_acknowledges_too_often_is_told_when_to_again,
}

async fn an_acknowledgement_covers_everything_below_it_also_what_was_not_given<T: Transport>() {
    let site = Site::new(&[("agent.max_inflight_events", "2"), SOON]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(6).await;
    site.consumer.knows(6).await;
    assert_eq!(agent.seqs(2).await, [1, 2]);
    agent.ack(5).await;
    assert_eq!(agent.events(1).await, [(6, false)]);
    site.stands_at(5).await;
    // All that it was given, and it is given what comes next.
    agent.ack(6).await;
    site.append(1).await;
    assert_eq!(agent.events(1).await, [(7, false)]);
    site.stop().await;
}

async fn repeated_and_lower_acknowledgements_change_nothing<T: Transport>() {
    let site = Site::new(&[SOON]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(4).await;
    assert_eq!(agent.seqs(4).await, [1, 2, 3, 4]);
    for seq in [3, 3, 1, 0] {
        agent.ack(seq).await;
        agent.is_quiet().await;
    }
    site.stands_at(3).await;
    let (mut other, begun) = T::Other::begin(&site.place()).await;
    assert_eq!(begun.acked, 3);
    assert_eq!(other.events(1).await, [(4, false)]);
    site.stop().await;
}

async fn numbers_that_cannot_be_acknowledged_are_refused_and_the_agent_goes_on<T: Transport>() {
    let site = Site::new(&[SOON]).await;
    let (mut agent, begun) = T::begin(&site.place()).await;
    site.append(3).await;
    assert_eq!(agent.seqs(3).await, [1, 2, 3]);
    let both = format!("{{\"seq\": 2, \"position\": {}}}", begun.position);
    for (ack, pointer) in [
        ("{\"seq\": -1}", "/seq"),
        ("{\"seq\": 4}", "/seq"),
        ("{\"seq\": 9223372036854775807}", "/seq"),
        ("{\"seq\": -9223372036854775808}", "/seq"),
        ("{\"seq\": 18446744073709551615}", "/seq"),
        ("{\"seq\": 99999999999999999999}", "/seq"),
        ("{\"seq\": -99999999999999999999}", "/seq"),
        ("{}", "/seq"),
        ("{\"position\": \"2\"}", "/position"),
        (&both, "/position"),
    ] {
        let refusal = agent.acknowledges(ack).await.expect_err("it is refused");
        assert_eq!((refusal.code.as_str(), refusal.ended), ("validation_failed", false), "{ack} {refusal:?}");
        assert_eq!(refusal.pointer.as_deref(), Some(pointer), "{ack}");
    }
    agent.is_quiet().await;
    agent.ack(2).await;
    site.stands_at(2).await;
    site.stop().await;
}

async fn what_is_no_number_is_refused_and_changes_nothing<T: Transport>() {
    let site = Site::new(&[SOON]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(3).await;
    site.consumer.knows(3).await;
    assert_eq!(agent.seqs(3).await, [1, 2, 3]);
    for ack in ["{\"seq\": \"3\"}", "{\"seq\": 2.5}", "{\"seq\": [3]}", "{\"sequence\": 3}", "3"] {
        let refusal = agent.acknowledges(ack).await.expect_err("it is refused");
        if refusal.ended {
            (agent, _) = T::begin(&site.place()).await;
            assert_eq!(agent.seqs(3).await, [1, 2, 3], "{ack}");
        }
    }
    agent.ack(1).await;
    site.stands_at(1).await;
    site.stop().await;
}

async fn who_acknowledges_too_often_is_told_when_to_again<T: Transport>() {
    let site = Site::new(&T::RARELY).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    let mut taken = 0;
    let refusal = loop {
        match agent.acknowledges("{\"seq\": 0}").await {
            Ok(()) => taken += 1,
            Err(refusal) => break refusal,
        }
        assert!(taken < 100, "nobody says that this is too often");
    };
    assert_eq!((refusal.code.as_str(), refusal.ended), ("rate_limited", false), "{refusal:?}");
    assert!(refusal.retry_after.is_some_and(|after| after > 0) && taken >= 4, "{taken} {refusal:?}");
    seqline_testkit::eventually(DEADLINE, "one is taken again", async || {
        agent.acknowledges("{\"seq\": 0}").await.is_ok()
    })
    .await;
    site.stop().await;
}
