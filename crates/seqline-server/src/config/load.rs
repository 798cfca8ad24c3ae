//! Defaults, then a file, then the environment, then the command line. Nothing is read here: the caller brings text and variables.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::Config;
use super::checks::CHECKS;
use super::problem::{Place, Problem, Problems};
use super::schema::{KEYS, Key, Refusal};
use super::values::Given;

/// A file that was read.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// What to call it.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// The configuration, and where each value that is no default comes from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Whole and within its bounds.
    pub config: Config,
    /// Each key that was set, and where its value comes from: of several places the strongest.
    pub sources: BTreeMap<&'static str, Source>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A line of the file.
    Line(usize),
    /// The variable of its name.
    Variable,
    /// The option `--set`.
    Option,
}

/// The configuration, from its defaults, a file, variables of the environment, and what options set (`section.key=value`): what
/// comes later is the stronger.
///
/// # Errors
///
/// [`Problems`]: all of them.
pub fn load<'a>(
    file: Option<&ConfigFile>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    options: impl IntoIterator<Item = &'a str>,
) -> Result<Loaded, Problems> {
    let (config, sources) = (Config::default(), BTreeMap::new());
    let mut loading = Loading { config, sources, problems: Vec::new(), whole: true };
    if let Some(file) = file {
        loading.file(file);
    }
    for (name, value) in variables {
        loading.variable(&name, &value);
    }
    for option in options {
        loading.option(option);
    }
    loading.check();
    match loading.problems {
        problems if problems.is_empty() => Ok(Loaded { config: loading.config, sources: loading.sources }),
        problems => Err(Problems(problems)),
    }
}

struct Loading {
    config: Config,
    sources: BTreeMap<&'static str, Source>,
    problems: Vec<Problem>,
    /// Whether the file could be read as a whole, so that it is known what it sets.
    whole: bool,
}

impl Loading {
    fn file(&mut self, file: &ConfigFile) {
        let text = match std::str::from_utf8(&file.bytes) {
            Ok(text) => text,
            Err(error) => return self.not_toml(file, error.valid_up_to()),
        };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            self.not_toml(file, error.span().map_or(0, |span| span.start));
        }
        // What a parser makes of a text with errors may be anything.
        if errors.is_empty() {
            for (name, value) in table.get_ref() {
                self.section(file, name, value);
            }
        }
        self.problems.sort_by_key(Problem::line);
    }

    fn not_toml(&mut self, file: &ConfigFile, offset: usize) {
        self.whole = false;
        let problem = Problem::Syntax { place: file.place(offset) };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn section(&mut self, file: &ConfigFile, name: &Spanned<impl AsRef<str>>, value: &Spanned<DeValue<'_>>) {
        let place = file.place(name.span().start);
        let Some(section) = sections().into_iter().find(|section| *section == name.get_ref().as_ref()) else {
            let name = name.get_ref().as_ref();
            let meant = closest(name, sections());
            return self.problems.push(Problem::UnknownSection { name: plain(name), place, meant });
        };
        let DeValue::Table(table) = value.get_ref() else {
            return self.problems.push(Problem::NoTable { section, place });
        };
        for (name, value) in table {
            self.key(file, section, name, value);
        }
    }

    fn key(
        &mut self,
        file: &ConfigFile,
        section: &str,
        name: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let place = file.place(name.span().start);
        let full = format!("{section}.{}", name.get_ref().as_ref());
        let Some(key) = Key::find(&full) else {
            if let Some(no_key) = no_key(&full, &place) {
                return self.problems.push(no_key);
            }
            let meant = meant(&full).map(|key| key.name.to_owned());
            let name = plain(name.get_ref().as_ref()).map(|_| full);
            return self.problems.push(Problem::UnknownKey { name, place, meant });
        };
        let texts = texts(value.get_ref());
        let given = match value.get_ref() {
            DeValue::String(text) => Given::Text(text),
            DeValue::Integer(number) => whole_number(number),
            DeValue::Boolean(on) => Given::Switch(*on),
            _ => texts.as_deref().map_or(Given::Other, Given::Texts),
        };
        let source = Source::Line(place.line().unwrap_or_default());
        let set = key.set(&mut self.config, given);
        self.done(key, place, source, set);
    }

    /// A variable that is empty counts as not set.
    fn variable(&mut self, name: &OsStr, value: &OsStr) {
        let Some(name) = name.to_str().filter(|name| is_ours(name)) else { return };
        let safe = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let place = Place::Variable(if safe { name } else { "a variable SEQLINE_X__Y" }.to_owned());
        let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
            let full = name.trim_start_matches("SEQLINE_").to_lowercase().replacen("__", ".", 1);
            if let Some(no_key) = no_key(&full, &place) {
                return self.problems.push(no_key);
            }
            let meant = meant(&full).map(Key::variable);
            return self.problems.push(Problem::UnknownKey { name: None, place, meant });
        };
        if value.is_empty() {
            return;
        }
        let text = value.to_str().ok_or(Refusal::Unexpected);
        let set = text.and_then(|text| key.set_text(&mut self.config, text));
        self.done(key, place, Source::Variable, set);
    }

    /// What follows `--set`. Here an empty value is a value: it is typed on purpose.
    fn option(&mut self, option: &str) {
        let place = Place::Option;
        let Some((name, value)) = option.split_once('=') else {
            return self.problems.push(Problem::NoAssignment { place });
        };
        let name = name.trim();
        let Some(key) = Key::find(name) else {
            if let Some(no_key) = no_key(name, &place) {
                return self.problems.push(no_key);
            }
            let meant = meant(name).map(|key| key.name.to_owned());
            let known_form =
                name.split('.').count() == 2 && name.split('.').all(|part| plain(part).is_some());
            return self.problems.push(Problem::UnknownKey {
                name: known_form.then(|| name.to_owned()),
                place,
                meant,
            });
        };
        let set = key.set_text(&mut self.config, value);
        self.done(key, place, Source::Option, set);
    }

    fn done(&mut self, key: &'static Key, place: Place, source: Source, set: Result<(), Refusal>) {
        match set {
            Ok(()) => {
                self.sources.insert(key.name, source);
            }
            Err(refusal) => self.refuse(key, place, refusal),
        }
    }

    fn refuse(&mut self, key: &Key, place: Place, refusal: Refusal) {
        let key_name = key.name;
        self.problems.push(match refusal {
            Refusal::Unexpected => Problem::Value { key: key_name, place, expected: key.expected() },
            Refusal::Rule(rule) => Problem::Rule { key: key_name, place, rule },
        });
    }

    /// Of what is known only.
    fn check(&mut self) {
        if !self.whole {
            return;
        }
        let refused: Vec<&str> = self
            .problems
            .iter()
            .filter_map(|problem| match problem {
                Problem::Value { key, .. } => Some(*key),
                _ => None,
            })
            .collect();
        for check in CHECKS {
            let known = !check.keys.iter().any(|key| refused.contains(key));
            if known && !(check.holds)(&self.config) {
                let (name, keys, rule) = (check.name, check.keys, check.rule);
                self.problems.push(Problem::Check { name, keys, rule });
            }
        }
    }
}

impl ConfigFile {
    fn place(&self, offset: usize) -> Place {
        let before = &self.bytes[..offset.min(self.bytes.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Place::Line { file: self.name.clone(), line }
    }
}

fn sections() -> BTreeSet<&'static str> {
    KEYS.iter().filter_map(|key| Some(key.name.split_once('.')?.0)).collect()
}

/// A variable that means a key, or looks like one with a single underscore.
fn is_ours(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("SEQLINE_") else { return false };
    rest.contains("__") || KEYS.iter().any(|key| key.variable().replace("__", "_") == name)
}

fn whole_number(number: &DeInteger<'_>) -> Given<'static> {
    i64::from_str_radix(number.as_str(), number.radix()).map_or(Given::Other, Given::Integer)
}

/// What an array of strings holds.
fn texts<'a>(value: &'a DeValue<'_>) -> Option<Vec<&'a str>> {
    let DeValue::Array(array) = value else { return None };
    let text = |value: &'a Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::String(text) => Some(text.as_ref()),
        _ => None,
    };
    array.iter().map(text).collect()
}

/// A name that is safe to repeat. Anything else may be a secret in a wrong place.
fn plain(name: &str) -> Option<String> {
    let safe = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (name.len() <= 64 && name.chars().all(safe)).then(|| name.to_owned())
}

/// What somebody may look for among the keys, and is none because it holds a password or stands beside one.
fn no_key(full: &str, place: &Place) -> Option<Problem> {
    const DATABASE: &str = "the URL of the database comes from --database-url or SEQLINE_DATABASE_URL";
    const DATABASE_PART: &str = "it stands in the URL of --database-url or SEQLINE_DATABASE_URL";
    const LISTEN: &str = "the URL for listening comes from --listen-url or SEQLINE_LISTEN_URL";
    const BROKER: &str = "the URL of the broker comes from --nats-url or SEQLINE_NATS_URL";
    const BROKER_PART: &str = "it stands in the URL of --nats-url or SEQLINE_NATS_URL";
    let (name, instead) = match full {
        "database.url" => ("database.url", DATABASE),
        "database.user" => ("database.user", DATABASE_PART),
        "database.password" => ("database.password", DATABASE_PART),
        "database.listen_url" => ("database.listen_url", LISTEN),
        "nats.url" => ("nats.url", BROKER),
        "nats.user" => ("nats.user", BROKER_PART),
        "nats.password" => ("nats.password", BROKER_PART),
        "nats.token" => ("nats.token", BROKER_PART),
        _ => return None,
    };
    Some(Problem::NoKey { name, place: place.clone(), instead })
}

/// The key that `full` is nearly, or the one with this name in another section.
fn meant(full: &str) -> Option<&'static Key> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let same = KEYS.iter().find(|key| last(key.name) == last(full));
    same.or_else(|| Key::find(closest(full, KEYS.iter().map(|key| key.name))?))
}

/// The one that takes a few changes of letters at most.
fn closest(name: &str, known: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    known
        .into_iter()
        .map(|known| (strsim::osa_distance(name, known), known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 6)
        .map(|(_, known)| known)
}
