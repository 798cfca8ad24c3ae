//! Printing data to standard output.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

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

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (-1234567, "-1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
