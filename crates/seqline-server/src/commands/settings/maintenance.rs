//! `seqline settings maintenance`

use seqline::settings;
use seqline::settings::MaintenanceMode;
use serde::Serialize;
use sqlx::PgConnection;

use super::change::failed;
use super::{Open, names};
use crate::cli::Confirm;
use crate::commands::consumers::{ADD_YES, say};
use crate::failure::Failure;
use crate::output::grouped;
use crate::store::settings::OpenWith;

#[derive(Serialize)]
struct Report {
    maintenance: &'static str,
    changed: bool,
    /// Whether the head does not move any more.
    complete: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    open: Vec<Open>,
    head: i64,
    drained: u64,
    done: bool,
}

/// To take events again changes nothing that anybody relies on, so it needs no second thought.
pub(super) async fn run(
    connection: &mut PgConnection,
    value: MaintenanceMode,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    if value == MaintenanceMode::ReadOnly && !confirm.yes {
        return plan(connection, json).await;
    }
    let change =
        settings::set_maintenance(connection, value, confirm.reason.as_deref()).await.map_err(failed)?;
    let open = match change.complete {
        true => Vec::new(),
        false => super::open(connection, OpenWith::Appended).await?,
    };
    let head = grouped(change.head);
    let sentence = match (value, change.changed, change.complete) {
        (MaintenanceMode::Off, true, _) => "events can be appended again".to_owned(),
        (MaintenanceMode::Off, false, _) => "events can be appended already".to_owned(),
        (MaintenanceMode::ReadOnly, true, true) => {
            format!("appends are refused from now on, and the log ends at seq {head}")
        }
        (MaintenanceMode::ReadOnly, false, true) => {
            format!("appends are refused already, and the log ends at seq {head}")
        }
        (MaintenanceMode::ReadOnly, true, false) => "appends are refused from now on".to_owned(),
        (MaintenanceMode::ReadOnly, false, false) => "appends are refused already".to_owned(),
    };
    let not_complete = (!change.complete).then(|| match open.as_slice() {
        [] => "what was appended before is not numbered yet: say this again".to_owned(),
        open => format!(
            "a transaction that has appended before is still open, and the log grows when it commits: {}. Say this again to wait for it",
            names(open)
        ),
    });
    let report = Report {
        maintenance: value.as_str(),
        changed: change.changed,
        complete: change.complete,
        open,
        head: change.head,
        drained: change.drained,
        done: true,
    };
    say(json, &report, sentence)?;
    not_complete.map_or(Ok(()), |sentence| Err(Failure::Partly(sentence)))
}

async fn plan(connection: &mut PgConnection, json: bool) -> Result<(), Failure> {
    let before = settings::settings(connection).await?.maintenance;
    let head = seqline::read::head(connection).await?;
    let changed = before != MaintenanceMode::ReadOnly;
    let report = Report {
        maintenance: before.as_str(),
        changed,
        complete: false,
        open: Vec::new(),
        head,
        drained: 0,
        done: false,
    };
    let sentence = match changed {
        true => format!(
            "would refuse every append from now on, and wait for transactions that have appended: the head is {}{ADD_YES}",
            grouped(head)
        ),
        false => format!(
            "would wait for transactions that have appended before: appends are refused already{ADD_YES}"
        ),
    };
    say(json, &report, sentence)
}
