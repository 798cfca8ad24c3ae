//! `seqline settings`: what the database itself goes by, for every process and language.
//!
//! A change takes effect at once and can be taken back, so there is no dry run. It is said what happens next.

mod change;
mod maintenance;

use seqline::settings::{Sequencing, Settings};
use seqline::{DatabaseError, settings};
use serde::Serialize;
use serde_json::{Map, Value};
use sqlx::PgConnection;

use crate::cli::{DatabaseArgs, SettingsAction, SettingsArgs};
use crate::failure::Failure;
use crate::limits::OPEN_TRANSACTIONS_MAX;
use crate::output::grouped;
use crate::store::settings::{self as store, OpenWith};
use crate::{connect, output};

pub(crate) async fn run(database: &DatabaseArgs, args: SettingsArgs) -> Result<(), Failure> {
    let mut connection = connect::connect_to_log(&connect::options(database)?).await?;
    let (connection, json) = (&mut connection, args.json);
    match args.action {
        None => show(connection, json).await,
        Some(SettingsAction::Sequencing { value, reason }) => {
            change::sequencing(connection, value, reason.as_deref(), json).await
        }
        Some(SettingsAction::Notification { value, reason }) => {
            change::notification(connection, value, reason.as_deref(), json).await
        }
        Some(SettingsAction::Maintenance { value, confirm }) => {
            maintenance::run(connection, value, &confirm, json).await
        }
        Some(SettingsAction::StagedTransactionsMax { value, reason }) => {
            change::staged_transactions_max(connection, value, reason.as_deref(), json).await
        }
    }
}

#[derive(Serialize)]
struct Report {
    sequencing: &'static str,
    complete: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    open: Vec<Open>,
    notification: &'static str,
    staged_transactions_max: i64,
    maintenance: &'static str,
    #[serde(flatten)]
    limits: Map<String, Value>,
}

async fn show(connection: &mut PgConnection, json: bool) -> Result<(), Failure> {
    let settings = settings::settings(connection).await?;
    let limits = store::limits(connection).await.map_err(DatabaseError::from)?;
    let complete = is_complete(&settings);
    let open = if complete { Vec::new() } else { open(connection, OpenWith::Staged).await? };
    if json {
        return output::json(&Report {
            sequencing: settings.sequencing.as_str(),
            complete,
            open,
            notification: settings.notification.as_str(),
            staged_transactions_max: settings.staged_transactions_max,
            maintenance: settings.maintenance.as_str(),
            limits: limits.into_iter().map(|(name, value)| (name, value.into())).collect(),
        });
    }
    let change = if complete { String::new() } else { format!(", {}", still_open(&open)) };
    let mut lines = vec![
        ("sequencing".to_owned(), format!("{}{change}", settings.sequencing)),
        ("notification".to_owned(), settings.notification.to_string()),
        ("staged_transactions_max".to_owned(), grouped(settings.staged_transactions_max)),
        ("maintenance".to_owned(), settings.maintenance.to_string()),
    ];
    lines.extend(limits.into_iter().map(|(name, value)| (name, grouped(value))));
    lines.into_iter().try_for_each(|(name, value)| output::line(format!("{name:<28}{value}")))
}

/// Whether the last change of `sequencing` is: after one to numbering inside COMMIT nothing can wait any more.
pub(super) fn is_complete(settings: &Settings) -> bool {
    settings.sequencing == Sequencing::AfterCommit || !settings.staging_open
}

/// A transaction that keeps a change from being complete.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Open {
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prepared: Option<String>,
}

/// The first of them.
async fn open(connection: &mut PgConnection, what: OpenWith) -> Result<Vec<Open>, Failure> {
    let limit = OPEN_TRANSACTIONS_MAX as i64;
    let found = store::open_transactions(connection, what, limit).await.map_err(DatabaseError::from)?;
    let open = |found: store::OpenTransaction| Open {
        pid: found.pid,
        application: found.application.filter(|name| !name.is_empty()),
        prepared: found.prepared,
    };
    Ok(found.into_iter().map(open).collect())
}

/// Which they are, with commas between.
fn names(open: &[Open]) -> String {
    let name = |open: &Open| match (&open.prepared, open.pid) {
        (Some(prepared), _) => format!("prepared transaction {}", output::shortened(prepared, 60)),
        (None, pid) => {
            let pid = pid.map_or_else(String::new, |pid| format!(" {pid}"));
            match &open.application {
                Some(application) => format!("process{pid} ({})", output::shortened(application, 60)),
                None => format!("process{pid}"),
            }
        }
    };
    open.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Why a change is not complete, and what happens.
fn still_open(open: &[Open]) -> String {
    match open {
        [] => "not complete: a sequencer completes it soon".to_owned(),
        open => format!(
            "not complete: still open is {}. A sequencer completes it when that has ended",
            names(open)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_open_is_named() {
        let process = |application: Option<&str>| Open {
            pid: Some(17),
            application: application.map(str::to_owned),
            prepared: None,
        };
        let prepared = Open { pid: None, application: None, prepared: Some("order-17".to_owned()) };
        assert_eq!(still_open(&[]), "not complete: a sequencer completes it soon");
        assert_eq!(
            still_open(&[process(Some("shop")), process(None), prepared]),
            "not complete: still open is process 17 (shop), process 17, prepared transaction order-17. A sequencer completes it when that has ended"
        );
    }
}
