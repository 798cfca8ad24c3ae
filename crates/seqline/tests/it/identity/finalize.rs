//! A new epoch, and where consumers go on in it.

use std::time::Duration;

use seqline::Clock;
use seqline::consumer::Mode;
use seqline::identity::{self, EpochError, Finalized, Need, RestoredConsumers, Standing};
use seqline::settings::{Sequencing, set_sequencing};
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::{as_admin, audited, check_as, epoch, finalize, rule};
use crate::consumers::{
    PROBE, Running, cursor, database, effects, plain, probe, quick, reaches, state_of, twice,
};
use crate::support::{append, head};

const DEADLINE: Duration = Duration::from_secs(30);

/// Ten events, and consumers of all kinds. The head is 10; `ahead` and the first lane of `wide` are above it.
async fn restored() -> TestDb {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=10).await;
    head(&db).await;
    as_admin(
        &db,
        "SELECT seqline.ensure_consumer('ahead', 'worker', 'head'), seqline.ensure_consumer('behind', 'worker', '4'),
                seqline.ensure_consumer('paused', 'worker', '6'), seqline.ensure_consumer('polled', 'poll', '7'),
                seqline.ensure_consumer('retired', 'worker', 'oldest'), seqline.ensure_consumer('wide', 'worker', '3', 2),
                seqline.replay_consumer('behind', 'replay', 2, 8, true, NULL);
         UPDATE seqline.event_consumers SET paused_at = now() WHERE name = 'paused';
         UPDATE seqline.event_consumers SET retired_at = now() WHERE name = 'retired';
         UPDATE seqline.event_consumers SET until_seq = 12 WHERE name = 'replay';
         UPDATE seqline.event_consumer_cursors SET last_seq = 14 WHERE name = 'ahead';
         UPDATE seqline.event_consumer_cursors SET last_seq = 13 WHERE name = 'wide' AND lane = 0;
         DELETE FROM seqline.audit_log",
    )
    .await;
    db
}

fn moved(done: &Finalized) -> Vec<(String, i64, i64)> {
    done.moves.iter().map(|lane| (format!("{}/{}", lane.consumer, lane.lane), lane.from, lane.to)).collect()
}

fn expected(lanes: [(&str, i64, i64); 8]) -> Vec<(String, i64, i64)> {
    lanes.into_iter().map(|(lane, from, to)| (lane.to_owned(), from, to)).collect()
}

async fn positions(db: &TestDb) -> Vec<(String, i64)> {
    sqlx::query_as(
        "SELECT name || '/' || lane, last_seq FROM seqline.event_consumer_cursors ORDER BY name, lane",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

async fn assert_stand(db: &TestDb, done: &Finalized) {
    let stand: Vec<(String, i64)> = moved(done).into_iter().map(|(lane, _, to)| (lane, to)).collect();
    assert_eq!(positions(db).await, stand);
}

#[tokio::test]
async fn consumers_are_kept_where_the_backup_had_them_and_none_stays_above_the_head() {
    let db = restored().await;
    let before = epoch(&db).await;
    let done = finalize(&db, RestoredConsumers::Keep, Need::Found).await.unwrap();
    assert_eq!(
        moved(&done),
        expected([
            ("ahead/0", 14, 10),
            ("behind/0", 3, 3),
            ("paused/0", 5, 5),
            ("polled/0", 6, 6),
            ("replay/0", 1, 1),
            ("retired/0", 0, 0),
            ("wide/0", 13, 10),
            ("wide/1", 2, 2),
        ])
    );
    assert_stand(&db, &done).await;
    let check = check_as(&db, Role::Reader).await;
    assert_eq!((done.old_epoch, done.new_epoch, done.head), (before, Some(check.epoch), 10));
    assert_ne!(check.epoch, before);
    assert_eq!((check.standing(), check.log_id), (Standing::Matches, check_as(&db, Role::App).await.log_id));
    // What comes next are other events than those that the replay was for.
    assert_eq!(state_of(&db, "replay").await.until_seq, Some(10));
}

#[tokio::test]
async fn consumers_go_on_with_new_events_only_and_a_replay_is_at_its_end() {
    let db = restored().await;
    as_admin(&db, "UPDATE seqline.event_consumers SET until_seq = 8 WHERE name = 'replay'").await;
    let done = finalize(&db, RestoredConsumers::Head, Need::Found).await.unwrap();
    assert_eq!(
        moved(&done),
        expected([
            ("ahead/0", 14, 10),
            ("behind/0", 3, 10),
            ("paused/0", 5, 10),
            ("polled/0", 6, 10),
            ("replay/0", 1, 8),
            ("retired/0", 0, 10),
            ("wide/0", 13, 10),
            ("wide/1", 2, 10),
        ])
    );
    assert_stand(&db, &done).await;
    let replay = state_of(&db, "replay").await;
    assert!(replay.is_done() && !replay.is_ahead_of_head(), "{replay:?}");
    assert!(state_of(&db, "paused").await.paused_at.is_some());
}

#[tokio::test]
async fn it_is_audited_for_the_log_and_for_each_consumer_that_goes_on_elsewhere() {
    let db = restored().await;
    let done = finalize(&db, RestoredConsumers::Keep, Need::Found).await.unwrap();
    let [(action, before, after, why)] = &audited(&db).await[..] else { panic!("one entry") };
    assert_eq!((action.as_str(), why.as_deref()), ("restore.finalize", super::WHY));
    assert_eq!(before["epoch"], json!(done.old_epoch));
    assert_eq!(
        (&after["epoch"], &after["head"], &after["consumers"]),
        (&json!(done.new_epoch), &json!(10), &json!("keep"))
    );
    let consumers: Vec<(String, serde_json::Value, serde_json::Value)> = sqlx::query_as(
        "SELECT subject, before -> 'last_seq', after -> 'last_seq' FROM seqline.audit_log
         WHERE action = 'consumer.finalize' ORDER BY subject",
    )
    .fetch_all(&db.app())
    .await
    .unwrap();
    assert_eq!(
        consumers,
        [("ahead".to_owned(), json!([14]), json!([10])), ("wide".to_owned(), json!([13, 2]), json!([10, 2])),]
    );
}

/// Agents: one in the middle, one above the head that knows of a loss, one at the head whose holder is there.
async fn with_agents(db: &TestDb) {
    as_admin(
        db,
        "INSERT INTO seqline.principals (id, kind) VALUES ('billing', 'agent'), ('audit', 'agent');
         INSERT INTO seqline.agent_consumer_cursors
             (agent_id, consumer, acked_seq, generation, holder_session_id, holder_kind, held_since, rest_window, lost_reason, lost_after, lost_position)
         VALUES ('billing', 'middle', 4, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
                ('billing', 'above', 14, 3, NULL, NULL, NULL, NULL, 'retention', 2, 13),
                ('audit', 'held', 10, 2, gen_random_uuid(), 'rest', now(), '{}', NULL, NULL, NULL)",
    )
    .await;
}

/// By consumer: its acknowledgement, generation, whether somebody has it, and what it is told.
async fn agents(db: &TestDb) -> Vec<(String, i64, i64, bool, String)> {
    sqlx::query_as(
        "SELECT agent_id || '/' || consumer, acked_seq, generation, num_nonnulls(holder_session_id, held_since, rest_window) > 0,
                concat_ws(' ', lost_reason, lost_after, lost_position)
         FROM seqline.agent_consumer_cursors ORDER BY agent_id, consumer",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

#[tokio::test]
async fn every_consumer_of_an_agent_is_taken_from_its_holder_and_told() {
    for (consumers, to) in [(RestoredConsumers::Keep, [10, 10, 4]), (RestoredConsumers::Head, [10, 10, 10])] {
        let db = restored().await;
        with_agents(&db).await;
        let before = agents(&db).await;
        let plan =
            identity::finalize(&mut db.connect(Role::App).await, consumers, Need::Found, Mode::Plan).await;
        assert_eq!(agents(&db).await, before);
        let done = finalize(&db, consumers, Need::Found).await.unwrap();
        assert_eq!(plan.unwrap().moves, done.moves);
        let moves: Vec<_> = done.moves.iter().filter(|it| it.kind == "agent").collect();
        let moved: Vec<_> = moves.iter().map(|it| (it.consumer.as_str(), it.lane, it.from, it.to)).collect();
        let [held, above, middle] = to;
        let expected =
            [("audit/held", 0, 10, held), ("billing/above", 0, 14, above), ("billing/middle", 0, 4, middle)];
        assert_eq!(moved, expected);
        let told = |name: &str, acked, generation, after: i64| {
            (name.to_owned(), acked, generation, false, format!("epoch_changed {after} {acked}"))
        };
        let expected = [
            told("audit/held", held, 3, 10),
            told("billing/above", above, 4, 2),
            told("billing/middle", middle, 2, 4),
        ];
        assert_eq!(agents(&db).await, expected);
        let audited: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT subject, (before -> 'last_seq' ->> 0)::bigint, (after -> 'last_seq' ->> 0)::bigint
             FROM seqline.audit_log WHERE action = 'agent.finalize' ORDER BY subject",
        )
        .fetch_all(&db.app())
        .await
        .unwrap();
        let elsewhere = moved.into_iter().filter(|(_, _, from, to)| from != to);
        let elsewhere: Vec<_> = elsewhere.map(|(name, _, from, to)| (name.to_owned(), from, to)).collect();
        assert_eq!(audited, elsewhere);
    }
}

/// Numbers above the head will be those of other events.
#[tokio::test]
async fn what_consumers_know_of_numbers_above_the_head_is_forgotten() {
    let db = restored().await;
    as_admin(
        &db,
        "INSERT INTO seqline.parked_events (consumer, seq, key, next_attempt_at, error_type)
         VALUES ('behind', 2, 'a', now(), 'handler'), ('behind', 11, 'b', now(), 'handler');
         INSERT INTO seqline.skipped_events (consumer, seq, why) VALUES ('behind', 9, 'test'), ('behind', 12, 'test');
         INSERT INTO seqline.round_marks (consumer, lane, last_seq, until_seq, tried_seq, attempts, next_attempt_at)
         VALUES ('behind', 0, 3, 4, 4, 1, now()), ('polled', 0, 6, 11, NULL, 0, now()), ('ahead', 0, 14, 15, NULL, 0, now())",
    )
    .await;
    let kept = async |sql: &'static str| -> Vec<i64> {
        sqlx::query_scalar(sql).fetch_all(&db.admin()).await.unwrap()
    };
    let done = finalize(&db, RestoredConsumers::Keep, Need::Found).await.unwrap();
    assert_eq!(done.forgotten, 2);
    assert_eq!(kept("SELECT seq FROM seqline.parked_events").await, [2]);
    assert_eq!(kept("SELECT seq FROM seqline.parked_events WHERE next_attempt_at IS NOT NULL").await, [2]);
    assert_eq!(kept("SELECT seq FROM seqline.skipped_events").await, [9]);
    assert_eq!(kept("SELECT last_seq FROM seqline.round_marks").await, [3]);
    // Of new events only means also that what is parked waits until somebody asks for it.
    finalize(&db, RestoredConsumers::Head, Need::Stated).await.unwrap();
    assert_eq!(kept("SELECT seq FROM seqline.parked_events WHERE next_attempt_at IS NULL").await, [2]);
}

#[tokio::test]
async fn a_healthy_log_gets_a_new_epoch_only_when_somebody_insists() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    let before = epoch(&db).await;
    for mode in [Mode::Plan, Mode::Apply { why: super::WHY }] {
        let mut app = db.connect(Role::App).await;
        let refused = identity::finalize(&mut app, RestoredConsumers::Keep, Need::Found, mode).await;
        assert_eq!(rule(refused), "restore_not_needed");
    }
    assert_eq!(epoch(&db).await, before);
    let done = finalize(&db, RestoredConsumers::Keep, Need::Stated).await.unwrap();
    assert_eq!(done.new_epoch, Some(epoch(&db).await));
}

#[tokio::test]
async fn what_was_recorded_as_broken_is_settled() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    as_admin(&db, "UPDATE seqline.log_identity SET broken_at = now(), broken_reason = 'head_went_back'")
        .await;
    finalize(&db, RestoredConsumers::Keep, Need::Found).await.unwrap();
    assert_eq!(check_as(&db, Role::App).await.standing(), Standing::Matches);
    assert_eq!(rule(finalize(&db, RestoredConsumers::Keep, Need::Found).await), "restore_not_needed");
}

#[tokio::test]
async fn a_plan_changes_nothing_and_doing_it_needs_a_reason() {
    let db = restored().await;
    let (before, stand) = (epoch(&db).await, positions(&db).await);
    let mut app = db.connect(Role::App).await;
    let plan = identity::finalize(&mut app, RestoredConsumers::Head, Need::Found, Mode::Plan).await.unwrap();
    assert_eq!((plan.new_epoch, plan.moves.len()), (None, 8));
    let apply = Mode::Apply { why: None };
    let refused = identity::finalize(&mut app, RestoredConsumers::Head, Need::Found, apply).await;
    assert_eq!(rule(refused), "audit_why");
    assert_eq!((epoch(&db).await, positions(&db).await), (before, stand));
    assert_eq!(audited(&db).await, []);
}

#[tokio::test]
async fn it_waits_for_a_round_and_takes_what_that_has_done() {
    let db = restored().await;
    let mut round = db.connect(Role::Admin).await;
    let lock = "BEGIN; UPDATE seqline.event_consumer_cursors SET last_seq = 5 WHERE name = 'behind'";
    sqlx::raw_sql(lock).execute(&mut round).await.unwrap();
    let ending = async {
        let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                     AND wait_event_type = 'Lock' AND query LIKE '%finalize_restore%' AND pid <> pg_backend_pid())";
        let admin = db.admin();
        eventually(DEADLINE, "somebody who waits for the round", async || {
            sqlx::query_scalar(waits).fetch_one(&admin).await.unwrap()
        })
        .await;
        sqlx::raw_sql("COMMIT").execute(&mut round).await.unwrap();
    };
    let (done, ()) = tokio::join!(finalize(&db, RestoredConsumers::Keep, Need::Found), ending);
    assert!(moved(&done.unwrap()).contains(&("behind/0".to_owned(), 5, 5)));
}

#[tokio::test]
async fn it_does_not_wait_for_long_and_then_has_changed_nothing() {
    let db = restored().await;
    let before = epoch(&db).await;
    for lock in [
        "BEGIN; SELECT FROM seqline.event_consumer_cursors WHERE name = 'polled' FOR UPDATE",
        "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE",
        "BEGIN; SELECT FROM seqline.log_identity FOR UPDATE",
    ] {
        let mut holder = db.connect(Role::Admin).await;
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut holder).await.unwrap();
        as_admin(&db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 50").await;
        let mut app = db.connect(Role::App).await;
        sqlx::raw_sql("SET lock_timeout = '50ms'").execute(&mut app).await.unwrap();
        let apply = Mode::Apply { why: super::WHY };
        let error =
            identity::finalize(&mut app, RestoredConsumers::Head, Need::Found, apply).await.unwrap_err();
        assert!(error.is_retryable(), "{lock}: {error:?}");
        assert!(matches!(error, EpochError::Database(error) if error.sqlstate() == Some("55P03")), "{lock}");
        assert_eq!((epoch(&db).await, cursor(&db, "behind").await), (before, 3), "{lock}");
    }
}

/// It has read the log of the epoch before, and would go on from there.
#[tokio::test]
async fn a_round_with_an_older_view_is_refused() {
    let db = restored().await;
    let mut polling = db.connect(Role::Consumer).await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT now()";
    sqlx::raw_sql(begin).execute(&mut polling).await.unwrap();
    finalize(&db, RestoredConsumers::Keep, Need::Found).await.unwrap();
    let polled = sqlx::query("SELECT seq FROM seqline.poll('polled', 10)").fetch_all(&mut polling).await;
    let error = polled.unwrap_err();
    assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("40001"));
}

#[tokio::test]
async fn what_waits_for_its_number_gets_it_in_the_new_epoch() {
    let db = TestDb::at_commit().await;
    append(&db.producer(), 1..=3).await;
    let mut admin = db.connect(Role::Admin).await;
    set_sequencing(&mut admin, Sequencing::AfterCommit, None).await.unwrap();
    append(&db.producer(), 4..=5).await;
    let done = finalize(&db, RestoredConsumers::Head, Need::Stated).await.unwrap();
    assert_eq!((done.head, done.staged), (3, 1));
    set_sequencing(&mut admin, Sequencing::AtCommit, None).await.unwrap();
    assert_eq!(crate::support::numbers(&mut admin).await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn nobody_but_the_application_starts_an_epoch() {
    let db = restored().await;
    for role in [Role::Reader, Role::Producer, Role::Consumer, Role::Nobody] {
        let mut session = db.connect(role).await;
        let refused =
            identity::finalize(&mut session, RestoredConsumers::Keep, Need::Found, Mode::Plan).await;
        assert!(
            matches!(&refused, Err(EpochError::Database(error)) if error.sqlstate() == Some("42501")),
            "{role:?}: {refused:?}"
        );
    }
}

/// Nothing has to be stopped for it: it keeps out what would be wrong.
#[tokio::test]
async fn epochs_that_begin_under_writers_and_rounds_lose_and_repeat_nothing() {
    const WRITERS: i64 = 3;
    const EACH: i64 = 40;
    let db = database().await;
    let running = Running::on(&db, quick(), Clock::system(), [probe(plain())]);
    cursor_exists(&db).await;
    let writing: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let pool = db.producer();
            tokio::spawn(async move {
                for n in 0..EACH {
                    append(&pool, [writer * EACH + n]).await;
                }
            })
        })
        .collect();
    let mut epochs = std::collections::HashSet::new();
    while epochs.len() < 10 || writing.iter().any(|writer| !writer.is_finished()) {
        let done = finalize(&db, RestoredConsumers::Keep, Need::Stated).await.unwrap();
        assert!(epochs.insert(done.new_epoch), "an epoch that there was before");
    }
    for writer in writing {
        writer.await.unwrap();
    }
    reaches(&db, PROBE, WRITERS * EACH).await;
    running.stops().await;
    assert_eq!(effects(&db).await, twice(1..=WRITERS * EACH));
}

async fn cursor_exists(db: &TestDb) {
    eventually(DEADLINE, "the cursor", async || cursor(db, PROBE).await >= 0).await;
}

/// A session of somebody who has not thought of it.
#[tokio::test]
async fn it_gives_up_by_itself_where_its_session_would_wait_for_ever() {
    let db = restored().await;
    let mut holder = db.connect(Role::Admin).await;
    let lock = "BEGIN; SELECT FROM seqline.event_consumer_cursors WHERE name = 'polled' FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    let finalizing = finalize(&db, RestoredConsumers::Keep, Need::Found);
    let error = tokio::time::timeout(DEADLINE, finalizing).await.expect("it gives up").unwrap_err();
    assert!(matches!(error, EpochError::Database(error) if error.sqlstate() == Some("55P03")));
}
