//! `seqline relay` and `seqline dead-letters`, without a broker.

use insta::assert_snapshot;
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::support::{PLANTED, append, masked, on, run_sql};

/// A log of five events.
async fn log() -> (TestDb, PgConnection) {
    let db = TestDb::new().await;
    append(&db.app_pool(1), 1..=5).await;
    let app = db.connect(Role::App).await;
    (db, app)
}

/// The same, of which a relay has copied so many.
pub(crate) async fn with_relay(copied: i64) -> (TestDb, PgConnection) {
    let (db, mut app) = log().await;
    let sql = format!(
        "INSERT INTO seqline.relay_cursors (name, stream, epoch, position, stream_created, stream_seq, base_stream_seq, base_position)
         SELECT 'jetstream', 'EVENTS', epoch, {copied}, 1, 70, 0, 0 FROM seqline.log_identity"
    );
    run_sql(&mut app, &sql).await;
    (db, app)
}

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
async fn a_relay_is_shown_with_what_keeps_it_from_going_on_and_what_it_met() {
    let (db, mut app) = log().await;
    let outcome = on(&db, Role::App, ["relay", "status"]).run().await;
    assert_eq!(outcome.stderr, "seqline: there is no relay: one is there once it has reached its broker\n");
    assert_eq!(json_of(&db, "relay status").await, json!([]));
    drop((db, app));
    let (db, app_of_relay) = with_relay(2).await;
    app = app_of_relay;
    run_sql(
        &mut app,
        "UPDATE seqline.relay_cursors SET stalled_by = 'stream_full', stalled_since = now(), rewind_to = 1;
         INSERT INTO seqline.relay_incidents (relay, kind, count, first_position, last_position, stream_seq)
         VALUES ('jetstream', 'behind_retention', 2, 1, 2, NULL), ('jetstream', 'foreign_messages', 3, NULL, NULL, 9)",
    )
    .await;
    let shown = run(&db, "relay status").await;
    let epoch = shown.lines().find(|line| line.starts_with("epoch")).unwrap();
    let age = shown.lines().find(|line| line.starts_with("position")).unwrap();
    assert!(age.starts_with("position      2 of 5, 3 events behind, the oldest of them "), "{age}");
    assert_snapshot!(shown.replace(epoch, "").replace(age, ""), @r"
    relay         jetstream, into the stream EVENTS

    state         no process runs it, stalled by stream_full since [time]
    stream        known up to 70

    rewind        goes on after 1 when it looks next
    incident      behind_retention: 2, from 1 to 2, since [time]
    incident      foreign_messages: 3, last at 9 of the stream, since [time]
    changed       [time]
    ");
    let shown = json_of(&db, "relay status").await;
    assert_eq!(shown[0]["behind"], 3);
    assert_eq!(shown[0]["active"], false);
    assert_eq!(shown[0]["stalled_by"], "stream_full");
    assert_eq!(shown[0]["incidents"][1]["kind"], "foreign_messages");
}

#[tokio::test]
async fn relays_are_paused_and_moved_only_with_yes() {
    let (db, mut app) = with_relay(4).await;
    for (args, sentence) in [
        ("relay resume", "relay jetstream is not paused"),
        (
            "relay pause",
            "would pause relay jetstream: nothing more gets into its stream then. Add --yes to do it",
        ),
        ("relay pause --yes --reason upgrade", "relay jetstream is paused"),
        ("relay pause", "relay jetstream is paused already"),
        ("relay pause --yes", "relay jetstream is paused already"),
        ("relay resume", "would let relay jetstream go on. Add --yes to do it"),
        ("relay resume jetstream --yes", "relay jetstream goes on"),
        (
            "relay rewind --to 1",
            "would set relay jetstream from 4 to 1: 3 events are published again, at the end of the stream then. Add --yes to do it",
        ),
        (
            "relay rewind --to 5 --yes --reason x",
            "relay jetstream, which is at 4, goes on after 5 when it looks next: 1 event is not published at all",
        ),
        ("relay acknowledge", "relay jetstream has met nothing that is not acknowledged"),
    ] {
        assert_eq!(run(&db, args).await.trim_end(), sentence, "{args}");
    }
    run_sql(&mut app, "INSERT INTO seqline.relay_incidents (relay, kind, count) VALUES ('jetstream', 'foreign_messages', 9)").await;
    for (args, sentence) in [
        (
            "relay acknowledge",
            "would acknowledge what relay jetstream met, 1 kind of incident: it is not shown any more then. Add --yes to do it",
        ),
        (
            "relay acknowledge --yes --reason seen",
            "acknowledged what relay jetstream met, 1 kind of incident",
        ),
        (
            "relay delete",
            "would forget relay jetstream, which is at 4: retention does not wait for it then, and its stream stays as it is. Add --yes to do it",
        ),
    ] {
        assert_eq!(run(&db, args).await.trim_end(), sentence, "{args}");
    }
    let planned = json_of(&db, "relay rewind --to 2").await;
    assert_eq!(
        planned,
        json!({ "relay": "jetstream", "position": 4, "to": 2, "done": false, "changed": true })
    );
    let deleted = run(&db, "relay delete --yes --reason over").await;
    assert_eq!(deleted.trim_end(), "relay jetstream is forgotten, which was at 4: its stream stays as it is");
    let audit = json_of(&db, "audit").await;
    let actions: Vec<&str> =
        audit.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["relay.delete", "relay.acknowledge", "relay.rewind", "relay.resume", "relay.pause"]);
    for args in
        ["relay pause", "relay pause --yes", "relay rewind --to 0", "relay delete", "relay acknowledge"]
    {
        let sentence = refused(&db, args).await;
        assert!(sentence.starts_with("there is no relay"), "{args}: {sentence}");
    }
}

#[tokio::test]
async fn a_relay_that_runs_and_a_position_that_is_not_there_are_refused_with_what_to_do() {
    let (db, mut app) = with_relay(4).await;
    assert_eq!(
        refused(&db, "relay rewind --to 6").await,
        "the log has no position 6 to go on from. It has those from 0 to 5"
    );
    run_sql(
        &mut app,
        "UPDATE seqline.relay_cursors SET holder = gen_random_uuid(), leased_until = now() + interval '1 hour'",
    )
    .await;
    assert_eq!(
        refused(&db, "relay delete --yes --reason x").await,
        "a process runs this relay. Stop it first, or set relay.mode to off"
    );
    assert!(run(&db, "relay status").await.contains("state         runs\n"));
}

async fn with_letters() -> (TestDb, PgConnection) {
    let (db, mut app) = log().await;
    run_sql(
        &mut app,
        "INSERT INTO seqline.stream_consumers (name, stream, start_position, reconciled_to) VALUES ('mail', 'EVENTS', 0, 0);
         INSERT INTO seqline.dead_letters (consumer, reason, event_id, position, stream, stream_created, stream_seq, attempts, error_type)
         SELECT 'mail', 'attempts_exhausted', id, seq, 'EVENTS', 1, 10 + seq, 5, 'Timeout' FROM seqline.event_log WHERE seq < 3 ORDER BY seq;
         INSERT INTO seqline.dead_letters (consumer, reason, stream, stream_created, stream_seq, subject, size, attempts)
         VALUES ('mail', 'unreadable', 'EVENTS', 1, 1030, 'events.a.b._', 1200, 0)",
    )
    .await;
    (db, app)
}

#[tokio::test]
async fn dead_letters_are_shown_and_what_they_say_only_to_who_asks() {
    let (db, _app) = with_letters().await;
    let outcome = on(&db, Role::App, ["dead-letters", "list", "nobody"]).run().await;
    assert_eq!(outcome.stderr, "seqline: no dead letters found\n");
    assert_snapshot!(run(&db, "dead-letters list").await, @r"
     id  consumer  reason              position  stream seq  attempts  last error  given up
      1  mail      attempts_exhausted         1          11         5  Timeout     [time]
      2  mail      attempts_exhausted         2          12         5  Timeout     [time]
      3  mail      unreadable                 -       1,030         0              [time]
    ");
    let first = on(&db, Role::App, ["dead-letters", "list", "mail", "--limit", "2"]).run().await;
    assert_eq!(first.stderr, "seqline: there are more: --after 2 goes on\n");
    assert_eq!(json_of(&db, "dead-letters list --after 2").await[0]["id"], 3);
    let shown = run(&db, "dead-letters show 3").await;
    assert_snapshot!(shown, @r"
    dead letter   3
    consumer      mail
    reason        unreadable
    given up      [time]
    attempts      0
    stream        EVENTS
    stream seq    1,030
    subject       events.a.b._
    size          1,200 bytes
    ");
    let shown = run(&db, "dead-letters show 1").await;
    assert!(!shown.contains(PLANTED) && shown.contains("last error    Timeout"), "{shown}");
    let shown = run(&db, "dead-letters show 1 --payload").await;
    assert!(shown.contains("content       of the log\n{") && shown.contains(PLANTED), "{shown}");
    let shown = json_of(&db, "dead-letters show 1 --payload").await;
    assert_eq!(shown["content"]["from"], "log");
    assert!(shown["content"]["text"].as_str().unwrap().contains(PLANTED));
    assert_eq!(
        refused(&db, "dead-letters show 9").await,
        "there is no dead letter 9: seqline dead-letters list shows those that there are"
    );
    // It is in no log, and nobody answers for a broker.
    let url = ["dead-letters", "show", "3", "--payload", "--nats-url", "nats://alex:hunter2@127.0.0.1:1"];
    let sentence = on(&db, Role::App, url).refused(3).await;
    assert_eq!(sentence, "the broker at 127.0.0.1:1 does not answer");
}

#[tokio::test]
async fn dead_letters_are_settled_only_with_yes() {
    let (db, _app) = with_letters().await;
    for (args, sentence) in [
        ("dead-letters replay mail", "would have consumer mail try 2 dead letters again. Add --yes to do it"),
        ("dead-letters replay mail 2 --yes", "consumer mail tries 1 dead letter again"),
        (
            "dead-letters discard mail 1 3",
            "would forget 2 dead letters of consumer mail, which it never handles then. Add --yes to do it",
        ),
        ("dead-letters discard mail 3 --yes --reason garbage", "forgot 1 dead letter of consumer mail"),
        ("dead-letters discard mail --all --yes --reason old", "forgot 1 dead letter of consumer mail"),
        ("dead-letters discard mail --all", "consumer mail has no dead letters"),
        ("dead-letters replay mail --yes", "consumer mail has no dead letters that can be tried again"),
    ] {
        assert_eq!(run(&db, args).await.trim_end(), sentence, "{args}");
    }
    let sentence = refused(&db, "dead-letters replay nobody").await;
    assert!(sentence.starts_with("there is no stream consumer of this name. "), "{sentence}");
    let sentence = refused(&db, "dead-letters replay mail 1").await;
    assert!(sentence.starts_with("not all of these are dead letters of this consumer"), "{sentence}");
    let report = json_of(&db, "dead-letters discard mail --all").await;
    assert_eq!(report, json!({ "consumer": "mail", "letters": 0, "done": false }));
}

#[tokio::test]
async fn the_status_has_a_line_for_a_relay_where_there_is_one() {
    let (db, _app) = log().await;
    assert!(!run(&db, "status").await.contains("\nrelay "));
    let (db, _app) = with_relay(2).await;
    let status = run(&db, "status").await;
    let line = status.lines().find(|line| line.starts_with("relay ")).expect("there is a line");
    let beginning = "relay         jetstream no process runs it, 3 events behind, the oldest of them ";
    assert!(line.starts_with(beginning), "{line}");
    assert_eq!(json_of(&db, "status").await["relays"][0]["behind"], 3);
}

/// The findings of the doctor about relays and consumers of the stream.
async fn found(db: &TestDb, more: &[&str]) -> Vec<(String, String)> {
    let doctor = on(db, Role::App, ["doctor", "--json"]).args(more).run().await;
    let report: Value = serde_json::from_str(&doctor.stdout).expect("it is JSON");
    let findings = report["findings"].as_array().expect("there are findings");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let ours = ["relay", "relay_paused", "relay_incidents", "dead_letters"];
    let ours = findings.iter().filter(|finding| ours.contains(&finding["id"].as_str().unwrap_or_default()));
    ours.map(|finding| (text(finding, "id"), text(finding, "level"))).collect()
}

/// Where the doctor sends whoever reads of a relay.
async fn section(db: &TestDb, more: &[&str]) -> String {
    let doctor = on(db, Role::App, ["doctor", "--json"]).args(more).run().await;
    let report: Value = serde_json::from_str(&doctor.stdout).expect("it is JSON");
    let findings = report["findings"].as_array().expect("there are findings");
    let relay = findings.iter().find(|finding| finding["id"] == "relay").expect("there is a relay");
    let mut words = relay["advice"].as_str().expect("it says what to do").split(' ');
    words.find(|word| word.starts_with("Relay")).expect("it names a section").to_owned()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(id, level)| ((*id).to_owned(), (*level).to_owned())).collect()
}

#[tokio::test]
async fn the_doctor_warns_of_a_relay_that_is_late_or_stalled_of_incidents_and_of_dead_letters() {
    let (db, mut app) = log().await;
    assert_eq!(found(&db, &[]).await, pairs(&[]), "there is none");
    drop((db, app));
    let db;
    (db, app) = with_relay(5).await;
    let late = ["--set", "alert.relay_backlog_age=300ms"];
    assert_eq!(found(&db, &late).await, pairs(&[("relay", "ok")]));
    run_sql(&mut app, "UPDATE seqline.relay_cursors SET position = 2").await;
    assert_eq!(found(&db, &[]).await, pairs(&[("relay", "ok")]), "it has five minutes");
    seqline_testkit::eventually(crate::support::DEADLINE, "it is late", async || {
        found(&db, &late).await == pairs(&[("relay", "warning")])
    })
    .await;
    assert_eq!(section(&db, &late).await, "RelayBehind");
    run_sql(&mut app, "UPDATE seqline.relay_cursors SET paused_at = now()").await;
    assert_eq!(found(&db, &[]).await, pairs(&[("relay", "ok"), ("relay_paused", "warning")]));
    run_sql(&mut app, "UPDATE seqline.relay_cursors SET paused_at = NULL").await;
    run_sql(
        &mut app,
        "UPDATE seqline.relay_cursors SET position = 5, stalled_by = 'stream_full', stalled_since = now();
         INSERT INTO seqline.relay_incidents (relay, kind, count) VALUES ('jetstream', 'foreign_messages', 3);
         INSERT INTO seqline.stream_consumers (name, stream, start_position, reconciled_to) VALUES ('mail', 'EVENTS', 0, 0)",
    )
    .await;
    let expected = [("relay", "warning"), ("relay_incidents", "warning"), ("dead_letters", "ok")];
    assert_eq!(found(&db, &[]).await, pairs(&expected));
    assert_eq!(section(&db, &[]).await, "RelayStalled");
    run_sql(
        &mut app,
        "INSERT INTO seqline.dead_letters (consumer, reason, stream, stream_created, stream_seq, attempts)
         VALUES ('mail', 'unreadable', 'EVENTS', 1, 7, 0)",
    )
    .await;
    assert_eq!(found(&db, &[]).await.last(), pairs(&[("dead_letters", "warning")]).first());
}

#[tokio::test]
async fn a_new_epoch_says_what_becomes_of_a_stream() {
    let (db, app) = with_relay(5).await;
    drop(app);
    let finalize = |args: &'static [&'static str]| {
        on(&db, Role::Admin, ["restore", "finalize", "--force", "--consumers", "keep"]).args(args)
    };
    let text = finalize(&[]).ok().await;
    assert!(
        text.contains("\nThe stream EVENTS may have events above 5, which the log has no longer."),
        "{text}"
    );
    assert!(text.ends_with("orphaned_messages, which seqline relay status shows.\n"), "{text}");
    let report: Value = serde_json::from_str(&finalize(&["--json"]).ok().await).unwrap();
    assert_eq!(report["relays"], json!(["jetstream"]));
}
