//! How a key of each kind is written in the table: in a few words.

use core::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::Config;
use super::schema::{FilterBy, Key, Kind};

pub(super) const fn duration(
    name: &'static str,
    default: Duration,
    range: RangeInclusive<Duration>,
    field: fn(&mut Config) -> &mut Duration,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Duration { default, range, field } }
}

pub(super) const fn integer(
    name: &'static str,
    default: u32,
    range: RangeInclusive<u32>,
    field: fn(&mut Config) -> &mut u32,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Integer { default, range, field } }
}

/// A number of bytes that can be more than fits into the other kind.
pub(super) const fn size(
    name: &'static str,
    default: u64,
    range: RangeInclusive<u64>,
    field: fn(&mut Config) -> &mut u64,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Size { default, range, field } }
}

pub(super) const fn filter(
    name: &'static str,
    by: FilterBy,
    field: fn(&mut Config) -> &mut Vec<String>,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Filter { by, field } }
}

pub(super) const fn switch(
    name: &'static str,
    default: bool,
    field: fn(&mut Config) -> &mut bool,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Switch { default, field } }
}

pub(super) const fn address(
    name: &'static str,
    default: SocketAddr,
    field: fn(&mut Config) -> &mut SocketAddr,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Address { default, field } }
}

/// A text that may be left out when the default is empty.
pub(super) const fn text(
    name: &'static str,
    default: &'static str,
    field: fn(&mut Config) -> &mut String,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Text { default, field } }
}

/// The first name is the default.
pub(super) const fn choice(
    name: &'static str,
    names: &'static [&'static str],
    set: fn(&mut Config, usize),
    get: fn(&Config) -> usize,
    doc: &'static str,
) -> Key {
    Key { name, doc, kind: Kind::Choice { names, set, get } }
}

pub(super) const fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(super) const fn secs(number: u64) -> Duration {
    Duration::from_secs(number)
}

pub(super) const fn mins(number: u64) -> Duration {
    secs(60 * number)
}

pub(super) const fn hours(number: u64) -> Duration {
    mins(60 * number)
}

pub(super) const fn days(number: u64) -> Duration {
    hours(24 * number)
}
