//! What a process does with what it finds: once, and by the rule.

use seqline::identity::{self, Acted, BrokenReason, HistoryWatch, Look, OnChange, WaitReason};
use seqline_testkit::{Role, TestDb};

use super::{as_admin, check_as, epoch};
use crate::support::{append, head};

async fn look(db: &TestDb, role: Role, watch: &mut HistoryWatch, rule: OnChange) -> Look {
    identity::look(&mut db.connect(role).await, watch, rule).await.unwrap()
}

#[tokio::test]
async fn a_process_learns_the_epoch_and_then_goes_on() {
    let db = TestDb::new().await;
    let mut watch = HistoryWatch::default();
    for expected in [3, 6] {
        append(&db.producer(), 1..=3).await;
        head(&db).await;
        let looked = look(&db, Role::Reader, &mut watch, OnChange::Refuse).await;
        match (expected, looked) {
            (3, Look::NewEpoch { from: None, acted: Acted::Nothing, .. }) => {}
            (6, Look::GoOn { acted: Acted::Nothing, .. }) => {}
            other => panic!("{other:?}"),
        }
        let epoch = epoch(&db).await;
        assert_eq!((watch.epoch(), watch.seen(epoch)), (Some(epoch), Some(expected)));
    }
}

/// As by a restore of an older backup.
async fn takes_back(db: &TestDb, watch: &mut HistoryWatch) {
    append(&db.producer(), 1..=3).await;
    head(db).await;
    watch.remember(epoch(db).await, 5);
}

#[tokio::test]
async fn a_log_that_went_back_waits_and_those_that_start_later_know() {
    let db = TestDb::new().await;
    let mut watch = HistoryWatch::default();
    takes_back(&db, &mut watch).await;
    let broken = WaitReason::Broken(BrokenReason::HeadWentBack);
    for rule in [OnChange::Refuse, OnChange::Accept] {
        // Whoever only reads says the same, and cannot record it.
        for (role, expected) in [(Role::Reader, rule == OnChange::Accept), (Role::App, true)] {
            let Look::Wait { reason, recorded, .. } = look(&db, role, &mut watch, rule).await else {
                panic!("it waits")
            };
            assert_eq!((reason, recorded), (broken.clone(), expected), "{rule}, {role:?}");
        }
    }
    append(&db.producer(), 4..=9).await;
    head(&db).await;
    let started_later = look(&db, Role::App, &mut HistoryWatch::default(), OnChange::Accept).await;
    assert!(matches!(started_later, Look::Wait { reason, .. } if reason == broken));
}

#[tokio::test]
async fn a_new_epoch_is_started_by_the_rule_and_once() {
    let db = TestDb::new().await;
    let mut watch = HistoryWatch::default();
    takes_back(&db, &mut watch).await;
    let before = epoch(&db).await;
    let (mut first, mut second) = (watch.clone(), watch);
    let (one, other) = tokio::join!(
        look(&db, Role::App, &mut first, OnChange::NewEpoch),
        look(&db, Role::App, &mut second, OnChange::NewEpoch)
    );
    let mut finalized = 0;
    for looked in [one, other] {
        let Look::NewEpoch { from, to, acted, .. } = looked else { panic!("{looked:?}") };
        assert_eq!((from, to), (Some(before), epoch(&db).await));
        finalized += usize::from(matches!(acted, Acted::Finalized(_)));
    }
    assert_eq!(finalized, 1);
    let after = look(&db, Role::App, &mut first, OnChange::NewEpoch).await;
    assert!(matches!(after, Look::GoOn { acted: Acted::Nothing, .. }), "{after:?}");
}

#[tokio::test]
async fn a_cursor_above_the_head_waits_and_stays_known_when_the_log_has_passed_it() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    as_admin(&db, "SELECT seqline.ensure_consumer('probe', 'worker', 'head'); UPDATE seqline.event_consumer_cursors SET last_seq = 5")
        .await;
    let mut watch = HistoryWatch::default();
    for _ in 0..2 {
        let looked = look(&db, Role::App, &mut watch, OnChange::Accept).await;
        let reason = WaitReason::Broken(BrokenReason::CursorAboveHead);
        assert!(
            matches!(&looked, Look::Wait { reason: found, recorded: true, .. } if *found == reason),
            "{looked:?}"
        );
        append(&db.producer(), 4..=9).await;
        head(&db).await;
    }
    assert_eq!(watch.epoch(), None);
    assert_eq!(check_as(&db, Role::App).await.cursors_above, []);
}

#[tokio::test]
async fn a_failover_is_accepted_by_the_rule_only() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=3).await;
    head(&db).await;
    as_admin(&db, "UPDATE seqline.log_identity SET timeline = timeline + 1").await;
    let before = epoch(&db).await;
    let looked = look(&db, Role::App, &mut HistoryWatch::default(), OnChange::Refuse).await;
    assert!(
        matches!(looked, Look::Wait { reason: WaitReason::Differs(_), recorded: false, .. }),
        "{looked:?}"
    );
    let looked = look(&db, Role::App, &mut HistoryWatch::default(), OnChange::Accept).await;
    assert!(
        matches!(looked, Look::NewEpoch { from: None, to, acted: Acted::Accepted, .. } if to == before),
        "{looked:?}"
    );
    let looked = look(&db, Role::App, &mut HistoryWatch::default(), OnChange::Refuse).await;
    assert!(matches!(looked, Look::NewEpoch { acted: Acted::Nothing, .. }), "{looked:?}");
}
