//! Who may use the log over the network, and which events each of them may see.
//!
//! A *principal* is a user, an agent or an app. Its *rights* say what it may do, its *grants* which events it receives. [`of_token`] and
//! [`of_principal`] read both in one statement, so that what is decided by them was true at one moment. Whatever changes them advances the
//! permission version in the same transaction, and each event carries the version that was in force when it got its number: whoever keeps an
//! [`Access`] and is given an event of a later version has to read it again.
//!
//! Which events are seen is decided in two places that agree, and tests hold them to it: [`Viewer::sees`] for an event in hand, and
//! `seqline.visible_to` in SQL for those that are read, which is what [`read::visible_after`](crate::read::visible_after) asks.
//!
//! An application changes the tables `seqline.principals`, `seqline.api_tokens` and `seqline.grants` with plain SQL in its own transactions.
//! The functions here that change something are what people do by command, and write to the audit log.

mod change;
mod list;
mod token;
mod visibility;

use std::fmt;
use std::str::FromStr;

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::error::DatabaseError;
use crate::store;

pub use change::{
    ChangeError, Deletion, NewPrincipal, NewToken, create_principal, create_token, delete_principal,
    disable_principal, enable_principal, grant, revoke_token, set_rights, ungrant,
};
pub use list::{
    GrantRow, Principal, TokenRow, list_grants, list_principals, list_tokens, principal, token_by_id,
};
pub use token::Token;
pub use visibility::{Grant, Viewer};

/// What a principal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrincipalKind {
    /// A person.
    User,
    /// An agent acting on its own or for somebody.
    Agent,
    /// An application.
    App,
}

impl PrincipalKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::User, Self::Agent, Self::App];

    /// Its name in the database and in commands.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Agent => "agent",
            Self::App => "app",
        }
    }
}

impl fmt::Display for PrincipalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that is no kind of principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected one of user, agent, app")]
pub struct UnknownKind;

impl FromStr for PrincipalKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(UnknownKind)
    }
}

/// What a principal may do. Reading needs no right: what it may see decides that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rights {
    /// Append events over the network.
    pub append: bool,
    /// Use what is for operators: consumers, partitions, jobs, the audit log.
    pub operate: bool,
}

impl Rights {
    /// The names of those that it has, as in the database and in commands.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        [(self.append, "append"), (self.operate, "operate")]
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
            .collect()
    }

    pub(crate) fn from_names(names: &[String]) -> Self {
        let has = |right: &str| names.iter().any(|name| name == right);
        Self { append: has("append"), operate: has("operate") }
    }
}

/// What somebody may do and see, as it was in one state of the database.
#[derive(Debug)]
pub struct Access {
    /// The principal's id.
    pub principal: String,
    /// What it is.
    pub kind: PrincipalKind,
    /// What it may do.
    pub rights: Rights,
    /// What it may see.
    pub viewer: Viewer,
    /// The permission version of that state.
    pub permission_version: i64,
    /// When the token expires by which it was found.
    pub expires_at: Option<OffsetDateTime>,
}

/// What the owner of the token with this [hash](Token::hash) may do and see; `None` when there is no such token, it has expired or was
/// revoked, or its principal is disabled. One statement.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn of_token(
    connection: &mut PgConnection,
    hash: &[u8; 32],
) -> Result<Option<Access>, DatabaseError> {
    Ok(store::access::of_token(connection, hash).await?)
}

/// What this principal may do and see; `None` when there is none of this id, or it is disabled. One statement.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn of_principal(connection: &mut PgConnection, id: &str) -> Result<Option<Access>, DatabaseError> {
    Ok(store::access::of_principal(connection, id).await?)
}

/// How often permissions were changed: every transaction that changes one advances it.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn permission_version(connection: &mut PgConnection) -> Result<i64, DatabaseError> {
    Ok(store::access::permission_version(connection).await?)
}
