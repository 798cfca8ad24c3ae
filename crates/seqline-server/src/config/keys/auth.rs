//! Keys about an identity provider whose tokens count beside those of the database.

use super::super::kinds::{duration, mins, ms, secs, text};
use super::super::schema::{Key, Kind};
use super::hours;

pub(super) const JWKS_URL: Key = Key {
    name: "auth.jwks_url",
    doc: "Where an identity provider publishes the keys with which it signs JWTs: an https URL, or http on this machine. With one, a JWT of its issuer for the audience counts as the principal that it names. Without one only tokens of the database count.",
    kind: Kind::Endpoint { field: |config| &mut config.auth.jwks_url },
};

pub(super) const JWT_ISSUER: Key = text(
    "auth.jwt_issuer",
    "",
    |config| &mut config.auth.jwt_issuer,
    "The issuer whose JWTs count, letter for letter as their claim iss has it.",
);

pub(super) const JWT_AUDIENCE: Key = text(
    "auth.jwt_audience",
    "",
    |config| &mut config.auth.jwt_audience,
    "For whom a JWT has to be made out, in its claim aud: a JWT for another program of the same issuer is no key to this one.",
);

pub(super) const JWT_PRINCIPAL_CLAIM: Key = text(
    "auth.jwt_principal_claim",
    "sub",
    |config| &mut config.auth.jwt_principal_claim,
    "The claim that names the principal, which has to exist here.",
);

pub(super) const JWKS_REFRESH_INTERVAL: Key = duration(
    "auth.jwks_refresh_interval",
    hours(1),
    secs(1)..=hours(24),
    |config| &mut config.auth.jwks_refresh_interval,
    "How often the keys are fetched again, so that one that was withdrawn stops to count. A new one is fetched when a JWT names it. While the provider is away the keys that are known go on to count.",
);

pub(super) const JWKS_TIMEOUT: Key = duration(
    "auth.jwks_timeout",
    secs(5),
    ms(100)..=mins(1),
    |config| &mut config.auth.jwks_timeout,
    "How long the provider may take to answer; a request with a key that is not known waits for that.",
);
