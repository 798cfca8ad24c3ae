//! Consumers in `seqline status`.

use seqline::consumer::{ConsumerState, states};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::failure::Failure;
use crate::operate::consumers::State;
use crate::output;
use crate::output::{age_seconds, grouped};
use crate::sqlstate;

/// All consumers but those that were retired; `None` where they cannot be seen: as a role that only reads, and in an older schema that has none. The
/// rest of the status is worth showing then.
pub(super) async fn consumers(connection: &mut PgConnection) -> Result<Option<Vec<ConsumerState>>, Failure> {
    match states(connection).await {
        Ok(mut states) => {
            states.retain(|state| state.retired_at.is_none());
            Ok(Some(states))
        }
        Err(error) => match error.sqlstate() {
            Some(sqlstate::INSUFFICIENT_PRIVILEGE | sqlstate::UNDEFINED_TABLE) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// A table, if there is anything to show.
pub(super) fn print(consumers: &[ConsumerState], now: OffsetDateTime) -> Result<(), Failure> {
    if consumers.is_empty() {
        return Ok(());
    }
    output::line("")?;
    table(consumers, now)
}

pub(in crate::commands) fn table(consumers: &[ConsumerState], now: OffsetDateTime) -> Result<(), Failure> {
    let cells = |consumer: &ConsumerState| {
        vec![
            consumer.name.clone(),
            consumer.kind.clone(),
            consumer.lanes.to_string(),
            grouped(consumer.last_seq),
            grouped(consumer.lag()),
            consumer.oldest_pending_at.map_or_else(String::new, |at| age(age_seconds(at, now))),
            State::of(consumer).text().to_owned(),
            parked(consumer),
            grouped(consumer.lost + consumer.gone),
            last_error(consumer, now),
        ]
    };
    output::table(
        &[
            "consumer",
            "kind",
            "lanes",
            "cursor",
            "lag",
            "oldest pending",
            "state",
            "parked",
            "lost",
            "last error",
        ],
        &[2, 3, 4, 5, 8],
        consumers.iter().map(cells).collect(),
    )
}

/// Such as `2 from seq 17`.
fn parked(consumer: &ConsumerState) -> String {
    let first = consumer.first_parked.map_or_else(String::new, |seq| format!(" from seq {}", grouped(seq)));
    format!("{}{first}", grouped(consumer.parked))
}

/// Such as `handler at seq 17, for 3m`.
pub(in crate::commands) fn last_error(consumer: &ConsumerState, now: OffsetDateTime) -> String {
    let Some(failure) = &consumer.last_failure else { return String::new() };
    let seq = failure.seq.map_or_else(String::new, |seq| format!(" at seq {}", grouped(seq)));
    let since = age(age_seconds(failure.failed_at, now));
    let when = if failure.current { format!("for {since}") } else { format!("{since} ago, recovered") };
    format!("{}{seq}, {when}", failure.error_type)
}

/// A time span at a glance: its largest unit.
pub(in crate::commands) fn age(seconds: i64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::consumers::row::tests::{NOW, consumer};

    #[test]
    fn parked_events_are_counted_from_the_first() {
        let mut parking = consumer(8, 8, None);
        assert_eq!(parked(&parking), "0");
        (parking.parked, parking.first_parked) = (2, Some(1017));
        assert_eq!(parked(&parking), "2 from seq 1,017");
    }

    #[test]
    fn the_last_error_says_where_when_and_whether_it_is_over() {
        for (failure, text) in [
            (None, ""),
            (Some((Some(1017), true)), "handler at seq 1,017, for 3m"),
            (Some((Some(17), false)), "handler at seq 17, 3m ago, recovered"),
            (Some((None, true)), "handler, for 3m"),
        ] {
            assert_eq!(last_error(&consumer(8, 8, failure), NOW), text);
        }
    }

    #[test]
    fn an_age_is_in_its_largest_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86_399, "23h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }
}
