//! Who may consume the events of an agent, as long as they may, and under which names.

use seqline::access::{PrincipalKind, Rights, delete_principal, disable_principal};
use seqline::consumer::Mode;
use seqline_testkit::{Role, eventually};

use super::{Consumer, Gateway, Place, Rest, SOON, Site, Transport, over_both};
use crate::agents::agent;
use crate::api::{Client, another_token, token};
use crate::support::DEADLINE;

over_both! {
    nobody_else_has_a_consumer_of_an_agent,
    a_token_that_is_revoked_acknowledges_nothing_more,
    a_token_that_is_revoked_ends_it_in_the_middle_of_a_backlog,
    who_may_not_any_more_is_given_nothing_more,
    names_and_numbers_of_consumers_have_bounds,
}

async fn nobody_else_has_a_consumer_of_an_agent<T: Transport>() {
    let site = Site::new(&[SOON]).await;
    let (mut mine, _) = T::begin(&site.place()).await;
    site.append(2).await;
    assert_eq!(mine.seqs(2).await, [1, 2]);
    let db = &site.db;
    let operates = Rights { append: false, operate: true };
    let mut told = Vec::new();
    for token in [
        agent(db, "alex", PrincipalKind::User).await,
        token(db, "shop", Rights { append: true, operate: false }).await,
        token(db, "ops", operates).await,
        agent(db, "support", PrincipalKind::Agent).await,
    ] {
        told.push(T::intrudes(&site.place_of(&token, &site.consumer)).await);
    }
    assert_eq!(told, T::STRANGERS);
    let state = site.consumer.state().await;
    assert_eq!((&state["generation"], super::number(&state["acked"])), (&1.into(), 0), "nobody took it");
    mine.ack(1).await;
    mine.is_quiet().await;
    site.stands_at(1).await;
    site.stop().await;
}

/// Waits until the server refuses this token.
async fn is_not_good(site: &Site) {
    eventually(DEADLINE, "the token is not good any more", async || {
        site.consumer.client.get("/v1/me").await.status == 401
    })
    .await;
}

const REVOKED: &str = "UPDATE seqline.api_tokens SET revoked_at = now()";

async fn a_token_that_is_revoked_acknowledges_nothing_more<T: Transport>() {
    let site = Site::new(&[("agent.max_inflight_events", "10"), ("api.permissions_max_age", "100ms")]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(50).await;
    site.consumer.knows(50).await;
    assert_eq!(agent.seqs(10).await, (1..=10).collect::<Vec<_>>());
    let mut app = site.db.connect(Role::App).await;
    sqlx::query(REVOKED).execute(&mut app).await.unwrap();
    is_not_good(&site).await;
    let refusal = agent.acknowledges("{\"seq\": 10}").await.expect_err("it is refused");
    assert_eq!((refusal.code.as_str(), agent.came()), ("unauthenticated", vec![]));
    let stored: i64 = sqlx::query_scalar("SELECT acked_seq FROM seqline.agent_consumer_cursors")
        .fetch_one(&mut app)
        .await
        .unwrap();
    assert_eq!(stored, 0);
    site.stop().await;
}

/// Nothing of the backlog is on its way when the token is revoked: there is no room for it. Then somebody makes room whose token is good.
async fn a_token_that_is_revoked_ends_it_in_the_middle_of_a_backlog<T: Transport>() {
    let site = Site::new(&[("agent.max_inflight_events", "10"), ("api.permissions_max_age", "100ms")]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(50).await;
    site.consumer.knows(50).await;
    assert_eq!(agent.seqs(10).await, (1..=10).collect::<Vec<_>>());
    let mut app = site.db.connect(Role::App).await;
    sqlx::query(REVOKED).execute(&mut app).await.unwrap();
    is_not_good(&site).await;
    let good = another_token(&site.db, "billing").await;
    let client = Client::new(&site.consumer.client.address).token(&good);
    let colleague = Consumer { client, ..site.consumer.clone() };
    colleague.acked(10).await;
    assert_eq!(agent.ended().await, "unauthenticated");
    // What it was not given is there for whoever may have it.
    let mut next = T::begin(&site.place_of(&good, &colleague)).await.0;
    assert_eq!(next.seqs(10).await, (11..=20).collect::<Vec<_>>());
    site.stop().await;
}

async fn who_may_not_any_more_is_given_nothing_more<T: Transport>() {
    for how in ["its token is revoked", "it is disabled", "it is deleted"] {
        let site = Site::new(&[]).await;
        let (mut agent, _) = T::begin(&site.place()).await;
        site.append(1).await;
        assert_eq!(agent.seqs(1).await, [1]);
        let mut app = site.db.connect(Role::App).await;
        let losing = async {
            T::is_waiting(&site.server).await;
            match how {
                "it is disabled" => assert!(disable_principal(&mut app, "billing", None).await.unwrap()),
                "it is deleted" => {
                    delete_principal(&mut app, "billing", Mode::Apply { why: None }).await.unwrap();
                }
                _ => {
                    sqlx::query(REVOKED).execute(&mut app).await.unwrap();
                }
            }
            // With the event that comes next, at the latest, which it is not given.
            site.append(1).await;
        };
        let (told, ()) = tokio::join!(agent.ended(), losing);
        // Its consumers are gone with it, which may be noticed first.
        let is_gone = how == "it is deleted" && told == "not_found";
        assert!(told == "unauthenticated" || is_gone, "{how}: {told}");
        site.stop().await;
    }
}

async fn names_and_numbers_of_consumers_have_bounds<T: Transport>() {
    let site = Site::new(&[("agent.consumers_max", "2")]).await;
    let named = |name: &str| Place { path: format!("/v1/agents/billing/consumers/{name}"), ..site.place() };
    for wrong in ["Invoices", "-a", "_a", "a.b", &"a".repeat(65)] {
        let refusal = T::refused(&named(wrong)).await;
        assert_eq!(
            (refusal.code.as_str(), refusal.pointer.as_deref()),
            ("validation_failed", Some("/consumer"))
        );
    }
    for name in ["0_a-b", &"a".repeat(64)] {
        let (mut agent, _) = T::begin(&named(name)).await;
        agent.is_quiet().await;
    }
    assert_eq!(T::refused(&named("c")).await.code, "conflict");
    // Those that it has are still there, and others have their own.
    T::begin(&named("0_a-b")).await;
    let other = agent(&site.db, "other", PrincipalKind::Agent).await;
    let of_other = Place { token: other, path: "/v1/agents/other/consumers/c".to_owned(), ..site.place() };
    T::begin(&of_other).await;
    site.stop().await;
}
