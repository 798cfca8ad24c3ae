//! What LLVM counted, as far as it says something: not of programs' entry points, and not of tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::PACKAGES;

/// How many there are, and how many of them were run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(super) all: usize,
    pub(super) run: usize,
}

impl Count {
    fn add(&mut self, was_run: bool) {
        self.all += 1;
        self.run += usize::from(was_run);
    }
}

/// In percent with one decimal, never rounded up: 100 means all. All of nothing is all.
pub(crate) fn percent(count: Count) -> f64 {
    let per_mille = (count.run * 1000).checked_div(count.all).unwrap_or(1000);
    f64::from(u32::try_from(per_mille).unwrap_or(1000)) / 10.0
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(super) lines: Count,
    pub(super) functions: Count,
    pub(super) branches: Count,
}

impl Figures {
    /// Lines, functions, branches.
    pub(crate) fn percents(self) -> [f64; 3] {
        [self.lines, self.functions, self.branches].map(percent)
    }

    fn plus(self, other: Self) -> Self {
        let sum = |a: Count, b: Count| Count { all: a.all + b.all, run: a.run + b.run };
        Self {
            lines: sum(self.lines, other.lines),
            functions: sum(self.functions, other.functions),
            branches: sum(self.branches, other.branches),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// By path from the root of the checkout.
    pub(crate) files: BTreeMap<String, Figures>,
    /// The lines at which a branch begins of which one of two ways was never taken.
    pub(crate) branches_not_taken: BTreeMap<String, BTreeSet<u64>>,
    /// Of all files. LLVM calls them regions: what runs as a whole.
    pub(crate) statements: Count,
}

impl Measured {
    pub(crate) fn parse(root: &Path, lcov: &str, json: &str) -> Result<Self> {
        let sources = Sources { root, ends: BTreeMap::new() };
        Self::parse_with(sources, lcov, json)
    }

    fn parse_with(mut sources: Sources<'_>, lcov: &str, json: &str) -> Result<Self> {
        let mut measured = Self::default();
        for record in lcov.split("end_of_record") {
            let Some(file) = record.lines().find_map(|line| line.strip_prefix("SF:")) else { continue };
            let Some((path, end)) = sources.judged(file)? else { continue };
            let (figures, not_taken) = figures(record, end)?;
            if figures != Figures::default() {
                measured.files.insert(path.clone(), figures);
            }
            if !not_taken.is_empty() {
                measured.branches_not_taken.insert(path, not_taken);
            }
        }
        measured.statements = statements(&mut sources, json)?;
        Ok(measured)
    }

    /// Of all files whose paths begin like this.
    pub(crate) fn sum(&self, beginning: &str) -> Figures {
        let files = self.files.iter().filter(|(path, _)| path.starts_with(beginning));
        files.fold(Figures::default(), |sum, (_, figures)| sum.plus(*figures))
    }
}

/// Which files count, and up to which of their lines.
struct Sources<'a> {
    root: &'a Path,
    /// For each that was asked for, whether it counts and where its tests begin.
    ends: BTreeMap<String, Option<u64>>,
}

impl Sources<'_> {
    /// The path from the root and the line at which its tests begin, if the file counts.
    fn judged(&mut self, file: &str) -> Result<Option<(String, u64)>> {
        let Ok(path) = Path::new(file).strip_prefix(self.root) else { return Ok(None) };
        let path = path.to_string_lossy().into_owned();
        if !self.ends.contains_key(&path) {
            let end = if counts(&path) && !self.is_a_test(&path)? {
                let text = fs::read_to_string(file).with_context(|| format!("failed to read {file}"))?;
                Some(tests_begin_at(&text))
            } else {
                None
            };
            self.ends.insert(path.clone(), end);
        }
        Ok(self.ends[&path].map(|end| (path, end)))
    }

    /// Whether the module that declares it does so for tests.
    fn is_a_test(&self, path: &str) -> Result<bool> {
        let path = Path::new(path);
        let (Some(folder), Some(name)) = (path.parent(), path.file_stem()) else { return Ok(false) };
        let name = name.to_string_lossy();
        let beside = folder.with_extension("rs");
        let parents = [folder.join("mod.rs"), folder.join("lib.rs"), beside];
        for parent in parents.map(|parent: PathBuf| self.root.join(parent)).iter().filter(|it| it.is_file()) {
            let text =
                fs::read_to_string(parent).with_context(|| format!("failed to read {}", parent.display()))?;
            if text.contains(&format!("#[cfg(test)]\nmod {name};")) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether a path is of a crate that ships, and no entry point.
fn counts(path: &str) -> bool {
    let ships = PACKAGES.iter().any(|package| path.starts_with(&format!("crates/{package}/src/")));
    ships && !path.ends_with("/main.rs") && !path.contains("/bin/")
}

/// The number of the line at which the tests of a file begin, which are at its end.
fn tests_begin_at(text: &str) -> u64 {
    let before = text.split("#[cfg(test)]\nmod ").next().filter(|before| before.len() < text.len());
    before.map_or(u64::MAX, |before| before.lines().count() as u64 + 1)
}

/// Counts one record of lcov up to a line, and says at which lines a branch was not taken.
fn figures(record: &str, end: u64) -> Result<(Figures, BTreeSet<u64>)> {
    let mut lines = BTreeMap::new();
    let mut functions_at = BTreeMap::new();
    let mut functions = BTreeMap::new();
    let mut branches = Count::default();
    let mut not_taken = BTreeSet::new();
    let number =
        |text: &str| text.parse::<u64>().with_context(|| format!("lcov has no number in \"{text}\""));
    for line in record.lines() {
        let Some((kind, rest)) = line.split_once(':') else { continue };
        let mut parts = rest.split(',');
        let mut part = || parts.next().unwrap_or_default();
        match kind {
            "DA" => {
                let (at, count) = (number(part())?, number(part())?);
                *lines.entry(at).or_insert(0) += count;
            }
            // A function of many types is there for each of them. What begins at one line is one function.
            "FN" => {
                let at = number(part())?;
                functions_at.insert(part().to_owned(), at);
            }
            "FNDA" => {
                let count = number(part())?;
                if let Some(at) = functions_at.get(part()) {
                    *functions.entry(*at).or_insert(0) += count;
                }
            }
            "BRDA" => {
                let at = number(part())?;
                if at < end {
                    let was_taken = rest.rsplit(',').next().is_some_and(|count| !matches!(count, "0" | "-"));
                    branches.add(was_taken);
                    if !was_taken {
                        not_taken.insert(at);
                    }
                }
            }
            _ => {}
        }
    }
    let count = |counts: BTreeMap<u64, u64>| {
        let mut sum = Count::default();
        counts.range(..end).for_each(|(_, count)| sum.add(*count > 0));
        sum
    };
    Ok((Figures { lines: count(lines), functions: count(functions), branches }, not_taken))
}

/// The part of LLVM's own format in which statements are.
#[derive(Deserialize)]
struct Export {
    data: Vec<Data>,
}

#[derive(Deserialize)]
struct Data {
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    filenames: Vec<String>,
    /// Line, column, line, column, how often it was run, two numbers of files, and what it is: 0 is code.
    regions: Vec<[u64; 8]>,
}

fn statements(sources: &mut Sources<'_>, json: &str) -> Result<Count> {
    let export: Export = serde_json::from_str(json).context("failed to read what LLVM has exported")?;
    let mut found = BTreeMap::new();
    for function in export.data.iter().flat_map(|data| &data.functions) {
        for [line, column, last_line, last_column, count, file, _, kind] in &function.regions {
            let name = usize::try_from(*file).ok().and_then(|file| function.filenames.get(file));
            let Some(name) = name.filter(|_| *kind == 0) else { continue };
            let Some((path, end)) = sources.judged(name)? else { continue };
            if *line < end {
                let place = (path, *line, *column, *last_line, *last_column);
                *found.entry(place).or_insert(false) |= *count > 0;
            }
        }
    }
    let mut sum = Count::default();
    found.into_values().for_each(|was_run| sum.add(was_run));
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// A function of two types, one that is not run, and a test.
    const LCOV: &str = "\
SF:ROOT/crates/seqline/src/it.rs
FN:1,first_of_u32
FN:1,first_of_u64
FN:5,second
FN:12,tests::it
FNDA:0,first_of_u32
FNDA:3,first_of_u64
FNDA:0,second
FNDA:1,tests::it
BRDA:2,0,0,3
BRDA:2,0,1,0
BRDA:5,0,0,-
BRDA:5,0,1,-
BRDA:12,0,0,7
DA:1,3
DA:2,3
DA:5,0
DA:12,1
end_of_record
SF:ROOT/crates/seqline/src/main.rs
DA:1,0
end_of_record
SF:ROOT/crates/seqline/src/it/tests.rs
DA:1,1
end_of_record
SF:ROOT/crates/seqline-testkit/src/lib.rs
DA:1,1
end_of_record
SF:/elsewhere/lib.rs
DA:1,1
end_of_record
";

    const JSON: &str = r#"{"data": [{"functions": [
        {"name": "first_of_u32", "filenames": ["ROOT/crates/seqline/src/it.rs"], "regions": [[1,1,3,2,0,0,0,0], [2,4,2,9,0,0,0,0]]},
        {"name": "first_of_u64", "filenames": ["ROOT/crates/seqline/src/it.rs"], "regions": [[1,1,3,2,3,0,0,0], [2,4,2,9,0,0,0,0]]},
        {"name": "gap", "filenames": ["ROOT/crates/seqline/src/it.rs"], "regions": [[4,1,4,2,0,0,0,3]]},
        {"name": "test", "filenames": ["ROOT/crates/seqline/src/it.rs"], "regions": [[12,1,12,2,1,0,0,0]]}
    ]}]}"#;

    fn measured(scratch: &Scratch) -> Measured {
        let source = scratch.path().join("crates/seqline/src");
        fs::create_dir_all(source.join("it")).unwrap();
        let text = format!("{}#[cfg(test)]\nmod tests;\n", "\n".repeat(9));
        fs::write(source.join("it.rs"), text).unwrap();
        for file in ["main.rs", "it/tests.rs"] {
            fs::write(source.join(file), "").unwrap();
        }
        let root = scratch.path().to_str().unwrap();
        let [lcov, json] = [LCOV, JSON].map(|text| text.replace("ROOT", root));
        Measured::parse(scratch.path(), &lcov, &json).unwrap()
    }

    #[test]
    fn what_is_no_product_and_what_is_a_test_does_not_count() {
        let scratch = Scratch::new("measured-counts");
        let measured = measured(&scratch);
        assert_eq!(measured.files.keys().collect::<Vec<_>>(), ["crates/seqline/src/it.rs"]);
        assert_eq!(measured.statements, Count { all: 2, run: 1 });
    }

    #[test]
    fn a_function_of_many_types_is_one_and_each_branch_has_two_ways() {
        let scratch = Scratch::new("measured-figures");
        let measured = measured(&scratch);
        let figures = measured.sum("crates/seqline/");
        assert_eq!(figures.lines, Count { all: 3, run: 2 });
        assert_eq!(figures.functions, Count { all: 2, run: 1 });
        assert_eq!(figures.branches, Count { all: 4, run: 1 });
        let not_taken = &measured.branches_not_taken["crates/seqline/src/it.rs"];
        assert_eq!(not_taken.iter().collect::<Vec<_>>(), [&2, &5]);
        assert_eq!(measured.sum("crates/seqline-server/"), Figures::default());
    }

    #[test]
    fn a_figure_is_never_rounded_up() {
        assert_eq!(percent(Count { all: 3, run: 2 }), 66.6);
        assert_eq!(percent(Count { all: 2000, run: 1999 }), 99.9);
        assert_eq!(percent(Count { all: 0, run: 0 }), 100.0);
    }
}
