//! `seqline parked`

use insta::assert_snapshot;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, FailurePolicy, Handler, HandlerError, Round, StartAt,
};
use seqline::{Clock, NewEvent, Payload, StoredEvent};
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};
use sqlx::PgPool;
use std::time::Duration;

use crate::consumers::{audit_row, audited};
use crate::support::{DEADLINE, as_admin, masked, on, server_db};

/// Fails at these events, and handles all others.
struct Failing(&'static [i64]);

impl Handler for Failing {
    async fn handle(&self, event: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        if self.0.contains(&event.seq) { Err("refused".into()) } else { Ok(()) }
    }
}

/// A program that runs the consumer `orders`.
async fn program(db: &TestDb, failing: &'static [i64]) -> Consumers {
    let park = FailurePolicy::Park { after_attempts: 2, backoff: Duration::ZERO };
    let consumer = Consumer::new(orders(), Failing(failing)).start_at(StartAt::Oldest).on_failure(park);
    let config = ConsumerConfig::default();
    let mut program = Consumers::new(db.app_pool(2), db.options(Role::App), config, Clock::system());
    program.register(consumer).expect("the names differ");
    program.ensure().await.expect("the cursor is made");
    program
}

fn orders() -> ConsumerName {
    ConsumerName::new("orders").expect("the name is valid")
}

async fn append_orders(pool: &PgPool, ids: &[&str]) {
    let event = |id: &&str| {
        let payload = Payload::from_json("{\"card\": \"secret\"}").expect("the payload is an object");
        NewEvent::builder("order.paid", "order", "any")
            .resource_id(*id)
            .payload(payload)
            .space("shop-1")
            .build()
    };
    let events: Vec<NewEvent> = ids.iter().map(|id| event(id).expect("the event is valid")).collect();
    let mut tx = seqline::begin(pool).await.expect("a transaction begins");
    seqline::append(&mut tx, &events).await.expect("the events are appended");
    seqline::commit(tx).await.expect("the transaction commits");
}

/// The consumer `orders` has parked 1, 3 and 5 of one order and 4 of another.
pub(crate) async fn has_parked() -> TestDb {
    let db = server_db().await;
    append_orders(&db.producer(), &["17", "18", "17", "19", "17", "20"]).await;
    let program = program(&db, &[1, 4]).await;
    until(&db, &program, "SELECT last_seq = 6 FROM seqline.event_consumer_cursors").await;
    db
}

/// Rounds, until that is so.
async fn until(db: &TestDb, program: &Consumers, sql: &'static str) {
    eventually(DEADLINE, sql, async || {
        // Those that fail are what is wanted.
        drop(program.round(&orders()).await);
        sqlx::query_scalar::<_, bool>(sql).fetch_one(&db.admin()).await.expect("it can be asked")
    })
    .await;
}

async fn parked(db: &TestDb, args: &str) -> String {
    on(db, Role::App, ["parked"]).args(args.split(' ')).ok().await
}

async fn json_of(db: &TestDb, args: &str) -> Value {
    serde_json::from_str(&parked(db, &format!("{args} --json")).await).expect("it is JSON")
}

async fn refused(db: &TestDb, args: &str) -> String {
    on(db, Role::App, ["parked"]).args(args.split(' ')).refused(4).await
}

/// The numbers of those that are parked.
async fn seqs(db: &TestDb) -> Vec<i64> {
    let rows = json_of(db, "list").await;
    rows.as_array().unwrap().iter().map(|row| row["seq"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn parked_events_are_listed_with_what_they_wait_for() {
    let db = has_parked().await;
    as_admin(&db, "UPDATE seqline.parked_events SET parked_at = now() - interval '3 min 5 s'").await;
    assert_snapshot!("parked list", parked(&db, "list").await);
    assert_eq!(parked(&db, "list orders").await, parked(&db, "list").await);
    let row = &json_of(&db, "list").await[1];
    assert_eq!(
        row,
        &json!({
            "consumer": "orders", "seq": 3, "key": "order/17", "type": "order.paid", "resource": "order/17",
            "attempts": 0, "parked_at": row["parked_at"], "waits_for": 1,
        })
    );
    let status = on(&db, Role::App, ["status"]).ok().await;
    assert!(status.contains(" 4 from seq 1 "), "{status}");
}

#[tokio::test]
async fn a_list_is_bounded_and_says_when_there_are_more() {
    let db = has_parked().await;
    for form in [&[][..], &["--json"]] {
        let outcome = on(&db, Role::App, ["parked", "list", "--limit", "3"]).args(form).run().await;
        assert_eq!(outcome.sentence(0), "there are more than 3 parked events: --limit shows up to 1000");
        assert!(outcome.stdout.contains('4') && !outcome.stdout.contains("order/20"), "{outcome:?}");
    }
    on(&db, Role::App, ["parked", "list", "--limit", "4"]).ok().await;
    as_admin(&db, "TRUNCATE seqline.parked_events").await;
    let none = on(&db, Role::App, ["parked", "list"]).run().await;
    assert_eq!((none.sentence(0).as_str(), none.stdout.as_str()), ("no parked events found", ""));
    assert_eq!(json_of(&db, "list").await, json!([]));
}

#[tokio::test]
async fn one_is_shown_with_its_envelope_and_without_its_payload() {
    let db = has_parked().await;
    let text = parked(&db, "show orders --seq 1").await;
    assert_snapshot!("parked show", masked(&text));
    let shown = json_of(&db, "show orders --seq 4").await;
    for text in [text, shown.to_string()] {
        assert!(!text.contains("secret") && !text.contains("payload"), "{text}");
    }
    let (row, envelope) = (&shown["parked"], &shown["envelope"]);
    assert_eq!(
        (&row["attempts"], &row["error_type"], row.get("waits_for")),
        (&json!(2), &json!("handler"), None)
    );
    assert_eq!(
        envelope,
        &json!({
            "id": envelope["id"], "seq": 4, "type": "order.paid", "schema_version": 1, "permission_version": 0,
            "occurred_at": envelope["occurred_at"], "scope": {"space_id": "shop-1"},
            "resource": {"kind": "order", "id": "19"},
        })
    );
    assert_eq!(refused(&db, "show orders --seq 2").await, "consumer orders has no parked event 2");
}

#[tokio::test]
async fn one_that_is_missing_from_the_log_is_shown_all_the_same() {
    let db = has_parked().await;
    as_admin(&db, "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('orders', 99)").await;
    let text = parked(&db, "show orders --seq 99").await;
    assert!(text.ends_with("\nevent         missing from the log\n"), "{text}");
    assert_eq!(json_of(&db, "show orders --seq 99").await.get("envelope"), None);
    assert!(parked(&db, "list").await.contains(" missing from the log "));
    let later = "UPDATE seqline.parked_events SET next_attempt_at = '2100-01-01 10:00+00' WHERE seq = 99";
    as_admin(&db, later).await;
    let text = parked(&db, "show orders --seq 99").await;
    assert!(text.contains("\nnext attempt  2100-01-01T10:00:00Z\n"), "{text}");
}

#[tokio::test]
async fn parked_events_are_tried_again_and_those_behind_follow() {
    let db = has_parked().await;
    assert_eq!(
        parked(&db, "retry orders --seq 1").await,
        "would try parked event 1 of consumer orders again; 2 more wait behind, and follow. Add --yes to do it\n"
    );
    assert_eq!(
        json_of(&db, "retry orders").await,
        json!({"consumer": "orders", "events": 2, "behind": 2, "done": false})
    );
    assert_eq!(audited(&db).await, []);
    assert_eq!(
        refused(&db, "retry orders --seq 3").await,
        "parked event 3 of consumer orders waits for 1 of the same key. Retry or discard that one: the others follow in order"
    );
    assert_eq!(
        refused(&db, "retry orders --seq 2 --yes").await,
        "consumer orders has no parked event 2. seqline parked list shows those that there are"
    );
    assert_eq!(
        parked(&db, "retry orders --reason repaired --yes").await,
        "2 parked events of consumer orders are tried again; 2 more wait behind, and follow\n"
    );
    assert!(parked(&db, "list").await.lines().nth(1).unwrap().ends_with(" now"));
    until(&db, &program(&db, &[]).await, "SELECT count(*) = 0 FROM seqline.parked_events").await;
    assert_eq!(parked(&db, "retry orders --yes").await, "consumer orders has no parked events\n");
    let change = (json!({"attempts": {"1": 2, "4": 2}}), json!({"events": 2, "behind": 2}));
    assert_eq!(audited(&db).await, [audit_row("parked.retry", "orders", change, Some("repaired"))]);
}

#[tokio::test]
async fn it_is_said_when_nothing_is_tried_before_the_consumer_goes_on() {
    let db = has_parked().await;
    on(&db, Role::App, ["consumers", "pause", "orders", "--yes"]).ok().await;
    assert_eq!(
        parked(&db, "retry orders --seq 4 --yes").await,
        "parked event 4 of consumer orders is tried again, when the consumer goes on, which is paused\n"
    );
}

#[tokio::test]
async fn parked_events_are_given_up_with_a_reason() {
    let db = has_parked().await;
    assert_eq!(
        parked(&db, "discard orders --seq 1").await,
        "would give up parked event 1 of consumer orders, which it never handles then; 2 more wait behind, and follow. Add --yes to do it\n"
    );
    assert_eq!(
        parked(&db, "discard orders --all").await,
        "would give up 4 parked events of consumer orders, which it never handles then. Add --yes to do it\n"
    );
    assert_eq!(audited(&db).await, []);
    assert_eq!(
        refused(&db, "discard orders --seq 2 --reason no --yes").await,
        "consumer orders has no parked event 2. seqline parked list shows those that there are"
    );
    assert_eq!(
        parked(&db, "discard orders --seq 1 --reason cancelled --yes").await,
        "parked event 1 of consumer orders is given up; 2 more wait behind, and follow\n"
    );
    assert_eq!(seqs(&db).await, [3, 4, 5]);
    until(&db, &program(&db, &[]).await, "SELECT count(*) = 1 FROM seqline.parked_events").await;
    assert_eq!(
        json_of(&db, "discard orders --all --reason cancelled --yes").await,
        json!({"consumer": "orders", "events": 1, "behind": 0, "done": true})
    );
    let gone = |seq: i64, key: &str| {
        let parked = json!([{"seq": seq, "key": key, "attempts": 2, "error_type": "handler"}]);
        let change = (json!({"parked": parked}), json!({}));
        audit_row("parked.discard", "orders", change, Some("cancelled"))
    };
    assert_eq!(audited(&db).await, [gone(1, "order/17"), gone(4, "order/19")]);
}
