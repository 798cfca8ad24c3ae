//! Finds the checkout, so that every task works from any folder of it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The checkout that this program belongs to.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Asks Cargo's environment first: two checkouts may share one target folder and so one compiled xtask.
    pub(crate) fn locate() -> Result<Self> {
        let xtask = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = xtask.parent().context("failed to find the root of the checkout")?;
        Ok(Self { root: root.to_owned() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where setup puts what it fetches; git ignores it.
    pub(crate) fn dev(&self) -> PathBuf {
        self.root.join(".dev")
    }

    /// A `cargo` command that runs in the root of the checkout.
    pub(crate) fn cargo<const N: usize>(&self, args: [&str; N]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.root).args(args);
        cargo
    }
}
