//! `seqline parked`: what consumers have put aside, while workers run elsewhere.

mod change;
mod view;

use seqline::Clock;
use sqlx::PgConnection;

use super::consumers::connect;
use crate::cli::{DatabaseArgs, ParkedAction, ParkedArgs};
use crate::failure::Failure;
use crate::operate::parked;
use crate::{connect, output};

pub(crate) async fn run(database: &DatabaseArgs, args: ParkedArgs) -> Result<(), Failure> {
    let (mut connection, json) = (connect(database).await?, args.json);
    let connection = &mut connection;
    connect::refuse_older_schema(connection).await?;
    match args.action {
        ParkedAction::List { consumer, limit } => list(connection, consumer.as_deref(), limit, json).await,
        ParkedAction::Show { consumer, seq } => show(connection, &consumer, seq, json).await,
        ParkedAction::Retry { consumer, seq, confirm } => {
            change::retry(connection, &consumer, seq, confirm.mode(), json).await
        }
        // One of the two is given.
        ParkedAction::Discard { consumer, seq, all: _, confirm } => {
            change::discard(connection, &consumer, seq, confirm.mode(), json).await
        }
    }
}

async fn list(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    let found = parked::list(connection, consumer, None, limit).await?;
    let now = Clock::system().now();
    match (json, found.events.is_empty()) {
        (true, _) => output::json(&found.events.iter().map(parked::Row::of).collect::<Vec<_>>())?,
        (false, true) => eprintln!("seqline: no parked events found"),
        (false, false) => view::table(&found.events, now)?,
    }
    if found.more {
        eprintln!("seqline: there are more than {limit} parked events: --limit shows up to 1000");
    }
    Ok(())
}

async fn show(connection: &mut PgConnection, consumer: &str, seq: i64, json: bool) -> Result<(), Failure> {
    let (event, stored) = parked::show(connection, consumer, seq).await?;
    if json {
        return output::json(&parked::Details::of(&event, stored.as_ref())?);
    }
    view::details(&event, stored, Clock::system().now())
}
