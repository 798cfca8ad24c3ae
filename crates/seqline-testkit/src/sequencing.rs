//! Tests in both ways to number: inside COMMIT, and after it by a sequencer.
//!
//! With `SEQLINE_TEST_SEQUENCING=after_commit` in the environment every [`TestDb`](crate::TestDb) numbers after commit and has a
//! [sequencer](seqline::sequencer) of its own, on a thread that all of them share, until it is dropped. What was committed is then in the
//! log a few milliseconds later: a test that looks for it at once waits with [`settled`] or
//! [`TestDb::settled`](crate::TestDb::settled) first, which return at once in the other way.

use std::collections::BTreeMap;
use std::env::VarError;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use seqline::Clock;
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::Sequencing;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::db::Role;
use crate::wait::pause;

/// Names the way in which databases number that do not say it themselves.
pub const VARIABLE: &str = "SEQLINE_TEST_SEQUENCING";

/// How long what was committed may wait for its number: a server may have to come back first.
const DEADLINE: Duration = Duration::from_secs(60);

/// Pause between two looks of a sequencer, and of those that wait for it.
const STEP: Duration = Duration::from_millis(1);

/// Neither is bound to the runtime of a test, which may end before its database.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime =
        Builder::new_multi_thread().worker_threads(1).thread_name("test-sequencers").enable_all().build();
    runtime.unwrap_or_else(|error| panic!("no runtime for the sequencers of tests: {error}"))
});

/// Those that are there, by the name of their database.
static SEQUENCED: Mutex<BTreeMap<String, Weak<Sequenced>>> = Mutex::new(BTreeMap::new());

fn sequenced() -> MutexGuard<'static, BTreeMap<String, Weak<Sequenced>>> {
    SEQUENCED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`VARIABLE`] says: [`Sequencing::AtCommit`] without it.
///
/// # Panics
///
/// If it says something else than `at_commit` or `after_commit`.
pub fn chosen() -> Sequencing {
    match std::env::var(VARIABLE) {
        Ok(value) => value.parse().unwrap_or_else(|error| panic!("{VARIABLE}: {error}")),
        Err(VarError::NotPresent) => Sequencing::AtCommit,
        Err(error @ VarError::NotUnicode(_)) => panic!("{VARIABLE}: {error}"),
    }
}

/// Waits until everything is in the log that has been committed in the database of this pool, and listeners were told of it.
/// Returns at once where it is there with COMMIT.
///
/// # Panics
///
/// If it does not come there in time.
pub async fn settled(pool: &PgPool) {
    let database = pool.connect_options().get_database().and_then(|name| sequenced().get(name)?.upgrade());
    if let Some(database) = database {
        database.settled().await;
    }
}

/// As [`settled`], for the database of this connection.
///
/// # Panics
///
/// As [`settled`], and if the database cannot be asked.
pub async fn settled_behind(connection: &mut PgConnection) {
    if sequenced().is_empty() {
        return;
    }
    let name: String = sqlx::query_scalar("SELECT pg_catalog.current_database()::text")
        .fetch_one(connection)
        .await
        .unwrap_or_else(|error| panic!("a connection does not say what its database is: {error}"));
    let database = sequenced().get(&name).and_then(Weak::upgrade);
    if let Some(database) = database {
        database.settled().await;
    }
}

/// A database that numbers after commit, with the sequencer that does it.
#[derive(Debug)]
pub(crate) struct Sequenced {
    name: String,
    /// The superuser's, for looking.
    looks: PgPool,
    sequencer: AbortHandle,
}

impl Sequenced {
    /// Starts the sequencer of a database.
    pub(crate) fn start(name: &str, admin: PgConnectOptions, sequencer: PgConnectOptions) -> Arc<Self> {
        let _inside = RUNTIME.enter();
        let looks = PgPoolOptions::new().max_connections(1).connect_lazy_with(admin);
        // The second connection is for a partition that is missing.
        let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(sequencer);
        let config = SequencerConfig {
            // Nobody else wants it, and a renewal is a transaction in a database whose test may count them.
            lease: Duration::from_secs(30),
            poll_interval: STEP,
            idle_poll_interval: STEP,
            reconnect_backoff_cap: Duration::from_millis(20),
            ..SequencerConfig::default()
        };
        let sequencer = Sequencer::new(pool, config, Clock::system());
        let sequencer = RUNTIME.spawn(sequencer.run(CancellationToken::new())).abort_handle();
        let database = Arc::new(Self { name: name.to_owned(), looks, sequencer });
        sequenced().insert(name.to_owned(), Arc::downgrade(&database));
        database
    }

    pub(crate) async fn settled(&self) {
        let looks = self.looks.clone();
        let looking = RUNTIME.spawn(tokio::time::timeout(DEADLINE, until_settled(looks)));
        match looking.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => panic!("what was committed in {} has no numbers after {DEADLINE:?}", self.name),
            Err(error) => panic!("waiting for the sequencer of {} failed: {error}", self.name),
        }
    }
}

impl Drop for Sequenced {
    fn drop(&mut self) {
        sequenced().remove(&self.name);
        // At any point: what it leaves goes with the database.
        self.sequencer.abort();
    }
}

/// What was found out on the way to a database that is settled.
#[derive(Default)]
struct Seen {
    /// What is committed after that is not waited for, or writers could make it last for ever.
    last: Option<i64>,
    numbered_at: Option<String>,
}

async fn until_settled(looks: PgPool) {
    let mut seen = Seen::default();
    // A server that is away is waited for as well.
    while !is_settled(&looks, &mut seen).await.unwrap_or(false) {
        pause(STEP).await;
    }
}

async fn is_settled(looks: &PgPool, seen: &mut Seen) -> Result<bool, sqlx::Error> {
    let last = match seen.last {
        Some(last) => last,
        None => {
            let last = "SELECT coalesce(max(n), 0) FROM seqline.staged_transactions";
            *seen.last.insert(sqlx::query_scalar(last).fetch_one(looks).await?)
        }
    };
    if seen.numbered_at.is_none() {
        let numbered = "SELECT pg_catalog.clock_timestamp()::text
                        WHERE NOT EXISTS (SELECT FROM seqline.staged_transactions WHERE n <= $1)";
        seen.numbered_at = sqlx::query_scalar(numbered).bind(last).fetch_optional(looks).await?;
    }
    let Some(numbered_at) = &seen.numbered_at else { return Ok(false) };
    // A sequencer that looks for more has told listeners of what it found.
    let goes_on = "SELECT EXISTS (
                       SELECT FROM pg_catalog.pg_stat_activity
                       WHERE datname = pg_catalog.current_database() AND usename = $1
                           AND query LIKE '%seqline.sequence_staged%' AND query_start > $2::timestamptz)";
    sqlx::query_scalar(goes_on).bind(Role::Sequencer.login()).bind(numbered_at).fetch_one(looks).await
}
