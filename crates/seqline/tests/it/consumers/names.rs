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
        let inserted = sqlx::query("INSERT INTO seqline.event_consumers (name) VALUES ($1)")
            .bind(text)
            .execute(&db.admin())
            .await;
        match ConsumerName::new(text) {
            Ok(_) => drop(inserted.unwrap_or_else(|error| panic!("{text:?}: {error}"))),
            Err(_) => {
                let error = inserted.expect_err(text);
                let error = error.as_database_error().expect("the server answered");
                assert_eq!(error.code().as_deref(), Some("23514"), "{text:?}");
                assert_eq!(error.constraint(), Some("event_consumers_name_check"), "{text:?}");
            }
        }
    }
}

/// Name, type, whether it must have a value, and default.
type Column = (String, String, bool, Option<String>);

async fn columns(db: &TestDb, table: &str) -> Vec<Column> {
    sqlx::query_as(
        "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                pg_get_expr(d.adbin, d.adrelid)
         FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = $1::regclass AND a.attnum > 0 ORDER BY a.attnum",
    )
    .bind(table)
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

async fn constraints(db: &TestDb, table: &str) -> Vec<String> {
    sqlx::query_scalar(
        "SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c
         WHERE c.conrelid = $1::regclass AND c.contype IN ('p', 'f', 'u') ORDER BY 1",
    )
    .bind(table)
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

#[tokio::test]
async fn the_tables_of_consumers_and_cursors_have_these_columns_and_keys() {
    let db = TestDb::new().await;
    let column = |name: &str, kind: &str, default: Option<&str>| {
        (name.to_owned(), kind.to_owned(), true, default.map(str::to_owned))
    };
    let (consumers, cursors) = ("seqline.event_consumers", "seqline.event_consumer_cursors");
    let optional = |name: &str, kind: &str| (name.to_owned(), kind.to_owned(), false, None);
    let list = |name: &str| optional(name, "text[]");
    let expected = [
        column("name", "text", None),
        column("kind", "text", Some("'worker'::text")),
        column("registered_at", "timestamp with time zone", Some("now()")),
        list("types"),
        list("type_prefixes"),
        list("spaces"),
        list("channels"),
        list("resource_kinds"),
        optional("paused_at", "timestamp with time zone"),
        column("lanes", "integer", Some("1")),
        column("lane_key", "text", Some("'resource'::text")),
        optional("barrier_seq", "bigint"),
        optional("barrier_until", "timestamp with time zone"),
        optional("until_seq", "bigint"),
        optional("retired_at", "timestamp with time zone"),
    ];
    assert_eq!(columns(&db, consumers).await, expected);
    assert_eq!(constraints(&db, consumers).await, ["PRIMARY KEY (name)"]);
    let expected = [
        column("name", "text", None),
        column("last_seq", "bigint", Some("0")),
        column("updated_at", "timestamp with time zone", Some("now()")),
        column("lane", "integer", Some("0")),
    ];
    assert_eq!(columns(&db, cursors).await, expected);
    let expected =
        ["FOREIGN KEY (name) REFERENCES seqline.event_consumers(name)", "PRIMARY KEY (name, lane, last_seq)"];
    assert_eq!(constraints(&db, cursors).await, expected);
}

#[tokio::test]
async fn a_consumer_has_one_of_two_kinds_and_its_cursor_is_not_below_the_log() {
    let db = TestDb::new().await;
    sqlx::query("INSERT INTO seqline.event_consumers (name) VALUES ('b')")
        .execute(&db.admin())
        .await
        .unwrap();
    for (sql, constraint) in [
        (
            "INSERT INTO seqline.event_consumers (name, kind) VALUES ('a', 'other')",
            "event_consumers_kind_check",
        ),
        (
            "INSERT INTO seqline.event_consumer_cursors (name, last_seq) VALUES ('b', -1)",
            "event_consumer_cursors_last_seq_check",
        ),
    ] {
        let error = sqlx::raw_sql(sql).execute(&db.admin()).await.unwrap_err();
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
async fn nobody_deletes_what_consumers_have_written_and_only_functions_move_cursors() {
    let db = TestDb::new().await;
    for (table, of_the_app) in [
        ("event_consumers", "SELECT"),
        ("event_consumer_cursors", "SELECT"),
        ("event_consumer_failures", "INSERT, SELECT, UPDATE"),
        ("parked_events", "SELECT"),
        ("skipped_events", "SELECT"),
        ("round_marks", "SELECT"),
        ("audit_log", "SELECT"),
        ("lost_ranges", "INSERT, SELECT"),
    ] {
        for role in [Role::App, Role::Producer, Role::Reader, Role::Consumer, Role::Nobody] {
            let grants: Option<String> = sqlx::query_scalar(
                "SELECT string_agg(p, ', ' ORDER BY p)
                 FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
                 WHERE has_table_privilege($1, 'seqline.' || $2, p)",
            )
            .bind(role.login())
            .bind(table)
            .fetch_one(&db.admin())
            .await
            .unwrap();
            let expected = if role == Role::App { Some(of_the_app) } else { None };
            assert_eq!(grants.as_deref(), expected, "{role:?} on {table}");
        }
    }
}
