//! `seqline import`

mod faults;
mod lines;
mod payloads;
mod resume;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use seqline_testkit::{Role, TestDb};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Outcome, Seqline, on};

/// A folder with a file of lines.
struct Input {
    folder: TempDir,
    file: PathBuf,
}

impl Input {
    fn new(content: impl AsRef<[u8]>) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("events.ndjson");
        std::fs::write(&file, content).expect("the file can be written");
        Self { folder, file }
    }

    /// Lines `{"n":1}` to `{"n":count}`.
    fn numbered(count: i64) -> Self {
        Self::new(numbered(1, count))
    }

    /// What was rejected: number of the line, reason, and the text as far as it is kept.
    fn rejects(&self) -> Vec<(i64, String, Option<String>)> {
        rejects_in(&self.folder.path().join("events.ndjson.rejected"))
    }
}

fn numbered(first: i64, last: i64) -> String {
    (first..=last).fold(String::new(), |mut text, n| {
        writeln!(text, "{{\"n\":{n}}}").expect("a string takes everything");
        text
    })
}

fn rejects_in(file: &Path) -> Vec<(i64, String, Option<String>)> {
    let text = std::fs::read_to_string(file).expect("the rejects can be read");
    let reject = |line: &str| {
        let reject: Value = serde_json::from_str(line).expect("a reject is JSON");
        let text = |member: &str| reject[member].as_str().map(str::to_owned);
        (
            reject["line"].as_i64().expect("it has a line"),
            text("reason").expect("it has a reason"),
            text("text"),
        )
    };
    text.lines().map(reject).collect()
}

/// An import of numbered lines.
fn import(db: &TestDb, file: impl AsRef<Path>) -> Seqline {
    on(db, Role::App, ["import"]).arg(file.as_ref()).args([
        "--type",
        "line.imported",
        "--resource-kind",
        "line",
    ])
}

/// What an import reports as JSON.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    imported: i64,
    rejected: i64,
    skipped: i64,
}

fn counts(outcome: &Outcome) -> Counts {
    let report: Value =
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    let count = |member: &str| report[member].as_i64().expect("it is a number");
    Counts { imported: count("imported"), rejected: count("rejected"), skipped: count("skipped") }
}

/// Every line from 1 to `count` is in the log exactly once.
async fn assert_each_line_once(db: &TestDb, count: i64) {
    let mut numbers = crate::support::numbers(db).await;
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
}
