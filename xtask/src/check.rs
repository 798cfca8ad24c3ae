//! The `check` task: what can be said about the code without running it.

use std::process::Command;

use anyhow::Result;

use crate::clients::Clients;
use crate::run::Steps;
use crate::workspace::Workspace;
use crate::{setup, sources};

pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let deny = sources::cargo_deny();
    let promtool = sources::promtool()?;
    let clients = Clients::new()?;
    setup::prepare(workspace, &[&deny, &promtool].into_iter().chain(clients.sources()).collect::<Vec<_>>())?;
    let deny = deny.path(&workspace.dev());
    let promtool = promtool.path(&workspace.dev());

    let steps = Steps::start();
    steps.run("format", &mut workspace.cargo(["fmt", "--all", "--check"]))?;
    let lints = ["--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"];
    steps.run("lints", workspace.cargo(["clippy"]).args(lints))?;
    let documentation = ["--workspace", "--no-deps", "--all-features", "--locked"];
    steps.run(
        "documentation",
        workspace.cargo(["doc"]).args(documentation).env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    // Advisories are left out: see deny.toml.
    let checks = ["check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
    steps.run(
        "dependencies",
        Command::new(deny).args(["--all-features", "--locked"]).args(checks).current_dir(workspace.root()),
    )?;
    for (title, what, file) in [
        ("alert rules", "check", "ops/prometheus/seqline.rules.yaml"),
        ("tests of alert rules", "test", "ops/prometheus/seqline.rules.test.yaml"),
    ] {
        let mut command = Command::new(&promtool);
        steps.run(title, command.args([what, "rules", file]).current_dir(workspace.root()))?;
    }
    clients.compile(&steps, workspace)?;
    steps.finish("check: all is well");
    Ok(())
}
