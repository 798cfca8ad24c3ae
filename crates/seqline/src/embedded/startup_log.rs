//! The part of the server's log that may be shown: messages about its own start, never statements.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// How many lines an error message quotes.
const LINES: usize = 5;

/// How much of the log is looked at.
const TAIL_BYTES: u64 = 64 * 1024;

/// A log at the moment before a start.
#[derive(Debug)]
pub(super) struct StartupLog {
    path: PathBuf,
    from: u64,
}

impl StartupLog {
    /// Remembers where the log ends now.
    pub(super) fn mark(path: PathBuf) -> StartupLog {
        let from = path.metadata().map_or(0, |found| found.len());
        StartupLog { path, from }
    }

    /// Where the log is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The last messages since the mark, in one line.
    pub(super) fn quote(&self) -> String {
        match self.since_mark() {
            Some(text) => quote(&text),
            None => "it left no message".into(),
        }
    }

    /// Whether the server found its port taken.
    pub(super) fn says_port_taken(&self) -> bool {
        self.since_mark().is_some_and(|text| says(&text, "Address already in use"))
    }

    fn since_mark(&self) -> Option<String> {
        let mut file = File::open(&self.path).ok()?;
        let end = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(self.from.max(end.saturating_sub(TAIL_BYTES)))).ok()?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Whether the server could not listen, for this reason.
fn says(text: &str, reason: &str) -> bool {
    text.lines().any(|line| line.contains("could not bind IPv4 address") && line.contains(reason))
}

fn quote(text: &str) -> String {
    if says(text, "Permission denied") {
        return "its user may not listen on this port; choose one above 1023, or none to get a free one"
            .into();
    }
    let lines: Vec<&str> = text.lines().filter_map(about_the_start).collect();
    if lines.is_empty() {
        return "it left no message".into();
    }
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

/// The message of a line that tells about the start: of level FATAL, PANIC or LOG, or from before the server
/// could log at all. DETAIL, STATEMENT and ERROR lines can hold the user's data.
fn about_the_start(line: &str) -> Option<&str> {
    for level in ["FATAL:  ", "PANIC:  ", "LOG:  "] {
        if let Some(at) = line.find(level) {
            let message = &line[at..];
            let shows_work = ["statement:", "duration:", "execute ", "parameters"];
            return (!shows_work.iter().any(|word| message.contains(word))).then_some(message);
        }
    }
    let early = line.starts_with("postgres: ") || line.contains("error while loading shared libraries");
    early.then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_and_details_are_left_out() {
        let log = "\
2026-01-01 00:00:00.000 UTC [7] LOG:  starting PostgreSQL 18.6
2026-01-01 00:00:00.000 UTC [7] LOG:  statement: SELECT 'secret'
2026-01-01 00:00:00.000 UTC [7] ERROR:  secret is wrong
2026-01-01 00:00:00.000 UTC [7] DETAIL:  Failing row contains (secret).
2026-01-01 00:00:00.000 UTC [7] STATEMENT:  INSERT INTO t VALUES ('secret')
        FROM secret
2026-01-01 00:00:00.000 UTC [7] FATAL:  could not load private key file";
        assert_eq!(quote(log), "LOG:  starting PostgreSQL 18.6; FATAL:  could not load private key file");
    }

    #[test]
    fn a_port_that_is_taken_is_told_from_one_that_is_not_allowed() {
        let bind = "LOG:  could not bind IPv4 address \"127.0.0.1\": ";
        let (taken, denied) =
            (format!("{bind}Address already in use\n"), format!("{bind}Permission denied\n"));
        assert!(says(&taken, "Address already in use") && !says(&denied, "Address already in use"));
        assert!(quote(&denied).starts_with("its user may not listen on this port"));
        assert!(quote(&taken).contains("Address already in use"));
    }

    #[test]
    fn only_the_last_lines_are_quoted() {
        let log: String = (0..20).map(|n| format!("LOG:  line {n}\n")).collect();
        assert_eq!(quote(&log), "LOG:  line 15; LOG:  line 16; LOG:  line 17; LOG:  line 18; LOG:  line 19");
    }

    #[test]
    fn what_comes_before_logging_is_quoted() {
        let early = "postgres: error while loading shared libraries: libz.so.1: cannot open";
        assert_eq!(quote(early), early);
        assert_eq!(quote("\n"), "it left no message");
    }
}
