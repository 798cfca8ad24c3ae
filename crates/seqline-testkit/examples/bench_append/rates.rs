//! Transactions per second over the number of writers, for every way.

use std::time::Duration;

use anyhow::ensure;
use seqline_testkit::bench::chart::Line;
use seqline_testkit::bench::report::{number, write};
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Arguments, Chart, Report, Samples, Table};
use seqline_testkit::{Role, TestServer};

use crate::Plan;
use crate::databases::{Databases, Running, settle};
use crate::load::{Load, Numbered};
use crate::peers::Peers;
use crate::ways::{Way, rows};

const WRITERS: [u32; 6] = [1, 4, 8, 16, 32, 64];
pub(crate) const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) async fn measure(
    server: &TestServer,
    plan: Plan,
    arguments: &Arguments,
    report: &mut Report,
) -> anyhow::Result<()> {
    let peers = Peers::read()?;
    let mut rates = WRITERS.map(|_| Way::ALL.map(|_| Samples::default()));
    let (mut shares, mut left) = (WRITERS.map(|_| Samples::default()), WRITERS.map(|_| Samples::default()));
    for (row, writers) in WRITERS.into_iter().enumerate() {
        for run in 1..=plan.runs {
            eprintln!("{writers} writers, run {run} of {}", plan.runs);
            let databases = Databases::create(server, &peers).await?;
            // Each run begins with another way, so that none always follows the same one.
            for n in 0..Way::ALL.len() {
                let column = (n + run as usize) % Way::ALL.len();
                let way = Way::ALL[column];
                let (rate, numbered) = rate(&databases, way, writers, plan.duration).await?;
                rates[row][column].push(rate);
                if let Some(numbered) = numbered {
                    shares[row].push(numbered.share);
                    left[row].push(numbered.left);
                }
            }
            databases.drop_and_wait(server).await;
        }
    }
    let row_of = |writers: u32| WRITERS.iter().position(|count| *count == writers).unwrap_or_default();
    let of = |writers: u32, way: Way| {
        let row = row_of(writers);
        let column = Way::ALL.iter().position(|other| *other == way).unwrap_or_default();
        &rates[row][column]
    };
    tell(plan, report, of);
    tell_numbered(report, &shares, &left);
    draw(arguments, of)?;
    for (writers, to_counter, to_8) in [
        (32, keys::AT_COMMIT_32_TO_COUNTER, keys::AT_COMMIT_32_TO_8),
        (64, keys::AT_COMMIT_64_TO_COUNTER, keys::AT_COMMIT_64_TO_8),
    ] {
        let at_commit = of(writers, Way::AtCommit);
        report.judge(to_counter, at_commit.to(of(writers, Way::CounterRow)))?;
        report.judge(to_8, at_commit.to(of(8, Way::AtCommit)))?;
    }
    let after_commit = of(32, Way::AfterCommit);
    report.judge(keys::AFTER_COMMIT_TO_PGMQ, after_commit.to(of(32, Way::Pgmq)))?;
    report.judge(keys::AFTER_COMMIT_TO_OUTBOX, after_commit.to(of(32, Way::PlainOutbox)))?;
    report.judge(keys::AFTER_COMMIT_NUMBERED, shares[row_of(32)].median())
}

/// A rate, and what became of the events if they are numbered later.
async fn rate(
    databases: &Databases,
    way: Way,
    writers: u32,
    duration: Duration,
) -> anyhow::Result<(f64, Option<Numbered>)> {
    let db = databases.of(way);
    let mut admin = db.connect(Role::Admin).await;
    let before = rows(&mut admin, way).await?;
    settle(db).await?;
    let sequencer = if way == Way::AfterCommit { Some(Running::start(db).await) } else { None };
    let load = Load::start(db, writers, way).await;
    load.rate(WARM_UP).await;
    let (rate, numbered) = if sequencer.is_some() {
        let (rate, numbered) = load.rate_and_numbered(db, duration, 1).await?;
        (rate, Some(numbered))
    } else {
        (load.rate(duration).await, None)
    };
    let committed = load.stop().await?;
    if let Some(sequencer) = sequencer {
        sequencer.finish().await?;
    }
    // A rate of something else than the whole work would be worth nothing.
    if let (Some(before), Some(after)) = (before, rows(&mut admin, way).await?) {
        let written = after - before;
        ensure!(written == committed as i64, "{}: {written} rows of {committed} transactions", way.name());
    }
    Ok((rate, numbered))
}

fn tell_numbered(report: &mut Report, shares: &[Samples], left: &[Samples]) {
    let mut table = Table::new(
        "After commit: events numbered in the time against those committed, and events that wait at its end, medians",
        ["", "1 writer", "4", "8", "16", "32", "64"],
    );
    for (name, unit, samples) in [("numbered", "", shares), ("waiting", "events", left)] {
        table
            .row([name.to_owned()].into_iter().chain(samples.iter().map(|samples| number(samples.median()))));
        for (writers, samples) in WRITERS.into_iter().zip(samples) {
            report.figure(format!("after commit, {writers} writers, {name}"), unit, samples);
        }
    }
    report.table(table);
}

fn tell<'a>(plan: Plan, report: &mut Report, of: impl Fn(u32, Way) -> &'a Samples) {
    let columns =
        WRITERS.map(|writers| if writers == 1 { "1 writer".to_owned() } else { writers.to_string() });
    let mut table = Table::new(
        format!("One UPDATE and one event per transaction, transactions/s, medians of {}", plan.runs),
        ["for the event".to_owned()].into_iter().chain(columns.clone()),
    );
    let mut spread =
        Table::new("The same, lowest to highest", ["for the event".to_owned()].into_iter().chain(columns));
    for way in Way::ALL {
        let name = || [way.name().to_owned()].into_iter();
        table.row(name().chain(WRITERS.map(|writers| number(of(writers, way).median()))));
        spread.row(name().chain(WRITERS.map(|writers| {
            let samples = of(writers, way);
            format!("{} to {}", number(samples.lowest()), number(samples.highest()))
        })));
        for writers in WRITERS {
            report.figure(format!("{}, {writers} writers", way.name()), "transactions/s", of(writers, way));
        }
    }
    report.table(table);
    report.table(spread);
}

fn draw<'a>(arguments: &Arguments, of: impl Fn(u32, Way) -> &'a Samples) -> anyhow::Result<()> {
    let lines = Way::ALL.into_iter().map(|way| Line {
        name: way.name().to_owned(),
        prominent: way.is_seqline(),
        points: WRITERS.map(|writers| (f64::from(writers), of(writers, way).median())).to_vec(),
    });
    let chart = Chart {
        title: "One UPDATE and one event per transaction".to_owned(),
        x: "writers".to_owned(),
        y: "transactions/s".to_owned(),
        lines: lines.collect(),
    };
    write(&arguments.out, "append.svg", &chart.to_svg())
}
