//! How much processor time processes have used.

use std::fs;

use anyhow::Context;

/// In seconds: that of a process and of the children that it has waited for.
pub(crate) fn of(pid: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("read the processor time")?;
    seconds(&stat).context("a processor time of another form")
}

/// Of a PostgreSQL server with all of its sessions, those that have ended too.
pub(crate) fn of_server(postmaster: u32) -> anyhow::Result<f64> {
    let mut total = of(postmaster)?;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path().join("stat");
        // Those that are no processes, and those that have ended since.
        let Ok(stat) = fs::read_to_string(path) else { continue };
        if after_name(&stat).and_then(|mut rest| rest.nth(1)) == Some(&postmaster.to_string()) {
            total += seconds(&stat).unwrap_or_default();
        }
    }
    Ok(total)
}

fn after_name(stat: &str) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

fn seconds(stat: &str) -> Option<f64> {
    // utime, stime, cutime and cstime, in hundredths on Linux whatever its own clock.
    let ticks: Vec<f64> = after_name(stat)?.skip(11).take(4).filter_map(|ticks| ticks.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum::<f64>() / 100.0)
}
