//! Acknowledgements over REST: what they are answered, and what is given again.

use serde_json::json;

use super::{Site, number};

#[tokio::test]
async fn a_request_that_waits_hears_of_an_acknowledgement() {
    let site = Site::new(&[("agent.max_inflight_events", "3")]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(4).await;
    invoices.knows(4).await;
    let given = invoices.delivered("").await;
    assert_eq!((given.seqs(), given.in_flight(), &given.0["caught_up"]), (vec![1, 2, 3], 3, &json!(false)));
    let full = invoices.poll("").await;
    assert_eq!((full.seqs(), full.in_flight()), (vec![], 3));
    let waiting = tokio::spawn({
        let invoices = invoices.clone();
        async move { invoices.poll("wait=30").await }
    });
    invoices.acked(3).await;
    assert_eq!(waiting.await.unwrap().seqs(), [4]);
    site.stop().await;
}

#[tokio::test]
async fn an_acknowledgement_is_answered_with_how_the_consumer_stands() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(4).await;
    invoices.knows(4).await;
    let state = invoices.acked(3).await;
    assert_eq!((number(&state["acked"]), number(&state["head"]), &state["lag"]), (3, 4, &json!(1)));
    assert_eq!(number(&invoices.acked(1).await["acked"]), 3);
    for body in ["{\"seq\": 1e99}", "{\"seqs\": 4}", "[4]", "{"] {
        let answer = invoices.client.post_text(&format!("{}/ack", invoices.path), body).await;
        assert!((400..=422).contains(&answer.status), "{body} {answer:?}");
    }
    assert_eq!(number(&invoices.state().await["acked"]), 3);
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
    let site = Site::new(&[("agent.ack_timeout", "10s"), ("agent.ack_persist_interval", "1s")]).await;
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
