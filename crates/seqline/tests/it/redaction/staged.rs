//! Events that have committed and wait for their numbers are in no partition yet. They are counted, and not forgotten.

use seqline::sequencer::drain;
use seqline::settings::Sequencing;

use super::*;
use crate::sequencing::change;

/// A database that numbers after commit, and nobody who does it.
async fn unsequenced() -> TestDb {
    let db = TestDb::at_commit().await;
    append(&db.producer(), [order("17")]).await;
    change(&db, Sequencing::AfterCommit).await;
    db
}

/// Without waiting for a number.
async fn commit(db: &TestDb, events: Vec<NewEvent>) -> Vec<Uuid> {
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    let ids = seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    ids
}

async fn of_resource(db: &TestDb, mode: Mode<'_>) -> (i64, i64, i64) {
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let redaction = redact::resource(&mut tx, "order", "17", None, mode).await.unwrap();
    seqline::commit(tx).await.unwrap();
    counts(&redaction)
}

async fn of_event(db: &TestDb, id: Uuid) -> (i64, i64, i64) {
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let redaction = redact::event(&mut tx, id, APPLY).await.unwrap();
    seqline::commit(tx).await.unwrap();
    counts(&redaction)
}

async fn number(db: &TestDb) {
    drain(&mut db.connect(Role::App).await).await.unwrap();
}

#[tokio::test]
async fn those_that_wait_are_counted_and_redacted_when_they_have_their_numbers() {
    let db = unsequenced().await;
    // Carried by the marker, in a table of their own, and with an id of the caller's.
    let alone = commit(&db, vec![order("17")]).await;
    let own = about("order", "17").id(Uuid::now_v7()).build().unwrap();
    let more = commit(&db, vec![order("17"), order("18"), own]).await;
    assert_eq!(of_resource(&db, Mode::Plan).await, (1, 0, 3));
    assert_eq!(of_resource(&db, APPLY).await, (1, 0, 3));
    for id in [alone[0], more[0], more[2]] {
        assert_eq!(of_event(&db, id).await, (0, 0, 1));
    }
    assert_eq!(of_event(&db, Uuid::now_v7()).await, (0, 0, 0));
    assert_eq!(of_resource(&db, APPLY).await, (0, 1, 3));
    number(&db).await;
    assert_eq!(of_event(&db, alone[0]).await, (1, 0, 0));
    assert_eq!(of_resource(&db, APPLY).await, (2, 2, 0));
    number(&db).await;
    assert_eq!(redacted(&db).await, [1, 2, 3, 5]);
}

/// A notice waits for its number itself, and is none of those that wait to be redacted.
#[tokio::test]
async fn a_notice_that_waits_is_not_counted() {
    let db = unsequenced().await;
    assert_eq!(of_resource(&db, APPLY).await, (1, 0, 0));
    assert_eq!(of_resource(&db, APPLY).await, (0, 1, 0));
    number(&db).await;
    assert_eq!(of_resource(&db, APPLY).await, (0, 1, 0));
    assert_eq!(head(&db).await, 2);
}

/// Nobody can see them: they come after the redaction.
#[tokio::test]
async fn those_of_open_transactions_are_not_known_of() {
    for sequencing in [Sequencing::AtCommit, Sequencing::AfterCommit] {
        let db = TestDb::at_commit().await;
        change(&db, sequencing).await;
        let producer = db.producer();
        let mut open = seqline::begin(&producer).await.unwrap();
        let own = about("order", "17").id(Uuid::now_v7()).build().unwrap();
        let ids = seqline::append(&mut open, &[order("17"), own]).await.unwrap();
        assert_eq!(of_resource(&db, APPLY).await, (0, 0, 0), "{sequencing}");
        assert_eq!(of_event(&db, ids[1]).await, (0, 0, 0), "{sequencing}");
        seqline::commit(open).await.unwrap();
        number(&db).await;
        assert_eq!(redacted(&db).await, [0; 0], "{sequencing}");
        assert_eq!(of_resource(&db, APPLY).await, (2, 0, 0), "{sequencing}");
    }
}

/// Whatever moves from the one place to the other meanwhile is redacted, or counted.
#[tokio::test]
async fn none_slips_through_while_the_sequencer_runs() {
    let db = unsequenced().await;
    of_resource(&db, APPLY).await;
    let sequencer = crate::sequencing::sequencer(&db);
    for round in 0..60 {
        let ids = commit(&db, vec![order("17"), order("17")]).await;
        let mut left = 2;
        while left > 0 {
            let (events, _, waiting) = of_resource(&db, APPLY).await;
            assert!(
                events + waiting >= left,
                "round {round}: {events} redacted, {waiting} wait, {left} were left of {ids:?}"
            );
            left -= events;
        }
    }
    drop(sequencer);
}
