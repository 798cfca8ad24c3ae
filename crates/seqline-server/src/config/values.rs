//! Reading single values, and saying what was expected. A value that is refused is not repeated.

use core::net::{IpAddr, SocketAddr};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::time::Duration;

/// River's notification channels are named after the schema and have to fit into an identifier.
pub(super) const SCHEMA_NAME_BYTES_MAX: usize = 46;

/// Longer than any that is in use.
pub(super) const ENDPOINT_BYTES_MAX: usize = 2000;

/// The same for texts.
pub(super) const TEXT_BYTES_MAX: usize = 500;

/// A value as a source gives it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Given<'a> {
    /// A variable, or a string in a file.
    Text(&'a str),
    /// A variable, cut at its commas, or an array of strings in a file.
    Texts(&'a [&'a str]),
    /// A whole number in a file.
    Integer(i64),
    /// `true` or `false`.
    Switch(bool),
    /// Anything else that a file can hold.
    Other,
}

/// A duration needs a unit: a bare number would mean seconds to one and milliseconds to another.
pub(super) fn duration(given: Given<'_>, range: &RangeInclusive<Duration>) -> Option<Duration> {
    let Given::Text(text) = given else { return None };
    let text = text.trim();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    humantime::parse_duration(text).ok().filter(|duration| range.contains(duration))
}

pub(super) fn integer(given: Given<'_>, range: &RangeInclusive<u32>) -> Option<u32> {
    let Given::Integer(number) = given else { return None };
    u32::try_from(number).ok().filter(|number| range.contains(number))
}

pub(super) fn size(given: Given<'_>, range: &RangeInclusive<u64>) -> Option<u64> {
    let Given::Integer(number) = given else { return None };
    u64::try_from(number).ok().filter(|number| range.contains(number))
}

pub(super) fn switch(given: Given<'_>) -> Option<bool> {
    let Given::Switch(on) = given else { return None };
    Some(on)
}

/// Which of the names it is, in any case.
pub(super) fn choice(given: Given<'_>, names: &[&str]) -> Option<usize> {
    let Given::Text(text) = given else { return None };
    names.iter().position(|name| name.eq_ignore_ascii_case(text.trim()))
}

/// An address and no name: a name can become another address between two starts.
pub(super) fn address(given: Given<'_>) -> Option<SocketAddr> {
    let Given::Text(text) = given else { return None };
    text.trim().parse().ok()
}

/// A URL that can be shown: nobody logs in with it.
pub(super) fn endpoint(given: Given<'_>) -> Option<String> {
    let Given::Text(text) = given else { return None };
    let text = text.trim();
    if text.is_empty() {
        return Some(String::new());
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'@' && byte != b'?' && byte != b'#';
    let host = rest.split('/').next().unwrap_or_default();
    let usable = !host.is_empty() && text.len() <= ENDPOINT_BYTES_MAX && rest.bytes().all(plain);
    usable.then(|| text.to_owned())
}

/// Whether nobody on the way can change what comes from an endpoint: it is encrypted, or does not leave the machine.
pub(super) fn is_guarded(endpoint: &str) -> bool {
    let Some(rest) = endpoint.strip_prefix("http://") else { return true };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => authority.split(':').next(),
    };
    let host = host.unwrap_or_default();
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A text as it is, but for space around it.
pub(super) fn text(given: Given<'_>) -> Option<String> {
    let Given::Text(text) = given else { return None };
    let text = text.trim();
    (text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// What a name may look like.
#[derive(Debug)]
pub(super) struct NameForm {
    pub(super) bytes_max: usize,
    /// Its letters, for people.
    pub(super) letters: &'static str,
    first: fn(u8) -> bool,
    other: fn(u8) -> bool,
}

/// Of a stream, in whatever broker.
pub(super) static STREAM_NAME: NameForm = NameForm {
    bytes_max: 255,
    letters: "letters, digits, - and _",
    first: |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'),
    other: |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'),
};

/// Of a relay, as its table takes it.
pub(super) static RELAY_NAME: NameForm = NameForm {
    bytes_max: 63,
    letters: "a-z, 0-9, - and _, a letter first",
    first: |byte| byte.is_ascii_lowercase(),
    other: |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_'),
};

pub(super) fn name(given: Given<'_>, form: &NameForm) -> Option<String> {
    let Given::Text(name) = given else { return None };
    let (first, others) = name.as_bytes().split_first()?;
    let usable =
        name.len() <= form.bytes_max && (form.first)(*first) && others.iter().all(|byte| (form.other)(*byte));
    usable.then(|| name.to_owned())
}

/// One that needs no quotes, is not the log's and not reserved to PostgreSQL.
pub(super) fn schema_name(given: Given<'_>) -> Option<String> {
    let Given::Text(name) = given else { return None };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let usable = (1..=SCHEMA_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.starts_with("pg_")
        && !["seqline", "public", "information_schema"].contains(&name);
    usable.then(|| name.to_owned())
}

pub(super) fn texts(given: Given<'_>) -> Option<Vec<String>> {
    let Given::Texts(texts) = given else { return None };
    Some(texts.iter().map(|text| (*text).to_owned()).collect())
}

/// A duration as one would type it.
pub(crate) fn duration_text(duration: Duration) -> String {
    const UNITS: [(u128, &str); 5] =
        [(24 * 60 * 60 * 1000, "d"), (60 * 60 * 1000, "h"), (60 * 1000, "min"), (1000, "s"), (1, "ms")];
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (unit, name) in UNITS {
        if rest >= unit {
            let _ = write!(text, "{}{}{name}", if text.is_empty() { "" } else { " " }, rest / unit);
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}
