//! Runs other programs so that a reader can repeat each one by hand: the command line is shown before it runs and
//! named when it fails. What xtask itself says goes to stderr, so that stdout holds the programs' output alone.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

/// Shows and runs a command with this process's stdin, stdout and stderr.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = show(command);
    let status = command.status().with_context(|| format!("failed to start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Shows a command and becomes it. Ctrl-C, other signals and the exit code are then the program's own business,
/// and a server gets the time to stop in order before the prompt is back.
pub(crate) fn become_command(command: &mut Command) -> Result<()> {
    let line = show(command);
    let error = command.exec();
    Err(anyhow!(error).context(format!("failed to start `{line}`")))
}

/// Runs a command unseen and returns what it wrote to stdout.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = command_line(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("failed to start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What a program says when it is asked for its version. A subcommand of Cargo is called as Cargo does, with its name first: one of them insists
/// on it.
pub(crate) fn version(program: &Path) -> Result<String> {
    let mut command = Command::new(program);
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    command.args(name.strip_prefix("cargo-"));
    output(command.arg("--version"))
}

/// The steps of a long task, each with a header line before and its time after it. The first failure ends the task.
pub(crate) struct Steps {
    started: Instant,
}

impl Steps {
    pub(crate) fn start() -> Self {
        Self { started: now() }
    }

    pub(crate) fn run(&self, title: &str, command: &mut Command) -> Result<()> {
        let started = now();
        eprintln!("\n==> {title}");
        run(command)?;
        eprintln!("    {:.1} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    pub(crate) fn finish(self, summary: &str) {
        eprintln!("\n{summary}, {:.1} s in all", self.started.elapsed().as_secs_f64());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a tool that runs other programs has no clock to be tested with"
)]
fn now() -> Instant {
    Instant::now()
}

/// Prints the command as one would type it in a POSIX shell and returns the part without the environment.
fn show(command: &Command) -> String {
    let line = command_line(command);
    let environment = environment(command);
    eprintln!("$ {environment}{line}");
    line
}

fn environment(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| Some((name.to_string_lossy(), value?)));
    set.map(|(name, value)| format!("{name}={} ", quoted(value))).collect()
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:@,+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("cargo");
        command.args(["test", "--", "it's slow"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(environment(&command), "RUSTDOCFLAGS='-D warnings' ");
        assert_eq!(command_line(&command), r"cargo test -- 'it'\''s slow'");
    }

    #[test]
    fn a_subcommand_of_cargo_is_asked_for_its_version_as_cargo_calls_it() {
        let scratch = Scratch::new("version");
        for name in ["cargo-it", "it"] {
            let program = scratch.path().join(name);
            fs::write(&program, "#!/bin/sh\necho \"$*\"\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(version(&scratch.path().join("cargo-it")).unwrap(), "it --version");
        assert_eq!(version(&scratch.path().join("it")).unwrap(), "--version");
    }

    #[test]
    fn a_failure_names_the_command() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert_eq!(error.to_string(), "`false` failed (exit status: 1)");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = output(&mut Command::new("no-such-program")).unwrap_err();
        assert_eq!(error.to_string(), "failed to start `no-such-program`");
    }
}
