//! Many events in one transaction.

use anyhow::ensure;
use seqline::NewEvent;
use seqline_testkit::bench::report::number;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples, Table};
use seqline_testkit::{Role, TestServer};
use sqlx::{Connection, PgConnection, PgTransaction};
use uuid::Uuid;

use crate::Plan;
use crate::databases::{Databases, ORDERS, Running, settle};
use crate::load::{Load, Work};
use crate::peers::Peers;
use crate::rates::WARM_UP;
use crate::ways::{CHANNEL, SPACE, TYPE, Way, event, payload, rows};

const WRITERS: u32 = 8;
const EVENTS: i64 = 100;
const WAYS: [Way; 3] = [Way::AtCommit, Way::PlainOutbox, Way::AfterCommit];

/// A transaction of many events, in one of the ways that are compared.
#[derive(Debug, Clone, Copy)]
struct Batch(Way);

impl Work for Batch {
    async fn transact(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let first = fastrand::i64(0..ORDERS - EVENTS);
        let orders = first..first + EVENTS;
        let mut tx = connection.begin().await?;
        if self.0.is_seqline() {
            let events: Vec<NewEvent> = orders.map(event).collect::<anyhow::Result<_>>()?;
            seqline::append(&mut tx, &events).await?;
            seqline::commit(tx).await?;
        } else {
            insert(&mut tx, orders).await?;
            tx.commit().await?;
        }
        Ok(())
    }
}

/// One statement. What is the same in all rows is bound once.
async fn insert(tx: &mut PgTransaction<'_>, orders: std::ops::Range<i64>) -> anyhow::Result<()> {
    let payloads: Vec<String> = orders.clone().map(payload).collect();
    let resources: Vec<String> = orders.clone().map(|order| order.to_string()).collect();
    let ids: Vec<Uuid> = orders.map(|_| Uuid::now_v7()).collect();
    sqlx::query(
        "INSERT INTO outbox (id, resource_id, payload, type, resource_kind, receive_action, space_id, channel_id, actor_kind,
             actor_principal_id, schema_version, truncated, permission_version)
         SELECT r.id, r.resource_id, r.payload::jsonb, $4, 'order', 'any', $5, $6, 'user', 'alex', 1, false, 0
         FROM unnest($1::uuid[], $2::text[], $3::text[]) r (id, resource_id, payload)",
    )
    .bind(ids)
    .bind(resources)
    .bind(payloads)
    .bind(TYPE)
    .bind(SPACE)
    .bind(CHANNEL)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

pub(crate) async fn measure(server: &TestServer, plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let peers = Peers::read()?;
    let (mut rates, mut shares) = (WAYS.map(|_| Samples::default()), Samples::default());
    for run in 1..=plan.runs {
        eprintln!("{EVENTS} events in a transaction, run {run} of {}", plan.runs);
        let databases = Databases::create(server, &peers).await?;
        for (way, rates) in WAYS.into_iter().zip(&mut rates) {
            let db = databases.of(way);
            let mut admin = db.connect(Role::Admin).await;
            settle(db).await?;
            let sequencer = if way == Way::AfterCommit { Some(Running::start(db).await) } else { None };
            let load = Load::start(db, WRITERS, Batch(way)).await;
            load.rate(WARM_UP).await;
            let rate = if sequencer.is_some() {
                let (rate, numbered) = load.rate_and_numbered(db, plan.duration, EVENTS).await?;
                shares.push(numbered.share);
                rate
            } else {
                load.rate(plan.duration).await
            };
            rates.push(rate * EVENTS as f64);
            let due = load.stop().await? as i64 * EVENTS;
            if let Some(sequencer) = sequencer {
                sequencer.finish().await?;
            }
            let written = rows(&mut admin, way).await?.unwrap_or_default();
            ensure!(written == due, "{}: {written} rows of {due} events", way.name());
        }
        databases.drop_and_wait(server).await;
    }
    let mut table = Table::new(
        format!("{EVENTS} events per transaction, {WRITERS} writers, events/s, medians of {}", plan.runs),
        ["way", "median", "lowest", "highest"],
    );
    for (way, rates) in WAYS.into_iter().zip(&rates) {
        let name = if way.is_seqline() { way.name() } else { "one INSERT of many rows" };
        report.figure(format!("{EVENTS} events per transaction, {name}"), "events/s", rates);
        let [median, lowest, highest] = [rates.median(), rates.lowest(), rates.highest()].map(number);
        table.row([name.to_owned(), median, lowest, highest]);
    }
    report.figure(format!("{EVENTS} events per transaction, after commit, numbered"), "", &shares);
    table.note(format!(
        "After commit {} of the events that were committed in the time got their numbers in it.",
        number(shares.median())
    ));
    report.table(table);
    let [appends, inserts, _] = &rates;
    report.judge(keys::BATCH_EVENTS, appends.median())?;
    report.judge(keys::BATCH_TO_INSERT, appends.to(inserts))
}
