//! The arguments of a job: ids and numbers, and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use uuid::Uuid;

use super::error::InvalidJob;
use crate::limits::{JOB_ARGUMENT_NAME_CHARACTERS_MAX, JOB_ARGUMENTS_MAX, TEXT_CHARACTERS_MAX};

/// The arguments of a job: what it is about, and not what it needs to know about it.
///
/// A value is an id or a number, by its type: there is no way to put a document or a flag into it. The worker reads what it
/// needs when it runs, with the rights and the data of that moment, and what is deleted by then stays deleted.
///
/// ```
/// use seqline::job::JobArgs;
///
/// let args = JobArgs::new().with("seq", 17).with("order_id", "a-4711");
/// assert_eq!(args.to_json(), r#"{"order_id":"a-4711","seq":17}"#);
/// ```
///
/// ```compile_fail,E0277
/// # use seqline::job::JobArgs;
/// JobArgs::new().with("paid", true);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct JobArgs(BTreeMap<String, JobArg>);

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum JobArg {
    /// A sequence number, a version, or an id that is a number.
    Number(i64),
    /// An id.
    Id(String),
}

impl JobArgs {
    /// No arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an argument, or replaces the one of this name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<JobArg>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// The JSON object, in the bytes that River's clients make of it: names in order, no spaces, and the characters escaped
    /// that Go's encoder escapes. Keys of unique jobs are hashes of these bytes.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::from("{");
        for (name, value) in &self.0 {
            if json.len() > 1 {
                json.push(',');
            }
            write_string(name, &mut json);
            json.push(':');
            match value {
                JobArg::Number(number) => {
                    let _ = write!(json, "{number}");
                }
                JobArg::Id(id) => write_string(id, &mut json),
            }
        }
        json.push('}');
        json
    }

    /// About how many bytes the JSON has.
    pub(super) fn bytes(&self) -> usize {
        let value = |value: &JobArg| match value {
            JobArg::Number(_) => size_of::<i64>(),
            JobArg::Id(id) => id.len(),
        };
        self.0.iter().map(|(name, arg)| name.len() + value(arg)).sum()
    }

    pub(super) fn check(&self) -> Result<(), InvalidJob> {
        if self.0.len() > JOB_ARGUMENTS_MAX {
            return Err(InvalidJob::TooManyArguments);
        }
        for (name, value) in &self.0 {
            if !is_name(name) {
                return Err(InvalidJob::ArgumentName);
            }
            if let JobArg::Id(id) = value {
                let invalid = |rule: fn(String) -> InvalidJob| Err(rule(name.clone()));
                if id.is_empty() {
                    return invalid(InvalidJob::EmptyArgument);
                }
                if id.chars().count() > TEXT_CHARACTERS_MAX {
                    return invalid(InvalidJob::LongArgument);
                }
                if id.chars().any(char::is_control) {
                    return invalid(InvalidJob::ControlCharacter);
                }
            }
        }
        Ok(())
    }
}

impl From<i64> for JobArg {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for JobArg {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for JobArg {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for JobArg {
    fn from(id: &str) -> Self {
        Self::Id(id.to_owned())
    }
}

impl From<&String> for JobArg {
    fn from(id: &String) -> Self {
        Self::Id(id.clone())
    }
}

impl From<String> for JobArg {
    fn from(id: String) -> Self {
        Self::Id(id)
    }
}

impl From<Uuid> for JobArg {
    fn from(id: Uuid) -> Self {
        Self::Id(id.to_string())
    }
}

/// A name that is a field in every language.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= JOB_ARGUMENT_NAME_CHARACTERS_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A JSON string as Go writes it: what could end a script in a page is escaped too.
fn write_string(text: &str, json: &mut String) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests;
