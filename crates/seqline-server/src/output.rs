//! Printing data to standard output.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::failure::Failure;

/// One line of text.
pub(crate) fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{}", text.as_ref()).map_err(Failure::from)
}

/// One JSON document, on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string(value).map_err(|error| Failure::Unexpected(error.to_string()))?)
}

/// A table with a header; the columns in `numbers` are aligned to the right.
pub(crate) fn table(header: &[&str], numbers: &[usize], rows: Vec<Vec<String>>) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    table.add_rows(rows);
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    let trimmed: Vec<&str> = text.lines().map(|row| row.trim_end()).collect();
    line(trimmed.join("\n"))
}

/// A number with separators for people.
pub(crate) fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    format!("{}{}", if number < 0 { "-" } else { "" }, groups.join(","))
}

/// How many there are of something, for people.
pub(crate) fn count(number: i64, one: &str) -> String {
    format!("{} {one}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A time, exactly.
pub(crate) fn rfc3339(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}

/// A time to the second, for people.
pub(crate) fn seconds(at: OffsetDateTime) -> String {
    rfc3339(at.replace_nanosecond(0).unwrap_or(at))
}

/// Clocks of two machines differ, so what is just over can seem to come.
pub(crate) fn age_seconds(at: OffsetDateTime, now: OffsetDateTime) -> i64 {
    (now - at).whole_seconds().max(0)
}

/// A text that anybody has written: on one line, of at most so many characters.
pub(crate) fn shortened(text: &str, characters: usize) -> String {
    let line: String = text.replace(char::is_control, " ");
    match line.char_indices().nth(characters) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_of_bounded_length() {
        assert_eq!(shortened("a\nb\tc", 5), "a b c");
        assert_eq!(shortened("\u{e4}\u{e4}\u{e4}", 2), "\u{e4}\u{e4}...");
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(
            [0, 1, 2000].map(|number| count(number, "event")),
            ["0 events", "1 event", "2,000 events"]
        );
    }

    #[test]
    fn a_time_for_people_is_to_the_second() {
        let at = OffsetDateTime::UNIX_EPOCH + time::Duration::milliseconds(1500);
        assert_eq!(
            (seconds(at), rfc3339(at)),
            ("1970-01-01T00:00:01Z".into(), "1970-01-01T00:00:01.5Z".into())
        );
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (-1234567, "-1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
