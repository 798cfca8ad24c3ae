//! Where everything lies in the folder, its checksums, and the archive.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::run::output;

/// What is packed.
pub(super) struct Parts {
    /// Of the folder: product, version and target.
    pub(super) name: String,
    /// The checkout.
    pub(super) source: PathBuf,
    /// The command.
    pub(super) binary: PathBuf,
    /// Manual pages in `man`, completions in `completions/SHELL`.
    pub(super) manual: PathBuf,
    /// The licences of what was compiled in.
    pub(super) third_party: String,
    /// Of what the binary was made.
    pub(super) build: String,
    /// Seconds since 1970 that the files have in the archive.
    pub(super) date: u64,
}

/// What was made.
pub(super) struct Packed {
    pub(super) folder: PathBuf,
    pub(super) archive: PathBuf,
    /// All files of the folder, by name.
    pub(super) files: Vec<String>,
}

const DOC: &str = "share/doc/seqline";

/// Files of the checkout, and where they go.
const FROM_SOURCE: [(&str, &str); 8] = [
    ("packaging/systemd/seqline.service", "lib/systemd/system/seqline.service"),
    ("packaging/systemd/env.example", "share/doc/seqline/env.example"),
    ("README.md", "share/doc/seqline/README.md"),
    ("CHANGELOG.md", "share/doc/seqline/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/seqline/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/seqline/LICENSE-APACHE"),
    ("docs", "share/doc/seqline/docs"),
    ("ops", "share/doc/seqline/ops"),
];

/// What was made from the command line, and where it goes.
const FROM_MANUAL: [(&str, &str); 4] = [
    ("man", "share/man/man1"),
    ("completions/bash", "share/bash-completion/completions"),
    ("completions/zsh", "share/zsh/site-functions"),
    ("completions/fish", "share/fish/vendor_completions.d"),
];

/// Packs everything into a folder and an archive below `out`, in place of what is there.
pub(super) fn pack(parts: &Parts, out: &Path) -> Result<Packed> {
    let folder = out.join(&parts.name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    copy(&parts.binary, &folder.join("bin/seqline"))?;
    for (from, to) in FROM_SOURCE {
        copy(&parts.source.join(from), &folder.join(to))?;
    }
    for (from, to) in FROM_MANUAL {
        copy(&parts.manual.join(from), &folder.join(to))?;
    }
    fs::write(folder.join(DOC).join("THIRD-PARTY-LICENSES.txt"), &parts.third_party)?;
    fs::write(folder.join(DOC).join("BUILD"), &parts.build)?;

    let mut files = Vec::new();
    list(&folder, &folder, &mut files)?;
    files.sort();
    let mut sums = String::new();
    for file in &files {
        let path = folder.join(file);
        let mode = if file.starts_with("bin/") { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        sums.push_str(&format!("{}  {file}\n", sha256(&path)?));
    }
    fs::write(folder.join("SHA256SUMS"), sums)?;
    files.push("SHA256SUMS".to_owned());
    files.sort();

    let archive = out.join(format!("{}.tar.gz", parts.name));
    compress(parts, out, &archive)?;
    fs::write(
        out.join(format!("{}.tar.gz.sha256", parts.name)),
        format!("{}  {}.tar.gz\n", sha256(&archive)?, parts.name),
    )?;
    Ok(Packed { folder, archive, files })
}

/// In the order of names, with times and owners that say nothing.
fn compress(parts: &Parts, out: &Path, archive: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.env("LC_ALL", "C")
        .args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .args(["--mode=u=rwX,go=rX", "--use-compress-program=gzip --no-name --best"])
        .arg(format!("--mtime=@{}", parts.date))
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(out)
        .arg(&parts.name);
    output(&mut tar).map(drop)
}

/// A file, or a folder with all that is in it but hidden files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("failed to copy {}", from.display());
    if from.is_dir() {
        for entry in fs::read_dir(from).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                copy(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().with_context(failed)?).with_context(failed)?;
    fs::copy(from, to).map(drop).with_context(failed)
}

fn list(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, files)?;
        } else {
            files.push(path.strip_prefix(root)?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::workspace::Workspace;

    /// The real checkout, with a program that does nothing in place of the command.
    fn parts(scratch: &Scratch) -> Parts {
        let manual = scratch.path().join("manual");
        for file in [
            "man/seqline.1",
            "man/seqline-serve.1",
            "completions/bash/seqline",
            "completions/zsh/_seqline",
            "completions/fish/seqline.fish",
        ] {
            let path = manual.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let binary = scratch.path().join("binary");
        fs::write(&binary, "#!/bin/sh\n").unwrap();
        Parts {
            name: "seqline-1.2.3-x86_64-example".to_owned(),
            source: Workspace::locate().unwrap().root().to_owned(),
            binary,
            manual,
            third_party: "licences\n".to_owned(),
            build: "version   1.2.3\n".to_owned(),
            date: 1_700_000_000,
        }
    }

    fn run(program: &str, folder: &Path, args: &[&str]) -> String {
        output(Command::new(program).env("LC_ALL", "C").env("TZ", "UTC").current_dir(folder).args(args))
            .unwrap()
    }

    #[test]
    fn everything_lies_where_it_lies_below_a_prefix() {
        let scratch = Scratch::new("layout");
        let packed = pack(&parts(&scratch), scratch.path()).unwrap();
        let files: Vec<&str> = packed.files.iter().map(String::as_str).collect();
        for file in [
            "SHA256SUMS",
            "bin/seqline",
            "lib/systemd/system/seqline.service",
            "share/bash-completion/completions/seqline",
            "share/doc/seqline/BUILD",
            "share/doc/seqline/CHANGELOG.md",
            "share/doc/seqline/LICENSE-APACHE",
            "share/doc/seqline/LICENSE-MIT",
            "share/doc/seqline/README.md",
            "share/doc/seqline/THIRD-PARTY-LICENSES.txt",
            "share/doc/seqline/docs/guide/operate/install.md",
            "share/doc/seqline/env.example",
            "share/doc/seqline/ops/prometheus/seqline.rules.yaml",
            "share/fish/vendor_completions.d/seqline.fish",
            "share/man/man1/seqline-serve.1",
            "share/man/man1/seqline.1",
            "share/zsh/site-functions/_seqline",
        ] {
            assert!(files.contains(&file), "{file} is missing: {files:?}");
        }
        assert!(packed.folder.ends_with("seqline-1.2.3-x86_64-example"));
        let below = ["SHA256SUMS", "bin/", "lib/systemd/system/", "share/"];
        assert!(files.iter().all(|file| below.iter().any(|start| file.starts_with(start))), "{files:?}");
    }

    #[test]
    fn sums_hold_for_every_file_and_for_the_archive() {
        let scratch = Scratch::new("sums");
        let packed = pack(&parts(&scratch), scratch.path()).unwrap();
        let checked = run("sha256sum", &packed.folder, &["--check", "--strict", "SHA256SUMS"]);
        assert_eq!(checked.lines().count(), packed.files.len() - 1, "{checked}");
        assert!(checked.lines().all(|line| line.ends_with(": OK")), "{checked}");
        let sum = "seqline-1.2.3-x86_64-example.tar.gz.sha256";
        assert_eq!(
            run("sha256sum", scratch.path(), &["--check", sum]),
            "seqline-1.2.3-x86_64-example.tar.gz: OK"
        );
    }

    #[test]
    fn the_archive_is_the_folder_and_says_nothing_of_who_made_it() {
        let scratch = Scratch::new("archive");
        let parts = parts(&scratch);
        let packed = pack(&parts, scratch.path()).unwrap();
        let archive = packed.archive.to_string_lossy().into_owned();
        let listed = run(
            "tar",
            scratch.path(),
            &["--list", "--verbose", "--numeric-owner", "--full-time", "--file", &archive],
        );
        let mut files = Vec::new();
        for line in listed.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [mode, owner, _size, day, time, path] = words[..] else { panic!("{line}") };
            assert_eq!((owner, day, time), ("0/0", "2023-11-14", "22:13:20"), "{line}");
            let file = path.strip_prefix("seqline-1.2.3-x86_64-example/").unwrap();
            let expected = if file.ends_with('/') || file.is_empty() {
                "drwxr-xr-x"
            } else if file == "bin/seqline" {
                "-rwxr-xr-x"
            } else {
                "-rw-r--r--"
            };
            assert_eq!(mode, expected, "{line}");
            files.extend(Some(file.to_owned()).filter(|file| !file.ends_with('/') && !file.is_empty()));
        }
        files.sort();
        assert_eq!(files, packed.files);
        let before = fs::read(&packed.archive).unwrap();
        let again = pack(&parts, scratch.path()).unwrap();
        assert!(before == fs::read(again.archive).unwrap(), "the same parts give the same archive");
    }

    #[test]
    fn what_an_older_version_had_is_gone() {
        let scratch = Scratch::new("older");
        let parts = parts(&scratch);
        let packed = pack(&parts, scratch.path()).unwrap();
        fs::write(packed.folder.join("bin/old"), "old").unwrap();
        let packed = pack(&parts, scratch.path()).unwrap();
        assert!(!packed.folder.join("bin/old").exists() && !packed.files.contains(&"bin/old".to_owned()));
    }
}
