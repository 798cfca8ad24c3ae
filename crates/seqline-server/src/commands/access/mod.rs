//! `seqline principals`, `tokens` and `grants`: who may use the log over the network, and what each of them sees.
//!
//! What takes something away or gives rights says first what it would do. Whatever the database refuses is said in its words.

pub(crate) mod grants;
pub(crate) mod principals;
pub(crate) mod tokens;

use seqline::access::{ChangeError, Rights};
use serde::Serialize;
use sqlx::PgConnection;

use super::consumers::ADD_YES;
use crate::cli::DatabaseArgs;
use crate::failure::Failure;
use crate::limits::ROUND_WAIT_MAX;
use crate::sqlstate;
use crate::{connect, output};

/// A connection on which another change of permissions is waited for, and not for ever.
pub(super) async fn connect(database: &DatabaseArgs) -> Result<PgConnection, Failure> {
    let wait = format!("{}ms", ROUND_WAIT_MAX.as_millis());
    let options = connect::options(database)?.options([("lock_timeout", wait)]);
    let mut connection = connect::connect_to_log(&options).await?;
    connect::refuse_older_schema(&mut connection).await?;
    Ok(connection)
}

pub(super) fn failed(error: ChangeError) -> Failure {
    match error {
        ChangeError::Database(error) if error.sqlstate() == Some(sqlstate::LOCK_NOT_AVAILABLE) => {
            Failure::Unavailable(format!(
                "another transaction has changed permissions and has not ended for {}s: nothing was changed, try again",
                ROUND_WAIT_MAX.as_secs()
            ))
        }
        ChangeError::Database(error) => error.into(),
        ChangeError::Refused { message, hint: Some(hint), .. } => {
            Failure::Refused(format!("{message}. {}", hint.trim_end_matches('.')))
        }
        error => Failure::Refused(error.to_string()),
    }
}

fn unknown(id: &str) -> Failure {
    Failure::Refused(format!(
        "there is no principal {id}: seqline principals list shows those that there are"
    ))
}

/// What was done, or would be: the one or the other form.
pub(super) fn say(json: bool, report: &impl Serialize, sentence: String) -> Result<(), Failure> {
    if json { output::json(report) } else { output::line(sentence) }
}

/// What a principal may do, for people.
fn rights_text(rights: Rights) -> String {
    match rights.names()[..] {
        [] => "none".to_owned(),
        ref names => names.join(", "),
    }
}

/// One more than is shown tells whether there are more.
pub(super) fn more<T>(rows: &mut Vec<T>, limit: u32) -> bool {
    let limit = limit as usize;
    let more = rows.len() > limit;
    rows.truncate(limit);
    more
}
