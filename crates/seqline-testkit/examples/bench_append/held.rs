//! What a snapshot that somebody holds does to appends: PostgreSQL keeps every dead row as long.

use std::time::{Duration, Instant};

use seqline_testkit::bench::report::number;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Latencies, Report, Table};
use seqline_testkit::{Role, TestDb, TestServer};

use crate::Plan;
use crate::databases::{create_orders, settle, wait_for_drops};
use crate::open_loop::{Append, append};

const PER_SECOND: u32 = 500;
/// How long it is measured without the snapshot, at most.
const WITHOUT: Duration = Duration::from_secs(60);
/// Parts of the time with it that are shown one by one.
const STEPS: u32 = 5;

/// From the moment when an append was to begin to the answer to its COMMIT; the shares of the rate that were kept.
pub(crate) async fn measure(
    server: &TestServer,
    plan: Plan,
    report: &mut Report,
) -> anyhow::Result<Vec<f64>> {
    let db = TestDb::on(server).await;
    create_orders(&db).await?;
    settle(&db).await?;
    eprintln!("{PER_SECOND} appends/s without a snapshot that is held, then with it");
    let without = append(&db, PER_SECOND, WITHOUT.min(plan.held)).await?;
    settle(&db).await?;

    let mut reader = db.connect(Role::App).await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM orders")
        .execute(&mut reader)
        .await?;
    let with = append(&db, PER_SECOND, plan.held).await?;
    sqlx::raw_sql("COMMIT").execute(&mut reader).await?;
    drop((db, reader));
    wait_for_drops(server).await;

    let mut table = Table::new(
        format!(
            "Appends at {PER_SECOND}/s, a snapshot held for {:.0} s, from when they were to begin to the answer, ms",
            plan.held.as_secs_f64()
        ),
        ["", "appends", "median", "p99", "longest"],
    );
    let mut row = |name: &str, latencies: &Latencies| {
        let percentiles = [latencies.percentile(50.0), latencies.percentile(99.0), latencies.longest()];
        for (which, value) in ["median", "p99", "longest"].into_iter().zip(percentiles) {
            report.single(format!("an append at {PER_SECOND}/s, {name}, {which}"), "ms", value);
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
    report.judge(keys::HELD_RATIO, of_with.percentile(99.0) / of_without.percentile(99.0))?;
    Ok(vec![without.kept, with.kept])
}

fn latencies<'a>(appends: impl IntoIterator<Item = &'a Append>) -> Latencies {
    Latencies::new(appends.into_iter().map(|append| append.answered.saturating_duration_since(append.due)))
}
