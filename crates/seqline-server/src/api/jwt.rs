//! Tokens that an identity provider has signed (JWTs), as an alternative to those of the database.
//!
//! A JWT says who somebody is, and nothing else: the principal has to exist here and be enabled, and what it may do and see is what is stored
//! here. It counts when it is from the issuer that is configured, for the audience that is, not expired, and signed with one of the issuer's
//! keys in a way that only the issuer can: no shared secrets, and never the algorithm that the token would like best.
//!
//! The keys are fetched when they are needed and kept. A key that is not known is looked for once a minute at most, and while the provider is
//! away those that are known go on to count. Nothing of a token is in any error or log.

mod cache;
mod claims;
mod fetch;
mod keys;

use jsonwebtoken::{Validation, decode, decode_header};
use seqline::Clock;
use serde_json::{Map, Value};

use self::cache::KeyCache;
use self::claims::Expected;
pub(crate) use self::claims::Vouched;
use self::fetch::Source;
use crate::config::Auth;
use crate::failure::Failure;

/// Why a JWT does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JwtError {
    Malformed,
    Algorithm,
    UnknownKey,
    Signature,
    Issuer,
    Audience,
    NoExpiry,
    Expired,
    NotYetValid,
    Principal,
    /// Nothing is known about the token.
    KeysUnavailable,
}

impl JwtError {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Malformed => "this is neither a token nor a JWT: it was cut off or mistyped",
            Self::Algorithm => {
                "the JWT is signed with an algorithm that does not count, or is not that of its key"
            }
            Self::UnknownKey => "the JWT is signed with a key that its issuer does not have",
            Self::Signature => "the signature of the JWT is not that of its issuer",
            Self::Issuer => "the JWT is from another issuer",
            Self::Audience => "the JWT is for another audience",
            Self::NoExpiry => "the JWT does not say when it expires",
            Self::Expired => "the JWT has expired",
            Self::NotYetValid => "the JWT is not valid yet",
            Self::Principal => "the JWT names no principal",
            Self::KeysUnavailable => "the keys of the identity provider cannot be had at present",
        }
    }
}

/// Decides which JWTs count. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct JwtVerifier {
    issuer: String,
    audience: String,
    claim: String,
    keys: KeyCache,
    clock: Clock,
}

impl JwtVerifier {
    /// None when no identity provider is configured.
    pub(crate) fn new(auth: &Auth, clock: &Clock) -> Result<Option<Self>, Failure> {
        if auth.jwks_url.is_empty() {
            return Ok(None);
        }
        let source = Source::new(&auth.jwks_url, auth.jwks_timeout, clock)?;
        Ok(Some(Self {
            issuer: auth.jwt_issuer.clone(),
            audience: auth.jwt_audience.clone(),
            claim: auth.jwt_principal_claim.clone(),
            keys: KeyCache::new(source, auth.jwks_refresh_interval, clock.clone()),
            clock: clock.clone(),
        }))
    }

    /// Who the bearer of this JWT is, and how long that counts.
    pub(crate) async fn verify(&self, token: &str) -> Result<Vouched, JwtError> {
        let header = decode_header(token).map_err(|error| keys::refused_header(&error))?;
        // What is in a header that says that it has to be understood is not understood.
        if header.crit.is_some() {
            return Err(JwtError::Malformed);
        }
        if !keys::is_asymmetric(header.alg) {
            return Err(JwtError::Algorithm);
        }
        let key = self.keys.find(header.kid.as_deref(), header.alg).await?;
        let mut only_signature = Validation::new(header.alg);
        only_signature.required_spec_claims.clear();
        only_signature.validate_exp = false;
        only_signature.validate_aud = false;
        let claims: Map<String, Value> =
            decode(token, &key, &only_signature).map_err(|error| keys::refused_signature(&error))?.claims;
        let expected = Expected { issuer: &self.issuer, audience: &self.audience, claim: &self.claim };
        claims::check(&claims, &expected, self.clock.now())
    }
}

#[cfg(test)]
mod tests;
