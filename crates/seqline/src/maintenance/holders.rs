//! Who keeps partitions that have expired.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::error::DatabaseError;
use crate::limits::HOLDERS_NAMED_MAX;
use crate::store;
use crate::store::partitions::Expired;

/// A partition that has expired and that consumers had not passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldPartition {
    /// Its name.
    pub name: String,
    /// How much older than the retention its last event is.
    pub beyond_retention: Duration,
    /// Who keeps it, or kept it until it was dropped.
    pub holders: Holders,
}

/// Names of consumers that keep a partition, those furthest behind first. As text it names the first [`HOLDERS_NAMED_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holders(pub Vec<String>);

/// A consumer and one of the partitions that it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The partition. It need not have expired, but is before the one that holds the head.
    pub partition: String,
    /// Its first number.
    pub lower_bound: i64,
    /// The time of its last event.
    pub last_event_at: Option<OffsetDateTime>,
    /// The consumer.
    pub consumer: String,
    /// Where the lane of it stands that is furthest behind.
    pub last_seq: i64,
    /// How many events of the partition it has parked.
    pub parked: i64,
}

/// Which consumers have not passed which partitions before the one that holds the head: what retention waits for, or will. Oldest
/// partition first, and of each those consumers first that are furthest behind.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn holders(connection: &mut PgConnection) -> Result<Vec<Holding>, DatabaseError> {
    Ok(store::partitions::holdings(connection).await?)
}

impl HeldPartition {
    /// Of a partition that somebody keeps or kept.
    pub(super) fn of(expired: Expired, cutoff: OffsetDateTime) -> Option<Self> {
        let beyond = expired.last_event_at.map(|at| cutoff - at);
        (!expired.holders.is_empty()).then_some(Self {
            name: expired.name,
            beyond_retention: beyond.and_then(|beyond| beyond.try_into().ok()).unwrap_or_default(),
            holders: Holders(expired.holders),
        })
    }
}

impl Holders {
    /// The first [`HOLDERS_NAMED_MAX`] of them.
    #[must_use]
    pub fn named(&self) -> &[String] {
        &self.0[..self.0.len().min(HOLDERS_NAMED_MAX)]
    }
}

impl Display for Holders {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let named = self.named();
        out.write_str(&named.join(", "))?;
        match self.0.len() - named.len() {
            0 => Ok(()),
            more => write!(out, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_are_named_and_the_rest_is_counted() {
        let holders = |count: usize| Holders((0..count).map(|n| format!("c{n}")).collect()).to_string();
        assert_eq!(holders(0), "");
        assert_eq!(holders(2), "c0, c1");
        assert_eq!(holders(10), "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9");
        assert_eq!(holders(12), "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 2 more");
    }
}
