//! The keys of an issuer, and which of them may have signed a JWT.

use std::sync::Arc;

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::JwtError;
use crate::limits::JWKS_KEYS_MAX;

/// The keys that are known.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Usable>);

#[derive(Debug)]
struct Usable {
    name: Option<String>,
    algorithms: Vec<Algorithm>,
    key: Arc<DecodingKey>,
}

impl Keys {
    /// Those in the answer of a provider that can verify signatures; none of the others is in the way of them.
    pub(super) fn parse(answer: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(answer).ok()?;
        let keys: Vec<Usable> = set.keys.into_iter().take(JWKS_KEYS_MAX).filter_map(usable).collect();
        (!keys.is_empty()).then_some(Self(keys))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key by which a JWT with this header says that it was signed. One without a name was signed by the only key that there is for its
    /// algorithm, or it is not known which.
    pub(super) fn find(
        &self,
        name: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<DecodingKey>, JwtError> {
        let named = |key: &&Usable| name.is_none() || key.name.as_deref() == name;
        let mut fitting = self.0.iter().filter(named).filter(|key| key.algorithms.contains(&algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(key.key.clone()),
            (Some(key), Some(_)) if name.is_some() => Ok(key.key.clone()),
            (None, _) if name.is_some() && self.0.iter().any(|key| named(&key)) => Err(JwtError::Algorithm),
            _ => Err(JwtError::UnknownKey),
        }
    }
}

/// Whether only the issuer can sign with it. With the others whoever can verify can sign, and keys that are published could be taken for
/// secrets.
pub(super) fn is_asymmetric(algorithm: Algorithm) -> bool {
    RSA.contains(&algorithm) || matches!(algorithm, Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA)
}

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

fn usable(key: Value) -> Option<Usable> {
    let key: Jwk = serde_json::from_value(key).ok()?;
    let of_its_kind = match &key.algorithm {
        AlgorithmParameters::RSA(_) => RSA.to_vec(),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![Algorithm::ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![Algorithm::ES384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        _ => return None,
    };
    let algorithms = match key.common.key_algorithm {
        None => of_its_kind,
        Some(said) => {
            let said = Algorithm::try_from(said).ok().filter(|said| of_its_kind.contains(said))?;
            vec![said]
        }
    };
    let for_signatures = key.common.public_key_use.as_ref().is_none_or(|to| *to == PublicKeyUse::Signature)
        && key.common.key_operations.as_ref().is_none_or(|to| to.contains(&KeyOperations::Verify));
    let decoding = DecodingKey::from_jwk(&key).ok()?;
    for_signatures.then(|| Usable { name: key.common.key_id, algorithms, key: Arc::new(decoding) })
}

/// What is wrong with a header.
pub(super) fn refused_header(error: &Error) -> JwtError {
    match error.kind() {
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName | ErrorKind::UnsupportedAlgorithm => {
            JwtError::Algorithm
        }
        _ => JwtError::Malformed,
    }
}

/// What is wrong with the rest.
pub(super) fn refused_signature(error: &Error) -> JwtError {
    match error.kind() {
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => JwtError::Algorithm,
        ErrorKind::InvalidToken | ErrorKind::Base64(_) | ErrorKind::Json(_) | ErrorKind::Utf8(_) => {
            JwtError::Malformed
        }
        _ => JwtError::Signature,
    }
}
