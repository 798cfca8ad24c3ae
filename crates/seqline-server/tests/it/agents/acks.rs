//! Acknowledgements: what counts, what does not, and what is given again.

use serde_json::json;

use super::{Site, number};

#[tokio::test]
async fn delivery_stops_at_the_bound_and_goes_on_with_an_acknowledgement() {
    let site = Site::new(&[("agent.max_inflight_events", "3")]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(6).await;
    invoices.knows(6).await;
    let given = invoices.delivered("").await;
    assert_eq!((given.seqs(), given.in_flight(), &given.0["caught_up"]), (vec![1, 2, 3], 3, &json!(false)));
    let full = invoices.poll("").await;
    assert_eq!((full.seqs(), full.in_flight()), (vec![], 3));
    invoices.acked(2).await;
    assert_eq!(invoices.poll("").await.seqs(), [4, 5]);
    // One that waits hears of an acknowledgement.
    let waiting = tokio::spawn({
        let invoices = invoices.clone();
        async move { invoices.poll("wait=30").await }
    });
    invoices.acked(5).await;
    assert_eq!(waiting.await.unwrap().seqs(), [6]);
    site.stop().await;
}

#[tokio::test]
async fn delivery_stops_at_the_bound_of_bytes() {
    let site = Site::new(&[("agent.inflight_bytes_max", "4096")]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    let event = |bytes: usize| {
        let payload =
            seqline::Payload::from_json(&format!("{{\"text\": \"{}\"}}", "x".repeat(bytes))).unwrap();
        seqline::NewEvent::builder("test.happened", "test", "any").payload(payload).build().unwrap()
    };
    let mut tx = seqline::begin(&site.db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(2500), event(2500), event(10_000), event(10)]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    site.db.settled().await;
    invoices.knows(4).await;
    for seqs in [[1], [2], [3], [4]] {
        let given = invoices.delivered("").await;
        assert_eq!((given.seqs(), given.in_flight()), (seqs.to_vec(), 1));
        assert_eq!(invoices.poll("").await.seqs(), [0; 0], "nothing fits beside it");
        invoices.acked(given.next()).await;
    }
    site.stop().await;
}

#[tokio::test]
async fn numbers_that_are_none_are_refused_and_others_change_nothing() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    site.append(4).await;
    invoices.knows(4).await;
    let position = invoices.poll("").await.0["next"].as_str().unwrap().to_owned();
    // A fresh consumer can acknowledge what it was told.
    invoices.ack(&json!({ "position": position })).await.ok(200);
    site.append(4).await;
    for (body, pointer) in [
        (json!({ "seq": -1 }), "/seq"),
        (json!({ "seq": 9 }), "/seq"),
        (json!({ "seq": i64::MAX }), "/seq"),
        (json!({ "seq": u64::MAX }), "/seq"),
        (json!({ "seq": 1e30 }), "/seq"),
        (json!({}), "/seq"),
        (json!({ "position": "8" }), "/position"),
        (json!({ "seq": 5, "position": position }), "/position"),
    ] {
        let problem = invoices.ack(&body).await.problem(422, "validation_failed");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body} {problem}");
    }
    for body in ["{\"seq\": \"5\"}", "{\"seq\": 5.5}", "{\"seq\": 1e99}", "{\"seqs\": 5}", "[5]", "5", "{"] {
        let answer = invoices.client.post_text(&format!("{}/ack", invoices.path), body).await;
        assert!((400..=422).contains(&answer.status), "{body} {answer:?}");
    }
    assert_eq!(number(&invoices.state().await["acked"]), 4);
    // Cumulative, also beyond what was given; the same and a lower one change nothing.
    assert_eq!(number(&invoices.acked(7).await["acked"]), 7);
    assert_eq!(number(&invoices.acked(7).await["acked"]), 7);
    let state = invoices.acked(5).await;
    assert_eq!((number(&state["acked"]), number(&state["head"]), &state["lag"]), (7, 8, &json!(1)));
    assert_eq!(invoices.delivered("").await.seqs(), [8]);
    site.stop().await;
}

#[tokio::test]
async fn a_position_of_another_history_is_not_acknowledged() {
    let site = Site::new(&[]).await;
    site.consumer.poll("").await;
    site.append(3).await;
    let other = "0198c8f2-7a4b-7000-8000-00000000abcd:2";
    site.consumer.ack(&json!({ "position": other })).await.problem(409, "conflict");
    assert_eq!(number(&site.consumer.state().await["acked"]), 0);
    site.stop().await;
}

#[tokio::test]
async fn events_of_a_lost_answer_come_again_and_are_not_acknowledged_away() {
    let site = Site::new(&[("agent.ack_timeout", "2s"), ("agent.ack_persist_interval", "1s")]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(2).await;
    invoices.knows(2).await;
    let lost = invoices.delivered("").await;
    assert_eq!((lost.seqs(), lost.next()), (vec![1, 2], 2));
    site.append(1).await;
    invoices.knows(3).await;
    let after = invoices.poll("").await;
    assert_eq!((after.seqs(), after.next()), (vec![3], 0), "the answer before may have been lost");
    invoices.acked(after.next()).await;
    // One request waits until they are overdue, and gets all of them, marked and in order.
    let again = invoices.poll("wait=30").await;
    assert_eq!((again.events(), again.next()), (vec![(1, true), (2, true), (3, true)], 3));
    invoices.acked(3).await;
    site.append(1).await;
    assert_eq!(invoices.delivered("").await.events(), [(4, false)]);
    site.stop().await;
}
