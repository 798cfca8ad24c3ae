//! Windows: shared by all requests of a consumer, on all servers, until somebody else takes it.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use seqline::access::delete_principal;
use seqline::agent::{AgentConsumer, HolderKind, Save, Saved, Take, Taking, save, take};
use seqline::consumer::Mode;
use seqline_testkit::{Role, TestDb};
use serde_json::json;
use uuid::Uuid;

use super::{Site, epoch, number};

/// Takes the consumer as a connection of another process does, and returns its session.
async fn taken_elsewhere(db: &TestDb) -> Uuid {
    let consumer = AgentConsumer::new("billing", "invoices").unwrap();
    let session = Uuid::now_v7();
    let taking = Taking {
        consumer: &consumer,
        session,
        kind: HolderKind::Gateway,
        start: 0,
        consumers_max: 10,
        unless_seen_within: None,
        unless_after: None,
        but_from: None,
        epoch: epoch(db).await,
    };
    let taken = take(&mut db.connect(Role::App).await, &taking).await.unwrap();
    assert!(matches!(taken, Take::Taken { .. }), "{taken:?}");
    session
}

/// Whether that session can save this.
async fn saves(db: &TestDb, session: Uuid, acked_seq: i64) -> bool {
    let consumer = AgentConsumer::new("billing", "invoices").unwrap();
    let saving = Save { consumer, session, acked_seq, knows_lost: true };
    save(&mut db.connect(Role::App).await, &saving).await.unwrap() == Saved::Done
}

#[tokio::test]
async fn any_server_goes_on_with_a_window() {
    let site = Site::new(&[("agent.max_inflight_events", "4")]).await;
    let here = &site.consumer;
    let (other, there) = site.another_server(&[("agent.max_inflight_events", "4")]).await;
    let generation = here.poll("").await.generation();
    site.append(7).await;
    here.knows(7).await;
    there.knows(7).await;
    assert_eq!(here.poll("limit=2").await.seqs(), [1, 2]);
    let given = there.poll("").await;
    assert_eq!((given.seqs(), given.in_flight(), given.generation()), (vec![3, 4], 4, generation));
    assert_eq!(here.poll("").await.seqs(), [0; 0], "the window is full, wherever it was filled");
    there.acked(3).await;
    assert_eq!(here.poll("").await.seqs(), [5, 6, 7]);
    // The server that a client was at is gone.
    site.server.running.signal(Signal::SIGKILL);
    let given = there.poll(&format!("generation={generation}")).await;
    assert_eq!((given.seqs(), given.in_flight()), (vec![], 4));
    there.acked(7).await;
    other.stop().await;
}

#[tokio::test]
async fn requests_at_once_share_a_window_and_no_event_is_given_to_two() {
    let site = Site::new(&[("agent.max_inflight_events", "1000")]).await;
    let (other, there) = site.another_server(&[("agent.max_inflight_events", "1000")]).await;
    site.consumer.poll("").await;
    site.append(200).await;
    site.consumer.knows(200).await;
    there.knows(200).await;
    let asking: Vec<_> = (0..40)
        .map(|at| {
            let consumer = if at % 2 == 0 { site.consumer.clone() } else { there.clone() };
            tokio::spawn(async move { consumer.poll("limit=7").await.events() })
        })
        .collect();
    let mut given = Vec::new();
    for asked in asking {
        given.extend(asked.await.unwrap());
    }
    given.sort_unstable();
    assert_eq!(given, (1..=200).map(|seq| (seq, false)).collect::<Vec<_>>());
    site.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn who_asks_takes_the_consumer_from_who_has_it() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(3).await;
    invoices.knows(3).await;
    let mine = invoices.delivered("limit=2").await;
    let session = taken_elsewhere(&site.db).await;
    // With its generation an agent hears of that; without, it takes the consumer back.
    for answer in [
        invoices.ask(&format!("generation={}", mine.generation())).await,
        invoices.ack(&json!({ "seq": 2, "generation": mine.generation() })).await,
    ] {
        let problem = answer.problem(409, "consumer_replaced");
        assert_eq!(problem["holder"]["over"], "gateway", "{problem}");
    }
    let state = invoices.state().await;
    assert_eq!((&state["holder"]["over"], number(&state["acked"])), (&json!("gateway"), 0));
    assert!(saves(&site.db, session, 1).await, "neither how it stands nor an acknowledgement takes it");
    let again = invoices.poll("").await;
    assert_eq!(again.generation(), mine.generation() + 2);
    assert_eq!(again.events(), [(2, false), (3, false)], "what is given again for this reason is not marked");
    assert!(!saves(&site.db, session, 3).await);
    assert_eq!(number(&invoices.state().await["acked"]), 1);
    let line = site.server.says("consumer of an agent taken over").await;
    assert_eq!((&line["agent"], &line["consumer"]), (&json!("billing"), &json!("invoices")));
    assert_eq!(line["replaced"], session.to_string());
    site.stop().await;
}

#[tokio::test]
async fn a_window_that_nobody_asked_for_in_a_while_begins_anew() {
    let site = Site::new(&[("sync.resume_window", "1s")]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(2).await;
    invoices.knows(2).await;
    let mine = invoices.delivered("").await;
    let mut app = site.db.connect(Role::App).await;
    sqlx::query("UPDATE seqline.agent_consumer_cursors SET seen_at = seen_at - interval '10 s'")
        .execute(&mut app)
        .await
        .unwrap();
    let again = invoices.poll(&format!("generation={}", mine.generation())).await;
    assert_eq!((again.events(), again.generation()), (vec![(1, false), (2, false)], mine.generation() + 1));
    site.stop().await;
}

#[tokio::test]
async fn a_window_of_another_version_begins_anew() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    invoices.poll("").await;
    site.append(2).await;
    invoices.knows(2).await;
    invoices.delivered("").await;
    let mut app = site.db.connect(Role::App).await;
    sqlx::query("UPDATE seqline.agent_consumer_cursors SET rest_window = '{\"v\": 2}'")
        .execute(&mut app)
        .await
        .unwrap();
    assert_eq!(invoices.poll("").await.events(), [(1, false), (2, false)]);
    site.stop().await;
}

#[tokio::test]
async fn consumers_of_an_agent_do_not_know_of_each_other_and_go_with_it() {
    let site = Site::new(&[]).await;
    let invoices = &site.consumer;
    let mut letters = invoices.clone();
    letters.path = "/v1/agents/billing/consumers/letters".to_owned();
    invoices.poll("").await;
    letters.poll("").await;
    site.append(3).await;
    invoices.knows(3).await;
    assert_eq!(invoices.delivered("").await.seqs(), [1, 2, 3]);
    invoices.acked(3).await;
    let both: BTreeSet<_> = letters.delivered("").await.seqs().into_iter().collect();
    assert_eq!(both, BTreeSet::from([1, 2, 3]));
    let mut app = site.db.connect(Role::App).await;
    delete_principal(&mut app, "billing", Mode::Apply { why: None }).await.unwrap();
    invoices.ask("").await.problem(401, "unauthenticated");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.agent_consumer_cursors")
        .fetch_one(&mut app)
        .await
        .unwrap();
    assert_eq!(left, 0);
    site.stop().await;
}
