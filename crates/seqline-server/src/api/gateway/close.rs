//! How a connection ends, and what a client does then.

use axum::extract::ws::{CloseFrame, Message};
use seqline::agent::Saved;
use serde::Serialize;
use utoipa::ToSchema;

/// Why the server closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    Internal,
    InvalidFrame,
    AlreadyIdentified,
    SessionInvalid,
    RateLimited,
    HeartbeatTimeout,
    IdentifyTimeout,
    Unauthenticated,
    ServerShutdown,
    TooSlow,
    ConsumerReplaced,
    ConsumerHeld,
    SessionReplaced,
    ConsumerReleased,
}

/// What a close code tells a client to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct CloseCode {
    /// The code.
    pub(super) code: u16,
    /// Its name.
    pub(super) reason: &'static str,
    /// Whether to come again, after a pause.
    pub(super) reconnect: bool,
    /// Whether the session can be resumed then.
    pub(super) resume: bool,
}

impl Close {
    pub(super) const ALL: [Self; 14] = [
        Self::Internal,
        Self::InvalidFrame,
        Self::AlreadyIdentified,
        Self::SessionInvalid,
        Self::RateLimited,
        Self::HeartbeatTimeout,
        Self::IdentifyTimeout,
        Self::Unauthenticated,
        Self::ServerShutdown,
        Self::TooSlow,
        Self::ConsumerReplaced,
        Self::ConsumerHeld,
        Self::SessionReplaced,
        Self::ConsumerReleased,
    ];

    /// Why a connection ends whose holder changed the row of its consumer, or could not; none if it could.
    pub(super) fn of_holder(saved: Saved) -> Option<Self> {
        match saved {
            Saved::Done => None,
            Saved::Replaced => Some(Self::ConsumerReplaced),
            Saved::Released => Some(Self::ConsumerReleased),
        }
    }

    pub(super) fn code(self) -> CloseCode {
        let (code, reason, reconnect, resume) = match self {
            Self::Internal => (4000, "internal", true, true),
            Self::InvalidFrame => (4002, "invalid_frame", false, false),
            Self::AlreadyIdentified => (4005, "already_identified", false, false),
            Self::SessionInvalid => (4006, "session_invalid", true, false),
            Self::RateLimited => (4008, "rate_limited", true, true),
            Self::HeartbeatTimeout => (4009, "heartbeat_timeout", true, true),
            Self::IdentifyTimeout => (4010, "identify_timeout", true, false),
            Self::Unauthenticated => (4012, "unauthenticated", false, false),
            Self::ServerShutdown => (4013, "server_shutdown", true, false),
            Self::TooSlow => (4014, "too_slow", true, true),
            Self::ConsumerReplaced => (4015, "consumer_replaced", false, false),
            Self::ConsumerHeld => (4016, "consumer_held", true, false),
            Self::SessionReplaced => (4017, "session_replaced", false, false),
            Self::ConsumerReleased => (4018, "consumer_released", true, false),
        };
        CloseCode { code, reason, reconnect, resume }
    }

    /// The last message, with what to do in the words of a program: at most 123 bytes, as the protocol wants it.
    pub(super) fn message(self, after_ms: Option<u64>) -> Message {
        #[derive(Serialize)]
        struct Reason {
            reason: &'static str,
            reconnect: bool,
            resume: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            after_ms: Option<u64>,
        }
        let CloseCode { code, reason, reconnect, resume } = self.code();
        let reason = Reason { reason, reconnect, resume, after_ms };
        let reason = serde_json::to_string(&reason).unwrap_or_default();
        Message::Close(Some(CloseFrame { code, reason: reason.into() }))
    }
}

/// The end of a connection whose client sent a frame that is too large.
pub(super) const FRAME_TOO_LARGE: &str = "frame_too_large";
/// Of one whose client said that it will not come back.
pub(super) const LEFT: &str = "left";
/// Of one whose client is not there any more.
pub(super) const GONE: &str = "gone";

/// Everything for which a connection ends.
pub(in crate::api) fn reasons() -> impl Iterator<Item = &'static str> {
    Close::ALL.into_iter().map(|close| close.code().reason).chain([FRAME_TOO_LARGE, LEFT, GONE])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_one_and_its_reason_fits() {
        let mut codes: Vec<u16> = Close::ALL.map(|close| close.code().code).to_vec();
        codes.dedup();
        assert_eq!(codes.len(), 14);
        assert!(codes.is_sorted() && codes.iter().all(|code| (4000..4100).contains(code)));
        for close in Close::ALL {
            let Message::Close(Some(frame)) = close.message(Some(u64::MAX)) else { panic!() };
            assert!(frame.reason.len() <= 123, "{}", frame.reason);
            // A session that is not there cannot be resumed, and one that can is worth coming again for.
            let code = close.code();
            assert!(code.reconnect || !code.resume, "{code:?}");
        }
    }
}
