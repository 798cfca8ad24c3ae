//! Stands in for `seqline::access` until that is there.

use sqlx::PgConnection;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrincipalKind {
    User,
    Agent,
    App,
}

impl PrincipalKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Agent => "agent",
            Self::App => "app",
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rights {
    pub(crate) append: bool,
    pub(crate) operate: bool,
}

#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) principal: String,
    pub(crate) kind: PrincipalKind,
    pub(crate) rights: Rights,
}

pub(crate) struct Token;

impl Token {
    pub(crate) fn parse(_: &str) -> Option<Self> {
        None
    }

    pub(crate) fn hash(&self) -> [u8; 32] {
        [0; 32]
    }
}

pub(crate) async fn of_token(
    _: &mut PgConnection,
    _: &[u8; 32],
) -> Result<Option<Access>, seqline::DatabaseError> {
    Ok(None)
}

pub(crate) async fn of_principal(
    _: &mut PgConnection,
    _: &str,
) -> Result<Option<Access>, seqline::DatabaseError> {
    Ok(None)
}
