//! Finding the programs `postgres` and `initdb` on this machine.
//!
//! A folder that somebody named is used or refused, never passed over in silence. Only where nobody named one
//! are the usual places searched, and there whatever does not fit is skipped.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::EmbeddedError;
use super::account::belongs_to_us_or_root;

/// The oldest major version of PostgreSQL that works.
pub const OLDEST_MAJOR: u16 = 14;

/// Names the folder of the programs where no option does.
const VARIABLE: &str = "SEQLINE_PG_BIN";

/// Where a development checkout keeps its own PostgreSQL.
const DEVELOPMENT: &str = ".dev/postgresql-18/bin";

/// The programs that are needed.
const PROGRAMS: [&str; 2] = ["postgres", "initdb"];

/// Install folders with one folder per major version: where they are and what stands before the number.
const FAMILIES: [(&str, &str); 5] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql@"),
    ("/usr/local/opt", "postgresql@"),
    ("/Applications/Postgres.app/Contents/Versions", ""),
];

/// A PostgreSQL installation on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresBinaries {
    dir: PathBuf,
    version: String,
    major: u16,
}

impl PostgresBinaries {
    /// Finds an installation: in the folder `explicit`, else in the one that the variable `SEQLINE_PG_BIN`
    /// names, else in the usual places (the `.dev` folder of a checkout, `PATH`, the install folders of
    /// Debian, Red Hat, Homebrew and Postgres.app, newest first).
    ///
    /// # Errors
    ///
    /// A named folder that lacks a program or is too old is an error of its own; the message of
    /// [`EmbeddedError::BinariesMissing`] says what to install and where was looked.
    pub fn find(explicit: Option<&Path>) -> Result<PostgresBinaries, EmbeddedError> {
        if let Some(dir) = explicit {
            return named("--pg-bin", dir);
        }
        if let Some(dir) = env::var_os(VARIABLE).filter(|dir| !dir.is_empty()) {
            return named(VARIABLE, Path::new(&dir));
        }
        search(&Surroundings::of_this_process())
    }

    /// The folder of the programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The version, as `18.6`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The major version, as `18`.
    pub fn major(&self) -> u16 {
        self.major
    }

    /// One of the programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The same installation at another place.
    pub(super) fn moved_to(&self, dir: PathBuf) -> PostgresBinaries {
        PostgresBinaries { dir, ..self.clone() }
    }

    fn probe(dir: &Path) -> Result<PostgresBinaries, EmbeddedError> {
        let program = dir.join("postgres");
        // Package managers put links on PATH; the libraries lie beside what the links point to.
        let program = program.canonicalize().unwrap_or(program);
        let (version, major) = version_of(&program)?;
        let dir = program.parent().filter(|real| missing_program(real).is_none()).unwrap_or(dir);
        if major < OLDEST_MAJOR {
            return Err(EmbeddedError::TooOld { dir: dir.into(), version });
        }
        Ok(PostgresBinaries { dir: dir.into(), version, major })
    }
}

/// What the search depends on.
struct Surroundings {
    current_dir: PathBuf,
    path: Vec<PathBuf>,
    /// The names in a folder; none if it cannot be read.
    list: fn(&Path) -> Vec<String>,
}

impl Surroundings {
    fn of_this_process() -> Surroundings {
        let path = env::var_os("PATH").unwrap_or_default();
        Surroundings {
            current_dir: env::current_dir().unwrap_or_else(|_| "/".into()),
            path: env::split_paths(&path).filter(|dir| dir.is_absolute()).collect(),
            list: names_in,
        }
    }

    /// Every folder that may hold the programs, best first.
    fn candidates(&self) -> Vec<PathBuf> {
        let development =
            self.current_dir.ancestors().map(|dir| dir.join(DEVELOPMENT)).filter(|dir| self.trusts(dir));
        let installed = FAMILIES.iter().flat_map(|(parent, prefix)| self.versions(Path::new(parent), prefix));
        development.chain(self.path.iter().cloned()).chain(installed).collect()
    }

    /// A folder above ours can belong to anybody, `/tmp` for one, and its programs would run as we do.
    fn trusts(&self, dir: &Path) -> bool {
        let owner = |dir: &Path| dir.metadata().map(|found| found.uid()).ok();
        match owner(dir) {
            Some(uid) => belongs_to_us_or_root(uid) || owner(&self.current_dir) == Some(uid),
            None => true,
        }
    }

    fn versions(&self, parent: &Path, prefix: &str) -> Vec<PathBuf> {
        let mut found: Vec<(u16, String)> = (self.list)(parent)
            .into_iter()
            .filter_map(|name| Some((leading_number(name.strip_prefix(prefix)?)?, name)))
            .collect();
        found.sort_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, name)| parent.join(name).join("bin")).collect()
    }
}

fn named(origin: &'static str, dir: &Path) -> Result<PostgresBinaries, EmbeddedError> {
    // The server starts in another working directory.
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    match missing_program(&dir) {
        Some(missing) => Err(EmbeddedError::NotBinaries { origin, dir, missing }),
        None => PostgresBinaries::probe(&dir),
    }
}

fn search(surroundings: &Surroundings) -> Result<PostgresBinaries, EmbeddedError> {
    let mut passed_over = Vec::new();
    for dir in surroundings.candidates() {
        if missing_program(&dir).is_some() {
            continue;
        }
        match PostgresBinaries::probe(&dir) {
            Ok(binaries) => return Ok(binaries),
            Err(reason) => passed_over.push(reason),
        }
    }
    Err(EmbeddedError::BinariesMissing { looked_in: places(&surroundings.current_dir, &passed_over) })
}

fn places(current_dir: &Path, passed_over: &[EmbeddedError]) -> String {
    let mut text =
        format!("{DEVELOPMENT} in {} and the folders above it, the folders of PATH", current_dir.display());
    for (parent, prefix) in FAMILIES {
        text.push_str(&format!(", {parent}/{prefix}*/bin"));
    }
    for reason in passed_over {
        text.push_str(&format!("; {reason}"));
    }
    text
}

fn missing_program(dir: &Path) -> Option<&'static str> {
    PROGRAMS.into_iter().find(|program| !dir.join(program).is_file())
}

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn version_of(program: &Path) -> Result<(String, u16), EmbeddedError> {
    let unknown = |reason: String| EmbeddedError::VersionUnknown { program: program.into(), reason };
    let said = Command::new(program).arg("--version").output().map_err(|error| unknown(error.to_string()))?;
    let text = String::from_utf8_lossy(&said.stdout);
    parse_version(&text).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&said.stderr);
        unknown(format!("it said `{}{}`", text.trim(), complaint.trim()))
    })
}

/// Reads `postgres (PostgreSQL) 18.6`, also with a packager's remark behind it.
fn parse_version(text: &str) -> Option<(String, u16)> {
    let version = text.trim().strip_prefix("postgres (PostgreSQL) ")?.split_whitespace().next()?;
    Some((version.to_owned(), leading_number(version)?))
}

fn leading_number(text: &str) -> Option<u16> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_remarks() {
        let cases = [
            ("postgres (PostgreSQL) 18.6\n", Some(("18.6", 18))),
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)", Some(("15.14", 15))),
            ("postgres (PostgreSQL) 19beta2", Some(("19beta2", 19))),
            ("postgres (PostgreSQL) 9.6.24", Some(("9.6.24", 9))),
            ("postgres (PostgreSQL) devel", None),
            ("psql (PostgreSQL) 18.6", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let read = parse_version(text);
            assert_eq!(read.as_ref().map(|(v, m)| (v.as_str(), *m)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_checkout_comes_first_then_path_then_install_folders_newest_first() {
        let surroundings = Surroundings {
            current_dir: "/home/me/app".into(),
            path: vec!["/opt/pg/bin".into()],
            list: |dir| match dir.to_str() {
                Some("/usr/lib/postgresql") => vec!["9.6".into(), "15".into(), "18".into(), "lib".into()],
                Some("/usr") => vec!["pgsql-17".into(), "pgsql".into(), "bin".into()],
                Some("/opt/homebrew/opt") => vec!["postgresql@16".into(), "openssl@3".into()],
                _ => Vec::new(),
            },
        };
        let found: Vec<String> =
            surroundings.candidates().iter().map(|it| it.display().to_string()).collect();
        assert_eq!(
            found,
            [
                "/home/me/app/.dev/postgresql-18/bin",
                "/home/me/.dev/postgresql-18/bin",
                "/home/.dev/postgresql-18/bin",
                "/.dev/postgresql-18/bin",
                "/opt/pg/bin",
                "/usr/lib/postgresql/18/bin",
                "/usr/lib/postgresql/15/bin",
                "/usr/lib/postgresql/9.6/bin",
                "/usr/pgsql-17/bin",
                "/opt/homebrew/opt/postgresql@16/bin",
            ]
        );
    }

    #[test]
    fn finding_nothing_says_what_to_install_and_where_was_looked() {
        let surroundings =
            Surroundings { current_dir: "/no-such-folder".into(), path: Vec::new(), list: |_| Vec::new() };
        let message = search(&surroundings).unwrap_err().to_string();
        for part in
            ["PostgreSQL 14", "apt install postgresql", "/no-such-folder", "/usr/pgsql-*/bin", "--pg-bin"]
        {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
    }

    #[test]
    fn a_named_folder_without_the_programs_is_refused_by_name() {
        let error = named("--pg-bin", Path::new("/no-such-folder")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--pg-bin names /no-such-folder, which has no program `postgres`: install PostgreSQL 14 or newer, or name the folder that holds it"
        );
    }
}
