//! What a benchmark found: for people on the terminal and in Markdown, for programs in JSON.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::samples::Samples;
use super::thresholds::{Judgement, Thresholds};

/// What stands for a figure that there is none of.
const NONE: &str = "none";

/// Rows of figures under a title.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// Without rows.
    pub fn new(title: impl Into<String>, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.into(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    /// One more row; what it lacks is empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// A sentence below the rows.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// For a terminal: columns of numbers to the right, others to the left.
    #[must_use]
    pub fn to_text(&self) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells =
                    self.rows.iter().chain([&self.columns]).map(|cells| cells[column].chars().count());
                cells.max().unwrap_or(0)
            })
            .collect();
        let is_number =
            |cell: &str| cell.is_empty() || cell == NONE || cell.starts_with(|c: char| c.is_ascii_digit());
        let to_the_right: Vec<bool> = (0..self.columns.len())
            .map(|column| self.rows.iter().all(|cells| is_number(&cells[column])))
            .collect();
        let mut text = format!("{}\n", self.title);
        for cells in [&self.columns].into_iter().chain(&self.rows) {
            let line: Vec<String> = cells
                .iter()
                .zip(widths.iter().zip(&to_the_right))
                .map(
                    |(cell, (width, right))| {
                        if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                    },
                )
                .collect();
            let _ = writeln!(text, "  {}", line.join("  ").trim_end());
        }
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        text
    }

    /// The same in Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("## {}\n\n{}", self.title, line(&self.columns));
        let _ = writeln!(text, "|{}", "---|".repeat(self.columns.len()));
        self.rows.iter().for_each(|cells| text += &line(cells));
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }
}

/// A measured figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Figure {
    name: String,
    unit: &'static str,
    median: f64,
    lowest: f64,
    highest: f64,
    samples: Samples,
}

/// Everything that one run of a benchmark found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    benchmark: &'static str,
    /// What it was measured on, in the order in which it is shown.
    machine: Vec<(&'static str, String)>,
    thresholds: Vec<Judgement>,
    figures: Vec<Figure>,
    #[serde(skip)]
    tables: Vec<Table>,
    #[serde(skip)]
    due: Thresholds,
}

impl Report {
    /// Of a benchmark that begins.
    #[must_use]
    pub fn new(benchmark: &'static str, machine: Vec<(&'static str, String)>, due: Thresholds) -> Self {
        Self { benchmark, machine, thresholds: Vec::new(), figures: Vec::new(), tables: Vec::new(), due }
    }

    /// Records a figure that the benchmark prints itself.
    pub fn figure(&mut self, name: impl Into<String>, unit: &'static str, samples: &Samples) {
        let (median, lowest, highest) = (samples.median(), samples.lowest(), samples.highest());
        self.figures.push(Figure {
            name: name.into(),
            unit,
            median,
            lowest,
            highest,
            samples: samples.clone(),
        });
    }

    /// Records a figure of one sample.
    pub fn single(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.figure(name, unit, &Samples::from(vec![value]));
    }

    /// Prints a table and keeps it.
    pub fn table(&mut self, table: Table) {
        println!("{}", table.to_text());
        self.tables.push(table);
    }

    /// Holds a value against its threshold.
    ///
    /// # Errors
    ///
    /// When no threshold is documented for the key.
    pub fn judge(&mut self, key: &str, value: f64) -> anyhow::Result<()> {
        let judgement = self.due.judge(key, value)?;
        self.thresholds.push(judgement);
        Ok(())
    }

    /// Whether anything was judged.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        !self.thresholds.is_empty()
    }

    /// Whether nothing that was judged has missed its threshold.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.thresholds.iter().all(|judgement| judgement.passed)
    }

    /// The judgements, one in a row.
    #[must_use]
    pub fn verdict(&self) -> Table {
        let mut table = Table::new("Thresholds", ["measurement", "measured", "due", "", "what it means"]);
        for Judgement { key, value, due, passed } in &self.thresholds {
            table.row([
                key.clone(),
                number(*value),
                format!("{} {}", due.comparison, number(due.threshold)),
                (if *passed { "pass" } else { "FAIL" }).to_owned(),
                due.meaning.clone(),
            ]);
        }
        table
    }

    /// For programs.
    ///
    /// # Errors
    ///
    /// Never, as far as can be known: everything in it has a form in JSON.
    pub fn to_json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self).context("failed to write the report as JSON")? + "\n")
    }

    /// For people.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# Benchmark: {}\n\n", self.benchmark);
        for (name, value) in &self.machine {
            let _ = writeln!(text, "- {name}: {value}");
        }
        if self.is_judged() {
            let _ = write!(text, "\n{}", self.verdict().to_markdown());
        }
        for table in &self.tables {
            let _ = write!(text, "\n{}", table.to_markdown());
        }
        let mut all = Table::new("All figures", ["figure", "median", "lowest", "highest", "unit"]);
        for figure in &self.figures {
            let [median, lowest, highest] = [figure.median, figure.lowest, figure.highest].map(number);
            all.row([figure.name.clone(), median, lowest, highest, figure.unit.to_owned()]);
        }
        let _ = write!(text, "\n{}", all.to_markdown());
        text
    }

    /// Writes `NAME.json` and `NAME.md` to a folder.
    ///
    /// # Errors
    ///
    /// When that fails.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        write(folder, &format!("{}.json", self.benchmark), &self.to_json()?)?;
        write(folder, &format!("{}.md", self.benchmark), &self.to_markdown())
    }
}

/// Writes a file and says where it is.
///
/// # Errors
///
/// When that fails.
pub fn write(folder: &Path, name: &str, content: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let path = folder.join(name);
    std::fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// With three significant digits or more, and commas between thousands.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let decimals = match value.abs() {
        0.0 => 0,
        small if small < 10.0 => 2,
        small if small < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), ""), |(whole, rest)| (whole, rest));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::from(sign);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if rest.is_empty() { grouped } else { format!("{grouped}.{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "## Thresholds\n\n| key | comparison | value | what it means |\n|---|---|---|---|\n\
                            | `rate` | at least | 1,000 | events/s |\n| `p99` | below | 10 | ms |\n";

    fn report() -> Report {
        let due = Thresholds::parse(DOCUMENT).unwrap();
        Report::new("example", vec![("processors", "2".to_owned())], due)
    }

    #[test]
    fn one_missed_threshold_fails_the_report() {
        let mut report = report();
        report.judge("rate", 1_000.0).unwrap();
        assert!(report.passed());
        report.judge("p99", 10.0).unwrap();
        assert!(!report.passed());
        let text = report.verdict().to_text();
        let line = |key| text.lines().find(|line| line.contains(key)).unwrap().to_owned();
        assert!(line("rate").contains("1,000  at least 1,000  pass  events/s"), "{text}");
        assert!(line("p99").contains("10.0  below 10.0      FAIL  ms"), "{text}");
    }

    #[test]
    fn what_has_no_threshold_cannot_be_judged() {
        assert!(report().judge("other", 1.0).is_err());
    }

    #[test]
    fn json_and_markdown_hold_what_was_measured() {
        let mut report = report();
        report.figure("appends", "events/s", &Samples::from(vec![1_200.0, 1_000.0, 1_500.0]));
        report.judge("rate", 1_200.0).unwrap();
        let json: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
        assert_eq!(json["benchmark"], "example");
        assert_eq!(json["figures"][0]["median"], 1_200.0);
        assert_eq!(json["figures"][0]["lowest"], 1_000.0);
        assert_eq!(json["thresholds"][0]["comparison"], "at least");
        assert_eq!(json["thresholds"][0]["threshold"], 1_000.0);
        assert_eq!(json["thresholds"][0]["passed"], true);
        let markdown = report.to_markdown();
        assert!(markdown.contains("| appends | 1,200 | 1,000 | 1,500 | events/s |"), "{markdown}");
        assert!(markdown.contains("- processors: 2"), "{markdown}");
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new("Rates", ["way", "rate"]);
        table.row(["one", "1,000"]);
        table.row(["another", "7"]);
        assert_eq!(table.to_text(), "Rates\n  way       rate\n  one      1,000\n  another      7\n");
    }

    #[test]
    fn numbers_are_short_and_readable() {
        let texts = [0.0, 0.123, 2.5, 42.04, 999.6, 15_000.0, 1_234_567.8, -1_200.0].map(number);
        assert_eq!(texts, ["0", "0.12", "2.50", "42.0", "1,000", "15,000", "1,234,568", "-1,200"]);
        assert_eq!(number(f64::INFINITY), "none");
    }
}
