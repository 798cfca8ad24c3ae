//! What the product logs, and the pages that list it.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;
use super::{assert_tidy, files, shipped_sources};

/// Levels that are shown without a filter: how they are logged, and how pages call them.
const LEVELS: [(&str, &str); 3] = [("error!(", "error"), ("warn!(", "warning"), ("info!(", "info")];

/// Level and text of what a source logs. The text is the last literal of its macro.
fn messages(source: &Source) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for (call, level) in LEVELS {
        for (at, _) in source.code.match_indices(call) {
            // Another macro with such an end.
            if source.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let until = |end: usize| source.code[..end].matches("\"\"").count();
            let end = at + closing(&source.code[at..]);
            assert!(until(end) > until(at), "{} says nothing", &source.code[at..end]);
            found.push((level, source.literals[until(end) - 1].text.clone()));
        }
    }
    found
}

/// Where the first parenthesis that opens is closed.
fn closing(code: &str) -> usize {
    let mut depth = 0;
    for (at, character) in code.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 1 => return at,
            ')' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// The rows of tables whose second column is the level: messages, and what their levels are.
fn rows(page: &str) -> Vec<(Vec<&str>, &str)> {
    let mut rows = Vec::new();
    let mut lists_messages = false;
    for (before, line) in [""].into_iter().chain(page.lines()).zip(page.lines()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, messages, levels, ..] = cells[..] else { continue };
        if !before.starts_with('|') {
            lists_messages = levels == "level";
        } else if lists_messages && !messages.starts_with("---") {
            rows.push((messages.split('`').skip(1).step_by(2).collect(), levels));
        }
    }
    rows
}

#[test]
fn every_message_of_the_log_is_listed_with_its_level_and_none_is_that_is_not_logged() {
    let mut levels: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (_, source) in shipped_sources() {
        for (level, text) in messages(&source) {
            levels.entry(text).or_default().insert(level);
        }
    }
    assert!(levels.len() > 80, "{levels:?}");
    let pages = files();
    let guide = pages.iter().filter(|(path, _)| path.starts_with("docs/guide/") && path.ends_with(".md"));
    let mut listed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut findings = Vec::new();
    for (path, text) in guide {
        for (messages, of) in rows(text) {
            for message in messages {
                listed.entry(message).or_default().push(of);
                if !levels.contains_key(message) {
                    findings.push(format!("{path}: nothing logs `{message}`"));
                }
            }
        }
    }
    for (message, levels) in &levels {
        let rows = listed.get(message.as_str()).map(Vec::as_slice).unwrap_or_default();
        for level in levels.iter().filter(|level| !rows.iter().any(|row| row.contains(**level))) {
            findings.push(format!("no row has `{message}` with the level {level}"));
        }
    }
    assert_tidy(
        &findings,
        "docs/guide/commands.md, and the pages that it names, list what is logged in tables with the column \"level\":",
    );
}

#[test]
fn messages_are_told_from_fields_and_rows_from_other_tables() {
    let source = Source::parse(
        "fn a() { say(\"no\"); tracing::warn!(names = names.join(\", \"), \"it waits\"); not_info!(\"no\"); info!(n = f(1), \"it goes on\") }",
    );
    let expected = [("warning", "it waits".to_owned()), ("info", "it goes on".to_owned())];
    assert_eq!(messages(&source), expected);
    let page = "| message | level | |\n|---|---|---|\n| `a`, `b` | info | `c` |\n\n| x | y |\n|---|---|\n| `d` | e |\n";
    assert_eq!(rows(page), [(vec!["a", "b"], "info")]);
}
