//! What is covered at least, file by file. It only rises.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, anyhow};
use toml::de::{DeTable, DeValue};

use super::measured::Figures;

const NAMES: [&str; 3] = ["lines", "functions", "branches"];

const HEAD: &str = "\
# What tests cover of each file, in percent: `cargo xtask coverage` fails below it.
# `cargo xtask coverage --update` writes this file. It raises figures, takes up files that are new, and leaves out those that are gone.

";

#[derive(Debug, Default, PartialEq)]
pub(super) struct Ratchet {
    files: BTreeMap<String, [f64; 3]>,
}

impl Ratchet {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let table = DeTable::parse(text).map_err(|error| anyhow!("coverage.toml is not valid: {error}"))?;
        let files = table.get_ref().iter().map(|(path, figures)| {
            let path = path.get_ref().to_string();
            let figure = |name: &str| match figures.get_ref().as_table()?.get(name)?.get_ref() {
                DeValue::Float(number) => number.as_str().parse().ok(),
                _ => None,
            };
            let figures = NAMES.map(figure);
            let [Some(lines), Some(functions), Some(branches)] = figures else {
                return Err(anyhow!("coverage.toml: {path} needs lines, functions and branches, as 97.5"));
            };
            Ok((path, [lines, functions, branches]))
        });
        Ok(Self { files: files.collect::<Result<_>>().context("failed to read coverage.toml")? })
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = HEAD.to_owned();
        for (path, [lines, functions, branches]) in &self.files {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "\"{path}\" = {{ lines = {lines:.1}, functions = {functions:.1}, branches = {branches:.1} }}"
            );
        }
        text
    }

    pub(super) fn raise(&mut self, measured: &BTreeMap<String, Figures>) {
        self.files.retain(|path, _| measured.contains_key(path));
        for (path, figures) in measured {
            let before = self.files.entry(path.clone()).or_default();
            for (before, now) in before.iter_mut().zip(figures.percents()) {
                *before = before.max(now);
            }
        }
    }

    /// What is lower than it was, and what is new.
    pub(super) fn findings(&self, measured: &BTreeMap<String, Figures>) -> Vec<String> {
        let mut findings = Vec::new();
        for (path, figures) in measured {
            let Some(before) = self.files.get(path) else {
                findings.push(format!("{path}: not in coverage.toml, --update takes it up"));
                continue;
            };
            let figures = NAMES.into_iter().zip(before).zip(figures.percents());
            for ((name, before), now) in figures.filter(|((_, before), now)| now < *before) {
                findings.push(format!("{path}: {name} {now:.1}, before {before:.1}"));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::measured::Count;

    const PATH: &str = "crates/seqline/src/it.rs";

    fn measured(lines: usize, branches: usize) -> BTreeMap<String, Figures> {
        let [lines, functions, branches] = [lines, 1000, branches].map(|run| Count { all: 1000, run });
        BTreeMap::from([(PATH.to_owned(), Figures { lines, functions, branches })])
    }

    fn ratchet(lines: f64, branches: f64) -> Ratchet {
        Ratchet { files: BTreeMap::from([(PATH.to_owned(), [lines, 100.0, branches])]) }
    }

    #[test]
    fn a_figure_that_is_lower_is_found_and_names_the_file() {
        let ratchet = ratchet(97.5, 80.0);
        assert_eq!(ratchet.findings(&measured(975, 800)), Vec::<String>::new());
        assert_eq!(
            ratchet.findings(&measured(974, 790)),
            [format!("{PATH}: lines 97.4, before 97.5"), format!("{PATH}: branches 79.0, before 80.0")]
        );
    }

    #[test]
    fn an_update_raises_and_never_lowers() {
        let mut ratchet = ratchet(97.5, 80.0);
        ratchet.raise(&measured(900, 850));
        assert_eq!(ratchet, self::ratchet(97.5, 85.0));
    }

    #[test]
    fn an_update_takes_up_what_is_new_and_leaves_out_what_is_gone() {
        let mut ratchet =
            Ratchet { files: BTreeMap::from([("crates/seqline/src/gone.rs".into(), [1.0; 3])]) };
        assert_eq!(
            ratchet.findings(&measured(500, 500)),
            [format!("{PATH}: not in coverage.toml, --update takes it up")]
        );
        ratchet.raise(&measured(500, 500));
        assert_eq!(ratchet, self::ratchet(50.0, 50.0));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let ratchet = ratchet(97.5, 100.0);
        assert_eq!(Ratchet::parse(&ratchet.to_text()).unwrap(), ratchet);
    }

    #[test]
    fn a_file_without_a_figure_is_refused() {
        let error = Ratchet::parse("\"it.rs\" = { lines = 1.0, functions = 2.0 }\n").unwrap_err();
        assert!(format!("{error:#}").contains("it.rs needs lines, functions and branches"), "{error:#}");
    }
}
