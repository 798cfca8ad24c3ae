//! The crash proof for as long as you like: case after case, in one mode after the other, each on a server of its own.
//!
//! `chaos [--minutes N] [--seed S] [--mode M] [--rounds R]`: for N minutes (10), beginning with the seed S, in the mode M alone
//! (`at_commit/off`, say), with R kills in each case (10). Exits with 1 as soon as a promise is broken; the seed of the case is in what is
//! printed, and `--seed` runs it again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use seqline_testkit::crash::{Mode, Plan, prove, seed};

const USAGE: &str =
    "usage: cargo xtask chaos [--minutes N] [--seed S] [--mode SEQUENCING/NOTIFICATION] [--rounds R]";

struct Arguments {
    minutes: u64,
    seed: u64,
    mode: Option<Mode>,
    rounds: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(run()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it runs for a real time")]
async fn run() -> anyhow::Result<bool> {
    let Arguments { minutes, seed, mode, rounds } = arguments()?;
    let limit = Duration::from_secs(60 * minutes);
    let (began, mut seeds) = (Instant::now(), fastrand::Rng::with_seed(seed));
    let (mut cases, mut kills, mut committed, mut next) = (0, 0, 0, seed);
    let modes: Vec<Mode> = mode.map_or_else(|| Mode::ALL.to_vec(), |mode| vec![mode]);
    for mode in modes.iter().cycle() {
        let plan = Plan { rounds, ..Plan::new(next, *mode) };
        println!("{plan}");
        match Box::pin(prove(&plan)).await {
            Ok(report) => {
                println!("  {report}");
                cases += 1;
                kills += report.all_killed + report.one_killed;
                committed += report.summary.committed;
            }
            Err(failed) => {
                println!("BROKEN: {failed}");
                println!(
                    "again: cargo xtask chaos --seed {} --mode {mode} --rounds {rounds}",
                    failed.plan.seed
                );
                return Ok(false);
            }
        }
        if began.elapsed() >= limit {
            break;
        }
        next = seeds.u64(..);
    }
    println!(
        "{cases} cases, {kills} kills, {committed} acknowledged transactions: nothing lost, nothing changed"
    );
    Ok(true)
}

fn arguments() -> anyhow::Result<Arguments> {
    let mut arguments = Arguments { minutes: 10, seed: seed(), mode: None, rounds: 10 };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().context(USAGE)?;
        let number = || value.parse().with_context(|| format!("{name} takes a number"));
        match name.as_str() {
            "--minutes" => arguments.minutes = number()?,
            "--seed" => arguments.seed = number()?,
            "--rounds" => arguments.rounds = u32::try_from(number()?)?,
            "--mode" => arguments.mode = Some(value.parse().map_err(anyhow::Error::msg)?),
            _ => bail!(USAGE),
        }
    }
    Ok(arguments)
}
