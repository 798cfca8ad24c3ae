//! Writers that append for as long as maintenance is tried against them.

use seqline::NewEvent;
use seqline_testkit::{History, Role, TestDb};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::event;

/// Where the ids of the events come from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ids {
    Generated,
    /// From the writer, which makes an append look into the log before it has its number.
    Brought,
}

/// Writers at full speed. None of their appends may fail.
pub(super) struct Writers {
    tasks: JoinSet<()>,
    done: CancellationToken,
    history: History,
}

impl Writers {
    pub(super) fn start(db: &TestDb, ids: Ids) -> Self {
        Self::many(db, ids, 6)
    }

    pub(super) fn many(db: &TestDb, ids: Ids, writers: u32) -> Self {
        let (mut tasks, done, history) = (JoinSet::new(), CancellationToken::new(), History::new());
        let pool = db.pool(Role::Producer, writers);
        for _ in 0..writers {
            tasks.spawn(write_until(done.clone(), pool.clone(), history.clone(), ids));
        }
        Self { tasks, done, history }
    }

    pub(super) async fn stop(self) -> History {
        self.done.cancel();
        self.tasks.join_all().await;
        self.history
    }
}

/// Every second event has an id of its own choice, if any has.
async fn write_until(done: CancellationToken, pool: PgPool, history: History, ids: Ids) {
    let mut n = 0;
    while !done.is_cancelled() {
        n += 1;
        let second = NewEvent::builder("test.happened", "test", "any");
        let second = match ids {
            Ids::Brought if n % 2 == 0 => second.id(Uuid::now_v7()),
            _ => second,
        };
        let attempt = history.begin();
        let mut tx = seqline::begin(&pool).await.unwrap();
        let ids = seqline::append(&mut tx, &[event(n), second.build().unwrap()]).await.unwrap();
        seqline::commit(tx).await.unwrap();
        attempt.committed(ids);
    }
}
