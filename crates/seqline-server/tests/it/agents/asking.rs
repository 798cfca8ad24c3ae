//! Asking for events: what is answered, how long, and to whom.

use seqline::access::{PrincipalKind, Rights};
use seqline_testkit::Role;
use serde_json::json;

use super::{Consumer, Site, WAITING, agent, number};
use crate::api::{Client, token};

#[tokio::test]
async fn an_answer_says_how_the_consumer_stands() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    site.append(3).await;
    invoices.knows(3).await;
    let first = invoices.poll("wait=30").await;
    assert_eq!((first.seqs(), first.next(), first.generation()), (vec![], 3, 1));
    site.append(2).await;
    let given = invoices.delivered("").await;
    assert_eq!((given.events(), given.next()), (vec![(4, false), (5, false)], 5));
    let event = &given.0["events"][0];
    assert_eq!((&event["type"], &event["payload"]["n"]), (&json!("test.happened"), &json!(1)));
    assert_eq!((&given.0["caught_up"], given.in_flight()), (&json!(true), 2));
    invoices.acked(given.next()).await;
    let after = invoices.poll("").await;
    assert_eq!((after.seqs(), after.in_flight(), number(&after.0["acked"])), (vec![], 0, 5));
    site.stop().await;
}

#[tokio::test]
async fn a_request_waits_for_an_event_as_long_as_it_says() {
    let site = Site::new(&[]).await;
    let invoices = site.consumer.clone();
    invoices.poll("").await;
    let waiting = tokio::spawn(async move { invoices.poll("wait=30").await });
    site.server.shows(WAITING, 1.0).await;
    site.append(1).await;
    assert_eq!(waiting.await.unwrap().seqs(), [1]);
    // And no longer.
    site.consumer.acked(1).await;
    assert_eq!(site.consumer.poll("wait=1").await.seqs(), [0; 0]);
    site.stop().await;
}

#[tokio::test]
async fn a_token_that_is_revoked_ends_a_request_that_waits() {
    let site = Site::new(&[]).await;
    let invoices = site.consumer.clone();
    invoices.poll("").await;
    let waiting = tokio::spawn(async move { invoices.ask("wait=30").await });
    site.server.shows(WAITING, 1.0).await;
    let mut app = site.db.connect(Role::App).await;
    sqlx::query("UPDATE seqline.api_tokens SET revoked_at = now()").execute(&mut app).await.unwrap();
    site.append(1).await;
    waiting.await.unwrap().problem(401, "unauthenticated");
    site.stop().await;
}

#[tokio::test]
async fn what_is_asked_is_checked() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    for (query, pointer) in [
        ("limit=0", "/limit"),
        ("wait=x", "/wait"),
        ("generation=-1", "/generation"),
        ("limits=1", "/limits"),
    ] {
        let problem = invoices.ask(query).await.problem(422, "validation_failed");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    // Neither asking how it stands nor acknowledging makes one, nor asking for one that was there.
    invoices.client.get(&invoices.path).await.problem(404, "not_found");
    invoices.ack(&json!({ "seq": 0 })).await.problem(404, "not_found");
    invoices.ask("generation=1").await.problem(404, "not_found");
    site.stop().await;
}

#[tokio::test]
async fn what_others_are_told_says_no_more_than_they_may_know() {
    let site = Site::new(&[]).await;
    site.consumer.poll("").await;
    let as_somebody = |token: &str, path: &str| Consumer {
        client: Client::new(&site.consumer.client.address).token(token),
        path: path.to_owned(),
    };
    let operator = token(&site.db, "ops", Rights { append: false, operate: true }).await;
    let known = as_somebody(&operator, &site.consumer.path).ask("").await.problem(403, "forbidden");
    assert_eq!(known["reason"], "subject_kind_not_allowed");
    // What does not exist is answered like what is for others, to operators too.
    let nobody = as_somebody(&operator, "/v1/agents/nobody/consumers/invoices");
    nobody.ask("").await.problem(404, "not_found");
    // One that is no agent has no consumers, and knows of itself.
    let alex = agent(&site.db, "alex", PrincipalKind::User).await;
    let itself = as_somebody(&alex, "/v1/agents/alex/consumers/invoices").ask("").await;
    assert_eq!(itself.problem(403, "forbidden")["reason"], "subject_kind_not_allowed");
    site.stop().await;
}
