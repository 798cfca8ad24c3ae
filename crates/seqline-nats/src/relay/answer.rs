//! What the broker answers to a message.

use serde::Deserialize;

/// An answer, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Stored there.
    Stored(u64),
    /// It was stored before, and was not stored again.
    Duplicate,
    /// Taken into a batch, and not stored yet.
    Pending,
    /// Not stored, with the code of the broker's API.
    Refused(u64),
    /// Nobody stores messages of this subject: there is no stream, or nobody leads it.
    NoStream,
    /// Something else than an answer to a message.
    Unreadable,
}

/// Codes of the broker's API that are told apart.
pub(super) mod code {
    /// Another message was stored in between.
    pub(crate) const WRONG_LAST_SEQUENCE: u64 = 10071;
    /// The subject's last message is still being stored.
    pub(crate) const LAST_SEQUENCE_NOT_READY: u64 = 10164;
    /// The first copy is still being stored.
    pub(crate) const DUPLICATE_IN_PROCESS: u64 = 10158;
    /// A message of a batch was stored before.
    pub(crate) const BATCH_DUPLICATE: u64 = 10201;
    /// Part of a batch is missing, or the broker has given it up.
    pub(crate) const BATCH_INCOMPLETE: u64 = 10176;
    /// The stream has more batches open than it bears, those that somebody left behind among them.
    pub(crate) const BATCHES_TOO_MANY: u64 = 10210;
    /// The stream allows no batches.
    pub(crate) const BATCHES_OFF: u64 = 10174;
    /// The stream bears no more at once.
    pub(crate) const TOO_MANY: u64 = 10167;
    /// The stream of this subject is another one.
    pub(crate) const WRONG_STREAM: u64 = 10060;
    /// The stream is full, or its disk, or what the account may use.
    pub(crate) const INSUFFICIENT_RESOURCES: u64 = 10023;
    /// There is no storage left.
    pub(crate) const NO_STORAGE: u64 = 10047;
    /// The message could not be stored: as a rule the stream is full.
    pub(crate) const STORE_FAILED: u64 = 10077;
    /// The message is larger than the stream allows.
    pub(crate) const TOO_LARGE: u64 = 10054;
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<BodyError>,
}

#[derive(Deserialize)]
struct BodyError {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
}

impl Answer {
    /// Reads one. `status` is that of the answer's headers, which only the broker itself sets.
    pub(super) fn read(status: Option<u16>, payload: &[u8]) -> Self {
        if status == Some(503) {
            return Self::NoStream;
        }
        if payload.is_empty() {
            return Self::Pending;
        }
        match serde_json::from_slice::<Body>(payload) {
            Ok(Body { error: Some(BodyError { code: 503, err_code: 0 }), .. }) => Self::NoStream,
            Ok(Body { error: Some(error), .. }) => Self::Refused(error.err_code),
            Ok(Body { duplicate: true, .. }) => Self::Duplicate,
            Ok(Body { seq, .. }) if seq > 0 => Self::Stored(seq),
            Ok(_) | Err(_) => Self::Unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_as_brokers_give_them_are_told_apart() {
        let read = |text: &str| Answer::read(None, text.as_bytes());
        assert_eq!(read(r#"{"stream":"EVENTS","seq":7}"#), Answer::Stored(7));
        assert_eq!(read(r#"{"stream":"EVENTS","seq":7,"duplicate":true}"#), Answer::Duplicate);
        assert_eq!(
            read(
                r#"{"type":"x","error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"}}"#
            ),
            Answer::Refused(code::WRONG_LAST_SEQUENCE)
        );
        assert_eq!(read(r#"{"error":{"code":503,"description":"..."}}"#), Answer::NoStream);
        assert_eq!(read(""), Answer::Pending);
        assert_eq!(Answer::read(Some(503), b""), Answer::NoStream);
        assert_eq!(read("{}"), Answer::Unreadable);
        assert_eq!(read("+OK"), Answer::Unreadable);
    }
}
