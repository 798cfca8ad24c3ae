//! What the benchmarks have in common.

use std::process::ExitCode;

use seqline::embedded::Durability;
use seqline_testkit::TestServer;
use seqline_testkit::bench::{Arguments, Report, Thresholds, Usage, machine};

pub(crate) use seqline_testkit::bench::machine::now;

/// Starts a server whose figures are those of production, has it measured and reports: exits with 1 when a threshold is missed.
pub(crate) async fn run<F>(usage: Usage, settings: &[(&str, &str)], measure: F) -> ExitCode
where
    F: AsyncFnOnce(&TestServer, &Arguments, &mut Report) -> anyhow::Result<()>,
{
    match Box::pin(report(usage, settings, measure)).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no threshold was missed.
async fn report<F>(usage: Usage, settings: &[(&str, &str)], measure: F) -> anyhow::Result<bool>
where
    F: AsyncFnOnce(&TestServer, &Arguments, &mut Report) -> anyhow::Result<()>,
{
    let arguments = Arguments::of_process(&usage)?;
    let thresholds = Thresholds::load()?;
    thresholds.require(usage.keys)?;
    let server = TestServer::with(Durability::Durable, settings).await;
    let machine = machine::describe(&server).await?;
    for (name, value) in &machine {
        println!("{name}: {value}");
    }
    println!();
    let mut report = Report::new(usage.bench, machine, thresholds);
    measure(&server, &arguments, &mut report).await?;
    if report.is_judged() {
        println!("{}", report.verdict().to_text());
    }
    report.write(&arguments.out)?;
    Ok(report.passed())
}
