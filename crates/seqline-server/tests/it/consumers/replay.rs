//! `seqline consumers replay`

use seqline::consumer::{Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round};
use seqline::{Clock, StoredEvent};
use seqline_testkit::drain;
use serde_json::json;

use super::*;
use crate::support::{append, run_sql, server_db};
use crate::worker::Worker;

struct Nothing;

impl Handler for Nothing {
    async fn handle(&self, _: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_piece_of_the_log_is_handled_again_under_another_name_until_it_is_done() {
    let db = server_db().await;
    let worker = Worker::start(quick_worker(&db)).await;
    append(&db.producer(), 1..=5).await;
    worker.records(1..=5).await;
    let replay = "replay recorder --into again --from 2 --to 4";
    assert_eq!(
        consumers(&db, replay).await,
        "would make consumer again, which gets seq 2 to 4 of the log, 3 events. A program has to handle them under that name, and says itself what it asks for. Add --yes to do it\n"
    );
    assert_eq!(audited(&db).await, []);
    assert_eq!(
        json_of(&db, &format!("{replay} --reason lost --yes")).await,
        json!({
            "consumer": "recorder", "into": "again", "kind": "worker", "from": 2, "to": 4, "events": 3, "done": true,
        })
    );
    let columns = ["consumer", "cursor", "lag", "state"];
    assert_eq!(cells(&db, "list", &columns).await[0], ["again", "1", "3", "behind"]);
    let name = ConsumerName::new("again").unwrap();
    let options = db.options(Role::App);
    let mut program = Consumers::new(db.app(), options, ConsumerConfig::default(), Clock::system());
    program.register(Consumer::new(name.clone(), Nothing)).unwrap();
    program.ensure().await.unwrap();
    assert_eq!(drain(&program, &name).await.unwrap(), 3);
    assert_eq!(cells(&db, "list", &columns).await[0], ["again", "4", "0", "done"]);
    assert_eq!(json_of(&db, "list").await[0]["until_seq"], 4);
    let status = on(&db, Role::App, ["status"]).ok().await;
    assert!(status.contains(" again ") && status.contains(" done "), "{status}");
    let shown = consumers(&db, "show again").await;
    assert!(shown.contains("\nstate         done\n") && shown.contains("\nends at       4\n"), "{shown}");
    consumers(&db, "retire again --yes").await;
    worker.stop().await;
    let after = json!({"like": "recorder", "from": 2, "to": 4});
    let row = audit_row("consumer.replay", "again", (json!({}), after), Some("lost"));
    assert_eq!(audited(&db).await[0], row);
}

#[tokio::test]
async fn what_cannot_be_replayed_is_said() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    let register = "SELECT seqline.register_consumer('mine'); SELECT seqline.register_consumer('other')";
    run_sql(&mut db.connect(Role::Consumer).await, register).await;
    for (args, sentence) in [
        (
            "--into other --from 1 --to 2",
            "there is a consumer other already. Replay into a new one: nobody else then gets events that he did not ask for",
        ),
        (
            "--into Again --from 1 --to 2",
            "Again is no name for a consumer: a consumer's name has 1 to 63 lowercase letters, digits and underscores and begins with a letter",
        ),
        (
            "--into push --from 1 --to 2",
            "push is no name for a consumer: the name is reserved for a built-in consumer",
        ),
        (
            "--into again --from 1 --to 4",
            "seq 1 to 4 is not a piece of the log: it holds 1 to 3. Choose a piece of what it holds",
        ),
        (
            "--into again --from 3 --to 2",
            "seq 3 to 2 is not a piece of the log: it holds 1 to 3. Choose a piece of what it holds",
        ),
        ("--into again --from 2999-01-01T00:00:00Z --to 3", "no event was appended at that time or later"),
    ] {
        assert_eq!(refused(&db, &format!("replay mine {args} --yes")).await, sentence);
    }
    assert_eq!(audited(&db).await, []);
    let times = "--from 2026-01-01T00:00:00Z --to 2999-01-01T00:00:00Z";
    let replay = consumers(&db, &format!("replay mine --into again {times} --yes")).await;
    assert_eq!(
        replay,
        "consumer again gets seq 1 to 3 of the log, 3 events. It asks for the same as mine, and somebody has to poll it\n"
    );
}
