//! Who asks.
//!
//! A token is looked up by its hash, so how long that takes says nothing of tokens that exist, and whoever is nobody gets the same answer
//! for whatever reason that is. With an identity provider, what is no token of ours is one of its JWTs.

use std::fmt;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use seqline::access::{Access, Token};

use super::jwt::{JwtError, JwtVerifier, Vouched};
use super::{Api, Code, Door, Problem};

/// What somebody showed to say who they are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Credential {
    /// The hash of a token.
    Token([u8; 32]),
    /// A principal for whom somebody vouches whom the server believes, for so long.
    Principal(Vouched),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token"),
            Self::Principal(vouched) => f.debug_tuple("Principal").field(&vouched.principal).finish(),
        }
    }
}

/// Who asks, and what they may do and see.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) access: Arc<Access>,
    /// What they showed: whoever waits looks again now and then whether it is still good.
    pub(crate) credential: Credential,
}

impl Caller {
    /// Whoever shows this token, in a frame of the gateway.
    pub(crate) async fn of_token(token: &str, api: &Api, door: &Door) -> Result<Self, Problem> {
        match of_text(token, door.jwt.as_ref()).await {
            Ok(credential) => Self::of(credential, api, door).await,
            Err(problem) => Err(door.limiter.may_be_nobody().err().unwrap_or(problem)),
        }
    }

    async fn of(credential: Credential, api: &Api, door: &Door) -> Result<Self, Problem> {
        door.limiter.may_show(&credential)?;
        let Some(access) = api.permissions.of(&credential).await? else {
            door.limiter.forget(&credential);
            let detail = match credential {
                Credential::Token(_) => {
                    "the token is unknown, has expired or was revoked, or its principal is disabled"
                }
                Credential::Principal(_) => {
                    "the principal that the JWT names does not exist here, or is disabled"
                }
            };
            return Err(Problem::new(Code::Unauthenticated, detail));
        };
        door.limiter.may_ask(&credential, &access.principal)?;
        Ok(Self { access, credential })
    }

    /// Refuses whoever may not append.
    pub(crate) fn may_append(&self) -> Result<(), Problem> {
        self.has(self.access.rights.append, "append")
    }

    /// Refuses whoever is no operator.
    pub(crate) fn may_operate(&self) -> Result<(), Problem> {
        self.has(self.access.rights.operate, "operate")
    }

    fn has(&self, has: bool, right: &'static str) -> Result<(), Problem> {
        if has {
            return Ok(());
        }
        Err(Problem::new(Code::Forbidden, format!("this principal does not have the right {right}")))
    }
}

impl FromRequestParts<Door> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let api = Api::from_request_parts(parts, door).await?;
        let credential = match credential(&parts.headers, door.jwt.as_ref()).await {
            Ok(credential) => credential,
            Err(problem) => return Err(door.limiter.may_be_nobody().err().unwrap_or(problem)),
        };
        Self::of(credential, &api, door).await
    }
}

/// What the header shows, if it can be good at all.
async fn credential(headers: &HeaderMap, jwt: Option<&JwtVerifier>) -> Result<Credential, Problem> {
    let missing = || {
        Problem::new(
            Code::Unauthenticated,
            "a token is needed: send it in the header Authorization, after the word Bearer",
        )
    };
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return Err(missing()) };
    let (scheme, token) = value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or_else(missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(missing());
    }
    of_text(token.trim(), jwt).await
}

/// What a token is, if it can be good at all.
async fn of_text(token: &str, jwt: Option<&JwtVerifier>) -> Result<Credential, Problem> {
    match (Token::parse(token), jwt) {
        (Some(token), _) => Ok(Credential::Token(token.hash())),
        (None, Some(jwt)) if !Token::is_meant(token) => {
            jwt.verify(token).await.map(Credential::Principal).map_err(refused)
        }
        _ => Err(Problem::new(Code::Unauthenticated, "this is no token: it was cut off or mistyped")),
    }
}

fn refused(error: JwtError) -> Problem {
    match error {
        JwtError::KeysUnavailable => Problem::unavailable(error.message()),
        error => Problem::new(Code::Unauthenticated, error.message()),
    }
}
