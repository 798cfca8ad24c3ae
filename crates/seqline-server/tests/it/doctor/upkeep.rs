//! What the doctor says of consumers, retention, maintenance and a log that is read only.

use seqline_testkit::{Role, TestDb};

use super::{examine, finding, findings};
use crate::support::{append, as_admin, on, run_sql, server_db, small_partitions};

/// A consumer that stands there.
async fn consumer(db: &TestDb, name: &str, last_seq: i64) {
    as_admin(
        db,
        &format!(
            "SELECT seqline.ensure_consumer('{name}', 'poll', 'head');
             UPDATE seqline.event_consumer_cursors SET last_seq = {last_seq} WHERE name = '{name}'"
        ),
    )
    .await;
}

/// Five events that began so long ago.
async fn events(db: &TestDb, age: &str) {
    append(&db.producer(), 1..=5).await;
    db.settled().await;
    as_admin(db, &format!("UPDATE seqline.event_log SET occurred_at = now() - interval '{age}'")).await;
}

async fn examine_with(db: &TestDb, set: &str) -> Vec<(String, String, String)> {
    findings(on(db, Role::App, ["doctor", "--json", "--set", set])).await.1
}

#[tokio::test]
async fn a_consumer_whose_events_wait_for_longer_than_its_threshold_is_named() {
    let db = server_db().await;
    events(&db, "1 hour").await;
    for (name, last_seq) in [("late", 4), ("later", 0), ("there", 5)] {
        consumer(&db, name, last_seq).await;
    }
    let (code, found) = examine(&db, Role::App).await;
    let (level, text) = finding(&found, "consumers");
    assert_eq!((code, level), (Some(0), "warning"));
    let text = text.replace("1h 1s", "1h").replace("1h 2s", "1h");
    assert!(text.starts_with("events wait for longer than 10m for late for 1h"), "{text}");
    assert!(text.contains(", later for 1h") && !text.contains("there"), "{text}");
    let found = examine_with(&db, "consumer.pending_alert_after=2h").await;
    assert_eq!(
        finding(&found, "consumers"),
        ("ok", "3 consumers; no event waits for longer than 2h, none is lost or parked")
    );
    // One that is out of use is nobody's worry.
    as_admin(&db, "UPDATE seqline.event_consumers SET retired_at = now()").await;
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!(finding(&found, "consumers").0, "ok");
}

#[tokio::test]
async fn lost_parked_and_paused_are_said_until_somebody_has_seen_to_them() {
    let db = server_db().await;
    append(&db.producer(), 1..=5).await;
    db.settled().await;
    for name in ["mails", "totals"] {
        consumer(&db, name, 5).await;
    }
    as_admin(
        &db,
        "INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('totals', 1, 3);
         INSERT INTO seqline.parked_events (consumer, seq) VALUES ('mails', 3), ('mails', 4), ('totals', 5);
         UPDATE seqline.event_consumers SET paused_at = now() WHERE name = 'mails'",
    )
    .await;
    let (code, found) = examine(&db, Role::App).await;
    assert_eq!(code, Some(0));
    for (id, text) in [
        ("consumers_lost", "events lost to retention, not acknowledged: totals 3"),
        ("consumers_parked", "parked events: mails 2, totals 1"),
        ("consumers_paused", "paused: mails"),
    ] {
        assert_eq!(finding(&found, id), ("warning", text));
    }
    on(&db, Role::App, ["consumers", "acknowledge", "totals", "--yes", "--reason", "seen"]).ok().await;
    on(&db, Role::App, ["consumers", "resume", "mails", "--yes"]).ok().await;
    let (_, found) = examine(&db, Role::App).await;
    let left: Vec<&str> =
        found.iter().map(|found| found.0.as_str()).filter(|id| id.starts_with("consumers")).collect();
    assert_eq!(left, ["consumers_parked"]);
}

#[tokio::test]
async fn at_most_ten_are_named() {
    let db = server_db().await;
    for n in 10..23 {
        consumer(&db, &format!("c{n}"), 0).await;
    }
    as_admin(&db, "UPDATE seqline.event_consumers SET paused_at = now()").await;
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!(
        finding(&found, "consumers_paused").1,
        "paused: c10, c11, c12, c13, c14, c15, c16, c17, c18, c19 and 3 more"
    );
}

#[tokio::test]
async fn expired_partitions_that_are_held_are_counted_with_who_holds_them_and_until_when() {
    let db = server_db().await;
    small_partitions(&db, 2, 3).await;
    // The hold lasts for thirty days beyond the thirty of the retention.
    events(&db, "58 days").await;
    for (name, last_seq) in [("slow", 0), ("totals", 2), ("there", 5)] {
        consumer(&db, name, last_seq).await;
    }
    let (code, found) = examine(&db, Role::App).await;
    let (level, text) = finding(&found, "retention");
    assert_eq!((code, level), (Some(0), "warning"));
    let (before, after) = text.split_once("; ").unwrap();
    assert_eq!(before, "2 expired partitions held by slow, totals");
    assert!(after.starts_with("the oldest is dropped in 1day 23h 59m"), "{after}");
    assert!(after.ends_with(", and its events are lost to them"), "{after}");
    let found = examine_with(&db, "sync.event_retention_hold=1d").await;
    assert!(finding(&found, "retention").1.contains("is dropped at the next maintenance"), "{found:#?}");
    let found = examine_with(&db, "sync.event_retention=59d").await;
    assert_eq!(finding(&found, "retention"), ("ok", "no expired partition is held by a consumer"));
}

#[tokio::test]
async fn the_last_run_of_maintenance_is_as_old_as_its_threshold_allows() {
    let db = TestDb::new().await;
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!(
        finding(&found, "maintenance"),
        ("unknown", "no jobs are in the schema seqline_jobs, so nothing is known of runs")
    );
    let db = crate::support::with_jobs(db).await;
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!(
        finding(&found, "maintenance"),
        ("unknown", "no run of partition maintenance by a worker is known")
    );
    let said = on(&db, Role::App, ["doctor"]).run().await.stdout;
    assert!(said.contains("seqline serve --role worker; unless seqline up does"), "{said}");
    as_admin(
        &db,
        "INSERT INTO seqline_jobs.river_job (kind, args, max_attempts, state, scheduled_at, finalized_at, queue)
         SELECT kind, '{}', 1, state::seqline_jobs.river_job_state, now(), now() - age, 'maintenance'
         FROM (VALUES ('sync.partition_maintenance', 'completed', interval '4 hours'),
                      ('sync.partition_maintenance', 'completed', interval '3 days'),
                      ('sync.partition_maintenance', 'discarded', interval '1 minute'),
                      ('another', 'completed', interval '1 minute')) AS r (kind, state, age)",
    )
    .await;
    let (code, found) = examine(&db, Role::App).await;
    let (level, text) = finding(&found, "maintenance");
    assert_eq!((code, level), (Some(0), "warning"));
    assert!(text.starts_with("the last run was completed 4h"), "{text}");
    let found = examine_with(&db, "alert.maintenance_age=5h").await;
    assert_eq!(finding(&found, "maintenance").0, "ok");
}

#[tokio::test]
async fn a_log_that_is_read_only_is_a_warning_with_since_when() {
    let db = server_db().await;
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!(finding(&found, "read_only"), ("ok", "the log takes events"));
    on(&db, Role::App, ["settings", "maintenance", "read_only", "--yes"]).ok().await;
    let mut admin = db.connect(Role::Admin).await;
    run_sql(&mut admin, "UPDATE seqline.audit_log SET recorded_at = '2026-11-30 10:00:00.5+00'").await;
    let (code, found) = examine(&db, Role::App).await;
    assert_eq!(
        (code, finding(&found, "read_only")),
        (
            Some(0),
            (
                "warning",
                "the log is read only for maintenance since 2026-11-30T10:00:00Z, by seqline_test_app: every append is refused"
            )
        )
    );
    let said = on(&db, Role::App, ["doctor"]).run().await.stdout;
    assert!(said.contains("when the work is done: seqline settings maintenance off\n"), "{said}");
    // Whoever has changed it by hand has left nothing.
    on(&db, Role::App, ["settings", "maintenance", "off"]).ok().await;
    run_sql(&mut admin, "UPDATE seqline.settings SET maintenance = 'read_only'").await;
    let (_, found) = examine(&db, Role::App).await;
    assert_eq!(
        finding(&found, "read_only").1,
        "the log is read only for maintenance: every append is refused"
    );
}
