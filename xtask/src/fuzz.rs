//! The `fuzz` task: xtask fetches cargo-fuzz, then becomes it.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::workspace::Workspace;
use crate::{run, setup, sources};

/// Begins with the committed seeds. What the fuzzer finds beyond them stays in `fuzz/corpus`, which git ignores.
pub(crate) fn fuzz(workspace: &Workspace, target: &str, args: &[OsString]) -> Result<()> {
    let fuzz = workspace.root().join("fuzz");
    let source = fuzz.join("fuzz_targets").join(target).with_extension("rs");
    ensure!(source.is_file(), "there is no fuzz target {target}: {} is not a file", source.display());
    let cargo_fuzz = sources::cargo_fuzz();
    setup::prepare(workspace, &[&cargo_fuzz])?;

    let corpus = fuzz.join("corpus").join(target);
    std::fs::create_dir_all(&corpus)?;
    let mut command = Command::new(cargo_fuzz.path(&workspace.dev()));
    command
        // The code is safe, so a sanitizer would find nothing, and what it depends on takes long to compile for one.
        .args(["run", "--fuzz-dir", "fuzz", "--dev", "--sanitizer", "none", target])
        .arg(&corpus)
        .arg(fuzz.join("seeds").join(target))
        .arg("--")
        .args(args)
        .current_dir(workspace.root())
        // Instrumenting is not stable in the compiler; it is only used here, and nothing that is built so is shipped.
        .env("RUSTC_BOOTSTRAP", "1");
    run::become_command(&mut command)
}
