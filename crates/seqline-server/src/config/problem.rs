//! What is wrong with a configuration.

use std::fmt::{self, Display, Formatter};

/// Where something was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line of the file, from 1.
    Line {
        /// The file.
        file: String,
        /// Its line.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// The option `--set`.
    Option,
}

/// One thing that is wrong. None of them holds a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The file is not TOML, from there on.
    Syntax {
        /// Where.
        place: Place,
    },
    /// There is no such section.
    UnknownSection {
        /// Its name, if it looks like one.
        name: Option<String>,
        /// Where.
        place: Place,
        /// What may have been meant.
        meant: Option<&'static str>,
    },
    /// There is no such key.
    UnknownKey {
        /// Its name, if it looks like one.
        name: Option<String>,
        /// Where.
        place: Place,
        /// What may have been meant, as it is written in that place.
        meant: Option<String>,
    },
    /// It is given in another way.
    NoKey {
        /// What it would be called if it were a key.
        name: &'static str,
        /// Where.
        place: Place,
        /// How it is given, as a sentence.
        instead: &'static str,
    },
    /// What an option sets is not a key, an equals sign and a value.
    NoAssignment {
        /// Where.
        place: Place,
    },
    /// A section is something else than a table.
    NoTable {
        /// The section.
        section: &'static str,
        /// Where.
        place: Place,
    },
    /// The value is not of the right kind, or out of bounds.
    Value {
        /// The key.
        key: &'static str,
        /// Where.
        place: Place,
        /// What it has to be.
        expected: String,
    },
    /// The value breaks a rule of what it is for.
    Rule {
        /// The key.
        key: &'static str,
        /// Where.
        place: Place,
        /// The rule, as a sentence.
        rule: String,
    },
    /// Values do not fit each other.
    Check {
        /// The name of the check.
        name: &'static str,
        /// The keys.
        keys: &'static [&'static str],
        /// What has to hold between them.
        rule: &'static str,
    },
}

/// Everything that is wrong, one per line.
#[derive(Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problem {
    /// The line of the file, if it is there.
    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Self::Syntax { place }
            | Self::UnknownSection { place, .. }
            | Self::UnknownKey { place, .. }
            | Self::NoKey { place, .. }
            | Self::NoTable { place, .. }
            | Self::NoAssignment { place }
            | Self::Rule { place, .. }
            | Self::Value { place, .. } => place.line(),
            Self::Check { .. } => None,
        }
    }
}

impl Place {
    /// The line of the file, if it is there.
    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Self::Line { line, .. } => Some(*line),
            Self::Variable(_) | Self::Option => None,
        }
    }
}

impl Display for Place {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(out, "{file} line {line}"),
            Self::Variable(name) => out.write_str(name),
            Self::Option => out.write_str("--set"),
        }
    }
}

impl Display for Problem {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let quoted =
            |name: &Option<String>| name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        let question =
            |meant: Option<&str>| meant.map_or_else(String::new, |meant| format!(", did you mean {meant}?"));
        match self {
            Self::Syntax { place } => write!(out, "{place}: this is not TOML, or it is there a second time"),
            Self::UnknownSection { name, place, meant } => {
                write!(out, "{place}: unknown section{}{}", quoted(name), question(*meant))
            }
            Self::UnknownKey { name, place, meant } => {
                write!(out, "{place}: unknown key{}{}", quoted(name), question(meant.as_deref()))
            }
            Self::NoKey { name, place, instead } => write!(out, "{place}: {name} is no key: {instead}"),
            Self::NoAssignment { place } => write!(out, "{place}: expected section.key=value"),
            Self::NoTable { section, place } => {
                write!(out, "{place}: {section} is a section: expected a table")
            }
            Self::Value { key, place, expected } => write!(out, "{place}: {key}: expected {expected}"),
            Self::Rule { key, place, rule } => write!(out, "{place}: {key}: {rule}"),
            Self::Check { name, keys, rule } => {
                write!(out, "{} {rule} {} (check {name})", keys[0], keys[1..].join(" and "))
            }
        }
    }
}

impl Display for Problems {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("the configuration is not valid")?;
        self.0.iter().try_for_each(|problem| write!(out, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
