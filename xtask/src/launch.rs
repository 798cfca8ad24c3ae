//! The `up`, `demo`, `chaos` and `bench` tasks: xtask prepares, then becomes the program.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::Bench;
use crate::brokers::Brokers;
use crate::sources::Source;
use crate::workspace::Workspace;
use crate::{run, setup, sources};

pub(crate) fn up(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let postgresql = sources::postgresql(sources::DEFAULT_MAJOR)?;
    setup::prepare(workspace, &[&postgresql])?;
    let up =
        workspace.cargo(["run", "--locked", "--package", "seqline-server", "--bin", "seqline", "--", "up"]);
    run::become_command(with_environment(up, workspace, &postgresql, None).args(args))
}

/// Runs the demo in the dev profile: a developer has most of it compiled already.
pub(crate) fn demo(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let postgresql = sources::postgresql(sources::DEFAULT_MAJOR)?;
    let payloads = sources::webhooks_examples()?;
    let brokers = Brokers::find()?;
    setup::prepare(workspace, &brokers.sources().chain([&postgresql, &payloads]).collect::<Vec<_>>())?;
    // The demo starts the command that is beside it.
    let server = ["build", "--locked", "--package", "seqline-server", "--bin", "seqline"];
    run::run(&mut workspace.cargo(server))?;
    let demo =
        workspace.cargo(["run", "--locked", "--package", "seqline-testkit", "--example", "demo", "--"]);
    let mut demo = with_environment(demo, workspace, &postgresql, Some(&payloads));
    brokers.tell(&mut demo, workspace);
    run::become_command(demo.args(args))
}

/// Runs the crash proof in the dev profile, as the tests do.
pub(crate) fn chaos(workspace: &Workspace, args: &[OsString]) -> Result<()> {
    let postgresql = sources::postgresql(sources::DEFAULT_MAJOR)?;
    setup::prepare(workspace, &[&postgresql])?;
    let chaos =
        workspace.cargo(["run", "--locked", "--package", "seqline-testkit", "--example", "chaos", "--"]);
    run::become_command(with_environment(chaos, workspace, &postgresql, None).args(args))
}

/// Runs a benchmark in the release profile: anything else would measure the compiler's debug checks.
pub(crate) fn bench(workspace: &Workspace, what: Bench, args: &[OsString]) -> Result<()> {
    let postgresql = sources::postgresql(sources::DEFAULT_MAJOR)?;
    let peers = if what.has_peers() { sources::peers()?.into() } else { Vec::new() };
    let brokers = Brokers::find()?;
    let needed = peers.iter().map(|(_, source)| source).chain([&postgresql]).chain(brokers.sources());
    setup::prepare(workspace, &needed.collect::<Vec<_>>())?;
    let bench = workspace.cargo([
        "run",
        "--locked",
        "--release",
        "--package",
        "seqline-testkit",
        "--example",
        what.example(),
        "--",
    ]);
    let mut bench = with_environment(bench, workspace, &postgresql, None);
    if what.needs_server() {
        let server = ["build", "--locked", "--release", "--package", "seqline-server", "--bin", "seqline"];
        run::run(&mut workspace.cargo(server))?;
    }
    brokers.tell(&mut bench, workspace);
    bench.envs(peers.iter().map(|(variable, source)| (variable, source.path(&workspace.dev()))));
    run::become_command(bench.args(args))
}

/// Tells a program where PostgreSQL and the payloads are, in absolute paths.
pub(crate) fn with_environment(
    mut command: Command,
    workspace: &Workspace,
    postgresql: &Source,
    payloads: Option<&Source>,
) -> Command {
    let dev = workspace.dev();
    command.env("SEQLINE_PG_BIN", postgresql.path(&dev));
    if let Some(payloads) = payloads {
        command.env("SEQLINE_WEBHOOKS_EXAMPLES", payloads.path(&dev));
    }
    command
}
