//! `seqline consumers`: what people look at and do, while workers run elsewhere.
//!
//! What changes something says first what it would do. Whatever the database refuses is said in its words.

mod change;
mod lanes;
mod list;
mod moves;
mod show;

use seqline::consumer::{ConsumerName, ConsumerState, OperateError, states};
use serde::Serialize;
use sqlx::PgConnection;

use crate::cli::{ConsumersAction, ConsumersArgs, DatabaseArgs};
use crate::failure::Failure;
use crate::limits::ROUND_WAIT_MAX;
use crate::{connect, output};

/// What ends each sentence that only says what would be done.
pub(super) const ADD_YES: &str = ". Add --yes to do it";

pub(crate) async fn run(database: &DatabaseArgs, args: ConsumersArgs) -> Result<(), Failure> {
    let (mut connection, json) = (connect(database).await?, args.json);
    let connection = &mut connection;
    match args.action {
        ConsumersAction::List { all } => list::run(connection, all, json).await,
        ConsumersAction::Show { name } => show::run(connection, &name, json).await,
        ConsumersAction::Pause(change) => change::pause(connection, &change, json).await,
        ConsumersAction::Resume(change) => change::resume(connection, &change, json).await,
        ConsumersAction::Rewind(args) => moves::rewind(connection, &args, json).await,
        ConsumersAction::Skip(args) => moves::skip(connection, &args, json).await,
        ConsumersAction::Retire(change) => change::retire(connection, &change, json).await,
        ConsumersAction::Lanes(args) => lanes::run(connection, &args, json).await,
        ConsumersAction::Replay(args) => moves::replay(connection, &args, json).await,
        ConsumersAction::Acknowledge(change) => change::acknowledge(connection, &change, json).await,
    }
}

/// A connection on which a round that is under way is waited for, and not for ever.
pub(super) async fn connect(database: &DatabaseArgs) -> Result<PgConnection, Failure> {
    let wait = format!("{}ms", ROUND_WAIT_MAX.as_millis());
    connect::connect_to_log(&connect::options(database)?.options([("lock_timeout", wait)])).await
}

/// The consumer that somebody has typed, which may be one of the product's own.
pub(super) fn name_of(text: &str) -> Result<ConsumerName, Failure> {
    let own = [ConsumerName::push(), ConsumerName::webhooks()];
    match own.into_iter().find(|name| name.as_str() == text) {
        Some(name) => Ok(name),
        None => ConsumerName::new(text).map_err(|_| unknown(text)),
    }
}

pub(super) async fn find(
    connection: &mut PgConnection,
    text: &str,
) -> Result<(ConsumerName, ConsumerState), Failure> {
    let name = name_of(text)?;
    let found = states(connection).await?.into_iter().find(|state| state.name == text);
    Ok((name, found.ok_or_else(|| unknown(text))?))
}

pub(super) fn unknown(name: &str) -> Failure {
    Failure::Refused(format!(
        "there is no consumer {name}: seqline consumers list shows those that there are"
    ))
}

/// What was done, or would be: the one or the other form.
pub(super) fn say(json: bool, report: &impl Serialize, sentence: String) -> Result<(), Failure> {
    if json { output::json(report) } else { output::line(sentence) }
}

pub(super) fn failed(error: OperateError, name: &str) -> Failure {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    match error {
        OperateError::Database(error) if error.sqlstate() == Some(LOCK_NOT_AVAILABLE) => {
            Failure::Unavailable(format!(
                "a round of consumer {name} has not ended for {}s: nothing was changed, try again",
                ROUND_WAIT_MAX.as_secs()
            ))
        }
        OperateError::Database(error) => error.into(),
        OperateError::Refused { message, hint: Some(hint) } => {
            Failure::Refused(format!("{message}. {}", hint.trim_end_matches('.')))
        }
        error => Failure::Refused(error.to_string()),
    }
}
