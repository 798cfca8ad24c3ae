//! Decides where each thing that a task needs comes from: what the developer points to, what the machine has, or
//! else a pinned package. A thing that is pointed to and does not fit is an error, never silently replaced.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::clients::{NODE_MODULES, WEBSOCKETS};
use crate::debian::{self, PGBOUNCER, PROMTOOL};
use crate::pins::{
    CARGO_DENY, CARGO_FUZZ, CARGO_LLVM_COV, GRAPHILE_WORKER, LLVM_TOOLS, PGMQ, POSTGRESQL_15, POSTGRESQL_18,
    PSYCOPG, Pin, TYPING_EXTENSIONS, WEBHOOKS_EXAMPLES,
};
use crate::python::{self, SCHEMATHESIS};
use crate::run;

/// The major version that Seqline is developed on.
pub(crate) const DEFAULT_MAJOR: u32 = 18;

/// Where a thing comes from.
pub(crate) enum Source {
    /// It is on this machine.
    Machine(PathBuf),
    /// It is at this path inside a pinned package, once that is installed.
    Pinned(&'static Pin, &'static str),
    /// It is in a package of Debian, once that is unpacked.
    Debian(&'static debian::Package),
    /// It is a program in Python, once that is installed.
    Python(&'static python::Environment),
}

impl Source {
    pub(crate) fn path(&self, dev: &Path) -> PathBuf {
        match self {
            Self::Machine(path) => path.clone(),
            Self::Pinned(pin, inside) => dev.join(pin.folder).join(inside),
            Self::Debian(package) => dev.join(package.folder).join(package.entrance()),
            Self::Python(environment) => dev.join(environment.folder).join(environment.name),
        }
    }
}

/// The folder of PostgreSQL's programs. Only for the default major version does `SEQLINE_PG_BIN` count, and then
/// whatever its version is.
pub(crate) fn postgresql(major: u32) -> Result<Source> {
    if major == DEFAULT_MAJOR {
        return match pointed_to("SEQLINE_PG_BIN")? {
            Some(bin) => checked_bin("SEQLINE_PG_BIN", bin),
            None => Ok(Source::Pinned(&POSTGRESQL_18, "bin")),
        };
    }
    let variable = format!("SEQLINE_PG{major}_BIN");
    if let Some(bin) = pointed_to(&variable)? {
        ensure_major(&bin, major).with_context(|| variable.clone())?;
        return checked_bin(&variable, bin);
    }
    if let Some(bin) = usual_folders(major).into_iter().find(|bin| has_programs(bin)) {
        ensure_major(&bin, major)?;
        return Ok(Source::Machine(bin));
    }
    match major {
        15 => Ok(Source::Pinned(&POSTGRESQL_15, "bin")),
        _ => bail!(
            "found no PostgreSQL {major} in {} or the other usual folders, and none is pinned: install it, \
             or set {variable} to the folder of its `postgres` and `initdb`",
            usual_folders(major)[0].display()
        ),
    }
}

/// The file with the webhook payloads.
pub(crate) fn webhooks_examples() -> Result<Source> {
    match pointed_to("SEQLINE_WEBHOOKS_EXAMPLES")? {
        Some(file) => {
            ensure!(file.is_file(), "SEQLINE_WEBHOOKS_EXAMPLES: {} is not a file", file.display());
            Ok(Source::Machine(file))
        }
        None => Ok(Source::Pinned(&WEBHOOKS_EXAMPLES, "api.github.com/index.json")),
    }
}

/// The folders that Python has to look in for psycopg.
pub(crate) fn psycopg() -> Result<Vec<Source>> {
    match pointed_to("SEQLINE_PSYCOPG")? {
        Some(folder) => {
            let found = folder.join("psycopg").is_dir();
            ensure!(found, "SEQLINE_PSYCOPG: found no `psycopg` in {}", folder.display());
            Ok(vec![Source::Machine(folder)])
        }
        None => Ok(vec![Source::Pinned(&PSYCOPG, "wheel"), Source::Pinned(&TYPING_EXTENSIONS, "wheel")]),
    }
}

/// The folder that Python has to look in for WebSockets.
pub(crate) fn websockets() -> Result<Source> {
    const VARIABLE: &str = "SEQLINE_WEBSOCKETS";
    match pointed_to(VARIABLE)? {
        Some(folder) => {
            let found = folder.join("websockets").is_dir();
            ensure!(found, "{VARIABLE}: found no `websockets` in {}", folder.display());
            Ok(Source::Machine(folder))
        }
        None => Ok(Source::Pinned(&WEBSOCKETS, "wheel")),
    }
}

/// The packages of node that the client in TypeScript needs, each with its name.
pub(crate) fn node_modules() -> Result<Vec<(&'static str, Source)>> {
    const VARIABLE: &str = "SEQLINE_NODE_MODULES";
    let pointed_to = pointed_to(VARIABLE)?;
    let source = |(name, pin): &'static (&'static str, Pin)| match &pointed_to {
        Some(folder) => {
            let package = folder.join(name);
            ensure!(package.is_dir(), "{VARIABLE}: found no `{name}` in {}", folder.display());
            Ok((*name, Source::Machine(package)))
        }
        None => Ok((*name, Source::Pinned(pin, "module"))),
    };
    NODE_MODULES.iter().map(source).collect()
}

/// The SQL of the products that appends are compared with, each with the variable that points to it.
pub(crate) fn peers() -> Result<[(&'static str, Source); 2]> {
    const PGMQ_SQL: &str = "SEQLINE_PGMQ_SQL";
    const GRAPHILE_WORKER_SQL: &str = "SEQLINE_GRAPHILE_WORKER_SQL";
    let pgmq = match pointed_to(PGMQ_SQL)? {
        Some(file) => {
            ensure!(file.is_file(), "{PGMQ_SQL}: {} is not a file", file.display());
            Source::Machine(file)
        }
        None => Source::Pinned(&PGMQ, "sql/pgmq.sql"),
    };
    let graphile_worker = match pointed_to(GRAPHILE_WORKER_SQL)? {
        Some(folder) => {
            let found = folder.join("000001.sql").is_file();
            ensure!(found, "{GRAPHILE_WORKER_SQL}: found no migrations in {}", folder.display());
            Source::Machine(folder)
        }
        None => Source::Pinned(&GRAPHILE_WORKER, "sql"),
    };
    Ok([(PGMQ_SQL, pgmq), (GRAPHILE_WORKER_SQL, graphile_worker)])
}

/// The cargo-deny program. Other versions than the pinned one may judge differently.
pub(crate) fn cargo_deny() -> Source {
    tool_of_cargo("cargo-deny", &CARGO_DENY, "bin/cargo-deny")
}

/// The cargo-fuzz program.
pub(crate) fn cargo_fuzz() -> Source {
    tool_of_cargo("cargo-fuzz", &CARGO_FUZZ, "bin/cargo-fuzz")
}

/// The cargo-llvm-cov program. Other versions may count differently.
pub(crate) fn cargo_llvm_cov() -> Source {
    tool_of_cargo("cargo-llvm-cov", &CARGO_LLVM_COV, "bin/cargo-llvm-cov")
}

/// The one on the path if it is of the pinned version.
fn tool_of_cargo(name: &str, pin: &'static Pin, inside: &'static str) -> Source {
    let answer = run::version(Path::new(name));
    if answer.is_ok_and(|text| text == format!("{name} {}", pin.version)) {
        Source::Machine(PathBuf::from(name))
    } else {
        Source::Pinned(pin, inside)
    }
}

/// LLVM's programs for coverage, each with the variable that points to it and that cargo-llvm-cov reads.
pub(crate) fn llvm_tools() -> Result<[(&'static str, Source); 2]> {
    let tool = |variable, inside| match pointed_to(variable)? {
        Some(program) => {
            ensure!(program.is_file(), "{variable}: {} is not a program", program.display());
            Ok(Source::Machine(program))
        }
        None => Ok(Source::Pinned(&LLVM_TOOLS, inside)),
    };
    let [cov, profdata] = ["LLVM_COV", "LLVM_PROFDATA"];
    Ok([(cov, tool(cov, "bin/llvm-cov")?), (profdata, tool(profdata, "bin/llvm-profdata")?)])
}

/// The program that checks and tests alert rules, of any version: what the rules use is old.
pub(crate) fn promtool() -> Result<Source> {
    program("SEQLINE_PROMTOOL", &["promtool"], &PROMTOOL)
}

/// The program of the pooler that tests go through.
pub(crate) fn pgbouncer() -> Result<Source> {
    // Debian puts it where only root looks.
    program("SEQLINE_PGBOUNCER_BIN", &["pgbouncer", "/usr/sbin/pgbouncer"], &PGBOUNCER)
}

/// The program that tests the API by its description; none where Python is too old for it, which is no reason not to test the rest.
pub(crate) fn schemathesis() -> Result<Option<Source>> {
    const VARIABLE: &str = "SEQLINE_SCHEMATHESIS";
    if let Some(program) = pointed_to(VARIABLE)? {
        ensure!(program.is_file(), "{VARIABLE}: {} is not a program", program.display());
        return Ok(Some(Source::Machine(program)));
    }
    Ok(SCHEMATHESIS.fits().then_some(Source::Python(&SCHEMATHESIS)))
}

/// What a variable points to, else the first of these that is there, else Debian's.
fn program(variable: &str, usual: &[&str], package: &'static debian::Package) -> Result<Source> {
    if let Some(program) = pointed_to(variable)? {
        ensure!(program.is_file(), "{variable}: {} is not a program", program.display());
        return Ok(Source::Machine(program));
    }
    let answers = |program: &&&str| run::version(Path::new(program)).is_ok();
    Ok(match usual.iter().find(answers) {
        Some(program) => Source::Machine(PathBuf::from(program)),
        None => Source::Debian(package),
    })
}

/// The version of the PostgreSQL in a folder, for example `18.6`.
pub(crate) fn postgresql_version(bin: &Path) -> Result<String> {
    let text = run::output(Command::new(bin.join("postgres")).arg("--version"))?;
    let version = text.split_whitespace().nth(2);
    version.map(str::to_owned).with_context(|| format!("failed to find a version in \"{text}\""))
}

pub(crate) fn pointed_to(variable: &str) -> Result<Option<PathBuf>> {
    match env::var_os(variable) {
        // Tasks run in the root of the checkout; the developer may stand elsewhere.
        Some(value) if !value.is_empty() => {
            let path = std::path::absolute(value).with_context(|| format!("failed to resolve {variable}"))?;
            Ok(Some(path))
        }
        _ => Ok(None),
    }
}

fn checked_bin(variable: &str, bin: PathBuf) -> Result<Source> {
    ensure!(has_programs(&bin), "{variable}: found no `postgres` and `initdb` in {}", bin.display());
    Ok(Source::Machine(bin))
}

fn has_programs(bin: &Path) -> bool {
    ["postgres", "initdb"].iter().all(|program| bin.join(program).is_file())
}

fn ensure_major(bin: &Path, major: u32) -> Result<()> {
    let version = postgresql_version(bin)?;
    let fits = version.split('.').next() == Some(&major.to_string());
    ensure!(fits, "the PostgreSQL in {} is {version}, not {major}", bin.display());
    Ok(())
}

/// Where Debian, Red Hat's packages and Homebrew put a major version.
fn usual_folders(major: u32) -> [PathBuf; 4] {
    [
        format!("/usr/lib/postgresql/{major}/bin"),
        format!("/usr/pgsql-{major}/bin"),
        format!("/opt/homebrew/opt/postgresql@{major}/bin"),
        format!("/usr/local/opt/postgresql@{major}/bin"),
    ]
    .map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::Scratch;

    fn fake_postgresql(bin: &Path, version: &str) {
        for program in ["postgres", "initdb"] {
            let path = bin.join(program);
            fs::write(&path, format!("#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn a_postgresql_of_another_major_version_is_refused() {
        let scratch = Scratch::new("major");
        fake_postgresql(scratch.path(), "16.2 (Debian 16.2-1)");

        assert!(ensure_major(scratch.path(), 16).is_ok());
        let error = ensure_major(scratch.path(), 15).unwrap_err().to_string();
        assert!(error.ends_with("is 16.2, not 15"), "{error}");
    }

    #[test]
    fn a_folder_without_initdb_is_refused() {
        let scratch = Scratch::new("programs");
        fake_postgresql(scratch.path(), "18.6");
        fs::remove_file(scratch.path().join("initdb")).unwrap();

        let error = checked_bin("SEQLINE_PG_BIN", scratch.path().to_owned()).err().unwrap().to_string();
        assert!(error.starts_with("SEQLINE_PG_BIN: found no `postgres` and `initdb`"), "{error}");
    }

    #[test]
    fn a_program_comes_from_the_machine_if_it_is_there() {
        let there = program("SEQLINE_TEST_UNSET", &["no-such-program", "cargo"], &PGBOUNCER).unwrap();
        assert_eq!(there.path(Path::new("dev")), PathBuf::from("cargo"));
        let absent = program("SEQLINE_TEST_UNSET", &["no-such-program"], &PGBOUNCER).unwrap();
        assert_eq!(absent.path(Path::new("dev")), PathBuf::from("dev/tools/pgbouncer/pgbouncer"));
    }

    #[test]
    fn an_unknown_major_version_says_where_it_was_looked_for() {
        let error = postgresql(9999).err().unwrap().to_string();
        assert!(error.contains("/usr/lib/postgresql/9999/bin"), "{error}");
        assert!(error.contains("SEQLINE_PG9999_BIN"), "{error}");
    }
}
