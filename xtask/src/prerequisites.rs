//! Names everything that a task needs and this machine does not have, in one message, before any work starts.

use std::env;
use std::process::{Command, Stdio};

use anyhow::{Result, anyhow};

/// A program that xtask cannot fetch itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    Compiler,
    Python,
    Pip,
    Npm,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Compiler => "a C compiler (cc)",
            Self::Python => "Python 3 (python3)",
            Self::Pip => "pip (python3 -m pip)",
            Self::Npm => "npm",
        }
    }

    /// What to run on Debian, Fedora and macOS.
    fn installs(self) -> [&'static str; 3] {
        match self {
            Self::Compiler => ["apt-get install gcc libc6-dev", "dnf install gcc", "xcode-select --install"],
            Self::Python => ["apt-get install python3", "dnf install python3", "brew install python"],
            Self::Pip => ["apt-get install python3-pip", "dnf install python3-pip", "brew install python"],
            Self::Npm => ["apt-get install npm", "dnf install npm", "brew install node"],
        }
    }

    fn is_there(self) -> bool {
        match self {
            // Whoever names a compiler of their own need not have one called `cc`.
            Self::Compiler => env::var_os("CC").is_some_and(|cc| !cc.is_empty()) || answers("cc", &[]),
            Self::Python => answers("python3", &[]),
            Self::Pip => answers("python3", &["-m", "pip"]),
            Self::Npm => answers("npm", &[]),
        }
    }
}

/// Fails with one message for all tools that are missing. `instead` says how to do without a download.
pub(crate) fn demand(mut tools: Vec<Tool>, instead: &[&str]) -> Result<()> {
    tools.sort_unstable();
    tools.dedup();
    tools.retain(|tool| !tool.is_there());
    if tools.is_empty() { Ok(()) } else { Err(anyhow!(message(&tools, instead))) }
}

fn message(missing: &[Tool], instead: &[&str]) -> String {
    let mut text = String::from("this machine lacks what the task needs; install it and run the task again");
    for tool in missing {
        let [debian, fedora, macos] = tool.installs();
        text.push_str(&format!(
            "\n\n  {}\n    Debian  {debian}\n    Fedora  {fedora}\n    macOS   {macos}",
            tool.name()
        ));
    }
    if !instead.is_empty() {
        text.push_str("\n\n  or do without the download:");
        for way in instead {
            text.push_str(&format!("\n    {way}"));
        }
    }
    text
}

fn answers(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_named_together() {
        let text = message(&[Tool::Compiler, Tool::Pip], &["set SEQLINE_PG_BIN"]);
        assert_eq!(
            text,
            "\
this machine lacks what the task needs; install it and run the task again

  a C compiler (cc)
    Debian  apt-get install gcc libc6-dev
    Fedora  dnf install gcc
    macOS   xcode-select --install

  pip (python3 -m pip)
    Debian  apt-get install python3-pip
    Fedora  dnf install python3-pip
    macOS   brew install python

  or do without the download:
    set SEQLINE_PG_BIN"
        );
    }

    #[test]
    fn nothing_is_demanded_when_nothing_is_needed() {
        assert!(demand(Vec::new(), &["never shown"]).is_ok());
    }

    #[test]
    fn a_program_that_does_not_exist_does_not_answer() {
        assert!(!answers("no-such-program", &[]));
    }
}
