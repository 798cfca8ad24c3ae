//! The crash proof in short, in each mode, and the proof that it can fail. `cargo xtask chaos` runs it for as long as you like.

use seqline::settings::{Notification, Sequencing};
use seqline_testkit::crash::{Fault, Mode, Plan, Report, Waiting, prove, seed};

/// Kills in each mode: few, because each takes a second.
const ROUNDS: u32 = 2;

async fn survives(sequencing: Sequencing, notification: Notification) {
    let plan = Plan { rounds: ROUNDS, ..Plan::new(seed(), Mode::new(sequencing, notification)) };
    println!("{plan}");
    let report = Box::pin(prove(&plan)).await.unwrap_or_else(|failed| panic!("{failed}"));
    println!("{report}");
    let Report { summary, flushes_checked, .. } = report;
    assert!(summary.committed > 10 && summary.rolled_back > 0 && flushes_checked > 0, "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbering_at_commit_with_notification_in_the_transaction() {
    survives(Sequencing::AtCommit, Notification::InTransaction).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbering_at_commit_with_notification_after_it() {
    survives(Sequencing::AtCommit, Notification::AfterCommit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbering_at_commit_without_notification() {
    survives(Sequencing::AtCommit, Notification::Off).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbering_after_commit_with_notification_after_it() {
    survives(Sequencing::AfterCommit, Notification::AfterCommit).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbering_after_commit_without_notification() {
    survives(Sequencing::AfterCommit, Notification::Off).await;
}

/// The proof proves something only if it fails when nobody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_waiting_the_proof_fails() {
    // What a reader was given too early is found only when it was given something in the last moments before the kill. So not always in
    // the first round, with which a proof that fails ends.
    let mut found = [false; 3];
    for _ in 0..8 {
        let plan = Plan {
            rounds: 5,
            waiting: Waiting::LeftOut,
            ..Plan::new(seed(), Mode::new(Sequencing::AtCommit, Notification::Off))
        };
        println!("{plan}");
        let failed = match Box::pin(prove(&plan)).await {
            Ok(report) => panic!("nothing was lost: {report}"),
            Err(failed) => failed,
        };
        println!("{failed}");
        for fault in &failed.faults {
            found[0] |= matches!(fault, Fault::NotFlushed { .. });
            found[1] |= matches!(fault, Fault::Lost { .. });
            found[2] |= matches!(fault, Fault::Vanished { .. } | Fault::Ended { .. });
        }
        if found == [true; 3] {
            return;
        }
    }
    panic!("not flushed, lost, given and taken back: {found:?}");
}
