//! Writers of all kinds, each with transactions of all shapes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use seqline::settings::Sequencing;
use seqline::{Clock, CommitError, Committer, NewEvent, Payload};
use sqlx::{PgPool, PgTransaction};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::flushed::{Before, Watch};
use super::observers::Faults;
use super::{Mode, Waiting};
use crate::history::History;

/// Pause after a failure: the server is away, as a rule.
const PAUSE: Duration = Duration::from_millis(5);

/// How a writer ends its transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As the library does, with a flush for many.
    Grouped,
    /// A plain COMMIT of a plain session.
    Plain,
    /// A plain COMMIT of a session that does not wait for durability. What numbers inside COMMIT waits nevertheless.
    Loose,
    /// A COMMIT of one that says that it will flush, and does not: what it writes is visible and not durable for as long as nobody else
    /// flushes.
    Careless,
}

impl Kind {
    /// Whether an acknowledged transaction has to survive.
    fn is_durable(self, mode: Mode, waiting: Waiting) -> bool {
        match self {
            Kind::Grouped | Kind::Plain => true,
            Kind::Loose => mode.sequencing == Sequencing::AtCommit,
            // A lie.
            Kind::Careless => waiting == Waiting::LeftOut,
        }
    }
}

/// Who writes in a case.
pub(super) fn kinds(waiting: Waiting) -> &'static [Kind] {
    match waiting {
        Waiting::Kept => &[
            Kind::Grouped,
            Kind::Grouped,
            Kind::Grouped,
            Kind::Grouped,
            Kind::Plain,
            Kind::Plain,
            Kind::Loose,
            Kind::Careless,
        ],
        // Any other would flush for them.
        Waiting::LeftOut => &[Kind::Careless; 3],
    }
}

/// A writer, until it is told to stop.
pub(super) struct Writer {
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) waiting: Waiting,
    pub(super) pool: PgPool,
    pub(super) committer: Committer,
    pub(super) random: Rng,
    pub(super) history: History,
    pub(super) watch: Watch,
    pub(super) faults: Faults,
    /// How many transactions of all writers were acknowledged.
    pub(super) acknowledged: Arc<AtomicU64>,
    pub(super) stop: CancellationToken,
}

/// Why a transaction did not end well, as far as its writer knows.
enum Failed {
    RolledBack,
    /// The connection broke when COMMIT was on its way.
    Unknown,
}

type Refused = Box<dyn std::error::Error + Send + Sync>;

impl Writer {
    pub(super) async fn run(mut self) {
        while !self.stop.is_cancelled() {
            let attempt = self.history.begin();
            let mut ids = Vec::new();
            match self.transaction(&mut ids).await {
                Ok(before) => {
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    if !self.kind.is_durable(self.mode, self.waiting) {
                        attempt.unknown(ids);
                        continue;
                    }
                    attempt.committed(ids);
                    if let Some(before) = before {
                        self.faults.extend(self.watch.check(before).await);
                    }
                }
                Err(failed) => {
                    match failed {
                        Failed::RolledBack => attempt.rolled_back(ids),
                        Failed::Unknown => attempt.unknown(ids),
                    }
                    Clock::system().sleep(PAUSE).await;
                }
            }
        }
    }

    /// One random transaction: `ids` are those that it will have in the log if it commits.
    async fn transaction(&mut self, ids: &mut Vec<Uuid>) -> Result<Option<Before>, Failed> {
        // Until COMMIT is sent, whatever fails is a rollback.
        let mut tx = seqline::begin(&self.pool).await.map_err(|_| Failed::RolledBack)?;
        let before = self.work(&mut tx, ids).await.map_err(|_| Failed::RolledBack)?;
        if self.random.u8(..) < 25 {
            // Rolled back by the server at the latest when the connection goes.
            let _ = tx.rollback().await;
            return Err(Failed::RolledBack);
        }
        let committed = match self.kind {
            Kind::Grouped => self.committer.commit(tx).await,
            _ => tx.commit().await.map_err(CommitError::from),
        };
        match committed {
            Ok(()) => Ok(before),
            Err(error) if error.had_no_effect() => Err(Failed::RolledBack),
            Err(_) => Err(Failed::Unknown),
        }
    }

    async fn work(
        &mut self,
        tx: &mut PgTransaction<'_>,
        ids: &mut Vec<Uuid>,
    ) -> Result<Option<Before>, Refused> {
        let settings = match self.kind {
            Kind::Grouped | Kind::Plain => "",
            Kind::Loose => "SET LOCAL synchronous_commit = off",
            Kind::Careless => "SET LOCAL synchronous_commit = off; SET LOCAL seqline.grouped_commit = on",
        };
        sqlx::raw_sql(settings).execute(&mut **tx).await?;
        let events: Vec<NewEvent> =
            (0..self.random.usize(1..=4)).map(|_| self.event()).collect::<Result<_, _>>()?;
        match self.random.u8(0..4) {
            0 => ids.extend(seqline::append(tx, &events).await?),
            1 => ids.push(self.append_by_sql(tx).await?),
            _ => {
                for event in events {
                    ids.extend(seqline::append(tx, &[event]).await?);
                    self.savepoint(tx, ids).await?;
                }
            }
        }
        // Every other one, so that most of the time is spent on writing.
        let watched = self.kind.is_durable(self.mode, self.waiting) && self.random.bool();
        Ok(if watched { Some(Before::commit(tx).await?) } else { None })
    }

    /// As psql does it.
    async fn append_by_sql(&mut self, tx: &mut PgTransaction<'_>) -> Result<Uuid, Refused> {
        let id = self.random.bool().then(Uuid::now_v7);
        let append = "SELECT seqline.append('test.happened', '{}', 'test', 'any', id => $1)";
        Ok(sqlx::query_scalar(append).bind(id).fetch_one(&mut **tx).await?)
    }

    /// Sometimes a savepoint with an append in it, kept or rolled back.
    async fn savepoint(&mut self, tx: &mut PgTransaction<'_>, ids: &mut Vec<Uuid>) -> Result<(), Refused> {
        if self.random.u8(..) >= 60 {
            return Ok(());
        }
        sqlx::raw_sql("SAVEPOINT s").execute(&mut **tx).await?;
        let inside = seqline::append(tx, &[self.event()?]).await?;
        if self.random.bool() {
            sqlx::raw_sql("ROLLBACK TO s").execute(&mut **tx).await?;
        } else {
            ids.extend(inside);
        }
        sqlx::raw_sql("RELEASE s").execute(&mut **tx).await?;
        Ok(())
    }

    /// With an id of the writer's own or without.
    fn event(&mut self) -> Result<NewEvent, Refused> {
        let payload = Payload::from_json(&format!("{{\"n\": {}}}", self.random.u32(..)))?;
        let event = NewEvent::builder("test.happened", "test", "any").payload(payload);
        Ok(if self.random.u8(..) < 80 { event.id(Uuid::now_v7()).build()? } else { event.build()? })
    }
}
