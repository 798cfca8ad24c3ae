//! What all consumers of a process share.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection, PgPool};

use super::config::ConsumerConfig;
use super::definition::Consumer;
use super::error::EnsureError;
use super::round::Rounds;
use crate::clock::Clock;
use crate::deadline::{Lease, within};
use crate::error::DatabaseError;
use crate::store;

/// What all consumers of a process share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pool: PgPool,
    pub(super) config: ConsumerConfig,
    pub(super) clock: Clock,
}

impl Shared {
    pub(super) fn rounds<'a>(&'a self, consumer: &'a Consumer) -> Rounds<'a> {
        Rounds {
            pool: &self.pool,
            config: &self.config,
            clock: &self.clock,
            name: &consumer.name,
            handler: &*consumer.handler,
            may_append: consumer.may_append,
            outlet: consumer.outlet.as_ref(),
            filter: &consumer.filter,
        }
    }

    /// The names of those of these consumers that are not at the head, in one look: what polling costs does not depend on how
    /// many there are.
    pub(super) async fn not_at_head<'a>(&self, names: &[&'a str]) -> Result<Vec<&'a str>, DatabaseError> {
        let positions = within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let positions = store::consumers::positions(lease.connection(), names).await?;
            lease.done();
            Ok::<_, DatabaseError>(positions)
        })
        .await?;
        // One without a cursor is not at the head either, and finds that out by itself. So does one that is paused: it says so.
        let at_head = |name: &str| positions.iter().any(|at| at.name == name && at.last_seq == at.head);
        Ok(names.iter().copied().filter(|name| !at_head(name)).collect())
    }

    /// One transaction, so all or none. What they ask for is written down for people: their rounds go by what the program says.
    pub(super) async fn ensure(&self, consumers: &[Arc<Consumer>]) -> Result<(), EnsureError> {
        let names: Vec<&str> = consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        let starts: Vec<String> = consumers.iter().map(|consumer| consumer.start_at.to_string()).collect();
        within(self.config.deadline(), async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let ensured = async {
                let mut tx = lease.connection().begin_with(AssertSqlSafe(self.config.beginning())).await?;
                store::consumers::ensure(&mut tx, &names, &starts).await?;
                // In one order for all processes.
                let mut consumers: Vec<_> = consumers.iter().collect();
                consumers.sort_by_key(|consumer| consumer.name.as_str());
                for consumer in consumers {
                    store::consumers::set_filter(&mut tx, consumer.name.as_str(), &consumer.filter).await?;
                }
                tx.commit().await
            };
            ensured.await.map_err(DatabaseError::from)?;
            lease.done();
            Ok(())
        })
        .await
    }
}
