//! Binaries that the server's user can reach.
//!
//! Root keeps checkouts where nobody else can enter. Then the installation is copied, once, to a folder that
//! everybody can read and only root can write; otherwise it is used where it is.

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::account::{Account, ENTER, READ, belongs_to_us_or_root};
use super::{EmbeddedError, PostgresBinaries};

/// Where the installation lies inside the copy. Libraries are looked up relative to the programs, up to three
/// folders above them, so the copy keeps that many.
const INSIDE: &str = "package/install";

/// The parts of an installation that a server needs.
const PARTS: [&str; 3] = ["bin", "lib", "share"];

/// The same installation, at a place where this user can run it.
pub(super) async fn within_reach(
    binaries: PostgresBinaries,
    account: &Account,
) -> Result<PostgresBinaries, EmbeddedError> {
    if is_reachable(binaries.dir(), account) {
        return Ok(binaries);
    }
    let copy = tokio::task::spawn_blocking(move || {
        let dir = copy_of(&binaries)?;
        Ok(binaries.moved_to(dir))
    });
    match copy.await {
        Ok(copied) => copied,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

fn is_reachable(bin: &Path, account: &Account) -> bool {
    let root = bin.parent().unwrap_or(bin);
    let folders = PARTS.iter().map(|part| root.join(part)).chain(libraries_beside(root));
    let programs = [bin.join("postgres"), bin.join("initdb")];
    folders.into_iter().chain(programs).all(|path| account.blocked_by(&path, READ | ENTER).is_none())
}

/// The copy, made when it is not there yet or no longer whole.
fn copy_of(binaries: &PostgresBinaries) -> Result<PathBuf, EmbeddedError> {
    let root = binaries.dir().parent().unwrap_or_else(|| binaries.dir());
    let plan = plan(root);
    let target = env::temp_dir().join(format!("seqline-postgresql-{}", key(binaries)?));
    let bin = target.join(INSIDE).join("bin");
    match target.symlink_metadata() {
        Ok(found) => {
            require_ours(&target, &found)?;
            // Cleaners of temporary folders take single files.
            if files_in(&target) == plan.iter().map(|(from, _)| files_in(from)).sum::<u64>() {
                return Ok(bin);
            }
            set_aside(&target)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(EmbeddedError::io("read", &target)(error)),
    }
    make_copy(&plan, &target)?;
    Ok(bin)
}

/// What is copied, and where to inside the copy.
fn plan(root: &Path) -> Vec<(PathBuf, PathBuf)> {
    let parts = PARTS.iter().map(|part| (root.join(part), Path::new(INSIDE).join(part)));
    let mut plan: Vec<_> = parts.filter(|(from, _)| from.is_dir()).collect();
    let levels = [(root.parent(), Path::new("package")), (root.ancestors().nth(2), Path::new(""))];
    for (folder, inside) in levels {
        let Some(folder) = folder else { continue };
        plan.extend(library_folders(folder).into_iter().filter_map(|from| {
            let name = from.file_name()?.to_owned();
            Some((from, inside.join(name)))
        }));
    }
    plan
}

/// Python packages keep the libraries of their programs in `<package>.libs`, beside the package.
fn libraries_beside(root: &Path) -> Vec<PathBuf> {
    root.ancestors().skip(1).take(2).flat_map(library_folders).collect()
}

fn library_folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_library = |path: &PathBuf| path.extension().is_some_and(|it| it == "libs") && path.is_dir();
    entries.flatten().map(|entry| entry.path()).filter(is_library).collect()
}

/// Another path, version or date of the program is another copy.
fn key(binaries: &PostgresBinaries) -> Result<String, EmbeddedError> {
    let program = binaries.program("postgres");
    let found = program.metadata().map_err(EmbeddedError::io("read", &program))?;
    let text = format!(
        "{}\n{}\n{}\n{}.{}",
        program.display(),
        binaries.version(),
        found.len(),
        found.mtime(),
        found.mtime_nsec()
    );
    let hash = Sha256::digest(text.as_bytes());
    let short: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{short}", binaries.version()))
}

/// Anybody can make a folder of this name first, and its programs would get the user's data.
fn require_ours(folder: &Path, found: &fs::Metadata) -> Result<(), EmbeddedError> {
    let closed = found.permissions().mode() & 0o022 == 0;
    if found.is_dir() && closed && belongs_to_us_or_root(found.uid()) {
        return Ok(());
    }
    Err(EmbeddedError::UntrustedCopy { folder: folder.into() })
}

fn set_aside(folder: &Path) -> Result<(), EmbeddedError> {
    let aside = beside(folder, "old");
    fs::rename(folder, &aside).map_err(EmbeddedError::io("rename", folder))?;
    fs::remove_dir_all(&aside).map_err(EmbeddedError::io("remove", &aside))
}

/// Copies to a name of its own and then renames, so that a copy is whole or not there.
fn make_copy(plan: &[(PathBuf, PathBuf)], target: &Path) -> Result<(), EmbeddedError> {
    let made = beside(target, "new");
    let result = fill(plan, &made).map_err(EmbeddedError::io("copy the PostgreSQL binaries to", &made));
    let renamed = result.and_then(|()| match fs::rename(&made, target) {
        Ok(()) => Ok(()),
        // Another process was faster.
        Err(_) if target.is_dir() => {
            let found = target.symlink_metadata().map_err(EmbeddedError::io("read", target))?;
            require_ours(target, &found)
        }
        Err(error) => Err(EmbeddedError::io("rename", &made)(error)),
    });
    // Present only when one of the two steps failed, and then of no use to anybody.
    let _ = fs::remove_dir_all(&made);
    renamed
}

fn fill(plan: &[(PathBuf, PathBuf)], made: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(made)?;
    for (from, inside) in plan {
        copy_folder(from, &made.join(inside))?;
    }
    let mut folder = made.join(INSIDE);
    while folder.starts_with(made) {
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        folder.pop();
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_symlink() && fs::read_link(&source)?.is_relative() {
            symlink(fs::read_link(&source)?, &target)?;
        } else if source.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            fs::copy(&source, &target)?;
            let runs = source.metadata()?.permissions().mode() & 0o111 != 0;
            fs::set_permissions(&target, Permissions::from_mode(if runs { 0o755 } else { 0o644 }))?;
        }
    }
    Ok(())
}

fn files_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_in(&entry.path()),
            _ => 1,
        })
        .sum()
}

fn beside(folder: &Path, word: &str) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(format!(".{word}-{}", Uuid::new_v4().simple()));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout that a Python wheel of PostgreSQL has: libraries three folders above the programs.
    #[test]
    fn libraries_beside_the_package_keep_their_relative_place() {
        let base = env::temp_dir().join(format!("seqline-test-{}", Uuid::new_v4().simple()));
        let bin = base.join("from/embedded/install/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(base.join("from/embedded.libs")).unwrap();
        fs::write(bin.join("postgres"), "program").unwrap();
        fs::set_permissions(bin.join("postgres"), Permissions::from_mode(0o700)).unwrap();
        fs::write(base.join("from/embedded.libs/libpq.so"), "library").unwrap();
        symlink("postgres", bin.join("postmaster")).unwrap();

        let target = base.join("copy");
        let plan = plan(bin.parent().unwrap());
        make_copy(&plan, &target).unwrap();

        let copied = target.join(INSIDE).join("bin");
        assert_eq!(fs::read_to_string(copied.join("../../../embedded.libs/libpq.so")).unwrap(), "library");
        assert_eq!(fs::read_to_string(copied.join("postmaster")).unwrap(), "program");
        assert_eq!(copied.join("postgres").metadata().unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(files_in(&target), plan.iter().map(|(from, _)| files_in(from)).sum::<u64>());
        require_ours(&target, &target.symlink_metadata().unwrap()).unwrap();
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_is_not_trusted() {
        let folder = env::temp_dir().join(format!("seqline-test-{}", Uuid::new_v4().simple()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let refused = require_ours(&folder, &folder.symlink_metadata().unwrap());
        assert!(matches!(refused, Err(EmbeddedError::UntrustedCopy { .. })));
        fs::remove_dir(&folder).unwrap();
    }
}
