//! Relays in `seqline status`.

use seqline_nats::relay::operate::{RelayStatus, statuses};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::commands::relay::{behind, state};
use crate::failure::Failure;
use crate::output;
use crate::sqlstate;

/// All of them; none where they cannot be seen: as a role that only reads, and in an older schema.
pub(super) async fn relays(connection: &mut PgConnection) -> Result<Vec<RelayStatus>, Failure> {
    match statuses(connection).await {
        Ok(relays) => Ok(relays),
        Err(error) => match error.sqlstate() {
            Some(sqlstate::INSUFFICIENT_PRIVILEGE | sqlstate::UNDEFINED_TABLE) => Ok(Vec::new()),
            _ => Err(error.into()),
        },
    }
}

/// A line for each.
pub(super) fn print(relays: &[RelayStatus], now: OffsetDateTime) -> Result<(), Failure> {
    relays.iter().try_for_each(|relay| output::line(format!("{:<14}{}", "relay", text(relay, now))))
}

fn text(relay: &RelayStatus, now: OffsetDateTime) -> String {
    let incidents = match relay.incidents.len() {
        0 => String::new(),
        1 => "; 1 incident that nobody has acknowledged".to_owned(),
        more => format!("; {more} incidents that nobody has acknowledged"),
    };
    format!("{} {}, {}{incidents}", relay.name, state(relay), behind(relay, now))
}
