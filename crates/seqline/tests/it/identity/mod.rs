//! Whether this is the server and the history that the numbers belong to, and a new epoch when it is not.

mod check;
mod finalize;
mod looks;
mod restores;

use seqline::consumer::Mode;
use seqline::identity::{self, EpochError, Finalized, IdentityCheck, Need, RestoredConsumers};
use seqline_testkit::{Role, TestDb};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

const WHY: Option<&str> = Some("restored the backup of 04:00");

async fn check_as(db: &TestDb, role: Role) -> IdentityCheck {
    identity::check(&mut db.connect(role).await).await.unwrap()
}

async fn epoch(db: &TestDb) -> Uuid {
    check_as(db, Role::Reader).await.epoch
}

async fn as_admin(db: &TestDb, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&db.admin()).await.unwrap();
}

async fn finalize(db: &TestDb, consumers: RestoredConsumers, need: Need) -> Result<Finalized, EpochError> {
    identity::finalize(&mut db.connect(Role::App).await, consumers, need, Mode::Apply { why: WHY }).await
}

/// Which rule refused something.
#[track_caller]
fn rule<T: std::fmt::Debug>(result: Result<T, EpochError>) -> String {
    match result {
        Err(EpochError::Refused { rule, .. }) => rule,
        other => panic!("{other:?}"),
    }
}

/// What the audit log holds about the log itself: action, before, after, why.
async fn audited(db: &TestDb) -> Vec<(String, serde_json::Value, serde_json::Value, Option<String>)> {
    sqlx::query_as(
        "SELECT action, before, after, why FROM seqline.audit_log WHERE subject = 'log' ORDER BY id",
    )
    .fetch_all(&db.app())
    .await
    .unwrap()
}
