//! Asking for events: from where on, how many, how long, and who may.

use seqline::access::{NewPrincipal, PrincipalKind, Rights, create_principal};
use seqline_testkit::Role;
use serde_json::json;

use super::{Consumer, Site, WAITING, agent, grant, number};
use crate::api::{Client, another_token, token};
use crate::support::{PLANTED, append};

#[tokio::test]
async fn a_consumer_begins_at_the_head_and_is_given_everything_from_then_on() {
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
async fn events_for_others_are_passed_and_never_block() {
    let site = Site::new(&[("agent.max_inflight_events", "2")]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    grant(&site.db, "billing", "invoice.read").await;
    let event = |action: &str| {
        let event = seqline::NewEvent::builder("invoice.sent", "invoice", action);
        let payload = seqline::Payload::from_json(&format!("{{\"planted\": \"{PLANTED}\"}}")).unwrap();
        event.payload(payload).build().unwrap()
    };
    let mut tx = seqline::begin(&site.db.app()).await.unwrap();
    let mut events: Vec<_> = (0..40).map(|_| event("salary.read")).collect();
    events.insert(10, event("invoice.read"));
    events.push(event("invoice.read"));
    seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    site.db.settled().await;
    invoices.knows(42).await;
    let given = invoices.delivered("").await;
    assert_eq!((given.seqs(), given.next()), (vec![11, 42], 42));
    site.append(1).await;
    append(&site.db.app(), 1..=1).await;
    invoices.acked(42).await;
    assert_eq!(invoices.delivered("limit=1").await.seqs(), [43]);
    site.stop().await;
}

#[tokio::test]
async fn only_an_agent_itself_consumes_its_events() {
    let site = Site::new(&[]).await;
    site.consumer.poll("").await;
    let address = &site.server.api().await;
    let as_somebody = |token: &str| Consumer {
        client: Client::new(address).token(token),
        path: site.consumer.path.clone(),
    };
    let other = as_somebody(&agent(&site.db, "support", PrincipalKind::Agent).await);
    let app = as_somebody(&token(&site.db, "shop", Rights { append: true, operate: false }).await);
    let operator = as_somebody(&token(&site.db, "ops", Rights { append: false, operate: true }).await);
    for (somebody, status, code) in
        [(&other, 404, "not_found"), (&app, 404, "not_found"), (&operator, 403, "forbidden")]
    {
        let answers = [
            somebody.ask("").await,
            somebody.client.get(&somebody.path).await,
            somebody.ack(&json!({ "seq": 0 })).await,
        ];
        for answer in answers {
            let problem = answer.problem(status, code);
            let reason = (status == 403).then_some("subject_kind_not_allowed");
            assert_eq!(problem["reason"].as_str(), reason, "{problem}");
        }
    }
    // What does not exist is answered like what is for others, to operators too.
    let nobody = Consumer { path: "/v1/agents/nobody/consumers/invoices".to_owned(), ..operator.clone() };
    nobody.ask("").await.problem(404, "not_found");
    // One that is no agent has no consumers, and knows of itself.
    let user = Consumer {
        client: Client::new(address).token(&agent(&site.db, "alex", PrincipalKind::User).await),
        path: "/v1/agents/alex/consumers/invoices".to_owned(),
    };
    assert_eq!(user.ask("").await.problem(403, "forbidden")["reason"], "subject_kind_not_allowed");
    assert_eq!(site.consumer.state().await["generation"], 1, "nobody took it");
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
    let site = Site::new(&[("agent.consumers_max", "2")]).await;
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
    let named =
        |name: &str| Consumer { path: format!("/v1/agents/billing/consumers/{name}"), ..invoices.clone() };
    for wrong in ["Invoices", "-a", "a.b", "a%20b", &"a".repeat(65)] {
        let problem = named(wrong).ask("").await.problem(422, "validation_failed");
        assert_eq!(problem["errors"][0]["pointer"], "/consumer", "{wrong}");
    }
    // Neither asking how it stands nor acknowledging makes one, nor asking for one that was there.
    invoices.client.get(&invoices.path).await.problem(404, "not_found");
    invoices.ack(&json!({ "seq": 0 })).await.problem(404, "not_found");
    invoices.ask("generation=1").await.problem(404, "not_found");
    for name in ["a", "b"] {
        named(name).poll("").await;
    }
    named("c").ask("").await.problem(409, "conflict");
    named("a").poll("").await;
    let mut app = site.db.connect(Role::App).await;
    let one_more = NewPrincipal {
        id: "other".to_owned(),
        kind: PrincipalKind::Agent,
        name: None,
        rights: Rights::default(),
    };
    create_principal(&mut app, &one_more, None).await.unwrap();
    let token = another_token(&site.db, "other").await;
    let other = Consumer {
        client: Client::new(site.server.api().await).token(&token),
        path: "/v1/agents/other/consumers/c".to_owned(),
    };
    other.poll("").await;
    site.stop().await;
}
