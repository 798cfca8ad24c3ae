//! The permission version: every change advances it in the same transaction, whoever makes it.

use seqline::{append, begin, commit, read};
use seqline_testkit::{Role, TestDb};
use sqlx::AssertSqlSafe;

use super::{users, version};
use crate::support;

const TOKEN: &str =
    "INSERT INTO seqline.api_tokens (principal_id, hash, hint) VALUES ('alex', sha256('x'), 'sqln_abcd')";

#[tokio::test]
async fn every_change_advances_it_and_what_changes_nothing_does_not() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    let mut expected = version(&db).await;
    for (sql, by) in [
        ("INSERT INTO seqline.principals (id, kind) VALUES ('alex', 'user'), ('sam', 'app')", 1),
        ("INSERT INTO seqline.principals (id, kind) VALUES ('alex', 'user') ON CONFLICT DO NOTHING", 0),
        ("UPDATE seqline.principals SET name = 'Alex' WHERE id = 'alex'", 1),
        ("UPDATE seqline.principals SET name = 'Robin' WHERE id = 'robin'", 0),
        (TOKEN, 1),
        ("UPDATE seqline.api_tokens SET revoked_at = now()", 1),
        ("INSERT INTO seqline.grants (principal_id, action) VALUES ('alex', 'read')", 1),
        (
            "INSERT INTO seqline.grants (principal_id, action) VALUES ('alex', 'read') ON CONFLICT DO NOTHING",
            0,
        ),
        ("UPDATE seqline.grants SET space_id = 'shop-1'", 1),
        ("DELETE FROM seqline.grants WHERE principal_id = 'robin'", 0),
        ("DELETE FROM seqline.grants", 1),
        ("DELETE FROM seqline.api_tokens", 1),
        ("DELETE FROM seqline.principals WHERE id = 'sam'", 1),
        ("SELECT FROM seqline.principals", 0),
    ] {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut app)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        expected += by;
        assert_eq!(version(&db).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn nobody_can_change_permissions_without_it() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    for sql in [
        "SET session_replication_role = replica; INSERT INTO seqline.principals (id, kind) VALUES ('alex', 'user')",
        TOKEN,
        "INSERT INTO seqline.grants (principal_id, action) VALUES ('alex', 'read')",
        "TRUNCATE seqline.grants",
        "TRUNCATE seqline.api_tokens",
        "SET session_replication_role = origin; TRUNCATE seqline.principals CASCADE",
        "COPY seqline.principals (id, kind) FROM PROGRAM 'printf \"sam\\tuser\\n\"'",
    ] {
        let before = version(&db).await;
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut admin)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert!(version(&db).await > before, "{sql}");
    }
}

#[tokio::test]
async fn what_goes_with_a_principal_advances_it_too() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    for sql in [TOKEN, "INSERT INTO seqline.grants (principal_id, action) VALUES ('alex', 'read')"] {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut app).await.unwrap();
    }
    let before = version(&db).await;
    sqlx::query("DELETE FROM seqline.principals").execute(&mut app).await.unwrap();
    assert!(version(&db).await > before);
    let left: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM seqline.api_tokens) + (SELECT count(*) FROM seqline.grants)",
    )
    .fetch_one(&mut app)
    .await
    .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_change_that_is_rolled_back_never_was() {
    let db = TestDb::new().await;
    let before = version(&db).await;
    let mut tx = begin(&db.app()).await.unwrap();
    users(&mut tx, &["alex"]).await;
    assert_eq!(seqline::access::permission_version(&mut tx).await.unwrap(), before + 1);
    tx.rollback().await.unwrap();
    assert_eq!(version(&db).await, before);
}

#[tokio::test]
async fn events_carry_the_version_that_was_in_force_when_they_got_their_number() {
    let db = TestDb::new().await;
    let before = version(&db).await;
    support::append(&db.app(), [1]).await;
    let mut tx = begin(&db.app()).await.unwrap();
    append(&mut tx, &[support::event(2)]).await.unwrap();
    users(&mut tx, &["alex"]).await;
    commit(tx).await.unwrap();
    db.settled().await;
    support::append(&db.app(), [3]).await;

    let events = read::events_after(&mut db.connect(Role::Reader).await, 0, 10).await.unwrap();
    let versions: Vec<i64> = events.iter().map(|event| event.permission_version).collect();
    assert_eq!(versions, [before, before + 1, before + 1], "a change and its event are one");
}
