//! What the database says about the names of consumers: the same as the library.

use sqlx::error::ErrorKind;

use super::*;

#[tokio::test]
async fn the_database_accepts_the_names_that_the_library_accepts() {
    let db = TestDb::new().await;
    let (longest, too_long) = ("a".repeat(63), "a".repeat(64));
    let texts = [
        "a", "a0", "a_b", "invoices", "", "_a", "0a", "A", "aB", "a-b", "a b", " a", "a ", "a\n", "\u{e9}",
        "a\u{e9}", &longest, &too_long,
    ];
    for text in texts {
        let inserted = sqlx::query("INSERT INTO seqline.event_consumer_cursors (name) VALUES ($1)")
            .bind(text)
            .execute(&db.app())
            .await;
        match ConsumerName::new(text) {
            Ok(_) => drop(inserted.unwrap_or_else(|error| panic!("{text:?}: {error}"))),
            Err(_) => {
                let error = inserted.expect_err(text);
                let error = error.as_database_error().expect("the server answered");
                assert_eq!(error.code().as_deref(), Some("23514"), "{text:?}");
                assert_eq!(error.constraint(), Some("event_consumer_cursors_name_check"), "{text:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_table_of_cursors_has_these_columns() {
    let db = TestDb::new().await;
    let columns: Vec<(String, String, bool, Option<String>)> = sqlx::query_as(
        "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                pg_get_expr(d.adbin, d.adrelid)
         FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = 'seqline.event_consumer_cursors'::regclass AND a.attnum > 0 ORDER BY a.attnum",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    let column = |name: &str, kind: &str, default: Option<&str>| {
        (name.to_owned(), kind.to_owned(), true, default.map(str::to_owned))
    };
    let expected = [
        column("name", "text", None),
        column("kind", "text", Some("'worker'::text")),
        column("last_seq", "bigint", Some("0")),
        column("updated_at", "timestamp with time zone", Some("now()")),
    ];
    assert_eq!(columns, expected);
    let constraints: Vec<(String, String)> = sqlx::query_as(
        "SELECT c.contype::text, pg_get_constraintdef(c.oid) FROM pg_constraint c
         WHERE c.conrelid = 'seqline.event_consumer_cursors'::regclass AND c.contype <> 'n' ORDER BY 1, 2",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    let kinds: Vec<&str> = constraints.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["c", "c", "c", "p"], "checks and the key, and no foreign key: {constraints:?}");
    assert_eq!(constraints[3].1, "PRIMARY KEY (name)");
}

#[tokio::test]
async fn a_cursor_has_one_of_two_kinds_and_is_not_below_the_log() {
    let db = TestDb::new().await;
    for (columns, values, constraint) in [
        ("name, kind", "'a', 'other'", "event_consumer_cursors_kind_check"),
        ("name, last_seq", "'a', -1", "event_consumer_cursors_last_seq_check"),
    ] {
        let sql = format!("INSERT INTO seqline.event_consumer_cursors ({columns}) VALUES ({values})");
        let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&db.app()).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert_eq!((error.kind(), error.constraint()), (ErrorKind::CheckViolation, Some(constraint)));
    }
}

#[tokio::test]
async fn migrations_make_no_cursor() {
    let db = TestDb::new().await;
    assert_eq!(states(&mut db.connect(Role::App).await).await.unwrap(), []);
}

#[tokio::test]
async fn nobody_may_delete_what_consumers_have_written() {
    let db = TestDb::new().await;
    for table in ["event_consumer_cursors", "event_consumer_failures", "lost_ranges"] {
        for role in [Role::App, Role::Producer, Role::Reader, Role::Consumer, Role::Nobody] {
            let grants: Vec<String> = sqlx::query_scalar(
                "SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
                 WHERE has_table_privilege($1, 'seqline.' || $2, p)",
            )
            .bind(role.login())
            .bind(table)
            .fetch_all(&db.admin())
            .await
            .unwrap();
            assert!(
                !grants.iter().any(|grant| grant == "DELETE" || grant == "TRUNCATE"),
                "{role:?} {grants:?}"
            );
            let writes = grants.iter().any(|grant| grant == "INSERT" || grant == "UPDATE");
            assert_eq!(writes, role == Role::App, "{role:?} may write {table}: {grants:?}");
        }
    }
    let grants: (bool, bool, bool) = sqlx::query_as(
        "SELECT has_table_privilege($1, 'seqline.event_consumer_cursors', 'SELECT'),
                has_table_privilege($1, 'seqline.event_consumer_cursors', 'INSERT'),
                has_table_privilege($1, 'seqline.event_consumer_cursors', 'UPDATE')",
    )
    .bind(Role::App.login())
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert_eq!(grants, (true, true, true));
}
