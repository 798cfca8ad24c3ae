//! What setup takes from Debian's packages, because no other registry has it built by somebody to trust: it unpacks
//! them into `.dev/`, without root, and installs nothing.
//!
//! These carry no SHA-256, unlike pins. apt compares what it downloads with an index that Debian has signed, and refuses anything
//! else. A version that is pinned would be gone from Debian's servers with its next correction; so the release of this
//! machine decides.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::stderr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::fetch::{STAMP, WorkFolder, put_in_place};
use crate::run;

/// A program in a package of Debian, and where it appears in `.dev/`.
pub(crate) struct Package {
    /// The folder below `.dev/`. It can be moved as a whole.
    pub(crate) folder: &'static str,
    pub(crate) name: &'static str,
    /// The program's path in the package.
    pub(crate) program: &'static str,
    /// What the names of those packages begin with that bring shared libraries which a machine may lack.
    pub(crate) libraries: &'static [&'static str],
    /// What a person can do where apt is not.
    pub(crate) instead: &'static str,
}

/// Checks and tests alert rules.
pub(crate) const PROMTOOL: Package = Package {
    folder: "tools/promtool",
    name: "prometheus",
    program: "usr/bin/promtool",
    libraries: &[],
    instead: "install Prometheus and set SEQLINE_PROMTOOL to its program `promtool`",
};

/// The pooler that tests go through.
pub(crate) const PGBOUNCER: Package = Package {
    folder: "tools/pgbouncer",
    name: "pgbouncer",
    program: "usr/sbin/pgbouncer",
    // The names end with what their release calls the interface: libc-ares2, libcares2, libevent-2.1-7t64.
    libraries: &["libc-ares", "libcares", "libevent"],
    instead: "install PgBouncer and set SEQLINE_PGBOUNCER_BIN to its program `pgbouncer`",
};

/// A broker before 2.10, for what has to work with one, or to refuse it. Releases of Debian that have a newer one do not help here.
pub(crate) const OLD_NATS_SERVER: Package = Package {
    folder: "tools/nats-server-2.9",
    name: "nats-server",
    program: "usr/sbin/nats-server",
    libraries: &[],
    instead: "have nats-server 2.9 somewhere and set SEQLINE_NATS_OLD_BIN to the program",
};

impl Package {
    /// The name of the program, and of what starts it: it lies in the folder, beside `bin/` and `lib/`.
    pub(crate) fn entrance(&self) -> &'static str {
        self.program.rsplit('/').next().unwrap_or(self.program)
    }

    pub(crate) fn is_installed(&self, dev: &Path) -> bool {
        let folder = dev.join(self.folder);
        fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == self.stamp())
            && [folder.join(self.entrance()), folder.join("bin").join(self.entrance())]
                .iter()
                .all(|file| file.is_file())
    }

    /// Fails on a machine whose packages are not Debian's.
    pub(crate) fn ensure_fetchable(&self) -> Result<()> {
        ensure!(fetchable(), self.not_here());
        Ok(())
    }

    /// Why there is none on this machine.
    pub(crate) fn not_here(&self) -> String {
        format!(
            "{} comes from Debian's package {}, and this machine lacks apt-get and dpkg-deb: {}",
            self.entrance(),
            self.name,
            self.instead
        )
    }

    /// Downloads, unpacks and puts in place.
    pub(crate) fn install(&self, dev: &Path) -> Result<()> {
        let work = WorkFolder::create(dev.join(".incomplete"))?;
        let [unpacked, tree] = ["unpacked", "tree"].map(|name| work.path().join(name));
        let package = self.download(self.name, work.path())?;
        let depends = run::output(Command::new("dpkg-deb").arg("--field").arg(&package).arg("Depends"))?;
        unpack(&package, &unpacked)?;
        for name in wanted(&depends, self.libraries) {
            unpack(&self.download(name, work.path())?, &unpacked)?;
        }
        self.arrange(&unpacked, &tree)?;
        run::version(&tree.join(self.entrance()))
            .with_context(|| format!("{} does not run on this machine: {}", self.entrance(), self.instead))?;
        fs::write(tree.join(STAMP), self.stamp()).context("failed to write the stamp")?;
        put_in_place(&tree, &dev.join(self.folder), &work.path().join("replaced"))
    }

    /// The file of one package. Whoever is root renews apt's lists when they are missing or name files that are gone.
    fn download(&self, name: &str, into: &Path) -> Result<PathBuf> {
        let folder = into.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        if let Err(error) = apt(&["download", name], &folder) {
            let is_root = run::output(Command::new("id").arg("-u")).is_ok_and(|id| id == "0");
            if !is_root {
                let advice = format!("run `apt-get update` as root and try again, or {}", self.instead);
                return Err(error.context(advice));
            }
            apt(&["update"], &folder)?;
            apt(&["download", name], &folder)
                .with_context(|| format!("failed to download {name}: {}", self.instead))?;
        }
        let mut files = entries(&folder)?.into_iter().filter(|file| has_extension(file, "deb"));
        files.next().with_context(|| format!("the download of {name} brought no package"))
    }

    /// Leaves the program and its libraries of what was unpacked, and writes what starts the program with them.
    fn arrange(&self, unpacked: &Path, tree: &Path) -> Result<()> {
        let [bin, lib] = ["bin", "lib"].map(|name| tree.join(name));
        for folder in [&bin, &lib] {
            fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        }
        let entrance = self.entrance();
        let program = unpacked.join(self.program);
        ensure!(program.is_file(), "Debian's package {} holds no {}", self.name, self.program);
        fs::rename(&program, bin.join(entrance)).context("failed to move the program")?;
        for library in libraries_below(&unpacked.join("usr/lib"))? {
            let name = library.file_name().context("a library has a name")?;
            fs::rename(&library, lib.join(name)).context("failed to move a library")?;
        }
        let start = tree.join(entrance);
        // It becomes the program, so that a signal to it reaches the program.
        fs::write(
            &start,
            format!(
                "#!/bin/sh\nhere=${{0%/*}}\nLD_LIBRARY_PATH=$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} \
                 exec \"$here/bin/{entrance}\" \"$@\"\n"
            ),
        )?;
        fs::set_permissions(&start, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Says what was asked for, so that a change of it is fetched anew.
    fn stamp(&self) -> String {
        format!("Debian {} {} {}\n", self.name, self.program, self.libraries.join(" "))
    }
}

/// Whether this machine has what fetches and unpacks packages.
pub(crate) fn fetchable() -> bool {
    ["apt-get", "dpkg-deb"].iter().all(|program| run::version(Path::new(program)).is_ok())
}

/// Runs apt-get, which refuses what is not signed whatever the machine's settings say.
fn apt(args: &[&str], folder: &Path) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(["--quiet", "--option", "APT::Get::AllowUnauthenticated=false"]).args(args);
    run::run(apt.current_dir(folder).stdin(Stdio::null()).stdout(stderr()))
}

fn unpack(package: &Path, into: &Path) -> Result<()> {
    run::output(Command::new("dpkg-deb").arg("--extract").args([package, into]))?;
    Ok(())
}

/// The packages of a `Depends` field whose names begin with one of these. Of alternatives the first one is taken.
fn wanted<'a>(depends: &'a str, beginnings: &[&str]) -> BTreeSet<&'a str> {
    let names = depends.split(',').filter_map(|one| one.split_whitespace().next());
    let names = names.map(|name| name.split(':').next().unwrap_or(name));
    names.filter(|name| beginnings.iter().any(|beginning| name.starts_with(beginning))).collect()
}

/// The shared libraries in a folder and those below it, links among them.
fn libraries_below(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for path in entries(folder)? {
        let is_library = path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
        if is_library {
            found.push(path);
        } else if path.is_dir() {
            found.extend(libraries_below(&path)?);
        }
    }
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    list.map(|entry| Ok(entry?.path())).collect()
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension() == Some(OsStr::new(extension))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn of_what_a_package_depends_on_only_its_libraries_are_taken() {
        let depends = "lsb-base, libc-ares2 (>= 1.11.0~), libc6 (>= 2.34), libevent-2.1-7:any (>= 2.1.8-stable), libpam0g";
        let names = wanted(depends, PGBOUNCER.libraries);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["libc-ares2", "libevent-2.1-7"]);
        assert!(wanted("libjs-jquery, libc6", PROMTOOL.libraries).is_empty());
    }

    #[test]
    fn a_machine_without_apt_is_told_what_to_do_instead() {
        let text = PGBOUNCER.not_here();
        assert!(
            text.starts_with("pgbouncer comes from Debian's package pgbouncer, and this machine lacks"),
            "{text}"
        );
        assert!(text.contains("SEQLINE_PGBOUNCER_BIN"), "{text}");
        assert!(PROMTOOL.not_here().contains("SEQLINE_PROMTOOL"));
        assert!(OLD_NATS_SERVER.not_here().contains("SEQLINE_NATS_OLD_BIN"));
    }

    #[test]
    fn what_starts_a_program_becomes_it_and_finds_the_libraries_wherever_the_folder_is() {
        let scratch = Scratch::new("debian");
        let [unpacked, tree, moved] = ["unpacked", "tree", "a b"].map(|name| scratch.path().join(name));
        let program = unpacked.join(PGBOUNCER.program);
        let libraries = unpacked.join("usr/lib/x86_64-linux-gnu");
        for folder in [program.parent().unwrap(), &libraries] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(&program, "#!/bin/sh\necho \"$LD_LIBRARY_PATH $$ $1\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(libraries.join("libcares.so.2"), "").unwrap();

        PGBOUNCER.arrange(&unpacked, &tree).unwrap();
        fs::rename(&tree, &moved).unwrap();

        assert!(moved.join("lib/libcares.so.2").is_file());
        let mut command = Command::new(moved.join("pgbouncer"));
        command.arg("one argument").env_remove("LD_LIBRARY_PATH").stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let id = child.id();
        let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(said, format!("{}/lib {id} one argument\n", moved.display()));
    }

    #[test]
    fn only_the_stamp_of_this_very_package_counts() {
        let scratch = Scratch::new("debian-stamp");
        let folder = scratch.path().join(PROMTOOL.folder);
        fs::create_dir_all(folder.join("bin")).unwrap();
        for file in ["promtool", "bin/promtool"] {
            fs::write(folder.join(file), "").unwrap();
        }
        fs::write(folder.join(STAMP), "Debian prometheus usr/bin/other \n").unwrap();
        assert!(!PROMTOOL.is_installed(scratch.path()), "something else was unpacked");

        fs::write(folder.join(STAMP), PROMTOOL.stamp()).unwrap();
        assert!(PROMTOOL.is_installed(scratch.path()));

        fs::remove_file(folder.join("bin/promtool")).unwrap();
        assert!(!PROMTOOL.is_installed(scratch.path()), "someone deleted the program");
    }
}
