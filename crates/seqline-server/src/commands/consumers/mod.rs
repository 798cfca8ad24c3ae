//! `seqline consumers`: what people look at and do, while workers run elsewhere.
//!
//! What changes something says first what it would do. Whatever the database refuses is said in its words.

mod change;
mod lanes;
mod list;
mod moves;
mod show;

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

/// What was done, or would be: the one or the other form.
pub(super) fn say(json: bool, report: &impl Serialize, sentence: String) -> Result<(), Failure> {
    if json { output::json(report) } else { output::line(sentence) }
}
