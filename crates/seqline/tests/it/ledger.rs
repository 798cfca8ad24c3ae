//! The ledger: an event that comes more than once has its effect once.

use std::time::Duration;

use seqline::ledger::{Claim, claim, claim_all, prune, times_handled};
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::PgConnection;
use uuid::Uuid;

const CONSUMER: &str = "invoices";

async fn times(db: &TestDb, consumer: &str, event: Uuid) -> u8 {
    times_handled(&mut db.connect(Role::Consumer).await, consumer, event).await.unwrap()
}

/// Claims in a transaction and commits it.
async fn claims(db: &TestDb, consumer: &str, event: Uuid) -> Claim {
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let claimed = claim(&mut tx, consumer, event).await.unwrap();
    seqline::commit(tx).await.unwrap();
    claimed
}

async fn age(db: &TestDb, event: Uuid, days: i32) {
    sqlx::query("UPDATE seqline.consumed_events SET handled_at = now() - make_interval(days => $2) WHERE event_id = $1")
        .bind(event)
        .bind(days)
        .execute(&db.admin())
        .await
        .unwrap();
}

#[tokio::test]
async fn the_first_claim_is_new_and_later_ones_are_duplicates() {
    let db = TestDb::new().await;
    let event = Uuid::now_v7();
    assert_eq!(times(&db, CONSUMER, event).await, 0);
    assert_eq!(claims(&db, CONSUMER, event).await, Claim::New);
    assert_eq!(claims(&db, CONSUMER, event).await, Claim::Duplicate);
    assert_eq!(times(&db, CONSUMER, event).await, 1);
}

#[tokio::test]
async fn each_consumer_has_claims_of_its_own() {
    let db = TestDb::new().await;
    let event = Uuid::now_v7();
    assert_eq!(claims(&db, CONSUMER, event).await, Claim::New);
    assert_eq!(claims(&db, "mails", event).await, Claim::New);
    assert_eq!((times(&db, CONSUMER, event).await, times(&db, "mails", event).await), (1, 1));
}

#[tokio::test]
async fn an_effect_that_fails_takes_its_claim_back() {
    let db = TestDb::new().await;
    let event = Uuid::now_v7();
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    assert_eq!(claim(&mut tx, CONSUMER, event).await.unwrap(), Claim::New);
    sqlx::query("SELECT 1 / 0").execute(&mut *tx).await.unwrap_err();
    tx.rollback().await.unwrap();
    assert_eq!(times(&db, CONSUMER, event).await, 0);
    assert_eq!(claims(&db, CONSUMER, event).await, Claim::New);
}

#[tokio::test]
async fn many_are_claimed_at_once_and_only_the_new_ones_are_returned() {
    let db = TestDb::new().await;
    let events: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
    claims(&db, CONSUMER, events[1]).await;
    let mut app = db.connect(Role::App).await;
    let asked = [events[0], events[1], events[2], events[2]];
    let mut new = claim_all(&mut app, CONSUMER, &asked).await.unwrap();
    new.sort();
    assert_eq!(new, [events[0], events[2]]);
    assert!(claim_all(&mut app, CONSUMER, &[]).await.unwrap().is_empty());
}

/// Whether the connection waits for another one's transaction.
async fn is_waiting(admin: &mut PgConnection) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                        WHERE NOT l.granted AND l.locktype = 'transactionid' AND a.datname = current_database())",
    )
    .fetch_one(admin)
    .await
    .unwrap()
}

/// What a claim is told that comes while another one is open, when that one ends.
async fn behind_another(commits: bool) -> Claim {
    let db = TestDb::new().await;
    let event = Uuid::now_v7();
    let mut first = seqline::begin(&db.app()).await.unwrap();
    assert_eq!(claim(&mut first, CONSUMER, event).await.unwrap(), Claim::New);
    let ends = async {
        let mut admin = db.connect(Role::Admin).await;
        eventually(Duration::from_secs(20), "the second claim waits", async || is_waiting(&mut admin).await)
            .await;
        match commits {
            true => seqline::commit(first).await.unwrap(),
            false => first.rollback().await.unwrap(),
        }
    };
    let (claimed, ()) = tokio::join!(claims(&db, CONSUMER, event), ends);
    assert_eq!(times(&db, CONSUMER, event).await, 1);
    claimed
}

#[tokio::test]
async fn a_claim_waits_for_the_one_before_it_and_is_a_duplicate_when_that_commits() {
    assert_eq!(behind_another(true).await, Claim::Duplicate);
}

#[tokio::test]
async fn a_claim_waits_for_the_one_before_it_and_is_the_first_when_that_rolls_back() {
    assert_eq!(behind_another(false).await, Claim::New);
}

#[tokio::test]
async fn old_claims_are_removed_in_batches_and_others_stay() {
    let db = TestDb::new().await;
    let events: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
    let mut app = db.connect(Role::App).await;
    claim_all(&mut app, CONSUMER, &events).await.unwrap();
    for event in &events[..3] {
        age(&db, *event, 40).await;
    }
    age(&db, events[3], 20).await;
    let month = Duration::from_secs(30 * 86_400);
    let mut removed = Vec::new();
    for _ in 0..3 {
        removed.push(prune(&mut app, month, 2).await.unwrap());
    }
    assert_eq!(removed, [2, 1, 0]);
    assert_eq!((times(&db, CONSUMER, events[3]).await, times(&db, CONSUMER, events[4]).await), (1, 1));
    assert_eq!(times(&db, CONSUMER, events[0]).await, 0);
}

#[tokio::test]
async fn processes_that_remove_at_the_same_time_do_not_wait_for_each_other() {
    let db = TestDb::new().await;
    let events = [Uuid::now_v7(), Uuid::now_v7()];
    let mut app = db.connect(Role::App).await;
    claim_all(&mut app, CONSUMER, &events).await.unwrap();
    for event in events {
        age(&db, event, 40).await;
    }
    let mut other = seqline::begin(&db.app()).await.unwrap();
    assert_eq!(prune(&mut other, Duration::ZERO, 1).await.unwrap(), 1);
    assert_eq!(prune(&mut app, Duration::ZERO, 5).await.unwrap(), 1);
    seqline::commit(other).await.unwrap();
    assert_eq!((times(&db, CONSUMER, events[0]).await, times(&db, CONSUMER, events[1]).await), (0, 0));
}
