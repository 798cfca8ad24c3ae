//! `seqline redact`

use seqline::{NewEvent, Payload};
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::consumers::{audit_row, audited};
use crate::sequencing::{after_commit, sequencer_of_the_test};
use crate::support::{PLANTED, as_admin, on, small_partitions};

const YES: [&str; 3] = ["--yes", "--reason", "asked to"];

/// Appends an event about each of these orders, and returns their ids.
async fn append(db: &TestDb, orders: &[&str]) -> Vec<Uuid> {
    let event = |id: &&str| {
        let payload = Payload::from_json(&format!("{{\"card\": \"{PLANTED}\"}}")).unwrap();
        NewEvent::builder("order.paid", "order", "any").resource_id(*id).payload(payload).build().unwrap()
    };
    let events: Vec<NewEvent> = orders.iter().map(event).collect();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    let ids = seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    ids
}

/// What a reader is given: number, type, whether it is redacted, and whether it says anything.
async fn shown(db: &TestDb) -> Vec<(i64, String, bool, bool)> {
    let lines = on(db, Role::Reader, ["tail", "--after", "0", "--json"]).ok().await;
    let envelopes = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    envelopes
        .map(|envelope| {
            let (seq, name) = (envelope["seq"].as_i64().unwrap(), envelope["type"].as_str().unwrap());
            (seq, name.to_owned(), envelope["redacted"] == true, envelope["payload"] != json!({}))
        })
        .collect()
}

fn says(seq: i64) -> (i64, String, bool, bool) {
    (seq, "order.paid".to_owned(), false, true)
}

fn redacted(seq: i64) -> (i64, String, bool, bool) {
    (seq, "order.paid".to_owned(), true, false)
}

fn notice(seq: i64) -> (i64, String, bool, bool) {
    (seq, "log.redacted".to_owned(), false, true)
}

#[tokio::test]
async fn one_event_is_redacted_after_it_was_said_what_would_be_done() {
    let db = TestDb::at_commit().await;
    let ids = append(&db, &["17", "17"]).await;
    let event = ["redact".to_owned(), "event".to_owned(), ids[0].to_string()];
    let plan = on(&db, Role::App, &event).ok().await;
    let would = "what that says is removed from the log, and nothing brings it back. Add --yes to do it";
    let partition = "partition     event_log_from_0000000000000000001";
    assert_eq!(plan, format!("would redact event {}: {would}\n{partition}\n", ids[0]));
    assert_eq!(shown(&db).await, [says(1), says(2)]);
    let done = on(&db, Role::App, &event).args(YES).ok().await;
    assert_eq!(done, format!("redacted event {}\n{partition}\n", ids[0]));
    assert_eq!(shown(&db).await, [redacted(1), says(2), notice(3)]);
    let tail = on(&db, Role::Reader, ["tail", "--after", "0"]).ok().await;
    let ends: Vec<bool> =
        tail.lines().map(|line| line.ends_with("  order.paid  order/17  redacted")).collect();
    assert_eq!(ends, [true, false, false], "{tail}");
    let again = on(&db, Role::App, &event).args(YES).ok().await;
    assert_eq!(
        again,
        format!("nothing to redact now: event {}\nbefore        1 event redacted already\n", ids[0])
    );
    assert_eq!(shown(&db).await.len(), 3);
    let after = json!({"events": 1, "first_seq": 1, "last_seq": 1, "notices": 1});
    let row = audit_row("log.redact", &ids[0].to_string(), (json!({}), after), Some("asked to"));
    assert_eq!(audited(&db).await, [row]);
}

#[tokio::test]
async fn all_events_about_a_resource_are_redacted_and_no_others() {
    let db = TestDb::at_commit().await;
    small_partitions(&db, 2, 5).await;
    append(&db, &["17", "18", "18", "18", "17", "17"]).await;
    let resource = ["redact", "resource", "order", "17", "--json"];
    let mut report = json!({
        "resource_kind": "order", "resource_id": "17", "done": false, "events": 3, "already": 0, "remaining": 0, "waiting": 0,
        "partitions": ["event_log_from_0000000000000000001", "event_log_from_0000000000000000005"],
    });
    let json = async |args: &[&str]| -> Value {
        serde_json::from_str(&on(&db, Role::App, resource).args(args).ok().await).unwrap()
    };
    assert_eq!(json(&[]).await, report);
    assert_eq!(shown(&db).await.len(), 6);
    report["done"] = json!(true);
    assert_eq!(json(&YES).await, report);
    let log = [redacted(1), says(2), says(3), says(4), redacted(5), redacted(6), notice(7)];
    assert_eq!(shown(&db).await, log);
    append(&db, &["17"]).await;
    let more = on(&db, Role::App, ["redact", "resource", "order", "17"]).args(YES).ok().await;
    assert_eq!(
        more,
        "redacted 1 event about order/17
before        3 events redacted already
partition     event_log_from_0000000000000000007\n"
    );
    let none = on(&db, Role::App, ["redact", "resource", "order", "19"]).args(YES).ok().await;
    assert_eq!(none, "the log has no events about order/19\n");
}

#[tokio::test]
async fn what_cannot_be_redacted_is_said() {
    let db = TestDb::at_commit().await;
    let ids = append(&db, &["17"]).await;
    let id = Uuid::now_v7().to_string();
    let unknown = on(&db, Role::App, ["redact", "event", &id]).args(YES).refused(4).await;
    let gone = "retention has dropped it, or its transaction has not committed";
    assert_eq!(unknown, format!("the log has no event {id}: {gone}"));
    let empty = on(&db, Role::App, ["redact", "resource", "order", ""]).refused(4).await;
    assert!(empty.starts_with("the kind or the id of the resource is missing. Give both"), "{empty}");
    on(&db, Role::App, ["redact", "event", &ids[0].to_string()]).args(YES).ok().await;
    let notice: Uuid = sqlx::query_scalar("SELECT id FROM seqline.event_log WHERE seq = 2")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    let refused = on(&db, Role::App, ["redact", "event", &notice.to_string()]).args(YES).refused(4).await;
    assert!(refused.starts_with(&format!("event {notice} says that others were redacted. ")), "{refused}");
    for role in [Role::Producer, Role::Reader, Role::Consumer] {
        let refused = on(&db, role, ["redact", "resource", "order", "17"]).args(YES).refused(4).await;
        assert!(refused.ends_with("grant this role seqline_app"), "{refused}");
    }
    on(&db, Role::App, ["settings", "maintenance", "read_only"]).args(YES).ok().await;
    as_admin(&db, "UPDATE seqline.event_log SET redacted_at = NULL").await;
    let refused = on(&db, Role::App, ["redact", "resource", "order", "17"]).args(YES).refused(3).await;
    assert!(refused.starts_with("append refused: the log is read only for maintenance"), "{refused}");
}

#[tokio::test]
async fn events_that_have_no_number_yet_are_waited_for_and_not_for_ever() {
    let db = TestDb::at_commit().await;
    append(&db, &["17"]).await;
    after_commit(&db).await;
    let late = append(&db, &["17", "17"]).await;
    let resource = ["redact", "resource", "order", "17"];
    let plan = on(&db, Role::App, resource).ok().await;
    assert!(plan.contains("\nwaiting       2 events without a number yet\n"), "{plan}");
    let outcome = on(&db, Role::App, resource).args(YES).run().await;
    assert_eq!(
        outcome.sentence(5),
        "not redacted, because without a number yet: 2 events; seqline serve --role worker numbers what waits, run this again then"
    );
    assert!(
        outcome.stdout.starts_with("redacted 1 event about order/17\nwaiting       2 events"),
        "{outcome:?}"
    );
    let event = on(&db, Role::App, ["redact", "event", &late[0].to_string()]).args(YES).run().await;
    assert!(
        event.sentence(5).starts_with("not redacted, because without a number yet: 1 event;"),
        "{event:?}"
    );

    let sequencer = sequencer_of_the_test(&db).await;
    let done = on(&db, Role::App, resource).args(YES).ok().await;
    assert!(done.starts_with("redacted 2 events about order/17\nbefore        1 event "), "{done}");
    sequencer.stop().await;
}
