//! Forgetting what consumers of the stream have handled, when it cannot come again.

use std::time::Duration;

use seqline::DatabaseError;
use tokio_util::sync::CancellationToken;

use crate::api::Database;
use crate::config::Config;
use crate::limits::LEDGER_FORGOTTEN_AT_ONCE;
use crate::store;
use crate::store::ledger::LedgerFacts;

/// For how long it is remembered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LedgerAge {
    /// At least.
    kept: Duration,
    /// For how much longer than an event has been in the log.
    behind_the_log: Duration,
}

impl LedgerAge {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            kept: config.ledger_retention(),
            behind_the_log: config.stream.max_age.saturating_add(config.stream_consumer.ledger_margin),
        }
    }

    /// What is older than that cannot come again; `None` where there is nothing to forget. The partition that holds the head stays however old
    /// it is, so what is in the log counts, and not only what retention says.
    fn at(self, facts: LedgerFacts) -> Option<Duration> {
        let oldest = facts.oldest_age.and_then(|age| Duration::try_from_secs_f64(age.max(0.0)).ok());
        let in_the_log = oldest.unwrap_or_default().saturating_add(self.behind_the_log);
        facts.is_used.then(|| self.kept.max(in_the_log))
    }
}

/// Forgets some at a time, and returns how many.
pub(crate) async fn forget(
    database: &Database,
    age: LedgerAge,
    stop: &CancellationToken,
) -> Result<u64, DatabaseError> {
    let facts =
        database.ask(async |connection| Ok::<_, DatabaseError>(store::ledger::facts(connection).await?));
    let Some(older_than) = age.at(facts.await?) else { return Ok(0) };
    let mut forgotten = 0;
    while !stop.is_cancelled() {
        let some = database.ask(async |connection| {
            seqline::ledger::prune(connection, older_than, LEDGER_FORGOTTEN_AT_ONCE).await
        });
        let some = some.await?;
        forgotten += some;
        if some < u64::from(LEDGER_FORGOTTEN_AT_ONCE) {
            break;
        }
    }
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_remembered_for_as_long_as_the_log_or_the_stream_may_have_it() {
        let day = |days: u32| Duration::from_secs(86_400) * days;
        let age = LedgerAge { kept: day(50), behind_the_log: day(14) };
        let at = |is_used, oldest: Option<u32>| {
            age.at(LedgerFacts { is_used, oldest_age: oldest.map(|days| day(days).as_secs_f64()) })
        };
        assert_eq!(at(false, Some(10)), None);
        assert_eq!(at(true, None), Some(day(50)));
        assert_eq!(at(true, Some(10)), Some(day(50)));
        // A log to which nothing is appended keeps its last partition.
        assert_eq!(at(true, Some(100)), Some(day(114)));
        let facts = LedgerFacts { is_used: true, oldest_age: Some(-5.0) };
        assert_eq!(age.at(facts), Some(day(50)), "a clock that was set back");
    }
}
