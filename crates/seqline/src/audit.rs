//! Who did what to the log and its consumers, when and why: the rows of `seqline.audit_log`.
//!
//! Each change of something that people decide leaves its row in the same transaction, so there is none of what was rolled back. A row names the
//! login. Where one login acts for many, as a server does for its users, [`act_for`] says for whom.

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::error::DatabaseError;
use crate::limits::AUDIT_CHARACTERS_MAX;
use crate::store;
use crate::store::audit::AuditRow;

/// A row of `seqline.audit_log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number: higher ones are newer.
    pub id: i64,
    /// When it was done.
    pub at: OffsetDateTime,
    /// The login that did it.
    pub who: String,
    /// For whom the login did it, if it said so: see [`act_for`].
    pub principal: Option<String>,
    /// What was done, such as `consumer.pause`.
    pub action: String,
    /// To what, such as the name of a consumer.
    pub subject: String,
    /// What it was like before, as JSON, of which long ones are cut off.
    pub before: String,
    /// What it was like after, as JSON, of which long ones are cut off.
    pub after: String,
    /// Why, if anybody said so.
    pub why: Option<String>,
}

/// The newest `limit` rows, or the newest of those that are older than `before`. As `seqline_app`.
///
/// ```no_run
/// # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// for entry in seqline::audit::entries(connection, None, 10).await? {
///     println!("{} {} {}", entry.who, entry.action, entry.subject);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn entries(
    connection: &mut PgConnection,
    before: Option<i64>,
    limit: u32,
) -> Result<Vec<AuditEntry>, DatabaseError> {
    let rows = store::audit::newest(connection, before, i64::from(limit), AUDIT_CHARACTERS_MAX).await?;
    Ok(rows.into_iter().map(AuditEntry::of).collect())
}

/// Names a principal, 1 to 128 characters, in the rows that the rest of this transaction adds. They name the login beside it, which is who
/// says so: nothing checks it.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn act_for(transaction: &mut PgConnection, principal: &str) -> Result<(), DatabaseError> {
    Ok(store::audit::act_for(transaction, principal).await?)
}

impl AuditEntry {
    pub(crate) fn of(row: AuditRow) -> Self {
        Self {
            id: row.id,
            at: row.recorded_at,
            who: row.who,
            principal: row.principal,
            action: row.action,
            subject: row.subject,
            before: row.before,
            after: row.after,
            why: row.why,
        }
    }
}
