//! How much memory a process has.

use std::fs;

use anyhow::Context;

/// What is resident, in KiB: `Rss` of `smaps_rollup`, which the kernel counts page by page.
pub(crate) fn resident(pid: u32) -> anyhow::Result<f64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).context("read what is resident")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next());
    kib.context("no Rss")?.parse().context("an Rss of another form")
}
