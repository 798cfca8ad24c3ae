//! One sequencer is active; another takes over; what is numbered does not depend on which.

use std::time::Duration;

use futures_util::future::join_all;
use seqline::Clock;
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::Sequencing;
use seqline_testkit::{Role, TestDb, eventually};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{change, sequencer, settled};
use crate::support::{append, numbers};

const SOON: Duration = Duration::from_secs(20);

async fn holder(db: &TestDb) -> Option<Uuid> {
    seqline::status::staged(&mut db.connect(Role::App).await).await.unwrap().sequencer
}

#[tokio::test]
async fn another_takes_over_from_one_that_says_nothing_any_more() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let start = || {
        // Longer than the first may stand still on a busy machine.
        let config = SequencerConfig { lease: Duration::from_secs(6), ..SequencerConfig::default() };
        let sequencer = Sequencer::new(db.pool(Role::App, 2), config, Clock::system());
        tokio::spawn(sequencer.run(CancellationToken::new()))
    };
    let first = start();
    eventually(SOON, "the first has the lease", async || holder(&db).await.is_some()).await;
    let of_first = holder(&db).await;
    let second = start();
    for n in 0..20 {
        append(&db.producer(), [n]).await;
        settled(&db).await;
        assert_eq!(holder(&db).await, of_first, "as long as it works nobody takes over");
    }
    // As a process that is killed: it says nothing.
    first.abort();
    append(&db.producer(), [20]).await;
    settled(&db).await;
    assert_ne!(holder(&db).await, of_first);
    second.abort();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, (0..=20).collect::<Vec<i64>>());
    // What it takes at most: the lease of the one, and a third of it until the other looks.
    let config = SequencerConfig::default();
    assert!(config.lease + config.lease / 3 < Duration::from_secs(1));
}

#[tokio::test]
async fn one_that_stops_in_good_order_gives_the_lease_back() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let stop = CancellationToken::new();
    let sequencer = Sequencer::new(db.pool(Role::App, 2), SequencerConfig::default(), Clock::system());
    let running = tokio::spawn(sequencer.run(stop.clone()));
    eventually(SOON, "it has the lease", async || holder(&db).await.is_some()).await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(holder(&db).await, None);
}

#[tokio::test]
async fn it_goes_on_after_its_connection_was_lost() {
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let _sequencer = sequencer(&db);
    for n in 0..3 {
        append(&db.producer(), [n]).await;
        settled(&db).await;
        sqlx::raw_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND query LIKE '%sequence_staged%' AND pid <> pg_backend_pid()",
        )
        .execute(&db.admin())
        .await
        .unwrap();
    }
    append(&db.producer(), [3]).await;
    settled(&db).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [0, 1, 2, 3]);
}

/// As when processes believe that they have the lease and do not: stopped for longer than it, or by a clock that was set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_them_number_everything_once() {
    const WRITERS: i64 = 8;
    const EACH: i64 = 60;
    let db = TestDb::at_commit().await;
    change(&db, Sequencing::AfterCommit).await;
    let pool = db.pool(Role::Producer, WRITERS as u32);
    let write = async |writer: i64| {
        for n in 0..EACH {
            append(&pool, [writer * EACH + n]).await;
        }
    };
    let drain = async |all: &CancellationToken| {
        let mut connection = db.connect(Role::App).await;
        while !all.is_cancelled() {
            seqline::sequencer::drain(&mut connection).await.unwrap();
        }
    };
    let written = CancellationToken::new();
    let writers = async {
        join_all((0..WRITERS).map(write)).await;
        settled(&db).await;
        written.cancel();
    };
    tokio::join!(writers, drain(&written), drain(&written), drain(&written));
    let logged = numbers(&mut db.connect(Role::Reader).await).await;
    for writer in 0..WRITERS {
        let own: Vec<i64> = logged.iter().copied().filter(|n| n / EACH == writer).collect();
        assert_eq!(own, (writer * EACH..(writer + 1) * EACH).collect::<Vec<_>>());
    }
    assert_eq!(logged.len() as i64, WRITERS * EACH);
    let head = seqline::read::head(&mut db.connect(Role::Reader).await).await.unwrap();
    assert_eq!(head, WRITERS * EACH);
}

#[tokio::test]
async fn it_holds_no_lease_while_nothing_can_wait() {
    let db = TestDb::at_commit().await;
    let _sequencer = sequencer(&db);
    change(&db, Sequencing::AfterCommit).await;
    eventually(SOON, "it has the lease", async || holder(&db).await.is_some()).await;
    change(&db, Sequencing::AtCommit).await;
    eventually(SOON, "it gave it back", async || holder(&db).await.is_none()).await;
}
