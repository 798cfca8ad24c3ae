//! A client that reads its answer late, with a crash in between.

use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::embedded::Durability;
use seqline::settings::Sequencing;
use seqline::{CommitError, Committer};
use seqline_testkit::{FaultProxy, Role, TestDb, TestServer, eventually};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::event;

const DEADLINE: Duration = Duration::from_secs(60);

/// Nothing is written that nobody waits for.
pub(super) const LAZY: [(&str, &str); 5] = [
    ("wal_writer_delay", "10s"),
    ("wal_writer_flush_after", "131072"),
    ("bgwriter_lru_maxpages", "0"),
    ("checkpoint_timeout", "1h"),
    ("autovacuum", "off"),
];

async fn is_visible(admin: &mut PgConnection, id: Uuid) -> bool {
    seqline::read::seq_of(admin, id).await.unwrap().is_some()
}

async fn begin(pool: &PgPool) -> (sqlx::PgTransaction<'static>, Uuid) {
    let mut tx = seqline::begin(pool).await.unwrap();
    let ids = seqline::append(&mut tx, &[event(1)]).await.unwrap();
    (tx, ids[0])
}

async fn commits(pool: &PgPool, committer: &Committer) -> (JoinHandle<Result<(), CommitError>>, Uuid) {
    let (tx, id) = begin(pool).await;
    let committer = committer.clone();
    (tokio::spawn(async move { committer.commit(tx).await }), id)
}

/// One process of the server dies, which makes it end all others and recover. It stays the same server, and yet another one.
async fn crash_and_recover(db: &TestDb) -> PgConnection {
    let mut witness = db.connect(Role::Admin).await;
    let mut victim = db.connect(Role::Nobody).await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut victim).await.unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    eventually(DEADLINE, "the end of all server processes", async || {
        sqlx::raw_sql("SELECT 1").execute(&mut witness).await.is_err()
    })
    .await;
    let mut back = None;
    eventually(DEADLINE, "the server is back", async || {
        back = PgConnection::connect_with(&db.options(Role::Admin)).await.ok();
        back.is_some()
    })
    .await;
    back.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_a_crash_took_back_is_not_answered_by_a_flush_after_it() {
    let server = TestServer::with(Durability::Durable, &LAZY).await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    let committer = Committer::new(8);
    let mut admin = db.connect(Role::Admin).await;

    // Committed, as the server has answered by now. The client does not look at that yet. Again, when it did after all, because the COMMIT took
    // longer than all looks, or when somebody else of the server has flushed it in the meantime.
    let mut late;
    'again: loop {
        let (tx, lost) = begin(&db.app_pool(1)).await;
        late = Box::pin(committer.commit(tx));
        let mut visible = false;
        while !visible {
            if poll!(&mut late).is_ready() {
                continue 'again;
            }
            for _ in 0..50 {
                visible = visible || is_visible(&mut admin, lost).await;
            }
        }
        admin = crash_and_recover(&db).await;
        if !is_visible(&mut admin, lost).await {
            break;
        }
    }

    // The first after a crash flushes alone, and marks what comes after it.
    let (first, _) = commits(&db.app_pool(1), &committer).await;
    first.await.unwrap().unwrap();
    // Of the next two one flushes, which takes a while, and one waits to flush for all that have come by then.
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.postgres().port()).into()).await.unwrap();
    let slow = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(db.options(Role::App).port(proxy.addr().port()).application_name("slow"));
    let (tx, _) = begin(&slow).await;
    proxy.delay(Duration::from_secs(2));
    let flushing = tokio::spawn({
        let committer = committer.clone();
        async move { committer.commit(tx).await }
    });
    eventually(DEADLINE, "a flush", async || {
        let flushes = "SELECT EXISTS (SELECT FROM pg_stat_activity
                           WHERE application_name = 'slow' AND query = 'SELECT seqline.flush()')";
        sqlx::query_scalar(flushes).fetch_one(&mut admin).await.unwrap()
    })
    .await;
    proxy.black_hole();
    let (waiting, id) = commits(&db.app_pool(1), &committer).await;
    eventually(DEADLINE, "another commit", async || is_visible(&mut admin, id).await).await;
    // It reads its answer now, and would wait with the others.
    let mut answer = Poll::Pending;
    for _ in 0..20 {
        if answer.is_pending() {
            answer = poll!(&mut late);
        }
        is_visible(&mut admin, id).await;
    }
    assert!(!waiting.is_finished());
    proxy.heal();
    let answer = match answer {
        Poll::Ready(answer) => answer,
        Poll::Pending => late.await,
    };
    flushing.await.unwrap().unwrap();
    waiting.await.unwrap().unwrap();
    assert!(
        matches!(answer, Err(CommitError::NotKnownDurable(_) | CommitError::Unknown(_))),
        "{answer:?} was answered to a commit that is gone"
    );
}
