//! The brokers that events are published to: the one of the pinned version, and an older one, which a machine may lack.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::debian::{self, OLD_NATS_SERVER};
use crate::pins::NATS_SERVER;
use crate::run;
use crate::sources::{Source, pointed_to};
use crate::workspace::Workspace;

/// The variable that names the program.
const CURRENT: &str = "SEQLINE_NATS_BIN";

/// The variable that names the older one.
const OLD: &str = "SEQLINE_NATS_OLD_BIN";

/// The first version that is not old.
const FIRST: Version = (2, 10);

/// Of nats-server, such as 2.15.
type Version = (u32, u32);

/// Where both are.
pub(crate) struct Brokers {
    current: Source,
    /// None where it cannot be fetched, which is no reason not to test the rest.
    old: Option<Source>,
}

impl Brokers {
    pub(crate) fn find() -> Result<Self> {
        let current = match pointed_to(CURRENT)? {
            Some(program) => {
                let version = version(CURRENT, &program)?;
                ensure!(version >= FIRST, "{CURRENT}: {} is older than 2.10", program.display());
                Source::Machine(program)
            }
            None => Source::Pinned(&NATS_SERVER, "bin/nats-server"),
        };
        let old = match pointed_to(OLD)? {
            Some(program) => {
                let version = version(OLD, &program)?;
                ensure!(version < FIRST, "{OLD}: {} is not older than 2.10", program.display());
                Some(Source::Machine(program))
            }
            None => debian::fetchable().then_some(Source::Debian(&OLD_NATS_SERVER)),
        };
        Ok(Self { current, old })
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(&self.current).chain(&self.old)
    }

    /// Each with what it is, for who wants to know where it is.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Source)> {
        ["nats-server", "older nats-server"].into_iter().zip(self.sources())
    }

    /// Why there is no older one, if there is none.
    pub(crate) fn left_out(&self) -> Option<String> {
        self.old.is_none().then(|| OLD_NATS_SERVER.not_here())
    }

    /// Tells a command where they are.
    pub(crate) fn tell(&self, command: &mut Command, workspace: &Workspace) {
        let dev = workspace.dev();
        command.env(CURRENT, self.current.path(&dev));
        if let Some(old) = &self.old {
            command.env(OLD, old.path(&dev));
        }
    }
}

/// The version of a program that a variable names.
fn version(variable: &str, program: &Path) -> Result<Version> {
    ensure!(program.is_file(), "{variable}: {} is not a program", program.display());
    let text = run::version(program).with_context(|| variable.to_owned())?;
    parse(&text).with_context(|| format!("{variable}: failed to find a version in \"{text}\""))
}

/// Reads what it answers to `--version`, for example `nats-server: v2.15.0`.
fn parse(text: &str) -> Option<Version> {
    let (_, version) = text.split_once(": v")?;
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_version_is_read_off_the_answer() {
        assert_eq!(parse("nats-server: v2.15.0"), Some((2, 15)));
        assert_eq!(parse("nats-server: v2.9.10"), Some((2, 9)));
        assert!(parse("nats-server: v2.9.10").unwrap() < FIRST, "versions are no decimal fractions");
        assert_eq!(parse("nats-server: v2.11.0-RC.1"), Some((2, 11)));
        assert_eq!(parse("postgres (PostgreSQL) 18.6"), None);
    }

    #[test]
    fn a_program_that_is_no_broker_is_refused_by_the_name_of_its_variable() {
        let scratch = Scratch::new("brokers");
        let program = scratch.path().join("nats-server");
        let error = format!("{:#}", version(CURRENT, &program).unwrap_err());
        assert!(error.starts_with("SEQLINE_NATS_BIN: ") && error.ends_with("is not a program"), "{error}");

        fs::write(&program, "#!/bin/sh\necho hello\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let error = format!("{:#}", version(CURRENT, &program).unwrap_err());
        assert_eq!(error, "SEQLINE_NATS_BIN: failed to find a version in \"hello\"");
    }

    #[test]
    fn a_command_is_told_of_the_older_one_only_where_there_is_one() {
        let workspace = Workspace::locate().unwrap();
        let told = |old: Option<Source>| {
            let current = Source::Pinned(&NATS_SERVER, "bin/nats-server");
            let mut command = Command::new("true");
            Brokers { current, old }.tell(&mut command, &workspace);
            let set = command.get_envs().map(|(name, value)| (name.to_owned(), value.map(OsStr::to_owned)));
            set.collect::<Vec<_>>()
        };
        let current = (CURRENT.into(), Some(workspace.dev().join("nats-server/bin/nats-server").into()));
        assert_eq!(told(None), std::slice::from_ref(&current));
        let old = PathBuf::from("/opt/nats-server");
        assert_eq!(
            told(Some(Source::Machine(old.clone()))),
            [current, (OLD.into(), Some(old.into_os_string()))]
        );
    }

    #[test]
    fn a_machine_without_the_older_one_is_told_why() {
        let current = || Source::Machine(PathBuf::from("nats-server"));
        let reason = Brokers { current: current(), old: None }.left_out().unwrap();
        assert!(reason.contains("SEQLINE_NATS_OLD_BIN"), "{reason}");
        let old = Some(Source::Debian(&OLD_NATS_SERVER));
        let brokers = Brokers { current: current(), old };
        assert_eq!(brokers.left_out(), None);
        assert_eq!(brokers.named().count(), 2);
    }
}
