//! `seqline audit`

use seqline::audit::AuditEntry;

use crate::cli::{AuditArgs, DatabaseArgs};
use crate::failure::Failure;
use crate::limits::AUDIT_CELL_CHARS_MAX;
use crate::operate::audit::{Row, list};
use crate::output::{seconds, shortened};
use crate::{connect, output};

pub(crate) async fn run(database: &DatabaseArgs, args: AuditArgs) -> Result<(), Failure> {
    let mut connection = connect::connect_to_log(&connect::options(database)?).await?;
    connect::refuse_older_schema(&mut connection).await?;
    let (entries, more) = list(&mut connection, args.before, args.limit).await?;
    let oldest = entries.last().map(|entry| entry.id);
    match (args.json, entries.is_empty()) {
        (true, _) => output::json(&entries.into_iter().map(Row::of).collect::<Vec<_>>())?,
        (false, true) => eprintln!("seqline: nothing found"),
        (false, false) => table(&entries)?,
    }
    if let Some(oldest) = oldest.filter(|_| more) {
        eprintln!("seqline: there is more: --before {oldest} shows it");
    }
    Ok(())
}

fn table(entries: &[AuditEntry]) -> Result<(), Failure> {
    let cell = |text: &str| shortened(text, AUDIT_CELL_CHARS_MAX);
    let cells = entries.iter().map(|entry| {
        let why = entry.why.as_deref().unwrap_or_default();
        let texts = [&who(entry), &entry.action, &entry.subject, why, &entry.before, &entry.after].map(cell);
        [vec![entry.id.to_string(), seconds(entry.at)], texts.to_vec()].concat()
    });
    output::table(&["id", "when", "who", "what", "to what", "why", "before", "after"], &[0], cells.collect())
}

/// The login, and for whom it acted.
pub(super) fn who(entry: &AuditEntry) -> String {
    match &entry.principal {
        Some(principal) => format!("{} for {principal}", entry.who),
        None => entry.who.clone(),
    }
}
