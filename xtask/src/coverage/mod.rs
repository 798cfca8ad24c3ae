//! The `coverage` task: which code the tests of what ships run, and that it never gets less.
//!
//! Unit and integration tests run together, instrumented. What LLVM counted is judged here, without entry points and tests: each file against
//! `coverage.toml`, and all of them together against a floor.

mod measured;
mod ratchet;

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use self::measured::{Measured, percent};
use self::ratchet::Ratchet;
use crate::run::Steps;
use crate::test::Needed;
use crate::workspace::Workspace;
use crate::{run, setup, sources};

/// The crates that ship.
const PACKAGES: [&str; 3] = ["seqline", "seqline-nats", "seqline-server"];

/// No figure of all files together may be lower, in percent.
const FLOOR: f64 = 70.0;

/// Decisions about order, about exactly-once and about who may see what, that need no database. Each of their branches is tested.
const COMPLETE: [&str; 14] = [
    "crates/seqline/src/access/visibility.rs",
    "crates/seqline/src/consumer/lane.rs",
    "crates/seqline/src/consumer/plan.rs",
    "crates/seqline/src/consumer/policy.rs",
    "crates/seqline/src/identity/history.rs",
    "crates/seqline/src/sequencer/window.rs",
    "crates/seqline-nats/src/consumer/decide.rs",
    "crates/seqline-nats/src/relay/walk.rs",
    "crates/seqline-nats/src/relay/window.rs",
    "crates/seqline-server/src/api/agents/window.rs",
    "crates/seqline-server/src/api/append/queue.rs",
    "crates/seqline-server/src/api/hub/page.rs",
    "crates/seqline-server/src/api/hub/ring.rs",
    "crates/seqline-server/src/api/permissions/cache.rs",
];

/// The file with what is covered at least.
const RATCHET: &str = "coverage.toml";

pub(crate) struct Options {
    /// Write figures that rose into the ratchet.
    pub(crate) update: bool,
    /// Judge what the last run has measured.
    pub(crate) no_run: bool,
}

pub(crate) fn coverage(workspace: &Workspace, options: &Options, args: &[OsString]) -> Result<()> {
    let folder = workspace.root().join("target/coverage");
    let [lcov, json] = ["lcov.info", "coverage.json"].map(|name| folder.join(name));
    let steps = Steps::start();
    if !options.no_run {
        fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        measure(workspace, &steps, args, [("--lcov", &lcov), ("--json", &json)])?;
    }
    let measured = Measured::parse(workspace.root(), &read(&lcov)?, &read(&json)?)?;
    print!("{}", table(&measured));
    judge(workspace, &measured, options.update)?;
    steps.finish("coverage: no file is covered less than it was");
    Ok(())
}

/// Runs the tests and has LLVM write down what they ran, in each format.
fn measure(
    workspace: &Workspace,
    steps: &Steps,
    args: &[OsString],
    reports: [(&str, &Path); 2],
) -> Result<()> {
    let tool = sources::cargo_llvm_cov();
    let llvm = sources::llvm_tools()?;
    let needed = Needed::of(sources::DEFAULT_MAJOR)?;
    let all = [&tool].into_iter().chain(llvm.iter().map(|(_, source)| source)).chain(needed.sources());
    setup::prepare(workspace, &all.collect::<Vec<_>>())?;
    needed.compile(steps, workspace)?;
    let dev = workspace.dev();
    let tool = tool.path(&dev);
    let instrumented = |mut command: Command| {
        command.current_dir(workspace.root());
        command.envs(llvm.iter().map(|(variable, source)| (variable, source.path(&dev))));
        // It would add to the developer's toolchain what it does not find.
        command.env("CARGO_LLVM_COV_SETUP", "no");
        // Counting branches is not stable in the compiler; it is only used here, and nothing that is built so is shipped.
        command.env("RUSTC_BOOTSTRAP", "1");
        // LLVM's programs may have been built without zlib.
        command.env("RUSTFLAGS", "-C llvm-args=-enable-name-compression=false");
        command.env("CARGO_TARGET_DIR", workspace.root().join("target/coverage/target"));
        command
    };
    let cargo_llvm_cov = |arguments: &[&str]| {
        let mut command = Command::new(&tool);
        command.arg("llvm-cov").args(arguments);
        instrumented(command)
    };
    let environment = run::output(&mut cargo_llvm_cov(&["show-env", "--branch"]))?;
    let environment = variables(&environment);
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(arguments).args(["--all-features", "--locked"]);
        for package in PACKAGES {
            command.args(["--package", package]);
        }
        let mut command = needed.tell(instrumented(command), workspace)?;
        command.envs(environment.iter().copied());
        anyhow::Ok(command)
    };
    let of_before = ["clean", "--profraw-only"];
    steps.run("what was measured before", cargo_llvm_cov(&of_before).envs(environment.iter().copied()))?;
    // The tests run the examples.
    steps.run("instrumented examples", &mut cargo(&["build", "--examples"])?)?;
    let tests = ["test", "--lib", "--bins", "--tests", "--no-fail-fast"];
    steps.run("instrumented tests", cargo(&tests)?.arg("--").args(args))?;
    for (format, file) in reports {
        let mut report = cargo_llvm_cov(&["report", "--branch", format]);
        for package in PACKAGES {
            report.args(["--package", package]);
        }
        report.arg("--output-path").arg(file).envs(environment.iter().copied());
        steps.run(&format!("report {}", file.display()), &mut report)?;
    }
    Ok(())
}

/// The variables in what cargo-llvm-cov prints for a shell, without the quotes around their values.
fn variables(text: &str) -> Vec<(&str, &str)> {
    let variables = text.lines().filter_map(|line| line.split_once('='));
    variables.map(|(name, value)| (name, value.trim_matches('\''))).collect()
}

fn table(measured: &Measured) -> String {
    let mut text = format!("{:66} {:>7} {:>10} {:>9}\n", "", "lines", "functions", "branches");
    let mut row = |name: &str, figures: measured::Figures| {
        let [lines, functions, branches] = figures.percents();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:66} {lines:>7.1} {functions:>10.1} {branches:>9.1}");
    };
    for (path, figures) in &measured.files {
        row(path, *figures);
    }
    for package in PACKAGES {
        row(package, measured.sum(&format!("crates/{package}/")));
    }
    row("all", measured.sum(""));
    let _ = writeln!(text, "{:66} {:>7.1}", "statements of all", percent(measured.statements));
    text
}

/// Where a decision has a way that no test goes.
fn not_taken(measured: &Measured) -> impl Iterator<Item = String> {
    COMPLETE.iter().filter_map(|path| {
        if !measured.files.contains_key(*path) {
            return Some(format!("{path}: its branches shall be tested, and it is not there"));
        }
        let lines = measured.branches_not_taken.get(*path)?.iter().map(ToString::to_string);
        let lines: Vec<_> = lines.collect();
        Some(format!("{path}: a branch is not taken at line {}", lines.join(", ")))
    })
}

/// Compares with the floor and with what was covered before.
fn judge(workspace: &Workspace, measured: &Measured, update: bool) -> Result<()> {
    let [lines, functions, branches] = measured.sum("").percents();
    let all = [
        ("lines", lines),
        ("functions", functions),
        ("branches", branches),
        ("statements", percent(measured.statements)),
    ];
    let mut findings: Vec<String> = all
        .into_iter()
        .filter(|(_, figure)| *figure < FLOOR)
        .map(|(what, figure)| {
            format!("all files together: {what} {figure:.1}, and at least {FLOOR:.1} is needed")
        })
        .collect();
    findings.extend(not_taken(measured));
    let file = workspace.root().join(RATCHET);
    let mut ratchet = if file.exists() { Ratchet::parse(&read(&file)?)? } else { Ratchet::default() };
    if update {
        ratchet.raise(&measured.files);
        fs::write(&file, ratchet.to_text()).with_context(|| format!("failed to write {}", file.display()))?;
    }
    if file.exists() {
        findings.extend(ratchet.findings(&measured.files));
    } else {
        findings.push(format!("there is no {RATCHET}, --update writes it"));
    }
    if findings.is_empty() {
        return Ok(());
    }
    bail!("tests cover less than {RATCHET} asks for\n  {}", findings.join("\n  "))
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_that_is_gone_or_not_tested_to_the_end_is_found() {
        let mut measured = Measured::default();
        measured.files.extend(COMPLETE.iter().skip(1).map(|path| ((*path).to_owned(), Default::default())));
        measured.branches_not_taken.insert(COMPLETE[2].to_owned(), [7, 9].into());
        let found: Vec<String> = not_taken(&measured).collect();
        let gone = format!("{}: its branches shall be tested, and it is not there", COMPLETE[0]);
        let not_taken = format!("{}: a branch is not taken at line 7, 9", COMPLETE[2]);
        assert_eq!(found, [gone, not_taken]);
    }

    #[test]
    fn the_variables_of_an_instrumented_build_are_without_their_quotes() {
        let text = "LLVM_PROFILE_FILE='/a b/it-%p.profraw'\nCARGO_LLVM_COV=1\n";
        assert_eq!(variables(text), [("LLVM_PROFILE_FILE", "/a b/it-%p.profraw"), ("CARGO_LLVM_COV", "1")]);
    }
}
