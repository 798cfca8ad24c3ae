//! What all consumers of a process share.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection, PgPool};

use super::config::ConsumerConfig;
use super::definition::Consumer;
use super::error::EnsureError;
use super::marks::Marks;
use super::round::Rounds;
use crate::clock::Clock;
use crate::deadline::{Lease, within};
use crate::durable::DurableHead;
use crate::error::DatabaseError;
use crate::store;
use crate::store::consumers::{Division, NewConsumer, Position};

/// What all consumers of a process share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) pool: PgPool,
    pub(super) config: ConsumerConfig,
    pub(super) clock: Clock,
    pub(super) marks: Marks,
    /// How far events may be handed out: one for all consumers of the process.
    pub(super) durable: DurableHead,
}

impl Shared {
    /// Rounds of one lane, or of the one that is furthest behind.
    pub(super) fn rounds<'a>(&'a self, consumer: &'a Consumer, lane: Option<u32>) -> Rounds<'a> {
        Rounds {
            pool: &self.pool,
            config: &self.config,
            clock: &self.clock,
            name: &consumer.name,
            handler: &*consumer.handler,
            may_append: consumer.may_append,
            outlet: consumer.outlet.as_ref(),
            filter: &consumer.filter,
            policy: consumer.policy,
            marks: &self.marks,
            durable: &self.durable,
            lane,
        }
    }

    /// Where the lanes of these consumers stand, in one look: what polling costs does not depend on how many consumers there are.
    pub(super) async fn positions(&self, names: &[&str]) -> Result<Vec<Position>, DatabaseError> {
        within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let positions =
                lease.alone(async |connection| store::consumers::positions(connection, names).await).await?;
            if positions.iter().any(|at| at.read_only_server) {
                return Err(DatabaseError::read_only_server());
            }
            lease.done();
            Ok(positions)
        })
        .await
    }

    /// One transaction, so all or none; says how they are divided. What they ask for is written down for people: their rounds go by what
    /// the program says.
    pub(super) async fn ensure(&self, consumers: &[Arc<Consumer>]) -> Result<Vec<Division>, EnsureError> {
        let new: Vec<NewConsumer<'_>> = consumers
            .iter()
            .map(|consumer| NewConsumer {
                name: consumer.name.as_str(),
                start_at: consumer.start_at.to_string(),
                lanes: consumer.lanes,
                lane_key: consumer.lane_key.as_str(),
            })
            .collect();
        within(self.config.deadline(), async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let ensured = async {
                let mut tx =
                    lease.connection().begin_with(AssertSqlSafe(self.config.beginning(&self.pool))).await?;
                store::consumers::ensure(&mut tx, &new).await?;
                let names: Vec<&str> = new.iter().map(|consumer| consumer.name).collect();
                let divisions = store::consumers::divisions(&mut tx, &names).await?;
                // In one order for all processes.
                let mut consumers: Vec<_> = consumers.iter().collect();
                consumers.sort_by_key(|consumer| consumer.name.as_str());
                for consumer in consumers {
                    store::consumers::set_filter(&mut tx, consumer.name.as_str(), &consumer.filter).await?;
                }
                tx.commit().await?;
                Ok(divisions)
            };
            let divisions = ensured.await.map_err(|error: sqlx::Error| DatabaseError::from(error))?;
            lease.done();
            Ok(divisions)
        })
        .await
    }
}
