//! What people did, the newest first.

use seqline::audit::{AuditEntry, entries};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::Refusal;
use crate::output::rfc3339;

/// Something that somebody did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub(crate) struct Row {
    /// Its number: higher ones are newer.
    pub(crate) id: i64,
    /// When it was done.
    #[schema(format = DateTime)]
    pub(crate) at: String,
    /// The login of the database that did it.
    pub(crate) who: String,
    /// The principal for whom the login did it, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) principal: Option<String>,
    /// What was done.
    pub(crate) action: String,
    /// To what, such as the name of a consumer.
    pub(crate) subject: String,
    /// What it was like before; missing when that is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<serde_json::Value>)]
    pub(crate) before: Option<Box<RawValue>>,
    /// What it was like after; missing when that is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<serde_json::Value>)]
    pub(crate) after: Option<Box<RawValue>>,
    /// Why, if anybody said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) why: Option<String>,
}

impl Row {
    pub(crate) fn of(entry: AuditEntry) -> Self {
        Self {
            id: entry.id,
            at: rfc3339(entry.at),
            who: entry.who,
            principal: entry.principal,
            action: entry.action,
            subject: entry.subject,
            // What was cut off is no JSON.
            before: RawValue::from_string(entry.before).ok(),
            after: RawValue::from_string(entry.after).ok(),
            why: entry.why,
        }
    }
}

/// The newest that are older than the row of this number, or of all, and whether there are more.
pub(crate) async fn list(
    connection: &mut PgConnection,
    before: Option<i64>,
    limit: u32,
) -> Result<(Vec<AuditEntry>, bool), Refusal> {
    let mut found = entries(connection, before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    Ok((found, more))
}
