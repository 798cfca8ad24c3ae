//! With a synchronous standby something is durable when that has it: nobody is answered before, and nothing is handed out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::{Sequencing, set_sequencing};
use seqline::tail::{Sink, SinkError, Start, Tail, TailConfig, TailError};
use seqline::{Clock, CommitError, DurableHead, StoredEvent};
use seqline_testkit::{Role, Standby, TestDb, TestServer, eventually};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{append, event, log};

const DEADLINE: Duration = Duration::from_secs(60);

/// What background components give up after, so that they try again and again in a test.
const IMPATIENT: Duration = Duration::from_millis(300);
const BACKOFF_CAP: Duration = Duration::from_millis(50);

/// Attempts of a component that are waited for.
const ATTEMPTS: usize = 6;

/// A server with a database and a standby.
struct Pair {
    primary: TestServer,
    standby: Standby,
    db: TestDb,
}

impl Pair {
    async fn new(sequencing: Sequencing) -> Self {
        let primary = TestServer::durable().await;
        let db = TestDb::numbering(&primary, Sequencing::AtCommit).await;
        set_sequencing(&mut db.connect(Role::Admin).await, sequencing, None).await.unwrap();
        let standby = Standby::synchronous(&primary).await;
        Self { primary, standby, db }
    }
}

/// Appends and commits, and tells the id before the answer.
fn commit(pool: &PgPool, n: i64, id: Uuid) -> JoinHandle<Result<(), CommitError>> {
    let pool = pool.clone();
    tokio::spawn(async move {
        let mut tx = seqline::begin(&pool).await.unwrap();
        seqline::append(&mut tx, &[with_id(n, id)]).await.unwrap();
        seqline::commit(tx).await
    })
}

fn with_id(n: i64, id: Uuid) -> seqline::NewEvent {
    let payload = event(n).payload().clone();
    seqline::NewEvent::builder("test.happened", "test", "any").payload(payload).id(id).build().unwrap()
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(i64, Uuid)>>>);

impl Sink for Seen {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            self.0.lock().unwrap().extend(batch.iter().map(|event| (event.seq, event.id)));
            Ok(())
        })
    }
}

/// A tail that gives up after a while and tries again.
struct Following {
    seen: Seen,
    position: watch::Receiver<i64>,
    _running: JoinHandle<Result<(), TailError>>,
    _stop: tokio_util::sync::DropGuard,
}

async fn follow(db: &TestDb, statement_timeout: Duration) -> Following {
    let config = TailConfig {
        start: Start::After(0),
        poll_interval: Duration::from_millis(20),
        listen_reconnect_backoff_cap: BACKOFF_CAP,
        statement_timeout,
        ..TailConfig::default()
    };
    let tail =
        Tail::new(db.pool(Role::Reader, 2), db.options(Role::Reader), config, Clock::system()).await.unwrap();
    let (seen, position, stop) = (Seen::default(), tail.head(), CancellationToken::new());
    let running = tokio::spawn(tail.run(vec![Box::new(seen.clone())], stop.clone()));
    Following { seen, position, _running: running, _stop: stop.drop_guard() }
}

impl Following {
    fn at(&self) -> i64 {
        *self.position.borrow()
    }

    async fn reaches(&self, seq: i64) {
        eventually(DEADLINE, "the tail", async || self.at() >= seq).await;
    }

    fn seen(&self) -> Vec<(i64, Uuid)> {
        self.seen.0.lock().unwrap().clone()
    }
}

/// Until the event can be seen, as by anybody who does not ask whether it is durable.
async fn until_visible(admin: &mut PgConnection, id: Uuid) -> i64 {
    let mut seq = None;
    eventually(DEADLINE, "an event that has its number", async || {
        seq = seqline::read::seq_of(admin, id).await.unwrap();
        seq.is_some()
    })
    .await;
    seq.unwrap()
}

/// The batch of a sequencer.
const BATCH: &str = "SELECT taken, more, events, drawn, xid, xmin FROM seqline.sequence_staged";

/// What a component does anew with each attempt.
#[derive(Clone, Copy)]
enum Anew {
    /// It connects.
    Process,
    /// It sends a statement that begins like this.
    Statement(&'static str),
}

/// The processes of a login: an attempt of each, and whether it flushes and waits for the standby.
async fn processes(admin: &mut PgConnection, login: &str, anew: Anew) -> Vec<(String, bool)> {
    sqlx::query_as(
        "SELECT CASE WHEN $2 IS NULL THEN pid::text WHEN starts_with(query, $2) THEN query_start::text ELSE '' END,
             wait_event IS NOT DISTINCT FROM 'SyncRep' AND query LIKE 'SELECT seqline.flush()%'
         FROM pg_stat_activity WHERE usename = $1 AND datname = current_database()",
    )
    .bind(login)
    .bind(match anew {
        Anew::Process => None,
        Anew::Statement(beginning) => Some(beginning),
    })
    .fetch_all(admin)
    .await
    .unwrap()
}

/// Lets a component of a login try again and again, and says how many processes it had at most at once, and how many flushes.
async fn attempts(admin: &mut PgConnection, login: &str, anew: Anew) -> (usize, usize) {
    let (mut ever, mut most, mut most_flushes) = (HashSet::new(), 0, 0);
    eventually(DEADLINE, "one attempt after the other", async || {
        let now = processes(admin, login, anew).await;
        most = most.max(now.len());
        most_flushes = most_flushes.max(now.iter().filter(|(_, flushes)| *flushes).count());
        ever.extend(now.into_iter().map(|(attempt, _)| attempt));
        ever.len() >= ATTEMPTS + 3
    })
    .await;
    (most, most_flushes)
}

enum Away {
    /// It has gone silent.
    Paused,
    Stopped,
}

async fn at_commit_while_the_standby_is(away: Away) {
    let mut pair = Pair::new(Sequencing::AtCommit).await;
    let mut admin = pair.db.connect(Role::Admin).await;
    append(&pair.db.app(), [1]).await;
    let tail = follow(&pair.db, IMPATIENT).await;
    tail.reaches(1).await;

    match away {
        Away::Paused => pair.standby.pause().await,
        Away::Stopped => pair.standby.stop().await,
    }
    // Each gets its number although the one before it waits: nobody waits with the numbering lock in hand.
    let mut commits = Vec::new();
    for n in 2..=4 {
        let id = Uuid::now_v7();
        commits.push(commit(&pair.db.app(), n, id));
        assert_eq!(until_visible(&mut admin, id).await, n);
    }
    let mut connection = pair.db.connect(Role::App).await;
    let mut durable = tokio::spawn(async move {
        let waited = DurableHead::default().wait_for(&mut connection, 4).await;
        (waited, connection)
    });
    let (most, most_flushes) = attempts(&mut admin, Role::Reader.login(), Anew::Process).await;
    assert_eq!(most_flushes, 1, "flushes of the tail that wait at once");
    assert!(most <= 5, "{most} processes of the tail at once");
    let of_writers = processes(&mut admin, Role::App.login(), Anew::Process).await;
    let flushes_of_writers = of_writers.iter().filter(|(_, flushes)| *flushes).count();
    assert_eq!(flushes_of_writers, 2, "one flush for all commits, and one for whoever waits for the same");
    assert!(commits.iter().all(|commit| !commit.is_finished()) && !durable.is_finished());
    assert_eq!(tail.at(), 1);

    match away {
        Away::Paused => pair.standby.resume(),
        Away::Stopped => pair.standby.start_again().await,
    }
    for commit in commits {
        commit.await.unwrap().unwrap();
    }
    (&mut durable).await.unwrap().0.unwrap();
    tail.reaches(4).await;
    assert_eq!(tail.seen(), log(&mut admin).await);
}

#[tokio::test]
async fn numbering_at_commit_goes_on_and_nothing_is_answered_or_given_while_the_standby_is_silent() {
    Box::pin(at_commit_while_the_standby_is(Away::Paused)).await;
}

#[tokio::test]
async fn numbering_at_commit_goes_on_and_nothing_is_answered_or_given_while_the_standby_is_stopped() {
    Box::pin(at_commit_while_the_standby_is(Away::Stopped)).await;
}

/// A sequencer that gives up after a while and tries again. It has a login of its own, so that its processes can be told from others.
fn sequence(db: &TestDb, stop: &CancellationToken, statement_timeout: Duration) -> JoinHandle<()> {
    let config = SequencerConfig {
        statement_timeout,
        reconnect_backoff_cap: BACKOFF_CAP,
        ..SequencerConfig::default()
    };
    let pool = db.pool(Role::App, 2);
    tokio::spawn(Sequencer::new(pool, config, Clock::system()).run(stop.clone()))
}

#[tokio::test]
async fn numbering_after_commit_waits_for_the_standby_and_does_not_fill_the_server() {
    let mut pair = Pair::new(Sequencing::AfterCommit).await;
    let mut admin = pair.db.connect(Role::Admin).await;
    let stop = CancellationToken::new();
    let sequencer = sequence(&pair.db, &stop, IMPATIENT);
    append(&pair.db.producer(), [1]).await;
    let tail = follow(&pair.db, IMPATIENT).await;
    tail.reaches(1).await;
    // As in production: whoever waits for the numbering lock is told by the server before giving up.
    sqlx::query("UPDATE seqline.settings SET numbering_lock_timeout_ms = 150")
        .execute(&mut admin)
        .await
        .unwrap();

    pair.standby.pause().await;
    let commits: Vec<_> = (2..=4).map(|n| commit(&pair.db.producer(), n, Uuid::now_v7())).collect();
    let (most, _) = attempts(&mut admin, Role::App.login(), Anew::Statement(BATCH)).await;
    assert!(most <= 5, "{most} processes of the sequencer at once");
    let most = processes(&mut admin, Role::Reader.login(), Anew::Process).await.len();
    assert!(most <= 5, "{most} processes of the tail at once");
    assert!(commits.iter().all(|commit| !commit.is_finished()));
    assert_eq!(tail.at(), 1);

    pair.standby.resume();
    for commit in commits {
        commit.await.unwrap().unwrap();
    }
    tail.reaches(4).await;
    assert_eq!(tail.seen(), log(&mut admin).await);
    stop.cancel();
    sequencer.await.unwrap();
}

/// Writers until the server is gone: the ids that were acknowledged.
async fn write_until_it_fails(pool: PgPool) -> Vec<Uuid> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        let id = Uuid::now_v7();
        let Ok(mut tx) = seqline::begin(&pool).await else { break };
        if seqline::append(&mut tx, &[with_id(n, id)]).await.is_err() || seqline::commit(tx).await.is_err() {
            break;
        }
        acknowledged.push(id);
    }
    acknowledged
}

async fn survives_a_takeover(sequencing: Sequencing) {
    let mut pair = Pair::new(sequencing).await;
    let stop = CancellationToken::new();
    let sequencer = sequence(&pair.db, &stop, DEADLINE);
    let tail = follow(&pair.db, DEADLINE).await;
    let pool = pair.db.producer();
    let writers: Vec<_> = (0..4).map(|_| tokio::spawn(write_until_it_fails(pool.clone()))).collect();
    tail.reaches(100).await;
    // What comes from here on has the primary, and at most the network besides.
    pair.standby.pause().await;
    let mut admin = pair.db.connect(Role::Admin).await;
    let unheard = Uuid::now_v7();
    let unanswered = commit(&pair.db.app(), 1_000, unheard);
    match sequencing {
        Sequencing::AtCommit => {
            until_visible(&mut admin, unheard).await;
        }
        Sequencing::AfterCommit => {
            eventually(DEADLINE, "a commit that waits for the standby", async || {
                let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity
                                 WHERE usename = $1 AND wait_event = 'SyncRep' AND query = 'COMMIT')";
                sqlx::query_scalar(waits).bind(Role::App.login()).fetch_one(&mut admin).await.unwrap()
            })
            .await;
        }
    }
    pair.primary.kill().await;
    // Nobody else is asked from here on.
    pool.close().await;
    stop.cancel();
    sequencer.abort();
    unanswered.await.unwrap().unwrap_err();
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }

    pair.standby.promote().await;
    let options = pair.standby.options(pair.db.options(Role::App));
    let mut promoted =
        PgConnection::connect_with(&pair.standby.options(pair.db.options(Role::Admin))).await.unwrap();
    seqline::sequencer::drain(&mut promoted).await.unwrap();
    let left = log(&mut promoted).await;
    let ids: HashSet<Uuid> = left.iter().map(|(_, id)| *id).collect();
    assert!(left.iter().map(|(seq, _)| *seq).eq(1..=i64::try_from(left.len()).unwrap()), "the log is dense");
    let lost: Vec<_> = acknowledged.iter().filter(|id| !ids.contains(id)).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged events are gone", lost.len(), acknowledged.len());
    let seen = tail.seen();
    assert!(seen.len() >= 100 && left.starts_with(&seen), "the tail was given what is gone");
    assert!(!seen.iter().any(|(_, id)| *id == unheard), "the tail was given what only the primary had");
    // The new primary goes on from there.
    let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy_with(options);
    append(&pool, [1_001]).await;
    seqline::sequencer::drain(&mut promoted).await.unwrap();
    assert_eq!(seqline::read::head(&mut promoted).await.unwrap(), i64::try_from(left.len()).unwrap() + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_or_given_is_on_the_standby_that_takes_over_numbering_at_commit() {
    Box::pin(survives_a_takeover(Sequencing::AtCommit)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_or_given_is_on_the_standby_that_takes_over_numbering_after_commit() {
    Box::pin(survives_a_takeover(Sequencing::AfterCommit)).await;
}

/// Parameters of the primary are copied with its data, as a rule.
#[tokio::test]
async fn a_standby_is_read_also_when_its_own_settings_name_standbys() {
    let pair = Pair::new(Sequencing::AtCommit).await;
    append(&pair.db.app(), [1]).await;
    pair.standby.set("synchronous_standby_names", "*").await;
    let mut connection =
        PgConnection::connect_with(&pair.standby.options(pair.db.options(Role::Reader))).await.unwrap();
    eventually(DEADLINE, "the event on the standby", async || {
        seqline::read::head(&mut connection).await.unwrap() == 1
    })
    .await;
    DurableHead::default().wait_for(&mut connection, 1).await.unwrap();
}
