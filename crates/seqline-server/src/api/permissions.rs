//! What somebody who asks may do and see.

use std::sync::Arc;

use seqline::DatabaseError;
use seqline::access::{self, Access};
use sqlx::PgPool;

use super::Credential;

/// Finds it out, each time anew.
#[derive(Debug, Clone)]
pub(crate) struct Permissions {
    pool: PgPool,
}

impl Permissions {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// `None` for whoever is nobody: unknown, expired, revoked or disabled.
    pub(crate) async fn of(&self, credential: &Credential) -> Result<Option<Arc<Access>>, DatabaseError> {
        let mut connection = self.pool.acquire().await?;
        let access = match credential {
            Credential::Token(hash) => access::of_token(&mut connection, hash).await?,
            Credential::Principal(id) => access::of_principal(&mut connection, id).await?,
        };
        Ok(access.map(Arc::new))
    }
}
