//! Writers: one business transaction after the other, with everything that applications do to transactions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use seqline::{Clock, CommitError, NewEvent};
use seqline_testkit::History;
use sqlx::{PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::payloads::Webhook;

/// Few enough that writers meet on the same row.
pub(crate) const ACCOUNTS: i64 = 20;

/// What may be received of most accounts, and of the others. An agent may receive the first.
pub(crate) const READ: &str = "account.read";
const AUDIT: &str = "account.audit";
/// One account in so many is one of the others.
const AUDITED_ONE_IN: i64 = 10;

/// By this name the backends of writers are found.
pub(crate) const APPLICATION_NAME: &str = "demo-writer";

/// What writers did, as they know it.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) committed: usize,
    pub(crate) rolled_back: usize,
    pub(crate) savepoints_rolled_back: usize,
    pub(crate) failed: usize,
    pub(crate) unknown: usize,
}

impl Work {
    pub(crate) fn add(&mut self, other: Work) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.savepoints_rolled_back += other.savepoints_rolled_back;
        self.failed += other.failed;
        self.unknown += other.unknown;
    }
}

/// The business table: each account counts its own events.
pub(crate) async fn create_accounts(admin: &PgPool) -> sqlx::Result<()> {
    sqlx::query("CREATE TABLE accounts (id bigint PRIMARY KEY, events bigint NOT NULL)")
        .execute(admin)
        .await?;
    sqlx::query("GRANT SELECT, UPDATE ON accounts TO PUBLIC").execute(admin).await?;
    sqlx::query("INSERT INTO accounts SELECT id, 0 FROM generate_series(1, $1) id")
        .bind(ACCOUNTS)
        .execute(admin)
        .await?;
    Ok(())
}

pub(crate) async fn accounts(connection: &mut PgConnection) -> sqlx::Result<BTreeMap<String, i64>> {
    let rows: Vec<(String, i64)> =
        sqlx::query_as("SELECT id::text, events FROM accounts").fetch_all(connection).await?;
    Ok(rows.into_iter().collect())
}

pub(crate) async fn run(
    pool: PgPool,
    history: History,
    payloads: Arc<Vec<Webhook>>,
    stop: CancellationToken,
) -> Work {
    let mut work = Work::default();
    while !stop.is_cancelled() {
        let outcome = transaction(&pool, &history, &payloads, &mut work).await;
        if outcome.is_err() {
            // The server may be away for a moment.
            Clock::system().sleep(Duration::from_millis(20)).await;
        }
    }
    work
}

/// One attempt at a business transaction, recorded whatever happens.
async fn transaction(
    pool: &PgPool,
    history: &History,
    payloads: &[Webhook],
    work: &mut Work,
) -> Result<(), ()> {
    let attempt = history.begin();
    let mut ids = Vec::new();
    match before_commit(pool, history, payloads, work, &mut ids).await {
        Ok(Some(tx)) => match seqline::commit(tx).await {
            Ok(()) => {
                attempt.committed(ids);
                work.committed += 1;
                Ok(())
            }
            Err(CommitError::Unknown(_) | CommitError::NotKnownDurable(_)) => {
                attempt.unknown(ids);
                work.unknown += 1;
                Err(())
            }
            Err(_) => {
                attempt.rolled_back(ids);
                work.failed += 1;
                Err(())
            }
        },
        Ok(None) => {
            attempt.rolled_back(ids);
            work.rolled_back += 1;
            Ok(())
        }
        Err(_) => {
            attempt.rolled_back(ids);
            work.failed += 1;
            Err(())
        }
    }
}

/// Everything up to COMMIT; `None` when the writer changed its mind. `ids` are those that a commit would keep.
async fn before_commit(
    pool: &PgPool,
    history: &History,
    payloads: &[Webhook],
    work: &mut Work,
    ids: &mut Vec<Uuid>,
) -> anyhow::Result<Option<sqlx::PgTransaction<'static>>> {
    let mut tx = seqline::begin(pool).await?;
    sqlx::query("SELECT set_config('application_name', $1, true)")
        .bind(APPLICATION_NAME)
        .execute(&mut *tx)
        .await?;
    let account = fastrand::i64(1..=ACCOUNTS);
    let count = fastrand::usize(1..=3);
    sqlx::query("UPDATE accounts SET events = events + $2 WHERE id = $1")
        .bind(account)
        .bind(i64::try_from(count)?)
        .execute(&mut *tx)
        .await?;
    if fastrand::u8(..) < 50 {
        sqlx::query("SAVEPOINT draft").execute(&mut *tx).await?;
        let discarded = history.begin();
        let result = append(&mut tx, payloads, account, 1).await;
        discarded.rolled_back(result.as_ref().map(Clone::clone).unwrap_or_default());
        result?;
        sqlx::query("ROLLBACK TO SAVEPOINT draft").execute(&mut *tx).await?;
        work.savepoints_rolled_back += 1;
    }
    ids.extend(append(&mut tx, payloads, account, count).await?);
    if fastrand::u8(..) < 40 {
        tx.rollback().await?;
        return Ok(None);
    }
    Ok(Some(tx))
}

async fn append(
    tx: &mut sqlx::PgTransaction<'_>,
    payloads: &[Webhook],
    account: i64,
    count: usize,
) -> anyhow::Result<Vec<Uuid>> {
    let action = if account % AUDITED_ONE_IN == 0 { AUDIT } else { READ };
    let events = (0..count)
        .map(|_| {
            let which = fastrand::usize(..payloads.len());
            let webhook = &payloads[which];
            NewEvent::builder(webhook.event_type.clone(), "account", action)
                .resource_id(account.to_string())
                .client_msg_id(which.to_string())
                .payload(webhook.payload.clone())
                .build()
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(seqline::append(tx, &events).await?)
}
