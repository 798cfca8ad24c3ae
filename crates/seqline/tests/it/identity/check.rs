//! What a database says of its history, what is recorded, and by whom.

use seqline::identity::{self, BrokenReason, CursorAbove, Difference, Standing};
use seqline_testkit::{Role, TestDb};
use serde_json::json;
use uuid::Uuid;

use super::{as_admin, audited, check_as, epoch, rule};
use crate::support::{append, head};

/// Another server, as far as the log can tell.
const OTHER_CLUSTER: &str =
    "UPDATE seqline.log_identity SET system_identifier = system_identifier + 1, database_oid = 1";
const OTHER_TIMELINE: &str = "UPDATE seqline.log_identity SET timeline = timeline + 1";
const OTHER_DATABASE: &str = "UPDATE seqline.log_identity SET database_oid = 1";

async fn record(db: &TestDb, reason: BrokenReason, seen: Option<i64>) -> Result<bool, identity::EpochError> {
    let epoch = epoch(db).await;
    identity::record_broken(&mut db.connect(Role::App).await, epoch, reason, seen).await
}

async fn accept(db: &TestDb, seen: Option<i64>) -> Result<bool, identity::EpochError> {
    let epoch = epoch(db).await;
    identity::accept(&mut db.connect(Role::App).await, epoch, seen, Some("failover")).await
}

#[tokio::test]
async fn a_log_is_on_its_own_server_for_everybody_who_may_read_it() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    head(&db).await;
    for role in [Role::App, Role::Reader] {
        let check = check_as(&db, role).await;
        assert_eq!(check.standing(), Standing::Matches, "{role:?}: {check:?}");
        assert_eq!((check.head, check.server, check.in_recovery()), (3, check.recorded, false));
    }
    for role in [Role::Producer, Role::Consumer, Role::Nobody] {
        let error = identity::check(&mut db.connect(role).await).await.unwrap_err();
        assert_eq!(error.sqlstate(), Some("42501"), "{role:?}");
    }
}

#[tokio::test]
async fn what_differs_is_named() {
    let db = TestDb::new().await;
    let (ours, _) = (check_as(&db, Role::Reader).await, as_admin(&db, OTHER_CLUSTER).await);
    as_admin(&db, OTHER_TIMELINE).await;
    let check = check_as(&db, Role::Reader).await;
    let recorded = check.recorded;
    assert_eq!(
        check.standing(),
        Standing::Differs(&[
            Difference::System {
                recorded: recorded.system_identifier,
                server: ours.server.system_identifier
            },
            Difference::Timeline { recorded: 2, server: 1 },
            Difference::Database { recorded: 1, server: ours.server.database_oid },
        ])
    );
}

#[tokio::test]
async fn a_cursor_above_the_head_is_found_whatever_its_consumer_does() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    as_admin(
        &db,
        "SELECT seqline.ensure_consumer('fine', 'worker', 'oldest'), seqline.ensure_consumer('wide', 'worker', 'oldest', 3),
                seqline.ensure_consumer('polled', 'poll', 'head'), seqline.ensure_consumer('retired', 'worker', 'head');
         UPDATE seqline.event_consumer_cursors SET last_seq = 9 WHERE name = 'wide' AND lane = 1;
         UPDATE seqline.event_consumer_cursors SET last_seq = 4 WHERE name IN ('polled', 'retired');
         UPDATE seqline.event_consumers SET retired_at = now() WHERE name = 'retired';
         UPDATE seqline.event_consumers SET paused_at = now() WHERE name = 'polled'",
    )
    .await;
    let check = check_as(&db, Role::Reader).await;
    let above =
        |consumer: &str, lane, last_seq| CursorAbove { consumer: consumer.to_owned(), lane, last_seq };
    assert_eq!(check.cursors_above, [above("polled", 0, 4), above("retired", 0, 4), above("wide", 1, 9)]);
    assert_eq!(check.standing(), Standing::Broken(BrokenReason::CursorAboveHead));
}

#[tokio::test]
async fn a_history_that_went_back_is_recorded_once_and_remembered() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    assert!(record(&db, BrokenReason::HeadWentBack, Some(5)).await.unwrap());
    assert!(!record(&db, BrokenReason::HeadWentBack, Some(7)).await.unwrap());
    // The log has grown past what was seen: nothing but the record tells.
    append(&db.producer(), 4..=9).await;
    let check = check_as(&db, Role::Reader).await;
    assert_eq!(check.standing(), Standing::Broken(BrokenReason::HeadWentBack));
    assert_eq!(
        audited(&db).await,
        [(
            "log.broken".to_owned(),
            json!({"epoch": check.epoch, "seen": 5}),
            json!({"reason": "head_went_back", "head": 3}),
            None
        )]
    );
}

#[tokio::test]
async fn what_is_not_so_is_not_recorded() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    head(&db).await;
    for seen in [None, Some(2), Some(3)] {
        assert_eq!(rule(record(&db, BrokenReason::HeadWentBack, seen).await), "broken_head");
    }
    assert_eq!(rule(record(&db, BrokenReason::CursorAboveHead, Some(9)).await), "broken_cursor");
    let mut app = db.connect(Role::App).await;
    let other = Uuid::from_u128(7);
    let recorded = identity::record_broken(&mut app, other, BrokenReason::HeadWentBack, Some(9)).await;
    assert_eq!(rule(recorded), "broken_epoch");
    let (epoch, mut reader) = (epoch(&db).await, db.connect(Role::Reader).await);
    let recorded = identity::record_broken(&mut reader, epoch, BrokenReason::HeadWentBack, Some(9)).await;
    assert!(
        matches!(recorded, Err(identity::EpochError::Database(error)) if error.sqlstate() == Some("42501"))
    );
    assert_eq!(check_as(&db, Role::App).await.broken, None);
    assert_eq!(audited(&db).await, []);
}

/// In a transaction that sees an older state the head would seem to be below what was seen.
#[tokio::test]
async fn a_transaction_with_an_older_view_records_nothing() {
    let db = TestDb::new().await;
    let epoch = epoch(&db).await;
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT seqline.head()")
        .execute(&mut app)
        .await
        .unwrap();
    append(&db.producer(), 1..=3).await;
    head(&db).await;
    let recorded = identity::record_broken(&mut app, epoch, BrokenReason::HeadWentBack, Some(3)).await;
    assert!(
        matches!(recorded, Err(identity::EpochError::Database(error)) if error.sqlstate() == Some("0A000"))
    );
}

#[tokio::test]
async fn another_timeline_is_accepted_and_the_epoch_goes_on() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    head(&db).await;
    let before = epoch(&db).await;
    as_admin(&db, OTHER_TIMELINE).await;
    assert!(accept(&db, None).await.unwrap());
    assert!(!accept(&db, Some(3)).await.unwrap());
    let check = check_as(&db, Role::App).await;
    assert_eq!((check.standing(), check.epoch), (Standing::Matches, before));
    let [(action, old, new, why)] = &audited(&db).await[..] else { panic!("one entry") };
    assert_eq!((action.as_str(), why.as_deref()), ("log.accept", Some("failover")));
    assert_eq!((&old["timeline"], &new["timeline"], &new["head"]), (&json!(2), &json!(1), &json!(3)));
}

#[tokio::test]
async fn what_no_failover_makes_is_not_accepted() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    head(&db).await;
    as_admin(&db, OTHER_DATABASE).await;
    assert_eq!(rule(accept(&db, Some(3)).await), "accept_copy");
    as_admin(&db, OTHER_CLUSTER).await;
    assert_eq!(rule(accept(&db, None).await), "accept_server");
    assert_eq!(rule(accept(&db, Some(4)).await), "accept_head");
    as_admin(&db, "SELECT seqline.ensure_consumer('probe', 'worker', 'head'); UPDATE seqline.event_consumer_cursors SET last_seq = 9")
        .await;
    assert_eq!(rule(accept(&db, Some(3)).await), "accept_cursor");
    as_admin(&db, "UPDATE seqline.event_consumer_cursors SET last_seq = 3").await;
    assert!(record(&db, BrokenReason::HeadWentBack, Some(4)).await.unwrap());
    assert_eq!(rule(accept(&db, Some(3)).await), "accept_broken");
    as_admin(&db, "UPDATE seqline.log_identity SET broken_at = NULL, broken_reason = NULL").await;
    assert!(accept(&db, Some(3)).await.unwrap());
    assert_eq!(check_as(&db, Role::App).await.standing(), Standing::Matches);
}
