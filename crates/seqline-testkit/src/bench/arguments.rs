//! The command line of a benchmark.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Where reports go when nobody says.
const OUT: &str = "target/bench";

/// What a benchmark understands.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Its name after `cargo xtask bench`.
    pub bench: &'static str,
    /// Options that take a number above 0, such as `--seconds`.
    pub numbers: &'static [&'static str],
    /// What it can measure, in the order in which it does.
    pub parts: &'static [&'static str],
    /// What it measures only when it is named.
    pub on_request: &'static [&'static str],
    /// The thresholds that it judges by, of all its parts.
    pub keys: &'static [&'static str],
}

/// What it was told.
#[derive(Debug, Clone, PartialEq)]
pub struct Arguments {
    numbers: Vec<(String, f64)>,
    /// What is to be measured: all but those on request when none was named.
    pub parts: Vec<String>,
    /// Where the report goes.
    pub out: PathBuf,
}

impl Arguments {
    /// Those of this process.
    ///
    /// # Errors
    ///
    /// When they are not understood; says what would be.
    pub fn of_process(usage: &Usage) -> anyhow::Result<Self> {
        Self::parse(usage, std::env::args().skip(1))
    }

    fn parse(usage: &Usage, given: impl IntoIterator<Item = String>) -> anyhow::Result<Self> {
        let mut arguments = Self { numbers: Vec::new(), parts: Vec::new(), out: PathBuf::from(OUT) };
        let mut given = given.into_iter();
        while let Some(argument) = given.next() {
            if argument == "--out" {
                arguments.out = given.next().context("--out takes a folder")?.into();
            } else if usage.numbers.contains(&argument.as_str()) {
                let value = given.next().and_then(|value| value.parse::<f64>().ok());
                let value = value.with_context(|| format!("{argument} takes a number"))?;
                ensure!(value.is_finite() && value > 0.0, "{argument} takes a number above 0");
                arguments.numbers.push((argument, value));
            } else if usage.parts.iter().chain(usage.on_request).any(|part| *part == argument) {
                arguments.parts.push(argument);
            } else {
                let numbers: String = usage.numbers.iter().map(|name| format!(" [{name} N]")).collect();
                let parts: String =
                    usage.parts.iter().chain(usage.on_request).map(|name| format!(" [{name}]")).collect();
                bail!("usage: cargo xtask bench {} [--{numbers} [--out FOLDER]{parts}]", usage.bench);
            }
        }
        if arguments.parts.is_empty() {
            arguments.parts = usage.parts.iter().map(|&part| part.to_owned()).collect();
        }
        Ok(arguments)
    }

    /// The value of an option, the last one if it was given twice.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().rev().find(|(given, _)| given == name).map(|(_, value)| *value)
    }

    /// `--seconds`.
    #[must_use]
    pub fn seconds(&self) -> Option<Duration> {
        self.number("--seconds").map(Duration::from_secs_f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage {
        bench: "example",
        numbers: &["--seconds"],
        parts: &["rates", "held"],
        on_request: &["long"],
        keys: &[],
    };

    fn parse(line: &str) -> anyhow::Result<Arguments> {
        Arguments::parse(&USAGE, line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn without_a_part_all_are_measured_but_those_on_request() {
        let arguments = parse("--seconds 0.5").unwrap();
        assert_eq!(arguments.parts, ["rates", "held"]);
        assert_eq!(arguments.seconds(), Some(Duration::from_millis(500)));
        assert_eq!(arguments.out, PathBuf::from(OUT));
        assert_eq!(parse("long held --out folder").unwrap().parts, ["long", "held"]);
    }

    #[test]
    fn what_is_not_understood_is_answered_with_what_would_be() {
        assert_eq!(
            parse("--what").unwrap_err().to_string(),
            "usage: cargo xtask bench example [-- [--seconds N] [--out FOLDER] [rates] [held] [long]]"
        );
        for line in ["--seconds", "--seconds many", "--seconds 0", "--out"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
