//! What people do to relays and dead letters, without a broker.

use std::fmt::Debug;

use seqline::audit::entries;
use seqline::consumer::Mode;
use seqline::{NewEvent, Payload};
use seqline_nats::dead_letter::{self, DeadLetterError, Settle};
use seqline_nats::relay::operate::{self, RelayOperateError, RelayPlace};
use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, PgConnection};

const DO: Mode<'_> = Mode::Apply { why: Some("told so") };

/// A log of so many events.
async fn log_of(events: i64) -> TestDb {
    let db = TestDb::new().await;
    let pool = db.app_pool(1);
    let event = |n: i64| {
        let payload = Payload::from_json(&format!("{{\"n\": {n}}}")).unwrap();
        NewEvent::builder("test.happened", "test", "any").payload(payload).build().unwrap()
    };
    let mut tx = seqline::begin(&pool).await.unwrap();
    seqline::append(&mut tx, &(0..events).map(event).collect::<Vec<_>>()).await.unwrap();
    seqline::commit(tx).await.unwrap();
    db
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.expect(sql);
}

/// A relay at a position, as a process leaves it.
async fn relay_at(db: &TestDb, position: i64) -> PgConnection {
    let mut app = db.connect(Role::App).await;
    let sql = format!(
        "INSERT INTO seqline.relay_cursors (name, stream, epoch, position, stream_created, stream_seq, base_stream_seq, base_position)
         SELECT 'jetstream', 'EVENTS', epoch, {position}, 1, 70, 0, 0 FROM seqline.log_identity"
    );
    run(&mut app, &sql).await;
    app
}

async fn actions(connection: &mut PgConnection) -> Vec<(String, String, String, Option<String>)> {
    let entries = entries(connection, None, 100).await.unwrap();
    entries.into_iter().rev().map(|entry| (entry.action, entry.before, entry.after, entry.why)).collect()
}

fn rule<T: Debug>(result: Result<T, RelayOperateError>) -> String {
    match result {
        Err(RelayOperateError::Refused(refusal)) => {
            assert!(refusal.hint.is_some_and(|hint| hint.ends_with('.')), "{}", refusal.rule);
            refusal.rule
        }
        other => panic!("refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_relay_shows_what_it_has_still_to_copy() {
    let db = log_of(5).await;
    let mut app = db.connect(Role::App).await;
    assert_eq!(operate::statuses(&mut app).await.unwrap(), []);
    let mut app = relay_at(&db, 2).await;
    run(
        &mut app,
        "UPDATE seqline.relay_cursors SET stalled_by = 'broker_unreachable', stalled_since = now();
         INSERT INTO seqline.relay_incidents (relay, kind, count, first_position, last_position, stream_seq)
         VALUES ('jetstream', 'foreign_messages', 3, NULL, NULL, 9), ('jetstream', 'behind_retention', 2, 1, 2, NULL);
         INSERT INTO seqline.relay_incidents (relay, kind, count, acknowledged_at) VALUES ('jetstream', 'published_again', 3, now())",
    )
    .await;
    let [status] = &operate::statuses(&mut app).await.unwrap()[..] else { panic!("one") };
    let begun: time::OffsetDateTime =
        sqlx::query_scalar("SELECT occurred_at FROM seqline.event_log WHERE seq = 3")
            .fetch_one(&mut app)
            .await
            .unwrap();
    assert_eq!((status.position, status.head, status.behind(), status.stream_seq), (2, 5, 3, 70));
    assert_eq!(status.oldest_unpublished_at, Some(begun));
    assert_eq!(status.stalled_by.as_ref().map(|(by, _)| by.as_str()), Some("broker_unreachable"));
    assert!(!status.active && status.paused_since.is_none());
    let incidents: Vec<_> =
        status.incidents.iter().map(|it| (it.kind.as_str(), it.count, it.first_position)).collect();
    assert_eq!(incidents, [("behind_retention", 2, Some(1)), ("foreign_messages", 3, None)]);

    run(
        &mut app,
        "UPDATE seqline.relay_cursors SET position = 5, holder = gen_random_uuid(), leased_until = now() + interval '1 hour'",
    )
    .await;
    let [status] = &operate::statuses(&mut app).await.unwrap()[..] else { panic!("one") };
    assert!(status.active);
    assert_eq!((status.behind(), status.oldest_unpublished_at), (0, None));
}

#[tokio::test]
async fn a_relay_is_paused_and_goes_on_with_a_row_for_each() {
    let db = log_of(1).await;
    let mut app = relay_at(&db, 1).await;
    assert!(operate::pause(&mut app, "jetstream", Some("maintenance")).await.unwrap());
    assert!(!operate::pause(&mut app, "jetstream", None).await.unwrap(), "it was paused already");
    assert!(operate::statuses(&mut app).await.unwrap()[0].paused_since.is_some());
    assert!(operate::resume(&mut app, "jetstream", None).await.unwrap());
    assert!(!operate::resume(&mut app, "jetstream", None).await.unwrap());
    assert!(operate::statuses(&mut app).await.unwrap()[0].paused_since.is_none());
    let (paused, goes_on) = ("{\"paused\": true}".to_owned(), "{\"paused\": false}".to_owned());
    assert_eq!(
        actions(&mut app).await,
        [
            ("relay.pause".to_owned(), goes_on.clone(), paused.clone(), Some("maintenance".to_owned())),
            ("relay.resume".to_owned(), paused, goes_on, None)
        ]
    );
}

#[tokio::test]
async fn a_relay_is_asked_to_go_back_and_only_said_to_without_applying() {
    let db = log_of(5).await;
    let mut app = relay_at(&db, 4).await;
    let RelayPlace { position, stream_seq, .. } =
        operate::rewind(&mut app, "jetstream", 1, Mode::Plan).await.unwrap();
    assert_eq!((position, stream_seq), (4, 70));
    assert_eq!(operate::statuses(&mut app).await.unwrap()[0].rewind_to, None);
    assert_eq!(actions(&mut app).await, []);
    for position in [0, 5] {
        operate::rewind(&mut app, "jetstream", position, DO).await.unwrap();
        let status = operate::statuses(&mut app).await.unwrap().remove(0);
        assert_eq!((status.rewind_to, status.position), (Some(position), 4), "the relay does it");
    }
    let row = |to: i64| {
        let position = |at| format!("{{\"position\": {at}}}");
        ("relay.rewind".to_owned(), position(4), position(to), Some("told so".to_owned()))
    };
    assert_eq!(actions(&mut app).await, [row(0), row(5)]);
    for beyond in [-1, 6] {
        let refused = operate::rewind(&mut app, "jetstream", beyond, Mode::Plan).await;
        assert_eq!(rule(refused), "relay_position", "{beyond}");
    }
    let silent = operate::rewind(&mut app, "jetstream", 1, Mode::Apply { why: None }).await;
    assert_eq!(rule(silent), "audit_why");
}

#[tokio::test]
async fn a_relay_is_deleted_unless_a_process_runs_it() {
    let db = log_of(2).await;
    let mut app = relay_at(&db, 2).await;
    run(&mut app, "INSERT INTO seqline.relay_incidents (relay, kind, count) VALUES ('jetstream', 'foreign_messages', 1)").await;
    run(
        &mut app,
        "UPDATE seqline.relay_cursors SET holder = gen_random_uuid(), leased_until = now() + interval '1 hour'",
    )
    .await;
    assert_eq!(rule(operate::delete(&mut app, "jetstream", DO).await), "relay_runs");
    run(&mut app, "UPDATE seqline.relay_cursors SET leased_until = now() - interval '1 second'").await;
    assert_eq!(
        rule(operate::delete(&mut app, "jetstream", Mode::Apply { why: Some(" ") }).await),
        "audit_why"
    );
    assert_eq!(operate::delete(&mut app, "jetstream", Mode::Plan).await.unwrap().position, 2);
    assert_eq!(operate::statuses(&mut app).await.unwrap().len(), 1, "only said");
    assert_eq!(operate::delete(&mut app, "jetstream", DO).await.unwrap().position, 2);
    assert_eq!(operate::statuses(&mut app).await.unwrap(), []);
    let before = "{\"position\": 2, \"stream_seq\": 70}".to_owned();
    let row = ("relay.delete".to_owned(), before, "{}".to_owned(), Some("told so".to_owned()));
    assert_eq!(actions(&mut app).await, [row]);
}

#[tokio::test]
async fn what_a_relay_met_is_open_until_somebody_knows_of_it() {
    let db = log_of(1).await;
    let mut app = relay_at(&db, 1).await;
    assert_eq!(operate::acknowledge(&mut app, "jetstream", DO).await.unwrap(), 0);
    assert_eq!(actions(&mut app).await, [], "nothing was there to know of");
    run(
        &mut app,
        "INSERT INTO seqline.relay_incidents (relay, kind, count) VALUES ('jetstream', 'foreign_messages', 7), ('jetstream', 'published_again', 1)",
    )
    .await;
    assert_eq!(operate::acknowledge(&mut app, "jetstream", Mode::Plan).await.unwrap(), 2);
    assert_eq!(operate::statuses(&mut app).await.unwrap()[0].incidents.len(), 2);
    assert_eq!(operate::acknowledge(&mut app, "jetstream", DO).await.unwrap(), 2);
    assert_eq!(operate::statuses(&mut app).await.unwrap()[0].incidents, []);
    let before = "{\"published_again\": 1, \"foreign_messages\": 7}".to_owned();
    let row = ("relay.acknowledge".to_owned(), before, "{}".to_owned(), Some("told so".to_owned()));
    assert_eq!(actions(&mut app).await, [row]);
    // The same again is something new.
    run(&mut app, "INSERT INTO seqline.relay_incidents (relay, kind, count) VALUES ('jetstream', 'foreign_messages', 1)").await;
    assert_eq!(operate::statuses(&mut app).await.unwrap()[0].incidents.len(), 1);
}

#[tokio::test]
async fn a_relay_that_is_not_there_is_refused_by_name() {
    let db = log_of(1).await;
    let mut app = db.connect(Role::App).await;
    assert_eq!(rule(operate::pause(&mut app, "nobody", None).await), "relay_unknown");
    assert_eq!(rule(operate::resume(&mut app, "nobody", None).await), "relay_unknown");
    assert_eq!(rule(operate::rewind(&mut app, "nobody", 0, Mode::Plan).await), "relay_unknown");
    assert_eq!(rule(operate::delete(&mut app, "nobody", Mode::Plan).await), "relay_unknown");
    assert_eq!(rule(operate::acknowledge(&mut app, "nobody", DO).await), "relay_unknown");
    let long = "x".repeat(1001);
    assert_eq!(rule(operate::pause(&mut app, "nobody", Some(&long)).await), "audit_why");
}

#[tokio::test]
async fn retention_waits_for_a_relay_under_a_name_that_no_consumer_has() {
    let db = log_of(3).await;
    let mut app = relay_at(&db, 1).await;
    let mut admin = db.connect(Role::Admin).await;
    let holders = async |app: &mut PgConnection| -> Vec<(String, i64)> {
        sqlx::query_as(
            "SELECT consumer, last_seq FROM seqline.holders_of(ARRAY[1]::bigint[], ARRAY[4]::bigint[])",
        )
        .fetch_all(app)
        .await
        .unwrap()
    };
    assert_eq!(holders(&mut admin).await, [("relay/jetstream".to_owned(), 1)]);
    run(&mut app, "UPDATE seqline.relay_cursors SET position = 3").await;
    assert_eq!(holders(&mut admin).await, []);
}

/// A consumer with dead letters: of event 1 twice, of event 2, and of a message that nobody can read.
async fn letters() -> (TestDb, PgConnection, Vec<i64>) {
    let db = log_of(2).await;
    let mut app = db.connect(Role::App).await;
    run(
        &mut app,
        "INSERT INTO seqline.stream_consumers (name, stream, start_position, reconciled_to) VALUES ('mail', 'EVENTS', 0, 0), ('other', 'EVENTS', 0, 0);
         INSERT INTO seqline.dead_letters (consumer, reason, event_id, position, stream, stream_created, stream_seq, attempts, error_type)
         SELECT 'mail', 'attempts_exhausted', id, seq, 'EVENTS', 1, 10 + seq, 5, 'Timeout' FROM seqline.event_log ORDER BY seq;
         INSERT INTO seqline.dead_letters (consumer, reason, event_id, position, stream, stream_created, stream_seq, attempts)
         SELECT 'mail', 'attempts_exhausted', id, seq, 'EVENTS', 1, 20, 5 FROM seqline.event_log WHERE seq = 1;
         INSERT INTO seqline.dead_letters (consumer, reason, stream, stream_created, stream_seq, subject, size, attempts)
         VALUES ('mail', 'unreadable', 'EVENTS', 1, 30, 'events.a.b._', 12, 0);
         INSERT INTO seqline.dead_letters (consumer, reason, event_id, position, stream, attempts)
         SELECT 'other', 'gone', id, seq, 'EVENTS', 1 FROM seqline.event_log WHERE seq = 1",
    )
    .await;
    let ids = sqlx::query_scalar("SELECT id FROM seqline.dead_letters ORDER BY id")
        .fetch_all(&mut app)
        .await
        .unwrap();
    (db, app, ids)
}

fn letter_rule(result: Result<i64, DeadLetterError>) -> String {
    match result {
        Err(DeadLetterError::Refused(refusal)) => refusal.rule,
        other => panic!("refused: {other:?}"),
    }
}

async fn retries(connection: &mut PgConnection) -> Vec<(String, i64, Option<i64>, i32, String)> {
    sqlx::query_as("SELECT consumer, position, stream_seq, attempts, cause FROM seqline.stream_retries ORDER BY position")
        .fetch_all(connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn dead_letters_are_listed_page_by_page_and_counted() {
    let (db, mut app, ids) = letters().await;
    let list = async |app: &mut PgConnection, consumer, after, limit| -> Vec<i64> {
        let letters = dead_letter::list(app, consumer, after, limit).await.unwrap();
        letters.into_iter().map(|letter| letter.id).collect()
    };
    assert_eq!(list(&mut app, None, 0, 1000).await, ids);
    assert_eq!(list(&mut app, Some("mail"), 0, 2).await, ids[..2]);
    assert_eq!(list(&mut app, Some("mail"), ids[1], 10).await, ids[2..4]);
    assert_eq!(list(&mut app, Some("nobody"), 0, 10).await, [0_i64; 0]);
    let letter = dead_letter::show(&mut app, ids[0]).await.unwrap().unwrap();
    assert_eq!(
        (letter.reason.as_str(), letter.position, letter.stream_seq),
        ("attempts_exhausted", Some(1), Some(11))
    );
    assert_eq!((letter.attempts, letter.error_type.as_deref()), (5, Some("Timeout")));
    assert!(letter.can_be_replayed());
    assert!(!dead_letter::show(&mut app, ids[3]).await.unwrap().unwrap().can_be_replayed());
    assert_eq!(dead_letter::show(&mut app, 0).await.unwrap(), None);
    run(
        &mut app,
        "INSERT INTO seqline.stream_retries (consumer, event_id, position, attempts, next_attempt_at, cause)
         SELECT 'other', id, seq, 1, now(), 'failed' FROM seqline.event_log WHERE seq = 2",
    )
    .await;
    let backlogs = dead_letter::backlogs(&mut app).await.unwrap();
    let backlogs: Vec<_> =
        backlogs.iter().map(|it| (it.consumer.as_str(), it.retries, it.dead_letters)).collect();
    assert_eq!(backlogs, [("mail", 0, 4), ("other", 1, 1)]);
    let counts = dead_letter::counts(&mut db.connect(Role::Consumer).await).await.unwrap();
    let counts: Vec<_> =
        counts.iter().map(|it| (it.consumer.as_str(), it.reason.as_str(), it.count)).collect();
    assert_eq!(counts, [("mail", "attempts_exhausted", 3), ("mail", "unreadable", 1), ("other", "gone", 1)]);
}

#[tokio::test]
async fn what_is_replayed_is_tried_again_once_for_each_event() {
    let (_db, mut app, ids) = letters().await;
    let replay = async |app: &mut PgConnection, ids: Option<&[i64]>, mode| {
        dead_letter::settle(app, "mail", ids, Settle::Replay, mode).await
    };
    assert_eq!(replay(&mut app, None, Mode::Plan).await.unwrap(), 3);
    assert_eq!(retries(&mut app).await, []);
    assert_eq!(replay(&mut app, Some(&ids[1..2]), Mode::Apply { why: None }).await.unwrap(), 1);
    assert_eq!(retries(&mut app).await, [("mail".to_owned(), 2, Some(12), 0, "replayed".to_owned())]);
    assert_eq!(replay(&mut app, None, DO).await.unwrap(), 2, "two letters of one event");
    let [first, _] = &retries(&mut app).await[..] else { panic!("two") };
    assert_eq!(*first, ("mail".to_owned(), 1, Some(20), 0, "replayed".to_owned()));
    let left = dead_letter::list(&mut app, Some("mail"), 0, 10).await.unwrap();
    assert_eq!(left.iter().map(|letter| letter.id).collect::<Vec<_>>(), [ids[3]], "nobody knows its event");
    let rows: Vec<_> =
        actions(&mut app).await.into_iter().map(|(action, before, _, why)| (action, before, why)).collect();
    let row = |ids: &[i64], why: Option<&str>| {
        let before = format!("{{\"ids\": {ids:?}, \"count\": {}}}", ids.len());
        ("deadletters.replay".to_owned(), before, why.map(str::to_owned))
    };
    assert_eq!(rows, [row(&ids[1..2], None), row(&[ids[0], ids[2]], Some("told so"))]);
}

#[tokio::test]
async fn what_failed_again_meanwhile_begins_anew_when_it_is_replayed() {
    let (_db, mut app, ids) = letters().await;
    run(
        &mut app,
        "INSERT INTO seqline.stream_retries (consumer, event_id, position, attempts, next_attempt_at, cause)
         SELECT 'mail', id, seq, 3, now() + interval '1 day', 'failed' FROM seqline.event_log WHERE seq = 1",
    )
    .await;
    dead_letter::settle(&mut app, "mail", Some(&ids[..1]), Settle::Replay, DO).await.unwrap();
    let due: bool = sqlx::query_scalar(
        "SELECT attempts = 0 AND cause = 'replayed' AND next_attempt_at <= clock_timestamp() FROM seqline.stream_retries",
    )
    .fetch_one(&mut app)
    .await
    .unwrap();
    assert!(due);
}

#[tokio::test]
async fn what_is_discarded_is_gone_and_needs_a_reason() {
    let (_db, mut app, ids) = letters().await;
    let discard = async |app: &mut PgConnection, ids: Option<&[i64]>, mode| {
        dead_letter::settle(app, "mail", ids, Settle::Discard, mode).await
    };
    assert_eq!(letter_rule(discard(&mut app, None, Mode::Apply { why: None }).await), "audit_why");
    assert_eq!(discard(&mut app, None, Mode::Plan).await.unwrap(), 4);
    assert_eq!(discard(&mut app, Some(&ids[3..4]), DO).await.unwrap(), 1);
    assert_eq!(discard(&mut app, None, DO).await.unwrap(), 3);
    assert_eq!(discard(&mut app, None, DO).await.unwrap(), 0);
    assert_eq!(retries(&mut app).await, []);
    let left = dead_letter::list(&mut app, None, 0, 10).await.unwrap();
    assert_eq!(left.iter().map(|letter| letter.consumer.as_str()).collect::<Vec<_>>(), ["other"]);
    assert_eq!(actions(&mut app).await.len(), 2, "none for what was not there");
}

#[tokio::test]
async fn letters_of_somebody_else_and_consumers_that_are_not_there_are_refused() {
    let (_db, mut app, ids) = letters().await;
    let of_other = Some(&ids[3..5]);
    for settle in [Settle::Replay, Settle::Discard] {
        let refused = dead_letter::settle(&mut app, "mail", of_other, settle, DO).await;
        assert_eq!(letter_rule(refused), "dead_letter_unknown");
        let refused = dead_letter::settle(&mut app, "nobody", None, settle, DO).await;
        assert_eq!(letter_rule(refused), "stream_consumer_unknown");
    }
    let unreadable =
        dead_letter::settle(&mut app, "mail", Some(&ids[3..4]), Settle::Replay, Mode::Plan).await;
    assert_eq!(letter_rule(unreadable), "dead_letter_unknown");
    assert_eq!(dead_letter::list(&mut app, None, 0, 10).await.unwrap().len(), 5);
    let twice = [ids[0], ids[0]];
    assert_eq!(
        dead_letter::settle(&mut app, "mail", Some(&twice), Settle::Replay, Mode::Plan).await.unwrap(),
        1
    );
}

#[tokio::test]
async fn a_right_that_is_missing_is_no_refusal_by_a_rule() {
    let db = TestDb::new().await;
    let mut reader = db.connect(Role::Reader).await;
    let error = operate::pause(&mut reader, "jetstream", None).await.unwrap_err();
    assert!(
        matches!(&error, RelayOperateError::Database(error) if error.sqlstate() == Some("42501")),
        "{error}"
    );
}
