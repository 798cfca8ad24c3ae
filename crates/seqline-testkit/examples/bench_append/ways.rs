//! The ways to record an event in a transaction.

use seqline::{Actor, NewEvent, Payload};
use sqlx::{Connection, PgConnection, PgTransaction};
use uuid::Uuid;

use crate::databases::ORDERS;
use crate::load::Work;

/// What a transaction does for its event, besides the UPDATE that all of them do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    NoEvent,
    PlainOutbox,
    CounterRow,
    Pgmq,
    GraphileWorker,
    River,
    AtCommit,
    /// As those do who do not use the library: with the driver's COMMIT.
    AtCommitPlain,
    /// With a sequencer that runs.
    AfterCommit,
}

impl Way {
    pub(crate) const ALL: [Self; 9] = [
        Self::AfterCommit,
        Self::AtCommit,
        Self::AtCommitPlain,
        Self::PlainOutbox,
        Self::CounterRow,
        Self::Pgmq,
        Self::GraphileWorker,
        Self::River,
        Self::NoEvent,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoEvent => "no event",
            Self::PlainOutbox => "plain outbox",
            Self::CounterRow => "counter row",
            Self::Pgmq => "pgmq",
            Self::GraphileWorker => "Graphile Worker",
            Self::River => "River",
            Self::AtCommit => "at commit",
            Self::AtCommitPlain => "at commit, plain COMMIT",
            Self::AfterCommit => "after commit",
        }
    }

    pub(crate) fn is_seqline(self) -> bool {
        matches!(self, Self::AtCommit | Self::AtCommitPlain | Self::AfterCommit)
    }

    /// Where the rows of this way are, one for each event.
    pub(crate) fn table(self) -> Option<&'static str> {
        match self {
            Self::NoEvent => None,
            Self::PlainOutbox => Some("outbox"),
            Self::CounterRow => Some("counted"),
            Self::Pgmq => Some("pgmq.q_events"),
            Self::GraphileWorker => Some("graphile_worker._private_jobs"),
            Self::River => Some("river.river_job"),
            Self::AtCommit | Self::AtCommitPlain | Self::AfterCommit => Some("seqline.event_log"),
        }
    }
}

impl Work for Way {
    async fn transact(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let order = fastrand::i64(0..ORDERS);
        let mut tx = connection.begin().await?;
        sqlx::query("UPDATE orders SET n = n + 1 WHERE id = $1").bind(order).execute(&mut *tx).await?;
        match *self {
            Self::NoEvent => {}
            Self::PlainOutbox => insert_into_outbox(&mut tx, order).await?,
            Self::CounterRow => count_and_insert(&mut tx, order).await?,
            Self::Pgmq => {
                sqlx::query("SELECT pgmq.send('events', $1::jsonb)")
                    .bind(payload(order))
                    .execute(&mut *tx)
                    .await?;
            }
            Self::GraphileWorker => {
                sqlx::query("SELECT graphile_worker.add_job('order.created', $1::json)")
                    .bind(payload(order))
                    .execute(&mut *tx)
                    .await?;
            }
            Self::River => insert_into_river(&mut tx, order).await?,
            Self::AtCommit | Self::AtCommitPlain | Self::AfterCommit => {
                seqline::append(&mut tx, &[event(order)?]).await?;
            }
        }
        match *self {
            // After commit there is nothing that the library's commit could do faster.
            Self::AtCommit => seqline::commit(tx).await?,
            _ => tx.commit().await?,
        }
        Ok(())
    }
}

pub(crate) const TYPE: &str = "order.created";
pub(crate) const SPACE: &str = "shop";
pub(crate) const CHANNEL: &str = "orders";
const ACTOR: &str = "alex";

/// About 200 bytes.
pub(crate) fn payload(order: i64) -> String {
    format!(
        r#"{{"order": {order}, "customer": "Alex", "email": "alex@example.com", "total": 12.50, "currency": "EUR", "lines": [{{"sku": "A-1001", "quantity": 1, "price": 7.50}}, {{"sku": "B-2002", "quantity": 2, "price": 2.50}}]}}"#
    )
}

pub(crate) fn event(order: i64) -> anyhow::Result<NewEvent> {
    let event = NewEvent::builder(TYPE, "order", "any")
        .resource_id(order.to_string())
        .space(SPACE)
        .channel(CHANNEL)
        .actor(Actor::User(ACTOR.to_owned()))
        .payload(Payload::from_json(&payload(order))?);
    Ok(event.build()?)
}

/// All that `seqline.append` is given, bound as the library binds it, and numbered by a sequence.
async fn insert_into_outbox(tx: &mut PgTransaction<'_>, order: i64) -> anyhow::Result<()> {
    bound(
        sqlx::query(
            "INSERT INTO outbox (type, payload, resource_kind, receive_action, resource_id, resource_version, space_id,
                 channel_id, thread_id, actor_kind, actor_principal_id, audience_principal_id, schema_version, client_msg_id,
                 id, truncated, trace_context, permission_version)
             VALUES ($1, $2::jsonb, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, 0)",
        ),
        order,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The next number from a row that everybody updates, so in commit order too.
async fn count_and_insert(tx: &mut PgTransaction<'_>, order: i64) -> anyhow::Result<()> {
    let seq: i64 = sqlx::query_scalar("UPDATE counter SET value = value + 1 RETURNING value")
        .fetch_one(&mut **tx)
        .await?;
    bound(
        sqlx::query(
            "INSERT INTO counted (type, payload, resource_kind, receive_action, resource_id, resource_version, space_id,
                 channel_id, thread_id, actor_kind, actor_principal_id, audience_principal_id, schema_version, client_msg_id,
                 id, truncated, trace_context, permission_version, seq)
             VALUES ($1, $2::jsonb, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, 0, $18)",
        ),
        order,
    )
    .bind(seq)
    .execute(&mut **tx)
    .await?;
    sqlx::query("SELECT pg_notify('counted', $1)").bind(seq.to_string()).execute(&mut **tx).await?;
    Ok(())
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

fn bound(query: Query<'_>, order: i64) -> Query<'_> {
    let none = None::<String>;
    query
        .bind(TYPE)
        .bind(payload(order))
        .bind("order")
        .bind("any")
        .bind(order.to_string())
        .bind(None::<i64>)
        .bind(SPACE)
        .bind(CHANNEL)
        .bind(none.clone())
        .bind("user")
        .bind(ACTOR)
        .bind(none.clone())
        .bind(1_i32)
        .bind(none.clone())
        .bind(Uuid::now_v7())
        .bind(false)
        .bind(none)
}

/// The row that River's clients write.
async fn insert_into_river(tx: &mut PgTransaction<'_>, order: i64) -> anyhow::Result<()> {
    sqlx::query(
        "INSERT INTO river.river_job (args, kind, max_attempts, metadata, priority, queue, scheduled_at, state, tags)
         VALUES ($1::jsonb, 'order.created', 25, '{}', 1, 'default', now(), 'available', '{}')",
    )
    .bind(payload(order))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// How many rows there are of this way.
pub(crate) async fn rows(connection: &mut PgConnection, way: Way) -> anyhow::Result<Option<i64>> {
    let Some(table) = way.table() else { return Ok(None) };
    let count = format!("SELECT count(*) FROM {table}");
    Ok(Some(sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(connection).await?))
}
