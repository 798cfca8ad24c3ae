//! Numbering after commit: order, changes of the way to number, the lease, what waits, and what it makes possible.

mod causality;
mod changes;
mod isolation;
mod lease;
mod limits;
mod prepared;

use std::time::Duration;

use seqline::Clock;
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::{Sequencing, set_sequencing};
use seqline_testkit::{Role, TestDb, eventually};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A sequencer that runs until this is dropped.
pub(crate) struct Running {
    _stop: DropGuard,
}

pub(crate) fn sequencer(db: &TestDb) -> Running {
    let stop = CancellationToken::new();
    let sequencer = Sequencer::new(db.pool(Role::App, 2), SequencerConfig::default(), Clock::system());
    tokio::spawn(sequencer.run(stop.clone()));
    Running { _stop: stop.drop_guard() }
}

pub(crate) async fn change(db: &TestDb, sequencing: Sequencing) -> seqline::settings::SequencingChange {
    set_sequencing(&mut db.connect(Role::App).await, sequencing, None).await.unwrap()
}

/// Waits until nothing waits for the sequencer.
pub(crate) async fn settled(db: &TestDb) {
    let pool = db.admin();
    eventually(Duration::from_secs(60), "everything has its number", async || {
        let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.staged_transactions")
            .fetch_one(&pool)
            .await
            .unwrap();
        waiting == 0
    })
    .await;
}
