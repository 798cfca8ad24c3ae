//! `seqline consumers`

mod lanes;
mod losses;
mod moves;
mod pause;
mod replay;
mod retire;
mod show;

use seqline_testkit::{Role, TestDb};
use serde_json::Value;

use crate::support::{Seqline, on};
use crate::worker::worker;

async fn consumers(db: &TestDb, args: &str) -> String {
    on(db, Role::App, ["consumers"]).args(args.split(' ')).ok().await
}

async fn json_of(db: &TestDb, args: &str) -> Value {
    serde_json::from_str(&consumers(db, &format!("{args} --json")).await).expect("it is JSON")
}

async fn refused(db: &TestDb, args: &str) -> String {
    on(db, Role::App, ["consumers"]).args(args.split(' ')).refused(4).await
}

/// A worker that notices at once what was done to its consumer.
fn quick_worker(db: &TestDb) -> Seqline {
    worker(db).env("SEQLINE_CONSUMER__POLL_INTERVAL", "20ms")
}

/// The members of each row of the table, by its header.
async fn cells(db: &TestDb, args: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let text = consumers(db, args).await;
    let mut lines = text.lines();
    let header = lines.next().expect("there is a header");
    let end = |column: &str| header.find(column).expect("there is such a column") + column.len();
    let row = |line: &str| {
        // Cells are cut by two spaces; that of a column overlaps its header.
        let cell = |column: &&str| {
            let (end, begin) = (end(column), end(column) - column.len());
            let mut at = 0;
            let parts = line.split("  ").map(|part| {
                let place = (at, at + part.len());
                at += part.len() + 2;
                (place, part.trim())
            });
            let found = parts.filter(|((from, to), part)| !part.is_empty() && *from < end && *to > begin);
            found.map(|(_, part)| part).next().unwrap_or_default().to_owned()
        };
        columns.iter().map(cell).collect()
    };
    lines.map(row).collect()
}

/// What is in the audit log, of which the times are left out.
pub(crate) async fn audited(db: &TestDb) -> Vec<(String, String, String, Value, Value, Option<String>)> {
    let rows: Vec<(String, String, String, Value, Value, Option<String>)> = sqlx::query_as(
        "SELECT who, action, subject, before - '{paused_at,retired_at,acknowledged_at}'::text[],
                after - '{paused_at,retired_at,acknowledged_at}'::text[], why
         FROM seqline.audit_log ORDER BY id",
    )
    .fetch_all(&db.admin())
    .await
    .expect("the audit log can be read");
    rows
}

/// A row of the audit log that the role of the tests has caused.
pub(crate) fn audit_row(
    action: &str,
    subject: &str,
    (before, after): (Value, Value),
    why: Option<&str>,
) -> (String, String, String, Value, Value, Option<String>) {
    (
        Role::App.login().to_owned(),
        action.to_owned(),
        subject.to_owned(),
        before,
        after,
        why.map(str::to_owned),
    )
}
