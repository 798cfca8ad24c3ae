//! Everything a developer of Seqline runs: `cargo xtask --help` lists it.
//!
//! Each task works from any folder of the checkout and on a fresh machine: it first brings in what it needs and
//! this machine does not have. What is brought in is pinned by version and SHA-256, or signed by Debian, and stays inside `.dev/`.

mod brokers;
mod check;
mod clients;
mod coverage;
mod debian;
mod dist;
mod fetch;
mod fuzz;
mod launch;
mod mutate;
#[cfg(test)]
mod packaging;
mod pins;
mod prerequisites;
mod python;
mod run;
#[cfg(test)]
mod scratch;
mod setup;
mod sources;
mod test;
mod workspace;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Tasks for developing Seqline
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = ENVIRONMENT)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

const ENVIRONMENT: &str = "\
Environment:
  SEQLINE_PG_BIN             Folder with `postgres` and `initdb` to use instead of the pinned PostgreSQL 18
  SEQLINE_PG<MAJOR>_BIN      The same for `test --pg <MAJOR>`, for example SEQLINE_PG15_BIN
  SEQLINE_WEBHOOKS_EXAMPLES  File to use instead of the pinned webhook payloads
  SEQLINE_PSYCOPG            Folder with `psycopg` to use instead of the pinned one
  SEQLINE_WEBSOCKETS         Folder with `websockets` of Python to use instead of the pinned one
  SEQLINE_NODE_MODULES       Folder with `ws`, `typescript` and their types to use instead of the pinned ones
  SEQLINE_PGBOUNCER_BIN      Program `pgbouncer` to use instead of Debian's
  SEQLINE_NATS_BIN           Program `nats-server`, 2.10 or newer, to use instead of the pinned one
  SEQLINE_NATS_OLD_BIN       Program `nats-server` before 2.10 to use instead of Debian's
  SEQLINE_SCHEMATHESIS       Program `schemathesis` to use instead of the pinned one
  SEQLINE_PROMTOOL           Program `promtool` to use instead of Debian's, for `check`
  SEQLINE_PGMQ_SQL           File pgmq.sql to use instead of the pinned pgmq for `bench append`
  SEQLINE_GRAPHILE_WORKER_SQL
                             Folder with migrations to use instead of the pinned Graphile Worker, for the same";

#[derive(Subcommand)]
enum Task {
    /// Fetch the pinned PostgreSQL, nats-server, webhook payloads, psycopg, Schemathesis, cargo-deny and what the clients for agents need, and
    /// Debian's promtool, PgBouncer and older nats-server, into .dev/
    ///
    /// Compiles the client in TypeScript, which tests of the server run.
    ///
    /// The other tasks do this themselves when they need it. A second run only looks and returns at once.
    Setup,
    /// Run `seqline up`: the server on a PostgreSQL of its own
    ///
    /// Runs in the root of the checkout. `cargo xtask up -- --help` shows the options of `seqline up`.
    Up {
        /// Arguments of `seqline up`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Play real webhook payloads through the whole product and show what happens
    Demo {
        /// Arguments of the demo: --seconds N for how long writers work (30)
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Measure on a server with production durability, beside a baseline, and fail below a documented threshold
    ///
    /// Writes NAME.json and NAME.md to target/bench or to --out FOLDER. Thresholds: docs/internals/performance.md.
    Bench {
        /// What to measure
        what: Bench,
        /// Arguments of the benchmark: --seconds N for each rate, --out FOLDER, names of parts; `append` also takes --runs N and
        /// --held-minutes N
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Kill a server again and again under writers and observers, and check that nothing is lost
    Chaos {
        /// Arguments: --minutes N (10), --seed S, --mode SEQUENCING/NOTIFICATION, --rounds R (10)
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Build everything and run all tests against a real PostgreSQL
    Test {
        /// Major version of PostgreSQL; with another one than 18 only the log's own tests run
        #[arg(long, value_name = "MAJOR", default_value_t = sources::DEFAULT_MAJOR)]
        pg: u32,
        /// Arguments of the test programs, for example a part of a test's name
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Feed a fuzz target with what a fuzzer thinks of, until it fails or is stopped
    ///
    /// `cargo xtask fuzz plan_round -- -max_total_time=30` ends after 30 seconds.
    Fuzz {
        /// Name of a target in fuzz/fuzz_targets
        target: String,
        /// Arguments of libFuzzer
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Measure which code the tests of what ships run, and fail when a file is covered less than it was
    ///
    /// Runs all of their tests, instrumented; takes long. Writes lcov.info and coverage.json to target/coverage.
    Coverage {
        /// Raise the figures in coverage.toml to what was measured; none is lowered
        #[arg(long)]
        update: bool,
        /// Judge what the last run has measured
        #[arg(long)]
        no_run: bool,
        /// Arguments of the test programs
        #[arg(last = true, value_name = "ARGS")]
        args: Vec<OsString>,
    },
    /// Break how events get their numbers in each listed way, and see the test that is named with it fail
    ///
    /// Works in a copy of the checkout below target/mutants. The list is crates/seqline/tests/mutations.toml.
    Mutate {
        /// Names of mutations, instead of all of them
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Make what is handed to somebody without a compiler: a folder and an archive with the command, manual pages, completions and checksums
    ///
    /// Writes to dist in the target folder, and says which libraries the binary needs.
    Dist,
    /// Check format, lints, documentation, licences and dependencies, the alert rules, and the types of the client in TypeScript
    Check,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Bench {
    /// What an event costs in a transaction, beside other ways to record one, and how long it takes to arrive
    Append,
    /// What appending to the log costs
    Log,
    /// What consumers cost: a drain, idle ones, wake-ups, cursors under a held snapshot
    Consumers,
    /// What jobs cost: events handed to River, the start of a job, writers beside an idle client
    Jobs,
    /// What the HTTP API costs: appends beside the library, catching up, following, a fan-out to 100 clients
    Api,
    /// What connections to the gateway cost: 10,000 idle ones, a fan-out to 1,000, one consumer of an agent
    Gateway,
    /// How fast the log gets into a stream of JetStream, and how fast consumers handle what is there
    Jetstream,
}

impl Bench {
    /// The example of the testkit that measures it.
    fn example(self) -> &'static str {
        match self {
            Self::Append => "bench_append",
            Self::Log => "bench_log",
            Self::Consumers => "bench_consumers",
            Self::Jobs => "bench_jobs",
            Self::Api => "bench_api",
            Self::Gateway => "bench_gateway",
            Self::Jetstream => "bench_jetstream",
        }
    }

    /// Whether it measures the server, which has to be built.
    fn needs_server(self) -> bool {
        matches!(self, Self::Api | Self::Gateway)
    }

    /// Whether it compares with other products, whose SQL has to be there.
    fn has_peers(self) -> bool {
        matches!(self, Self::Append)
    }
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(task: Task) -> Result<()> {
    let workspace = Workspace::locate()?;
    match task {
        Task::Setup => setup::everything(&workspace),
        Task::Up { args } => launch::up(&workspace, &args),
        Task::Demo { args } => launch::demo(&workspace, &args),
        Task::Chaos { args } => launch::chaos(&workspace, &args),
        Task::Bench { what, args } => launch::bench(&workspace, what, &args),
        Task::Test { pg, args } => test::test(&workspace, pg, &args),
        Task::Fuzz { target, args } => fuzz::fuzz(&workspace, &target, &args),
        Task::Coverage { update, no_run, args } => {
            coverage::coverage(&workspace, &coverage::Options { update, no_run }, &args)
        }
        Task::Mutate { names } => mutate::mutate(&workspace, &names),
        Task::Dist => dist::dist(&workspace),
        Task::Check => check::check(&workspace),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
