//! The key by which a client can repeat a request, and what makes two requests the same.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, Uri, header::HeaderName};
use sha2::{Digest, Sha256};

use super::queue::Key;
use crate::api::{Door, Problem};
use crate::limits::API_IDEMPOTENCY_KEY_BYTES_MAX;

/// The header of a request that can be repeated.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The key of a request, if it has one.
#[derive(Debug, Clone)]
pub(crate) struct KeyHeader(Option<String>);

/// A request that is answered the same however often it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Idempotency {
    pub(super) principal: String,
    pub(super) key: String,
    pub(super) fingerprint: [u8; 32],
}

impl KeyHeader {
    /// With whom it belongs to, and what was asked.
    pub(crate) fn of(self, principal: &str, method: &Method, uri: &Uri, body: &[u8]) -> Option<Idempotency> {
        let key = self.0?;
        Some(Idempotency {
            principal: principal.to_owned(),
            key,
            fingerprint: fingerprint(method.as_str(), uri.path(), body),
        })
    }
}

impl Idempotency {
    pub(super) fn key(&self) -> Key {
        (self.principal.clone(), self.key.clone())
    }
}

/// Of the bytes as they were sent: whoever repeats a request sends the same.
fn fingerprint(method: &str, path: &str, body: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [method.as_bytes(), b"\n", path.as_bytes(), b"\n", body] {
        hash.update(part);
    }
    hash.finalize().into()
}

impl FromRequestParts<Door> for KeyHeader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Door) -> Result<Self, Problem> {
        let mut given = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(first) = given.next() else { return Ok(Self(None)) };
        let text = first.to_str().unwrap_or_default();
        let is_usable = (1..=API_IDEMPOTENCY_KEY_BYTES_MAX).contains(&text.len()) && given.next().is_none();
        match is_usable && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            true => Ok(Self(Some(text.to_owned()))),
            false => Err(Problem::malformed(format!(
                "the header Idempotency-Key has to be one text of 1 to {API_IDEMPOTENCY_KEY_BYTES_MAX} characters of ASCII"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_same_when_all_of_them_is() {
        let of = fingerprint("POST", "/v1/events", b"{}");
        assert_eq!(of, fingerprint("POST", "/v1/events", b"{}"));
        for other in [
            fingerprint("POST", "/v1/events/batch", b"{}"),
            fingerprint("PUT", "/v1/events", b"{}"),
            fingerprint("POST", "/v1/events", b"{} "),
            fingerprint("POST", "/v1/events", b""),
        ] {
            assert_ne!(of, other);
        }
    }
}
