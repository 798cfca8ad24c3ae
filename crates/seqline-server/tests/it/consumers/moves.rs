//! `seqline consumers rewind` and `skip`

use seqline_testkit::eventually;
use serde_json::json;

use super::*;
use crate::support::{DEADLINE, append, as_admin, run_sql, server_db};
use crate::worker::{Worker, recorded};

#[tokio::test]
async fn a_consumer_is_taken_back_while_its_worker_runs() {
    let db = server_db().await;
    let worker = Worker::start(quick_worker(&db)).await;
    append(&db.producer(), 1..=5).await;
    worker.records(1..=5).await;
    let would = "would take consumer recorder back from seq 5, so that seq 3 is its next event: it gets 3 events of the log again. What it has made of them is still there. Add --yes to do it\n";
    assert_eq!(consumers(&db, "rewind recorder --to 3").await, would);
    assert_eq!(
        json_of(&db, "rewind recorder --to 3").await,
        json!({"consumer": "recorder", "from": 5, "to": 3, "events": 3, "parked": 0, "skipped": 0, "done": false})
    );
    assert_eq!(audited(&db).await, []);
    assert_eq!(
        consumers(&db, "rewind recorder --to 3 --reason wrong --yes").await,
        "consumer recorder is back: seq 3 is its next event, and it gets 3 events of the log again\n"
    );
    crate::worker::again(&worker, 3..=5).await;
    let log = worker.stop().await;
    let times = recorded(&log);
    assert_eq!((times[&1], times[&2]), (1, 1));
    let after = json!({"last_seq": [2], "parked_again": 0, "skipped_again": 0});
    let row = audit_row("consumer.rewind", "recorder", (json!({"last_seq": [5]}), after), Some("wrong"));
    assert_eq!(audited(&db).await, [row]);
}

#[tokio::test]
async fn a_consumer_goes_back_to_a_time_and_nowhere_else() {
    let db = server_db().await;
    append(&db.producer(), [1]).await;
    let mut session = db.connect(seqline_testkit::Role::Consumer).await;
    run_sql(&mut session, "SELECT seqline.register_consumer('mine', 'oldest')").await;
    assert_eq!(
        refused(&db, "rewind mine --to 1 --yes").await,
        "consumer mine has not come to seq 1: it is at 0. A rewind goes back. To leave events out, skip them one by one"
    );
    // The server tells the command of its refusal before it gives up what that held, and a poll does not wait for it.
    eventually(DEADLINE, "the event is polled", async || {
        let polled = sqlx::query_scalar("SELECT count(*) FROM seqline.poll('mine', 10)");
        polled.fetch_one(&mut session).await.is_ok_and(|events: i64| events == 1)
    })
    .await;
    assert_eq!(
        refused(&db, "rewind mine --to 3").await,
        "seq 3 is not in the log: it holds 1 to 1. Go back to one that it holds"
    );
    assert_eq!(
        refused(&db, "rewind mine --to 2999-01-01T00:00:00Z").await,
        "no event was appended at that time or later"
    );
    assert_eq!(json_of(&db, "rewind mine --to 2026-01-01T00:00:00+01:00 --yes").await["to"], 1);
    assert_eq!(json_of(&db, "list").await[0]["last_seq"], 0);
}

#[tokio::test]
async fn a_rewind_says_what_is_parked_and_skipped_no_more() {
    let db = server_db().await;
    append(&db.producer(), 1..=9).await;
    let mut session = db.connect(seqline_testkit::Role::Consumer).await;
    run_sql(
        &mut session,
        "SELECT seqline.register_consumer('mine', 'oldest'); SELECT seqline.poll('mine', 9)",
    )
    .await;
    as_admin(
        &db,
        "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('mine', 2), ('mine', 3), ('mine', 4);
         INSERT INTO seqline.skipped_events (consumer, seq, why) VALUES ('mine', 5, 'broken')",
    )
    .await;
    assert_eq!(
        consumers(&db, "rewind mine --to 3 --yes").await,
        "consumer mine is back: seq 3 is its next event, and it gets 7 events of the log again, 2 of them parked now, 1 of them left out so far\n"
    );
    let row = &json_of(&db, "list").await[0];
    assert_eq!((&row["parked_events"], &row["first_parked_seq"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn an_event_is_left_out_while_a_worker_runs() {
    let db = server_db().await;
    let worker = Worker::start(quick_worker(&db)).await;
    append(&db.producer(), [1]).await;
    worker.records([1]).await;
    consumers(&db, "pause recorder --yes").await;
    append(&db.producer(), 2..=4).await;
    assert_eq!(
        consumers(&db, "skip recorder --seq 3").await,
        "would have consumer recorder leave out seq 3, test.happened about test: it comes to it after 1 event. Add --yes to do it\n"
    );
    assert_eq!(
        json_of(&db, "skip recorder --seq 2").await,
        json!({
            "consumer": "recorder", "seq": 2, "in_log": true, "type": "test.happened", "resource": "test", "ahead": 0,
            "done": false,
        })
    );
    assert_eq!(audited(&db).await.len(), 1);
    assert_eq!(
        consumers(&db, "skip recorder --seq 3 --reason broken --yes").await,
        "consumer recorder leaves out seq 3, test.happened about test: it comes to it after 1 event\n"
    );
    assert_eq!(
        refused(&db, "skip recorder --seq 3").await,
        "consumer recorder leaves out seq 3 already. It does so when it comes there"
    );
    consumers(&db, "resume recorder --yes").await;
    worker.records([2, 4]).await;
    let times = recorded(&worker.stop().await);
    assert_eq!(times.get(&3), None);
    let after = json!({"skipped_seq": 3, "in_log": true, "type": "test.happened", "resource": "test"});
    let row = audit_row("consumer.skip", "recorder", (json!({"last_seq": 1}), after), Some("broken"));
    assert_eq!(audited(&db).await[1], row);
}

#[tokio::test]
async fn what_cannot_be_left_out_is_said() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    let mut session = db.connect(seqline_testkit::Role::Consumer).await;
    run_sql(
        &mut session,
        "SELECT seqline.register_consumer('mine', 'oldest'); SELECT seqline.poll('mine', 1)",
    )
    .await;
    assert_eq!(
        refused(&db, "skip mine --seq 1").await,
        "consumer mine has passed seq 1 already: it is at 1. There is nothing to leave out"
    );
    assert_eq!(
        refused(&db, "skip mine --seq 4 --reason broken --yes").await,
        "seq 4 is not in the log: it ends at 3. An event can be left out when it is there"
    );
    as_admin(&db, "DELETE FROM seqline.event_log WHERE seq = 2").await;
    assert_eq!(
        consumers(&db, "skip mine --seq 2").await,
        "would have consumer mine leave out seq 2, which is missing from the log: it is its next. Add --yes to do it\n"
    );
    as_admin(&db, "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('mine', 1)").await;
    assert_eq!(
        refused(&db, "skip mine --seq 1").await,
        "consumer mine has passed seq 1 already: it is at 1. It is parked: seqline parked discard"
    );
}
