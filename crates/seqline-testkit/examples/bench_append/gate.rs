//! How many transactions should be inside COMMIT at once: what the default of `seqline::commit` comes from.

use seqline::Committer;
use seqline_testkit::bench::report::number;
use seqline_testkit::bench::{Report, Samples, Table};
use seqline_testkit::{TestDb, TestServer};
use sqlx::{Connection, PgConnection};

use crate::Plan;
use crate::databases::{ORDERS, create_orders, settle};
use crate::load::{Load, Work};
use crate::rates::WARM_UP;
use crate::ways::event;

const WRITERS: [u32; 3] = [8, 32, 64];
/// The last one keeps nobody out.
const GATES: [usize; 7] = [1, 2, 3, 4, 6, 8, 1_000];

/// As the way at commit, with a gate of one's own.
#[derive(Clone)]
struct Gated(Committer);

impl Work for Gated {
    async fn transact(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let order = fastrand::i64(0..ORDERS);
        let mut tx = connection.begin().await?;
        sqlx::query("UPDATE orders SET n = n + 1 WHERE id = $1").bind(order).execute(&mut *tx).await?;
        seqline::append(&mut tx, &[event(order)?]).await?;
        Ok(self.0.commit(tx).await?)
    }
}

pub(crate) async fn measure(server: &TestServer, plan: Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut rates = GATES.map(|_| WRITERS.map(|_| Samples::default()));
    for _ in 0..plan.runs {
        let db = TestDb::on(server).await;
        create_orders(&db).await?;
        for (column, writers) in WRITERS.into_iter().enumerate() {
            for (row, at_once) in GATES.into_iter().enumerate() {
                settle(&db).await?;
                let load = Load::start(&db, writers, Gated(Committer::new(at_once))).await;
                load.rate(WARM_UP).await;
                rates[row][column].push(load.rate(plan.duration).await);
                load.stop().await?;
            }
        }
    }
    let mut table = Table::new(
        format!("At commit, so many inside COMMIT at once, transactions/s, medians of {}", plan.runs),
        ["at once".to_owned()].into_iter().chain(WRITERS.map(|writers| format!("{writers} writers"))),
    );
    for (at_once, samples) in GATES.into_iter().zip(&rates) {
        table.row(
            [at_once.to_string()].into_iter().chain(samples.iter().map(|samples| number(samples.median()))),
        );
        for (writers, samples) in WRITERS.into_iter().zip(samples) {
            report.figure(format!("{at_once} at once, {writers} writers"), "transactions/s", samples);
        }
    }
    report.table(table);
    Ok(())
}
