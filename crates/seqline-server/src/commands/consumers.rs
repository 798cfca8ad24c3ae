//! `seqline consumers`: what people do to consumers, while workers run elsewhere.

use seqline::Clock;
use seqline::consumer::{ConsumerName, ConsumerState, OperateError, pause, resume, states};
use serde::Serialize;
use sqlx::PgConnection;

use super::status::consumers as view;
use crate::cli::{ConsumerChange, ConsumersAction, ConsumersArgs, DatabaseArgs};
use crate::failure::Failure;
use crate::limits::ROUND_WAIT_MAX;
use crate::output::grouped;
use crate::{connect, output};

#[derive(Serialize)]
struct Done<'a> {
    consumer: &'a str,
    last_seq: i64,
    lag: i64,
    done: bool,
    changed: bool,
}

pub(crate) async fn run(database: &DatabaseArgs, args: ConsumersArgs) -> Result<(), Failure> {
    // A round that is under way is waited for, and not for ever.
    let wait = format!("{}ms", ROUND_WAIT_MAX.as_millis());
    let options = connect::options(database)?.options([("lock_timeout", wait)]);
    let mut connection = connect::connect_to_log(&options).await?;
    match args.action {
        ConsumersAction::List => list(&mut connection, args.json).await,
        ConsumersAction::Pause(change) => set_paused(&mut connection, &change, true, args.json).await,
        ConsumersAction::Resume(change) => set_paused(&mut connection, &change, false, args.json).await,
    }
}

async fn list(connection: &mut PgConnection, json: bool) -> Result<(), Failure> {
    let consumers = states(connection).await?;
    let now = Clock::system().now();
    if json {
        return output::json(&view::rows(consumers, now));
    }
    if consumers.is_empty() {
        eprintln!("seqline: no consumers found");
        return Ok(());
    }
    view::table(&consumers, now)
}

/// Says first what it would do, unless it shall be done.
async fn set_paused(
    connection: &mut PgConnection,
    change: &ConsumerChange,
    paused: bool,
    json: bool,
) -> Result<(), Failure> {
    let unknown = || Failure::Refused(format!("there is no consumer {}", change.name));
    let name = ConsumerName::new(change.name.as_str()).map_err(|_| unknown())?;
    let found = states(connection).await?.into_iter().find(|state| state.name == change.name);
    let state = found.ok_or_else(unknown)?;
    let why = change.reason.as_deref();
    let changed = match (change.yes, paused) {
        (false, _) => state.paused_at.is_some() != paused,
        (true, true) => pause(connection, &name, why).await.map_err(|error| failed(error, &state))?,
        (true, false) => resume(connection, &name, why).await.map_err(|error| failed(error, &state))?,
    };
    if json {
        let (last_seq, lag) = (state.last_seq, state.lag());
        return output::json(&Done { consumer: &state.name, last_seq, lag, done: change.yes, changed });
    }
    output::line(sentence(&state, paused, change.yes, changed))
}

fn sentence(state: &ConsumerState, paused: bool, done: bool, changed: bool) -> String {
    let ConsumerState { name, last_seq, .. } = state;
    let (seq, behind) = (grouped(*last_seq), grouped(state.lag()));
    match (paused, done, changed) {
        (true, _, false) => format!("consumer {name} is paused already, at seq {seq}"),
        (false, _, false) => format!("consumer {name} is not paused"),
        (true, false, true) => format!(
            "would pause consumer {name} at seq {seq}, {behind} events behind: no round of it begins then, and retention does not wait for it. Add --yes to do it"
        ),
        (false, false, true) => {
            format!(
                "would let consumer {name} go on at seq {seq}, {behind} events behind. Add --yes to do it"
            )
        }
        (true, true, true) => format!("consumer {name} is paused"),
        (false, true, true) => format!("consumer {name} goes on"),
    }
}

fn failed(error: OperateError, state: &ConsumerState) -> Failure {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    match error {
        OperateError::Database(error) if error.sqlstate() == Some(LOCK_NOT_AVAILABLE) => {
            Failure::Unavailable(format!(
                "a round of consumer {} has not ended for {}s: nothing was changed, try again",
                state.name,
                ROUND_WAIT_MAX.as_secs()
            ))
        }
        OperateError::Database(error) => error.into(),
        error => Failure::Refused(error.to_string()),
    }
}
