//! What a key is: its name, default and bounds, and the field that it sets.

use core::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use seqline::consumer::Filter;
use seqline::limits::{FILTER_VALUES_MAX, TEXT_CHARACTERS_MAX};

use super::Config;
pub use super::keys::KEYS;
use super::values::{self, ENDPOINT_BYTES_MAX, Given, NameForm, SCHEMA_NAME_BYTES_MAX, TEXT_BYTES_MAX};

/// A setting.
#[derive(Debug, Clone)]
pub struct Key {
    /// `section.key`
    pub name: &'static str,
    /// What it does and why it is there, in a sentence.
    pub doc: &'static str,
    pub(super) kind: Kind,
}

/// What a value has to be, and where it goes.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Duration {
        default: Duration,
        range: RangeInclusive<Duration>,
        field: fn(&mut Config) -> &mut Duration,
    },
    Integer {
        default: u32,
        range: RangeInclusive<u32>,
        field: fn(&mut Config) -> &mut u32,
    },
    /// A number of bytes.
    Size {
        default: u64,
        range: RangeInclusive<u64>,
        field: fn(&mut Config) -> &mut u64,
    },
    Switch {
        default: bool,
        field: fn(&mut Config) -> &mut bool,
    },
    /// One of some names, the first of which is the default.
    Choice {
        names: &'static [&'static str],
        set: fn(&mut Config, usize),
        get: fn(&Config) -> usize,
    },
    Address {
        default: SocketAddr,
        field: fn(&mut Config) -> &mut SocketAddr,
    },
    /// A URL without anything secret in it. None is an empty text.
    Endpoint {
        field: fn(&mut Config) -> &mut String,
    },
    /// A text that means something elsewhere. One that is empty is none, if the default is.
    Text {
        default: &'static str,
        field: fn(&mut Config) -> &mut String,
    },
    SchemaName {
        default: &'static str,
        field: fn(&mut Config) -> &mut String,
    },
    /// The name of something elsewhere.
    Name {
        default: &'static str,
        form: &'static NameForm,
        field: fn(&mut Config) -> &mut String,
    },
    /// Values of a filter by something. None are everything.
    Filter {
        by: FilterBy,
        field: fn(&mut Config) -> &mut Vec<String>,
    },
}

/// Narrows a filter to some values.
pub(super) type FilterBy = fn(Filter, Vec<String>) -> Filter;

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not what is expected.
    Unexpected,
    /// It breaks a rule, whose sentence holds no value.
    Rule(String),
}

impl Key {
    /// The key with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The variable that sets it.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("SEQLINE_{}", self.name.replace('.', "__").to_uppercase())
    }

    /// The default as one would type it.
    #[must_use]
    pub fn default_text(&self) -> String {
        self.value_text(&Config::default())
    }

    /// The value as one would type it into a variable: empty for none.
    #[must_use]
    pub fn value_text(&self, config: &Config) -> String {
        // The fields are reached for writing, so this reads a copy.
        let config = &mut config.clone();
        match &self.kind {
            Kind::Duration { field, .. } => values::duration_text(*field(config)),
            Kind::Integer { field, .. } => field(config).to_string(),
            Kind::Size { field, .. } => field(config).to_string(),
            Kind::Switch { field, .. } => field(config).to_string(),
            Kind::Choice { names, get, .. } => names[get(config)].to_owned(),
            Kind::Address { field, .. } => field(config).to_string(),
            Kind::Endpoint { field }
            | Kind::Text { field, .. }
            | Kind::SchemaName { field, .. }
            | Kind::Name { field, .. } => field(config).clone(),
            Kind::Filter { field, .. } => field(config).join(","),
        }
    }

    /// The smallest and the largest value, as words.
    #[must_use]
    pub fn bounds(&self) -> String {
        match &self.kind {
            Kind::Duration { range, .. } => {
                let [least, most] = [range.start(), range.end()].map(|bound| values::duration_text(*bound));
                format!("{least} to {most}")
            }
            Kind::Integer { range, .. } => format!("{} to {}", range.start(), range.end()),
            Kind::Size { range, .. } => format!("{} to {}", range.start(), range.end()),
            Kind::Switch { .. } => "true or false".to_owned(),
            Kind::Choice { names, .. } => names.join(", "),
            Kind::Address { .. } => "address:port".to_owned(),
            Kind::Endpoint { .. } => format!("up to {ENDPOINT_BYTES_MAX} bytes"),
            Kind::Text { default: "", .. } => format!("up to {TEXT_BYTES_MAX} bytes"),
            Kind::Text { .. } => format!("1 to {TEXT_BYTES_MAX} bytes"),
            Kind::SchemaName { .. } => format!("1 to {SCHEMA_NAME_BYTES_MAX} bytes"),
            Kind::Name { form, .. } => format!("1 to {} bytes", form.bytes_max),
            Kind::Filter { .. } => {
                format!("up to {FILTER_VALUES_MAX} values of 1 to {TEXT_CHARACTERS_MAX} characters")
            }
        }
    }

    /// What a value has to be.
    #[must_use]
    pub fn expected(&self) -> String {
        let bounds = self.bounds();
        match self.kind {
            Kind::Duration { .. } => format!("a duration with its unit, such as \"1s\", from {bounds}"),
            Kind::Integer { .. } | Kind::Size { .. } => format!("a whole number from {bounds}"),
            Kind::Switch { .. } => bounds,
            Kind::Choice { .. } => format!("one of {bounds}"),
            Kind::Address { .. } => {
                "an IP address and a port, such as \"127.0.0.1:7465\" or \"[::1]:7465\"".to_owned()
            }
            Kind::Endpoint { .. } => {
                format!("a URL that begins with http:// or https://, without a user, {bounds}")
            }
            Kind::Text { .. } => format!("a text of {bounds} without control characters"),
            Kind::Filter { .. } => format!("a list of texts, {bounds}"),
            Kind::Name { form, .. } => format!("a name of {bounds}: {}", form.letters),
            Kind::SchemaName { .. } => format!(
                "the name of a schema of {bounds}: a-z, 0-9 and _, no digit first, not seqline and not pg_..."
            ),
        }
    }

    /// Sets the default.
    pub(super) fn reset(&self, config: &mut Config) {
        match &self.kind {
            Kind::Duration { default, field, .. } => *field(config) = *default,
            Kind::Integer { default, field, .. } => *field(config) = *default,
            Kind::Size { default, field, .. } => *field(config) = *default,
            Kind::Switch { default, field } => *field(config) = *default,
            Kind::Choice { set, .. } => set(config, 0),
            Kind::Address { default, field } => *field(config) = *default,
            Kind::Endpoint { field } => field(config).clear(),
            Kind::Text { default, field }
            | Kind::SchemaName { default, field }
            | Kind::Name { default, field, .. } => {
                *field(config) = (*default).to_owned();
            }
            Kind::Filter { field, .. } => field(config).clear(),
        }
    }

    /// Sets the value if it is as expected.
    pub(super) fn set(&self, config: &mut Config, given: Given<'_>) -> Result<(), Refusal> {
        match &self.kind {
            Kind::Duration { range, field, .. } => assign(field(config), values::duration(given, range)),
            Kind::Integer { range, field, .. } => assign(field(config), values::integer(given, range)),
            Kind::Size { range, field, .. } => assign(field(config), values::size(given, range)),
            Kind::Switch { field, .. } => assign(field(config), values::switch(given)),
            Kind::Choice { names, set, .. } => {
                set(config, values::choice(given, names).ok_or(Refusal::Unexpected)?);
                Ok(())
            }
            Kind::Address { field, .. } => assign(field(config), values::address(given)),
            Kind::Endpoint { field } => assign(field(config), values::endpoint(given)),
            Kind::Text { default, field } => assign(
                field(config),
                values::text(given).filter(|text| default.is_empty() || !text.is_empty()),
            ),
            Kind::SchemaName { field, .. } => assign(field(config), values::schema_name(given)),
            Kind::Name { form, field, .. } => assign(field(config), values::name(given, form)),
            Kind::Filter { by, field } => {
                let list = values::texts(given).ok_or(Refusal::Unexpected)?;
                if !list.is_empty() {
                    let rule = by(Filter::everything(), list.clone()).check();
                    rule.map_err(|rule| Refusal::Rule(rule.to_string()))?;
                }
                *field(config) = list;
                Ok(())
            }
        }
    }

    /// The same for a variable or an option, in which everything is text.
    pub(super) fn set_text(&self, config: &mut Config, text: &str) -> Result<(), Refusal> {
        match &self.kind {
            Kind::Integer { .. } | Kind::Size { .. } => {
                self.set(config, text.trim().parse().map_or(Given::Other, Given::Integer))
            }
            Kind::Switch { .. } => self.set(config, text.trim().parse().map_or(Given::Other, Given::Switch)),
            Kind::Filter { .. } => {
                let list: Vec<&str> = text.split(',').map(str::trim).collect();
                self.set(config, Given::Texts(if text.trim().is_empty() { &[] } else { &list }))
            }
            _ => self.set(config, Given::Text(text)),
        }
    }
}

fn assign<T>(field: &mut T, value: Option<T>) -> Result<(), Refusal> {
    *field = value.ok_or(Refusal::Unexpected)?;
    Ok(())
}
