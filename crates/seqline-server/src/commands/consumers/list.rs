//! `seqline consumers list`

use seqline::Clock;
use seqline::consumer::states;
use sqlx::PgConnection;

use crate::commands::status::consumers as view;
use crate::failure::Failure;
use crate::operate::consumers::Row;
use crate::output;

pub(super) async fn run(connection: &mut PgConnection, all: bool, json: bool) -> Result<(), Failure> {
    let mut consumers = states(connection).await?;
    let now = Clock::system().now();
    let found = consumers.len();
    consumers.retain(|consumer| all || consumer.retired_at.is_none());
    if json {
        return output::json(&Row::all(consumers, now));
    }
    if consumers.is_empty() {
        let retired = if found > 0 { " that are in use: --all shows those that were retired" } else { "" };
        eprintln!("seqline: no consumers found{retired}");
        return Ok(());
    }
    view::table(&consumers, now)
}
