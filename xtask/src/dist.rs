//! The `dist` task: what is handed to somebody who has no compiler. A folder, and the same as an archive, in which everything lies where it lies
//! below a prefix such as `/usr/local`; with checksums, and the licences of everything that was compiled into the binary.
//!
//! The same source gives the same archive, byte for byte, as far as the compiler gives the same binary: names are sorted, times are those of the
//! last commit, and nothing tells who made it.

mod layout;
mod licences;
mod linked;

use std::path::Path;
use std::{env, fs};

use anyhow::{Context, Result};

use self::layout::{Parts, pack};
use crate::run::{Steps, output};
use crate::workspace::Workspace;

pub(crate) fn dist(workspace: &Workspace) -> Result<()> {
    let steps = Steps::start();
    let target = host(workspace)?;
    let build = ["build", "--locked", "--release", "--package", "seqline-server", "--bin", "seqline"];
    steps.run("the binary", &mut workspace.cargo(build))?;
    let out = target_folder(workspace)?.join("dist");
    let manual = out.join("manual");
    remove(&manual)?;
    let run = ["run", "--locked", "--package", "seqline-server", "--example", "manual", "--"];
    // As it is compiled for tests anyway: what it writes is the same.
    steps.run("manual pages and completions", workspace.cargo(run).arg(&manual))?;

    let binary = target_folder(workspace)?.join("release/seqline");
    let linked = linked::of(&binary)?;
    let parts = Parts {
        name: format!("seqline-{}-{target}", env!("CARGO_PKG_VERSION")),
        source: workspace.root().to_owned(),
        binary,
        third_party: licences::of(workspace, &target)?,
        build: build_file(workspace, &target, &linked)?,
        date: source_date(workspace)?,
        manual,
    };
    let packed = pack(&parts, &out)?;
    remove(&parts.manual)?;
    let shown = |path: &Path| path.strip_prefix(workspace.root()).unwrap_or(path).display().to_string();
    steps.finish(&format!(
        "{}: {} files\n{}: {} bytes\n{linked}\npacked",
        shown(&packed.folder),
        packed.files.len(),
        shown(&packed.archive),
        fs::metadata(&packed.archive)?.len(),
    ));
    Ok(())
}

/// The target that this machine compiles for.
fn host(workspace: &Workspace) -> Result<String> {
    let about = output(std::process::Command::new("rustc").current_dir(workspace.root()).arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say which target it compiles for")?.to_owned())
}

/// Where cargo puts what it compiles.
fn target_folder(workspace: &Workspace) -> Result<std::path::PathBuf> {
    let metadata = licences::metadata(workspace, &["--no-deps"])?;
    Ok(metadata.target_directory)
}

/// Of what, with what and for what the binary was made.
fn build_file(workspace: &Workspace, target: &str, linked: &linked::Linked) -> Result<String> {
    let git = |args: &[&str]| {
        output(std::process::Command::new("git").current_dir(workspace.root()).args(args)).unwrap_or_default()
    };
    let dirty = if git(&["status", "--porcelain"]).is_empty() { "" } else { ", with changes" };
    let commit = git(&["rev-parse", "HEAD"]);
    let commit = if commit.is_empty() { "unknown".to_owned() } else { commit + dirty };
    let compiler =
        output(std::process::Command::new("rustc").current_dir(workspace.root()).arg("--version"))?;
    Ok(format!(
        "version   {}\ntarget    {target}\ncommit    {commit}\ncompiler  {compiler}\n{linked}\n",
        env!("CARGO_PKG_VERSION")
    ))
}

/// Seconds since 1970 that files in the archive have: those of the last commit, or what SOURCE_DATE_EPOCH says.
fn source_date(workspace: &Workspace) -> Result<u64> {
    let text = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => output(std::process::Command::new("git").current_dir(workspace.root()).args([
            "log",
            "-1",
            "--format=%ct",
        ]))
        .context("failed to find the time of the last commit: set SOURCE_DATE_EPOCH")?,
    };
    text.trim().parse().context("SOURCE_DATE_EPOCH is not a number of seconds")
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
