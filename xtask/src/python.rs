//! Brings a program that is written in Python into `.dev/`, with all that it needs, in an environment of its own: nothing that the
//! machine's Python has is seen by it, and nothing is added to that.
//!
//! A file in `requirements/` pins every package by version and SHA-256. pip refuses all others, and what has to be compiled. As with pins, the
//! work happens in `.dev/.incomplete` and takes its place by a rename: an environment does not know its own path, only the scripts in it do,
//! which nobody calls.

use std::fs;
use std::io::{IsTerminal, stderr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};
use sha2::{Digest, Sha256};

use crate::fetch::{STAMP, WorkFolder, put_in_place};
use crate::run;

/// A program and where it appears in `.dev/`.
pub(crate) struct Environment {
    /// The folder below `.dev/`. It can be moved as a whole.
    pub(crate) folder: &'static str,
    pub(crate) name: &'static str,
    /// What Python runs.
    pub(crate) module: &'static str,
    pub(crate) requirements: &'static str,
    /// The oldest version of Python that its packages take.
    pub(crate) python: Version,
    /// What a person can do where it cannot be had.
    pub(crate) instead: &'static str,
}

/// Of Python, such as 3.11.
pub(crate) type Version = (u32, u32);

/// Sends to an HTTP API what its description allows and what it does not, and compares the answers with the description.
pub(crate) const SCHEMATHESIS: Environment = Environment {
    folder: "python/schemathesis",
    name: "schemathesis",
    module: "schemathesis.cli",
    requirements: include_str!("../requirements/schemathesis.txt"),
    python: (3, 11),
    instead: "install Schemathesis and set SEQLINE_SCHEMATHESIS to its program `schemathesis`",
};

impl Environment {
    /// Whether this very environment is in place, and the Python that it was made with is still there.
    pub(crate) fn is_installed(&self, dev: &Path) -> bool {
        let folder = dev.join(self.folder);
        fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == self.stamp())
            && [folder.join("venv/bin/python"), folder.join(self.name)].iter().all(|file| file.is_file())
    }

    /// Whether this machine's Python is new enough.
    pub(crate) fn fits(&self) -> bool {
        version().is_some_and(|version| version >= self.python)
    }

    /// Why there is none on this machine.
    pub(crate) fn not_here(&self) -> String {
        let (major, minor) = self.python;
        format!("{} needs Python {major}.{minor} or newer as python3: {}", self.name, self.instead)
    }

    /// Makes the environment, installs into it what is pinned, and puts it in place.
    pub(crate) fn install(&self, dev: &Path) -> Result<()> {
        let work = WorkFolder::create(dev.join(".incomplete"))?;
        let [tree, requirements] = ["tree", "requirements.txt"].map(|name| work.path().join(name));
        let venv = tree.join("venv");
        fs::create_dir_all(&tree).with_context(|| format!("failed to create {}", tree.display()))?;
        fs::write(&requirements, self.requirements).context("failed to write the requirements")?;
        run::output(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv))?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(venv.join("bin/python"));
        pip.args(["install", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
        if !stderr().is_terminal() {
            pip.arg("--quiet");
        }
        run::run(pip.arg("--requirement").arg(&requirements).stdin(Stdio::null()).stdout(stderr()))
            .with_context(|| format!("failed to install {}: {}", self.name, self.instead))?;
        self.write_start(&tree)?;
        run::version(&tree.join(self.name)).map_err(|error| {
            anyhow!("{} does not run on this machine: {}", self.name, self.instead).context(error)
        })?;
        fs::write(tree.join(STAMP), self.stamp()).context("failed to write the stamp")?;
        put_in_place(&tree, &dev.join(self.folder), &work.path().join("replaced"))
    }

    /// What starts the program, wherever the folder is. It becomes the program, so that a signal to it reaches that.
    fn write_start(&self, tree: &Path) -> Result<()> {
        let start = tree.join(self.name);
        let text = format!("#!/bin/sh\nexec \"${{0%/*}}/venv/bin/python\" -m {} \"$@\"\n", self.module);
        fs::write(&start, text).context("failed to write what starts the program")?;
        fs::set_permissions(&start, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Says what was asked for, so that a change of it is installed anew.
    fn stamp(&self) -> String {
        let sum: String =
            Sha256::digest(self.requirements).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {} {sum}\n", self.name, self.module)
    }
}

fn version() -> Option<Version> {
    let program = "import sys; print(*sys.version_info[:2])";
    parse(&run::output(Command::new("python3").args(["-c", program])).ok()?)
}

fn parse(answer: &str) -> Option<Version> {
    let (major, minor) = answer.split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_version_of_python_is_a_number_and_no_text() {
        assert!(parse("3 9").unwrap() < SCHEMATHESIS.python);
        assert!(parse("3 14").unwrap() > SCHEMATHESIS.python);
        assert_eq!(parse("Python 3.11.7"), None);
    }

    #[test]
    fn every_package_has_a_version_and_sums() {
        let lines: Vec<&str> =
            SCHEMATHESIS.requirements.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.iter().any(|line| line.starts_with("schemathesis==")));
        let text = lines.join("\n").replace("\\\n", " ");
        for package in text.lines() {
            let (name, sums) = package.split_once("--hash=sha256:").unwrap_or_else(|| panic!("{package}"));
            assert!(name.contains("=="), "{name}");
            assert!(!package.contains("://"), "{name}: a registry is named by the machine that asks it");
            for sum in sums.split("--hash=sha256:") {
                assert_eq!(sum.trim().len(), 64, "{name}");
            }
        }
    }

    #[test]
    fn what_starts_a_program_becomes_it_wherever_the_folder_is() {
        let scratch = Scratch::new("python");
        let [tree, moved] = ["tree", "a b"].map(|name| scratch.path().join(name));
        let bin = tree.join("venv/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("python"), "#!/bin/sh\necho \"$$ $*\"\n").unwrap();
        fs::set_permissions(bin.join("python"), fs::Permissions::from_mode(0o755)).unwrap();

        SCHEMATHESIS.write_start(&tree).unwrap();
        fs::rename(&tree, &moved).unwrap();

        let mut command = Command::new(moved.join("schemathesis"));
        let child = command.arg("one argument").stdout(Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(said, format!("{id} -m schemathesis.cli one argument\n"));
    }

    #[test]
    fn only_the_stamp_of_these_very_requirements_counts() {
        let scratch = Scratch::new("python-stamp");
        let folder = scratch.path().join(SCHEMATHESIS.folder);
        fs::create_dir_all(folder.join("venv/bin")).unwrap();
        for file in ["schemathesis", "venv/bin/python"] {
            fs::write(folder.join(file), "").unwrap();
        }
        fs::write(folder.join(STAMP), "schemathesis schemathesis.cli 00\n").unwrap();
        assert!(!SCHEMATHESIS.is_installed(scratch.path()), "another version is there");

        fs::write(folder.join(STAMP), SCHEMATHESIS.stamp()).unwrap();
        assert!(SCHEMATHESIS.is_installed(scratch.path()));

        fs::remove_file(folder.join("venv/bin/python")).unwrap();
        assert!(!SCHEMATHESIS.is_installed(scratch.path()), "its Python is gone");
    }
}
