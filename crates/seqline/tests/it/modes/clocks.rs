//! Clocks that jump: what is told by the clock of a process, and what is not.

use std::time::Duration;

use seqline::Clock;
use seqline::limits::CLOCK_SKEW_MAX;
use seqline::maintenance::{Maintenance, MaintenanceConfig};
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::Sequencing;
use seqline_testkit::{Role, TestDb, eventually};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::partitions::{ensure, ranges, small_partitions};
use crate::sequencing::{change, sequencer, settled};
use crate::support::{append, numbers};
use crate::tail::manual;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DEADLINE: Duration = Duration::from_secs(30);

/// Maintenance of a process that believes that it is so much later, or earlier.
fn at(db: &TestDb, now: OffsetDateTime, config: MaintenanceConfig) -> Maintenance {
    let (clock, _) = Clock::manual(now);
    Maintenance::new(db.app_pool(2), config, clock)
}

#[tokio::test]
async fn a_clock_that_is_wrong_drops_nothing_and_says_so() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.producer(), 1..=5).await;
    ensure(&db.app()).await;
    let before = ranges(&db).await;
    let now = Clock::system().now();
    let config = || MaintenanceConfig {
        retention: 30 * DAY,
        partition_max_age: Duration::from_secs(3600),
        ..MaintenanceConfig::default()
    };
    for (now, direction) in [
        // All but a day of retention would be gone.
        (now + 29 * DAY, "ahead of"),
        (now + 40 * DAY, "ahead of"),
        (now + 400 * 365 * DAY, "ahead of"),
        (now + 2 * CLOCK_SKEW_MAX, "ahead of"),
        (now - 2 * CLOCK_SKEW_MAX, "behind"),
        (OffsetDateTime::UNIX_EPOCH, "behind"),
    ] {
        let error = at(&db, now, config()).run().await.unwrap_err();
        let (said, rest) =
            error.to_string().split_once(" s ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert!(said.starts_with("the clock of this process is "), "{said}");
        assert_eq!(rest, format!("{direction} the database's: nothing is closed or dropped by it"));
        assert!(!error.is_retryable());
        assert_eq!(ranges(&db).await, before);
    }
    // Within the bound it is done: what has expired by the one clock or the other makes no difference to anybody.
    let config = MaintenanceConfig { retention: Duration::from_secs(1), ..config() };
    let report = at(&db, now + CLOCK_SKEW_MAX / 2, config).run().await;
    // A cutoff in the future is refused by the database itself.
    assert_eq!(report.unwrap_err().sqlstate(), Some("22023"));
}

/// Appends need them, whatever time it is.
#[tokio::test]
async fn partitions_are_made_by_a_clock_that_is_wrong_too() {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.producer(), 1..=5).await;
    let before = ranges(&db).await.len();
    sqlx::raw_sql("UPDATE seqline.settings SET event_log_partitions_ahead = 4")
        .execute(&db.admin())
        .await
        .unwrap();
    let now = Clock::system().now() + 400 * DAY;
    at(&db, now, MaintenanceConfig::default()).run().await.unwrap_err();
    assert!(ranges(&db).await.len() > before);
}

/// The lease is told by the clock of the database alone. One that was taken while that was far ahead would last until then.
#[tokio::test]
async fn a_lease_of_a_database_whose_clock_was_ahead_is_taken_over() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    sqlx::query(
        "UPDATE seqline.sequencer_lease SET holder = $1, expires_at = clock_timestamp() + interval '5 hours'",
    )
    .bind(Uuid::new_v4())
    .execute(&db.admin())
    .await
    .unwrap();
    let _sequencer = sequencer(&db);
    append(&db.producer(), [1]).await;
    settled(&db).await;
}

/// A process whose clock goes back by hours waits for as long, by a clock that does. Another takes over by the database's clock, and when
/// the first goes on nothing is numbered twice.
#[tokio::test]
async fn a_sequencer_whose_clock_jumps_is_replaced_and_nothing_is_numbered_twice() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let (clock, hand) = manual();
    let first = Sequencer::new(db.pool(Role::App, 2), SequencerConfig::default(), clock.clone());
    let stop = CancellationToken::new();
    let running = tokio::spawn(first.run(stop.clone()));
    append(&db.producer(), [1]).await;
    eventually(DEADLINE, "the first number", async || {
        hand.advance(Duration::from_millis(50));
        numbers_now(&db).await == 1
    })
    .await;
    hand.set(clock.now() - 5 * DAY);
    let second = sequencer(&db);
    append(&db.producer(), [2]).await;
    settled(&db).await;
    hand.advance(10 * DAY);
    append(&db.producer(), [3]).await;
    settled(&db).await;
    drop(second);
    append(&db.producer(), [4]).await;
    eventually(DEADLINE, "the first again", async || {
        hand.advance(Duration::from_millis(50));
        numbers_now(&db).await == 4
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3, 4]);
}

async fn numbers_now(db: &TestDb) -> i64 {
    seqline::read::head(&mut db.connect(Role::Reader).await).await.unwrap()
}
