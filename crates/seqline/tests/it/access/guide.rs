//! The statements of the guide do what it says, with no more rights than it says.

use std::fs;
use std::path::Path;

use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, Row};

use super::version;
use crate::partitions::as_owner;

#[tokio::test]
async fn an_application_changes_permissions_and_its_own_rows_in_one_transaction() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/access.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```sql\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let [join, leave, allow, read] = blocks[..] else { panic!("{} blocks", blocks.len()) };

    let db = TestDb::new().await;
    let mut shop = db.connect(Role::Producer).await;
    let refused = sqlx::raw_sql(AssertSqlSafe(join)).execute(&mut shop).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("42501"));
    as_owner(&db, &allow.replace("TO shop;", &format!("TO {};", Role::Producer.login()))).await;

    // No more than that: it makes nobody an operator.
    for escalation in [
        "UPDATE seqline.principals SET rights = '{operate}'",
        "INSERT INTO seqline.principals (id, kind, rights) VALUES ('shop', 'app', '{operate}')",
        "INSERT INTO seqline.api_tokens (principal_id, hash, hint) VALUES ('robin', sha256('x'), 'x')",
    ] {
        let refused = sqlx::raw_sql(escalation).execute(&mut shop).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("42501"), "{escalation}");
    }

    let seen = async || {
        let rows =
            sqlx::raw_sql(AssertSqlSafe(read)).fetch_all(&mut db.connect(Role::App).await).await.unwrap();
        rows.iter().map(|row| row.get(1)).collect::<Vec<String>>()
    };
    let mut before = version(&db).await;
    sqlx::raw_sql(AssertSqlSafe(join)).execute(&mut shop).await.unwrap();
    db.settled().await;
    assert_eq!(seen().await, ["channel.joined"]);
    assert_eq!(version(&db).await, before + 2);
    let event = seqline::read::events_after(&mut db.connect(Role::Reader).await, 0, 1).await.unwrap();
    assert_eq!(event[0].permission_version, before + 2, "the event of the same transaction");

    before = version(&db).await;
    sqlx::raw_sql(AssertSqlSafe(leave)).execute(&mut shop).await.unwrap();
    assert_eq!(seen().await, [""; 0]);
    assert_eq!(version(&db).await, before + 1);
    let disable = "UPDATE seqline.principals SET disabled_at = now(), name = 'Robin' WHERE id = 'robin'";
    sqlx::raw_sql(disable).execute(&mut shop).await.unwrap();
    sqlx::raw_sql("DELETE FROM seqline.principals WHERE id = 'robin'").execute(&mut shop).await.unwrap();
    assert_eq!(version(&db).await, before + 3);
}
