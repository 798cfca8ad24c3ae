//! Principals, tokens and grants: who may see which events, and how everybody learns that this has changed.

mod changes;
mod guide;
mod pages;
mod random;
mod scale;
mod tokens;
mod version;
mod visibility;

use seqline::access::{Grant, NewPrincipal, PrincipalKind, Rights, create_principal};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

/// Creates users of these ids, who may do nothing.
async fn users(connection: &mut PgConnection, ids: &[&str]) {
    for id in ids {
        let user = NewPrincipal {
            id: (*id).to_owned(),
            kind: PrincipalKind::User,
            name: None,
            rights: Rights::default(),
        };
        create_principal(connection, &user, None).await.expect("the user is created");
    }
}

async fn grant(connection: &mut PgConnection, principal: &str, grant: Grant) {
    assert!(seqline::access::grant(connection, principal, &grant, None).await.expect("the grant is made"));
}

async fn version(db: &TestDb) -> i64 {
    seqline::access::permission_version(&mut db.connect(Role::App).await)
        .await
        .expect("the version can be read")
}

/// The last row of the audit log: action, subject, what was before and after, and why.
async fn last_audit(db: &TestDb) -> (String, String, String, String, Option<String>) {
    sqlx::query_as(
        "SELECT action, subject, before::text, after::text, why FROM seqline.audit_log ORDER BY id DESC LIMIT 1",
    )
    .fetch_one(&mut db.connect(Role::App).await)
    .await
    .expect("something was written to the audit log")
}
