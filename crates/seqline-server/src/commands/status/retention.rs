//! Consumers that keep expired partitions, in `seqline status`.

use std::time::Duration;

use seqline::maintenance::Holding;
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::rfc3339;
use crate::failure::Failure;
use crate::limits::STATUS_KEEPERS_MAX;
use crate::operate::partitions::holdings;
use crate::output;

/// A consumer that keeps expired partitions.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Keeper {
    consumer: String,
    partitions: usize,
    /// When the first of them expired.
    since: String,
}

/// All of them, those that keep the oldest first.
pub(super) async fn keepers(
    connection: &mut PgConnection,
    retention: Duration,
    now: OffsetDateTime,
) -> Result<Vec<Keeper>, Failure> {
    Ok(of(holdings(connection).await?, retention, now))
}

fn of(holdings: Vec<Holding>, retention: Duration, now: OffsetDateTime) -> Vec<Keeper> {
    let mut keepers: Vec<Keeper> = Vec::new();
    for holding in holdings {
        let expired_at = holding
            .last_event_at
            .and_then(|at| at.checked_add(retention.try_into().ok()?))
            .filter(|expired_at| *expired_at < now);
        let Some(expired_at) = expired_at else { continue };
        match keepers.iter_mut().find(|keeper| keeper.consumer == holding.consumer) {
            Some(keeper) => keeper.partitions += 1,
            None => {
                keepers.push(Keeper { consumer: holding.consumer, partitions: 1, since: rfc3339(expired_at) })
            }
        }
    }
    keepers
}

/// A line for each, as far as there is room.
pub(super) fn print(keepers: &[Keeper]) -> Result<(), Failure> {
    for Keeper { consumer, partitions, since } in keepers.iter().take(STATUS_KEEPERS_MAX) {
        let noun = if *partitions == 1 { "partition" } else { "partitions" };
        output::line(format!("{:<14}{partitions} expired {noun} by {consumer}, since {since}", "held"))?;
    }
    match keepers.len().saturating_sub(STATUS_KEEPERS_MAX) {
        0 => Ok(()),
        more => output::line(format!("{:<14}and by {more} more", "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn holding(consumer: &str, lower_bound: i64, age_days: u32) -> Holding {
        Holding {
            partition: format!("event_log_from_{lower_bound}"),
            lower_bound,
            last_event_at: Some(OffsetDateTime::UNIX_EPOCH + (100 - age_days) * DAY),
            consumer: consumer.to_owned(),
            last_seq: 0,
            parked: 0,
        }
    }

    #[test]
    fn only_what_has_expired_counts_and_since_the_first_of_it() {
        let holdings = vec![
            holding("a", 1, 40),
            holding("b", 3, 33),
            holding("a", 3, 33),
            holding("a", 5, 30),
            holding("c", 5, 30),
        ];
        let keeper = |consumer: &str, partitions, since: &str| Keeper {
            consumer: consumer.to_owned(),
            partitions,
            since: since.to_owned(),
        };
        assert_eq!(
            of(holdings, 30 * DAY, OffsetDateTime::UNIX_EPOCH + 100 * DAY),
            [keeper("a", 2, "1970-04-01T00:00:00Z"), keeper("b", 1, "1970-04-08T00:00:00Z")]
        );
    }

    #[test]
    fn a_partition_that_is_just_gone_and_a_retention_longer_than_history_count_for_nothing() {
        let gone = Holding { last_event_at: None, ..holding("a", 1, 40) };
        assert_eq!(of(vec![gone], DAY, OffsetDateTime::UNIX_EPOCH + 100 * DAY), []);
        let kept = vec![holding("a", 1, 40)];
        assert_eq!(of(kept, Duration::MAX, OffsetDateTime::UNIX_EPOCH + 100 * DAY), []);
    }
}
