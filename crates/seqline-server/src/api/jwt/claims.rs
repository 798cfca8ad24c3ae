//! What a JWT says, once its signature is known to be good.

use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::JwtError;
use crate::limits::JWT_LEEWAY;

/// What it has to say.
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) audience: &'a str,
    /// The claim that names the principal.
    pub(super) claim: &'a str,
}

/// A principal for whom the issuer vouches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Vouched {
    pub(crate) principal: String,
    pub(crate) until: OffsetDateTime,
}

#[cfg(test)]
impl Vouched {
    /// For as long as anybody asks.
    pub(crate) fn always(principal: impl Into<String>) -> Self {
        Self { principal: principal.into(), until: time::macros::datetime!(9999-12-31 23:59:59 UTC) }
    }
}

pub(super) fn check(
    claims: &Map<String, Value>,
    expected: &Expected<'_>,
    now: OffsetDateTime,
) -> Result<Vouched, JwtError> {
    if claims.get("iss").and_then(Value::as_str) != Some(expected.issuer) {
        return Err(JwtError::Issuer);
    }
    let is_for_us = match claims.get("aud") {
        Some(Value::String(audience)) => audience == expected.audience,
        Some(Value::Array(all)) => all.iter().any(|audience| audience.as_str() == Some(expected.audience)),
        _ => false,
    };
    if !is_for_us {
        return Err(JwtError::Audience);
    }
    let expires = claims.get("exp").and_then(time).ok_or(JwtError::NoExpiry)?;
    let until = expires.saturating_add(leeway());
    if until <= now {
        return Err(JwtError::Expired);
    }
    match claims.get("nbf") {
        None => {}
        Some(from) if time(from).is_some_and(|from| from.saturating_sub(leeway()) <= now) => {}
        Some(_) => return Err(JwtError::NotYetValid),
    }
    let principal = claims.get(expected.claim).and_then(Value::as_str).unwrap_or_default();
    let fits = (1..=seqline::limits::TEXT_CHARACTERS_MAX).contains(&principal.chars().count())
        && !principal.chars().any(char::is_control);
    match fits {
        true => Ok(Vouched { principal: principal.to_owned(), until }),
        false => Err(JwtError::Principal),
    }
}

fn leeway() -> time::Duration {
    time::Duration::try_from(JWT_LEEWAY).unwrap_or_default()
}

/// Seconds since 1970, which need not be whole. What is beyond the calendar is its end, or long ago.
fn time(value: &Value) -> Option<OffsetDateTime> {
    let seconds = value.as_f64().filter(|seconds| seconds.is_finite())?;
    // Casting saturates.
    let last = time::macros::datetime!(9999-12-31 23:59:59 UTC).unix_timestamp();
    OffsetDateTime::from_unix_timestamp((seconds.floor() as i64).clamp(0, last)).ok()
}
