//! Making a new cluster: complete, or not there.

use std::fs;
use std::io;
use std::process::Command;

use super::folder::DataFolder;
use super::launch::{as_server_user, option_with_path};
use super::{Durability, EmbeddedError, PostgresBinaries};

/// How much of what initdb says an error quotes.
const QUOTED_LINES: usize = 5;

/// Makes the cluster under another name and renames it when it is complete.
pub(super) async fn initialize(
    folder: &DataFolder,
    binaries: &PostgresBinaries,
    durability: Durability,
) -> Result<(), EmbeddedError> {
    folder.create_password()?;
    let unfinished = folder.unfinished_cluster();
    let mut command = Command::new(binaries.program("initdb"));
    command
        .arg(option_with_path("--pgdata=", &unfinished))
        .arg(option_with_path("--pwfile=", &folder.password_file()))
        .args(["--username=postgres", "--encoding=UTF8", "--auth=scram-sha-256", "--no-instructions"])
        .args(locale(binaries.major()));
    if matches!(durability, Durability::Fast) {
        command.arg("--no-sync");
    }
    as_server_user(&mut command, folder.account());
    let failed = |output: String| EmbeddedError::InitFailed { folder: folder.root().into(), output };
    let said = run(command).await.map_err(|error| failed(error.to_string()))?;
    if !said.status.success() {
        return Err(failed(last_lines(&String::from_utf8_lossy(&said.stderr))));
    }
    fs::rename(&unfinished, folder.cluster()).map_err(EmbeddedError::io("rename", &unfinished))
}

async fn run(command: Command) -> io::Result<std::process::Output> {
    tokio::process::Command::from(command).kill_on_drop(true).output().await
}

/// The same order and the same case rules on every machine: whatever the system's own locales are, and whether
/// PostgreSQL was built with ICU or not.
fn locale(major: u16) -> &'static [&'static str] {
    if major >= 17 {
        &["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    } else {
        &["--locale=C"]
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(QUOTED_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_quoted_in_one_line() {
        assert_eq!(last_lines("a\n\n b \nc\nd\ne\nf\n"), "b; c; d; e; f");
        assert_eq!(last_lines(""), "");
    }
}
