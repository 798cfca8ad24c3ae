//! What a snapshot that somebody holds does to appends: PostgreSQL keeps every dead row as long.

use std::time::{Duration, Instant};

use seqline_testkit::bench::report::number;
use seqline_testkit::bench::{Latencies, Report, Table};
use seqline_testkit::{Role, TestDb, TestServer};

use crate::Plan;
use crate::databases::{self, Running, create_orders, settle, wait_for_drops};
use crate::open_loop::{Append, append};

const PER_SECOND: u32 = 500;
/// How long it is measured without the snapshot, at most.
const WITHOUT: Duration = Duration::from_secs(60);
/// Parts of the time with it that are shown one by one.
const STEPS: u32 = 5;

/// The p99 with the snapshot against that without it, and the shares of the rate that were kept.
type Found = (f64, [f64; 2]);

pub(crate) async fn at_commit(server: &TestServer, plan: Plan, report: &mut Report) -> anyhow::Result<Found> {
    let db = TestDb::on(server).await;
    let found = measure(&db, plan, "at commit", report).await?;
    drop(db);
    wait_for_drops(server).await;
    Ok(found)
}

pub(crate) async fn after_commit(
    server: &TestServer,
    plan: Plan,
    report: &mut Report,
) -> anyhow::Result<Found> {
    let db = databases::after_commit(server).await?;
    let sequencer = Running::start(&db).await;
    let found = measure(&db, plan, "after commit", report).await?;
    sequencer.finish().await?;
    drop(db);
    wait_for_drops(server).await;
    Ok(found)
}

/// From the moment when an append was to begin to the answer to its COMMIT.
async fn measure(db: &TestDb, plan: Plan, sequencing: &str, report: &mut Report) -> anyhow::Result<Found> {
    create_orders(db).await?;
    settle(db).await?;
    eprintln!("{PER_SECOND} appends/s without a snapshot that is held, then with it");
    let without = append(db, PER_SECOND, WITHOUT.min(plan.held)).await?;
    settle(db).await?;

    let mut reader = db.connect(Role::App).await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM orders")
        .execute(&mut reader)
        .await?;
    let with = append(db, PER_SECOND, plan.held).await?;
    sqlx::raw_sql("COMMIT").execute(&mut reader).await?;

    let mut table = Table::new(
        format!(
            "Appends {sequencing} at {PER_SECOND}/s, a snapshot held for {:.0} s, from when they were to begin to the answer, ms",
            plan.held.as_secs_f64()
        ),
        ["", "appends", "median", "p99", "longest"],
    );
    let mut row = |name: &str, latencies: &Latencies| {
        let percentiles = [latencies.percentile(50.0), latencies.percentile(99.0), latencies.longest()];
        for (which, value) in ["median", "p99", "longest"].into_iter().zip(percentiles) {
            report.single(format!("an append {sequencing} at {PER_SECOND}/s, {name}, {which}"), "ms", value);
        }
        let [median, p99, longest] = percentiles.map(number);
        table.row([name.to_owned(), latencies.count().to_string(), median, p99, longest]);
    };
    let (of_without, of_with) = (latencies(&without.appends), latencies(&with.appends));
    row("without it", &of_without);
    row("with it", &of_with);
    let begin = with.appends.iter().map(|append| append.due).min();
    let part = |append: &Append, begin: Instant| {
        let share = append.due.duration_since(begin).as_secs_f64() / plan.held.as_secs_f64();
        ((share * f64::from(STEPS)) as u32).min(STEPS - 1)
    };
    for step in 0..STEPS {
        let Some(begin) = begin else { break };
        let appends = with.appends.iter().filter(|append| part(append, begin) == step);
        let until = (plan.held * (step + 1) / STEPS).as_secs_f64();
        row(&format!("with it, up to second {until:.0}"), &latencies(appends));
    }
    report.table(table);
    let ratio = of_with.percentile(99.0) / of_without.percentile(99.0);
    Ok((ratio, [without.kept, with.kept]))
}

fn latencies<'a>(appends: impl IntoIterator<Item = &'a Append>) -> Latencies {
    Latencies::new(appends.into_iter().map(|append| append.answered.saturating_duration_since(append.due)))
}
