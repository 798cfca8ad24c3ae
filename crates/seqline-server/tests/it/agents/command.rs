//! `seqline agents consumers`

use insta::assert_snapshot;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};

use super::{Site, number};
use crate::gateway::socket::Socket;
use crate::support::{DEADLINE, masked, on};

async fn run(db: &TestDb, args: &str) -> String {
    masked(&on(db, Role::App, args.split(' ')).ok().await)
}

async fn json_of(db: &TestDb, args: &str) -> Value {
    let printed = on(db, Role::App, format!("{args} --json").split(' ')).ok().await;
    serde_json::from_str(&printed).expect("it is JSON")
}

async fn refused(db: &TestDb, args: &str) -> String {
    on(db, Role::App, args.split(' ')).refused(4).await
}

#[tokio::test]
async fn operators_see_how_consumers_stand_and_move_them() {
    let site = Site::new(&[]).await;
    let (db, invoices) = (&site.db, &site.consumer);
    let outcome = on(db, Role::App, ["agents", "consumers", "list"]).run().await;
    assert_eq!(outcome.stderr, "seqline: no consumers of agents found\n");
    invoices.poll("").await;
    site.append(5).await;
    invoices.knows(5).await;
    assert_eq!(invoices.delivered("").await.seqs(), [1, 2, 3, 4, 5]);
    invoices.acked(2).await;
    let listed = run(db, "agents consumers list").await;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows,
        [
            vec!["agent", "consumer", "acked", "lag", "held", "over", "since", "lost"],
            vec!["billing", "invoices", "2", "3", "rest", "[time]", "-"],
        ]
    );
    let shown = run(db, "agents consumers show billing invoices").await;
    assert_snapshot!(shown, @r"
    consumer      billing/invoices
    acknowledged  2
    lag           3
    generation    1
    held          over rest since [time], heard of at [time]
    created       [time]
    changed       [time]
    ");
    let plan = run(db, "agents consumers release billing invoices").await;
    assert!(plan.starts_with("would take billing/invoices from who holds it over rest since 2"), "{plan}");
    let planned = json_of(db, "agents consumers show billing invoices").await;
    assert_eq!((&planned["holder"]["over"], &planned["generation"]), (&json!("rest"), &json!(1)));
    let done = run(db, "agents consumers release billing invoices --yes --reason stuck").await;
    assert!(done.starts_with("billing/invoices is taken from who held it over rest since 2"), "{done}");
    assert_eq!(
        run(db, "agents consumers release billing invoices --yes").await,
        "nobody holds billing/invoices"
    );
    // What somebody has done since may be set back with that, so it is not acknowledged any more; nobody is in the way of asking.
    let acked = invoices.ack(&json!({ "seq": 3, "generation": 1 })).await;
    assert_eq!(acked.problem(409, "consumer_replaced").get("holder"), None);
    assert_eq!(invoices.ask("generation=1").await.ok(200)["generation"], 3);

    let plan = run(db, "agents consumers reset billing invoices --to 1").await;
    assert_eq!(plan, "would set billing/invoices from 2 to 1. Add --yes to do it");
    let done = run(db, "agents consumers reset billing invoices --to 1 --yes").await;
    assert_eq!(done, "billing/invoices is set from 2 to 1: whoever comes next is given what follows");
    assert_eq!(invoices.delivered("").await.events(), [(2, false), (3, false), (4, false), (5, false)]);
    let shown = json_of(db, "agents consumers list billing").await;
    assert_eq!((&shown[0]["acked_seq"], &shown[0]["lag"]), (&json!(1), &json!(4)));
    assert_eq!(json_of(db, "agents consumers list shop").await, json!([]));

    for (args, message) in [
        ("show billing letters", "there is no consumer billing/letters"),
        ("reset billing letters --to 1 --yes", "this agent has no consumer of this name"),
        ("reset billing invoices --to 6 --yes", "the log has no position 6"),
        ("show billing Invoices", "a consumer's name has 1 to 64 lowercase letters"),
    ] {
        let said = refused(db, &format!("agents consumers {args}")).await;
        assert!(said.contains(message), "{said}");
    }
    site.stop().await;
}

#[tokio::test]
async fn a_long_list_goes_on_after_the_last_one() {
    let site = Site::new(&[]).await;
    for name in ["a", "b", "c"] {
        let mut consumer = site.consumer.clone();
        consumer.path = format!("/v1/agents/billing/consumers/{name}");
        consumer.poll("").await;
    }
    let outcome = on(&site.db, Role::App, ["agents", "consumers", "list", "--limit", "2"]).run().await;
    assert_eq!(outcome.stderr, "seqline: there are more: --after billing/b goes on\n", "{outcome:?}");
    let rest = json_of(&site.db, "agents consumers list --after billing/b").await;
    assert_eq!((rest.as_array().unwrap().len(), &rest[0]["consumer"]), (1, &json!("c")));
    site.stop().await;
}

#[tokio::test]
async fn one_that_is_out_of_use_is_deleted_whoever_holds_it() {
    let site = Site::new(&[("agent.ack_persist_interval", "50ms")]).await;
    let (db, invoices) = (&site.db, &site.consumer);
    let identify = json!({ "token": site.token, "consumer": "invoices" });
    let (mut socket, _) = Socket::identified(&invoices.client.address, &identify).await;
    socket.expect("catchup.complete").await;
    site.append(5).await;
    assert_eq!(socket.seqs(5).await, [1, 2, 3, 4, 5]);
    let plan = run(db, "agents consumers delete billing invoices").await;
    let (before, after) = plan.split_once(" since 2").expect("it is held");
    assert_eq!(
        before,
        "would delete billing/invoices, which has acknowledged up to 0 and is held over gateway"
    );
    assert!(
        after.ends_with(": whoever comes under this name begins at the head. Add --yes to do it"),
        "{plan}"
    );
    // Only a plan.
    socket.ack(2).await;
    eventually(DEADLINE, "it is saved", async || number(&invoices.state().await["acked"]) == 2).await;
    let done = json_of(db, "agents consumers delete billing invoices --yes").await;
    let expected = json!({
        "agent": "billing", "consumer": "invoices", "acked_seq": 2, "held_over": "gateway", "done": true, "changed": true,
    });
    assert_eq!(done, expected);
    socket.ack(3).await;
    let (_, closed) = socket.closed().await;
    assert_eq!((closed.code, &closed.reason["reason"]), (4018, &json!("consumer_released")));
    assert_eq!(json_of(db, "agents consumers list").await, json!([]));

    let polled = invoices.poll("").await;
    assert_eq!((polled.seqs(), polled.next(), polled.generation()), (vec![], 5, 1));
    run(db, "agents consumers release billing invoices --yes").await;
    let done = run(db, "agents consumers delete billing invoices --yes").await;
    assert_eq!(
        done,
        "billing/invoices is deleted, which had acknowledged up to 5 and was held by nobody: \
         whoever comes under this name begins at the head"
    );
    for args in ["delete billing invoices", "delete billing invoices --yes"] {
        let said = refused(db, &format!("agents consumers {args}")).await;
        assert!(said.contains("this agent has no consumer of this name"), "{said}");
    }
    site.stop().await;
}
