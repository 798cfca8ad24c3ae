//! What people decide about where a consumer goes on, and what it leaves out.

use seqline::consumer::{
    FailurePolicy, Filter, LaneKey, Mode, OperateError, Target, resume, retire, rewind, skip,
};
use sqlx::types::JsonValue;
use time::OffsetDateTime;

use super::parking::append_about;
use super::*;

pub(super) const APPLY: Mode<'_> = Mode::Apply { why: Some("a test") };

pub(super) async fn session(db: &TestDb) -> PgConnection {
    db.connect(Role::App).await
}

/// What was written to the audit log: action, subject, before, after, and why.
pub(super) async fn audit(db: &TestDb) -> Vec<(String, String, JsonValue, JsonValue, Option<String>)> {
    sqlx::query_as(
        "SELECT action, subject, before, after, why FROM seqline.audit_log WHERE who = $1 ORDER BY id",
    )
    .bind(Role::App.login())
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

/// A consumer that has handled five events.
pub(super) async fn at_five() -> Bench {
    let bench = Bench::new(config(), plain()).await;
    append_about(&bench.db, &["a", "b", "c", "d", "e"]).await;
    bench.processes(5).await;
    bench
}

pub(super) fn refused<T: Debug>(result: Result<T, OperateError>) -> String {
    match result.unwrap_err() {
        OperateError::Refused { message, .. } => message,
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_rewind_lets_the_events_come_again_and_says_before_what_it_will_do() {
    let bench = at_five().await;
    let mut app = session(&bench.db).await;
    let plan = rewind(&mut app, &name(PROBE), Target::Seq(3), Mode::Plan).await.unwrap();
    assert_eq!((plan.to, plan.from, plan.events, plan.parked, plan.skipped), (3, 5, 3, 0, 0));
    assert_eq!(cursor(&bench.db, PROBE).await, 5);
    assert_eq!(audit(&bench.db).await, []);
    assert_eq!(rewind(&mut app, &name(PROBE), Target::Seq(3), APPLY).await.unwrap(), plan);
    assert_eq!(cursor(&bench.db, PROBE).await, 2);
    bench.processes(3).await;
    assert_eq!(effects(&bench.db).await, [1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5]);
    let row = |action: &str, before, after| {
        (action.to_owned(), PROBE.to_owned(), before, after, Some("a test".to_owned()))
    };
    let after = serde_json::json!({"last_seq": [2], "parked_again": 0, "skipped_again": 0});
    let expected = row("consumer.rewind", serde_json::json!({"last_seq": [5]}), after);
    assert_eq!(audit(&bench.db).await, [expected]);
}

#[tokio::test]
async fn a_rewind_goes_back_and_no_further_than_the_log() {
    let bench = at_five().await;
    append_about(&bench.db, &["f", "g"]).await;
    let mut app = session(&bench.db).await;
    let mut to = async |seq| refused(rewind(&mut app, &name(PROBE), Target::Seq(seq), APPLY).await);
    assert_eq!(to(0).await, "seq 0 is not in the log: it holds 1 to 7");
    assert_eq!(to(9).await, "seq 9 is not in the log: it holds 1 to 7");
    assert_eq!(to(6).await, "consumer probe has not come to seq 6: it is at 5");
    let unknown = rewind(&mut app, &name("nobody"), Target::Seq(1), Mode::Plan).await;
    assert_eq!(refused(unknown), "there is no consumer of this name");
    assert_eq!(cursor(&bench.db, PROBE).await, 5);
}

#[tokio::test]
async fn no_lane_is_taken_forward_by_a_rewind() {
    let consumer = probe(plain()).lanes(LaneKey::Resource, 3);
    let bench = Bench::on(database().await, config(), consumer).await;
    append_about(&bench.db, &["a", "b", "c", "d", "e", "f"]).await;
    as_admin(&bench.db, "UPDATE seqline.event_consumer_cursors SET last_seq = lane * 2 + 1").await;
    let mut app = session(&bench.db).await;
    let plan = rewind(&mut app, &name(PROBE), Target::Seq(3), APPLY).await.unwrap();
    assert_eq!((plan.from, plan.events), (5, 3));
    let positions: Vec<i64> =
        sqlx::query_scalar("SELECT last_seq FROM seqline.event_consumer_cursors ORDER BY lane")
            .fetch_all(&bench.db.admin())
            .await
            .unwrap();
    assert_eq!(positions, [1, 2, 2]);
}

#[tokio::test]
async fn a_rewind_to_a_time_is_one_to_the_first_number_of_then_or_later() {
    let bench = at_five().await;
    // Not in the order of the log, as with long transactions.
    as_admin(
        &bench.db,
        "UPDATE seqline.event_log SET occurred_at = '2026-01-01T00:00:00Z'::timestamptz
             + interval '1 minute' * (ARRAY[1, 5, 2, 6, 7])[seq]",
    )
    .await;
    let mut app = session(&bench.db).await;
    let minute = |n: i64| OffsetDateTime::from_unix_timestamp(1_767_225_600 + 60 * n).unwrap();
    for (at, to) in [(0, 1), (1, 1), (2, 2), (5, 2), (6, 4), (7, 5)] {
        let plan = rewind(&mut app, &name(PROBE), Target::Time(minute(at)), Mode::Plan).await.unwrap();
        assert_eq!(plan.to, to, "minute {at}");
    }
    let error = rewind(&mut app, &name(PROBE), Target::Time(minute(8)), Mode::Plan).await.unwrap_err();
    assert_eq!(error.to_string(), "no event was appended at that time or later");
}

#[tokio::test]
async fn a_rewind_brings_back_a_cursor_that_is_above_the_head() {
    let bench = at_five().await;
    set_cursor(&bench.db, 100).await;
    assert_eq!(bench.round().await.unwrap_err().error_type(), "ahead_of_head");
    let mut app = session(&bench.db).await;
    let plan = rewind(&mut app, &name(PROBE), Target::Seq(6), APPLY).await.unwrap();
    assert_eq!((plan.from, plan.events), (100, 0));
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    append_about(&bench.db, &["f"]).await;
    bench.processes(1).await;
}

#[tokio::test]
async fn a_rewind_waits_for_the_round_that_runs() {
    let gate = Gate::closed();
    let bench = Bench::new(config(), gate.handler()).await;
    append_about(&bench.db, &["a", "b"]).await;
    let rewinding = async {
        gate.is_reached(1).await;
        let mut app = session(&bench.db).await;
        sqlx::query("SET lock_timeout = '50ms'").execute(&mut app).await.unwrap();
        // What is only planned waits for nobody.
        append_about(&bench.db, &["c"]).await;
        let refused = refused(rewind(&mut app, &name(PROBE), Target::Seq(1), Mode::Plan).await);
        assert_eq!(refused, "consumer probe has not come to seq 1: it is at 0");
        let error = rewind(&mut app, &name(PROBE), Target::Seq(1), APPLY).await.unwrap_err();
        gate.open();
        error
    };
    let (round, error) = tokio::join!(bench.round(), rewinding);
    assert!(error.is_retryable(), "{error}");
    assert_eq!(round.unwrap().last_seq, Some(2));
}

#[tokio::test]
async fn a_rewind_brings_back_what_was_parked_from_there_on_and_forgets_what_was_tried() {
    let switch = Switch::on();
    let consumer = probe(switch.failing_at(3))
        .on_failure(FailurePolicy::Park { after_attempts: 1, backoff: Duration::ZERO });
    let bench = Bench::on(database().await, config(), consumer).await;
    append_about(&bench.db, &["x", "a", "x", "x"]).await;
    while !bench.round().await.is_ok_and(|round| round.outcome == Outcome::Idle) {}
    assert_eq!(parked(&bench.db).await, [3, 4]);
    as_admin(
        &bench.db,
        "INSERT INTO seqline.parked_events (consumer, seq, key) VALUES ('probe', 2, 'order/a')",
    )
    .await;
    as_admin(&bench.db, "SELECT seqline.gather_lanes('probe', '10 minutes')").await;
    let mut app = session(&bench.db).await;
    let plan = rewind(&mut app, &name(PROBE), Target::Seq(3), APPLY).await.unwrap();
    assert_eq!((plan.events, plan.parked), (2, 2));
    assert_eq!(parked(&bench.db).await, [2]);
    let left: (i64, Option<i64>) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM seqline.round_marks), (SELECT barrier_seq FROM seqline.event_consumers)",
    )
    .fetch_one(&bench.db.admin())
    .await
    .unwrap();
    assert_eq!(left, (0, None), "what was tried, and a barrier");
    switch.off();
    bench.processes(2).await;
}

async fn parked(db: &TestDb) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM seqline.parked_events ORDER BY seq")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn whatever_is_decided_waits_for_the_round_that_runs() {
    let gate = Gate::closed();
    let bench = Bench::new(config(), gate.handler()).await;
    append_about(&bench.db, &["a", "b"]).await;
    as_admin(&bench.db, "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('probe', 9)").await;
    let deciding = async {
        gate.is_reached(1).await;
        let mut app = session(&bench.db).await;
        sqlx::query("SET lock_timeout = '50ms'").execute(&mut app).await.unwrap();
        for sql in [
            "SELECT seqline.set_consumer_paused('probe', true, NULL)",
            "SELECT seqline.skip_event('probe', 2, true, 'x')",
            "SELECT seqline.retire_consumer('probe', true, NULL)",
            "SELECT seqline.rewind_consumer('probe', 1, true, NULL)",
            "SELECT seqline.gather_lanes('probe', '1 minute')",
            "SELECT seqline.set_consumer_lanes('probe', 2, NULL, true, NULL)",
            "SELECT seqline.discard_parked('probe', NULL, true, 'x')",
        ] {
            let error = sqlx::raw_sql(sql).execute(&mut app).await.unwrap_err();
            let code = error.as_database_error().and_then(|error| error.code()).unwrap();
            assert_eq!(code, "55P03", "{sql}");
        }
        gate.open();
    };
    let (round, ()) = tokio::join!(bench.round(), deciding);
    assert_eq!(round.unwrap().last_seq, Some(2));
}

#[tokio::test]
async fn without_an_order_nothing_is_done() {
    let bench = at_five().await;
    append_about(&bench.db, &["f", "g"]).await;
    as_admin(
        &bench.db,
        "INSERT INTO seqline.parked_events (consumer, seq) VALUES ('probe', 1);
         INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('probe', 1, 1)",
    )
    .await;
    let mut app = session(&bench.db).await;
    let before = everything(&bench.db).await;
    for sql in [
        "SELECT seqline.skip_event('probe', 6, NULL, 'x')",
        "SELECT seqline.retire_consumer('probe', NULL, NULL)",
        "SELECT seqline.rewind_consumer('probe', 1, NULL, NULL)",
        "SELECT seqline.set_consumer_lanes('probe', 2, NULL, NULL, NULL)",
        "SELECT seqline.replay_consumer('probe', 'again', 1, 2, NULL, NULL)",
        "SELECT seqline.acknowledge_losses('probe', NULL, NULL)",
        "SELECT seqline.retry_parked('probe', NULL, NULL, NULL)",
        "SELECT seqline.discard_parked('probe', NULL, NULL, NULL)",
    ] {
        sqlx::raw_sql(sql).execute(&mut app).await.unwrap();
        assert_eq!(everything(&bench.db).await, before, "{sql}");
    }
}

async fn everything(db: &TestDb) -> String {
    sqlx::query_scalar(
        "SELECT concat((SELECT string_agg(e::text, ',') FROM seqline.event_consumers e),
             (SELECT string_agg(c::text, ',') FROM seqline.event_consumer_cursors c),
             (SELECT string_agg(p::text, ',') FROM seqline.parked_events p),
             (SELECT string_agg(s::text, ',') FROM seqline.skipped_events s),
             (SELECT string_agg(l::text, ',') FROM seqline.lost_ranges l),
             (SELECT string_agg(a::text, ',') FROM seqline.audit_log a))",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap()
}

#[tokio::test]
async fn an_event_that_is_skipped_is_stepped_over_and_comes_again_with_a_rewind() {
    let switch = Switch::on();
    let bench = Bench::new(config(), switch.failing_at(3)).await;
    append_about(&bench.db, &["a", "b", "x", "d"]).await;
    bench.round().await.unwrap_err();
    let mut app = session(&bench.db).await;
    let plan = skip(&mut app, &name(PROBE), 3, Mode::Plan).await.unwrap();
    let event_type = plan.event_type.as_deref();
    assert_eq!(
        (event_type, plan.resource.as_deref(), plan.ahead),
        (Some("test.happened"), Some("order/x"), 2)
    );
    for why in [None, Some("")] {
        let error = skip(&mut app, &name(PROBE), 3, Mode::Apply { why }).await;
        assert_eq!(refused(error), "the reason is missing");
    }
    assert_eq!(bench.round().await.unwrap_err().seq(), Some(3), "nothing was changed");
    skip(&mut app, &name(PROBE), 3, APPLY).await.unwrap();
    // A round ends before it, and the next one steps over it.
    assert_eq!(bench.processes(2).await.last_seq, Some(2));
    assert_eq!(bench.processes(1).await.last_seq, Some(4));
    assert_eq!(effects(&bench.db).await, twice([1, 2, 4]));
    let (action, _, _, after, why) = audit(&bench.db).await.remove(0);
    assert_eq!((action.as_str(), why.as_deref()), ("consumer.skip", Some("a test")));
    assert_eq!(
        after,
        serde_json::json!({"skipped_seq": 3, "in_log": true, "type": "test.happened", "resource": "order/x"})
    );
    switch.off();
    let plan = rewind(&mut app, &name(PROBE), Target::Seq(3), APPLY).await.unwrap();
    assert_eq!((plan.events, plan.skipped), (2, 1));
    bench.processes(2).await;
    assert_eq!(effects(&bench.db).await, [1, 1, 2, 2, 3, 3, 4, 4, 4, 4]);
}

#[tokio::test]
async fn skipped_events_at_the_end_and_in_a_row_are_stepped_over_too() {
    let bench = Bench::new(config(), plain()).await;
    append_about(&bench.db, &["a", "b", "c", "d", "e"]).await;
    let mut app = session(&bench.db).await;
    for seq in [1, 2, 4, 5] {
        skip(&mut app, &name(PROBE), seq, APPLY).await.unwrap();
    }
    let mut handled = 0;
    loop {
        let round = bench.round().await.unwrap();
        if round.outcome == Outcome::Idle {
            break;
        }
        handled += round.processed;
    }
    assert_eq!((handled, cursor(&bench.db, PROBE).await), (1, 5));
    assert_eq!(effects(&bench.db).await, twice([3]));
    assert_eq!(state_of(&bench.db, PROBE).await.lag(), 0);
}

#[tokio::test]
async fn a_hole_in_the_log_is_passed_when_somebody_says_so() {
    for filter in [Filter::everything(), Filter::everything().types(["test.*"])] {
        let bench = Bench::on(database().await, config(), probe(plain()).filter(filter).unwrap()).await;
        append_about(&bench.db, &["a", "b", "c", "d", "e"]).await;
        as_admin(&bench.db, "DELETE FROM seqline.event_log WHERE seq = 3").await;
        assert_eq!(bench.round().await.unwrap_err().error_type(), "gap");
        let mut app = session(&bench.db).await;
        let plan = skip(&mut app, &name(PROBE), 3, APPLY).await.unwrap();
        assert_eq!((plan.event_type, plan.resource), (None, None));
        bench.processes(2).await;
        bench.processes(2).await;
        assert_eq!((cursor(&bench.db, PROBE).await, effects(&bench.db).await), (5, twice([1, 2, 4, 5])));
        assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    }
}

#[tokio::test]
async fn only_an_event_that_is_to_come_can_be_skipped_and_only_once() {
    let bench = at_five().await;
    append_about(&bench.db, &["f"]).await;
    let mut app = session(&bench.db).await;
    skip(&mut app, &name(PROBE), 6, APPLY).await.unwrap();
    let mut refusal = async |seq| refused(skip(&mut app, &name(PROBE), seq, Mode::Plan).await);
    assert_eq!(refusal(5).await, "consumer probe has passed seq 5 already: it is at 5");
    assert_eq!(refusal(6).await, "consumer probe leaves out seq 6 already");
    assert_eq!(refusal(7).await, "seq 7 is not in the log: it ends at 6");
}

#[tokio::test]
async fn an_event_that_its_lane_has_passed_is_not_skipped() {
    let consumer = probe(plain()).lanes(LaneKey::Resource, 2);
    let bench = Bench::on(database().await, config(), consumer).await;
    // Without a resource id: all of the first lane.
    append(&bench.db.producer(), 1..=4).await;
    bench.processes(4).await;
    let mut app = session(&bench.db).await;
    let refusal = refused(skip(&mut app, &name(PROBE), 3, Mode::Plan).await);
    assert_eq!(refusal, "consumer probe has passed seq 3 already: it is at 4");
    // What is missing is in front of each lane that has not come there.
    as_admin(&bench.db, "DELETE FROM seqline.event_log WHERE seq = 3").await;
    assert_eq!(skip(&mut app, &name(PROBE), 3, Mode::Plan).await.unwrap().event_type, None);
}

#[tokio::test]
async fn no_round_of_a_retired_consumer_begins_until_it_goes_on() {
    let (captured, _guard) = Captured::start();
    let bench = at_five().await;
    append_about(&bench.db, &["f", "g"]).await;
    let mut app = session(&bench.db).await;
    let plan = retire(&mut app, &name(PROBE), Mode::Plan).await.unwrap();
    assert_eq!((plan.last_seq, plan.events, plan.parked), (5, 2, 0));
    assert_eq!(state_of(&bench.db, PROBE).await.retired_at, None);
    retire(&mut app, &name(PROBE), APPLY).await.unwrap();
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Retired);
    let behind_the_lock: String =
        sqlx::query_scalar("SELECT state FROM seqline.lock_consumer('probe', 0, 0)")
            .fetch_one(&mut app)
            .await
            .unwrap();
    assert_eq!(behind_the_lock, "locked");
    assert_eq!(refused(retire(&mut app, &name(PROBE), APPLY).await), "consumer probe was retired");
    // A program that still runs it says so once, and others of it go on.
    let other = Consumer::new(name("other"), plain()).start_at(StartAt::Oldest);
    let running = Running::on(&bench.db, quick(), Clock::system(), [probe(plain()), other]);
    reaches_of(&bench.db, "other", 7).await;
    assert!(resume(&mut app, &name(PROBE), None).await.unwrap());
    reaches_of(&bench.db, PROBE, 7).await;
    running.stops().await;
    assert_eq!(effects(&bench.db).await, twice(1..=7));
    assert_eq!(captured.count("event consumer is retired"), 1);
}

async fn reaches_of(db: &TestDb, consumer: &str, seq: i64) {
    eventually(DEADLINE, consumer, async || cursor(db, consumer).await == seq).await;
}

#[tokio::test]
async fn a_reason_is_as_long_as_the_audit_log_takes() {
    let bench = at_five().await;
    let mut app = session(&bench.db).await;
    let why = "x".repeat(1001);
    let error = rewind(&mut app, &name(PROBE), Target::Seq(1), Mode::Apply { why: Some(&why) }).await;
    assert_eq!(refused(error), "the reason has more than 1000 characters");
    let why = "x".repeat(1000);
    rewind(&mut app, &name(PROBE), Target::Seq(1), Mode::Apply { why: Some(&why) }).await.unwrap();
}

#[tokio::test]
async fn only_workers_may_decide_about_consumers() {
    let bench = at_five().await;
    for role in [Role::Producer, Role::Reader, Role::Consumer, Role::Nobody] {
        let mut other = bench.db.connect(role).await;
        for sql in [
            "SELECT seqline.rewind_consumer('probe', 1, true, NULL)",
            "SELECT seqline.skip_event('probe', 6, true, 'x')",
            "SELECT seqline.retire_consumer('probe', true, NULL)",
            "SELECT seqline.gather_lanes('probe', '1 minute')",
            "SELECT seqline.set_consumer_lanes('probe', 2, NULL, true, NULL)",
            "SELECT seqline.replay_consumer('probe', 'again', 1, 2, true, NULL)",
            "SELECT seqline.acknowledge_losses('probe', true, NULL)",
            "SELECT seqline.retry_parked('probe', NULL, true, NULL)",
            "SELECT seqline.discard_parked('probe', NULL, true, 'x')",
        ] {
            let error = sqlx::raw_sql(sql).execute(&mut other).await.unwrap_err();
            let code = error.as_database_error().and_then(|error| error.code()).unwrap();
            assert_eq!(code, "42501", "{role:?} {sql}");
        }
    }
}
