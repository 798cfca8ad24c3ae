//! The page about what is kept tells of every table, and of none that does not exist: a table that somebody adds fails here until it
//! is said what it holds, for how long, and who may read it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use seqline_testkit::{Role, TestDb};
use sqlx::Row;

const PAGE: &str = "docs/guide/operate/data.md";

/// Columns of events that name somebody or something of a tenant.
const IDENTIFYING: [&str; 16] = [
    "actor_principal_id",
    "audience_principal_id",
    "channel_id",
    "channels",
    "client_msg_id",
    "correlation_id",
    "key",
    "principal",
    "principal_id",
    "resource_id",
    "space_id",
    "spaces",
    "thread_id",
    "trace_context",
    "who",
    "why",
];

/// What the page says of a table.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    /// Without the reason behind it.
    mark: String,
    reason: Option<String>,
    kept: String,
    until: String,
    /// The roles in front of the semicolon, behind which is what else gives a look at it.
    readers: BTreeSet<String>,
}

/// The rows of the section about the schema.
fn said() -> BTreeMap<String, Said> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE));
    let page = page.expect("the page is there");
    let (_, section) = page.split_once("## Schema seqline\n").expect("the page has the section");
    let (section, _) = section.split_once("\n## ").expect("another section follows");
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut tables = BTreeMap::new();
    for row in rows {
        let [table, _holds, mark, kept, until, readers] = row[..] else { panic!("six cells: {row:?}") };
        let (mark, reason) = match mark.split_once(": ") {
            Some((mark, reason)) => (mark, Some(reason.to_owned())),
            None => (mark, None),
        };
        let direct = readers.split(';').next().unwrap_or_default();
        let said = Said {
            mark: mark.to_owned(),
            reason,
            kept: kept.to_owned(),
            until: until.to_owned(),
            readers: direct
                .split('`')
                .filter(|word| word.starts_with("seqline_"))
                .map(str::to_owned)
                .collect(),
        };
        let table = table.trim_matches('`').to_owned();
        assert!(tables.insert(table.clone(), said).is_none(), "{table} has two rows");
    }
    tables
}

/// What a table is in a migrated database.
#[derive(Debug)]
struct Found {
    columns: BTreeSet<String>,
    readers: BTreeSet<String>,
}

async fn found() -> BTreeMap<String, Found> {
    let db = TestDb::new().await;
    let rows = sqlx::query(
        "SELECT c.relname::text,
                ARRAY(SELECT a.attname::text FROM pg_attribute a
                      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
                ARRAY(SELECT DISTINCT x.grantee::regrole::text
                      FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) x
                      WHERE x.privilege_type = 'SELECT' AND x.grantee <> c.relowner)
         FROM pg_class c
         WHERE c.relnamespace = 'seqline'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition",
    )
    .fetch_all(&mut db.connect(Role::Admin).await)
    .await
    .expect("the catalog can be read");
    let set = |texts: Vec<String>| texts.into_iter().collect();
    rows.iter()
        .map(|row| (row.get(0), Found { columns: set(row.get(1)), readers: set(row.get(2)) }))
        .collect()
}

#[tokio::test]
async fn every_table_has_one_row_and_every_row_is_about_a_table() {
    let (said, found) = (said(), found().await);
    let said: BTreeSet<&String> = said.keys().collect();
    let found: BTreeSet<&String> = found.keys().collect();
    let [unlisted, gone] = [&found - &said, &said - &found];
    assert!(
        unlisted.is_empty() && gone.is_empty(),
        "{PAGE} says nothing of {unlisted:?}, and speaks of {gone:?}, which do not exist"
    );
}

#[tokio::test]
async fn tables_that_hold_what_events_say_are_marked_and_the_others_say_why_they_lead_to_nobody() {
    let said = said();
    for (table, Found { columns, .. }) in found().await {
        let Said { mark, reason, .. } = &said[&table];
        let identifying: Vec<&String> =
            columns.iter().filter(|column| IDENTIFYING.contains(&column.as_str())).collect();
        match mark.as_str() {
            "content" => assert!(columns.contains("payload"), "{table} holds no payload"),
            "ids" => assert!(!columns.contains("payload"), "{table} holds payloads"),
            "none" => {
                assert!(reason.is_some(), "{table} needs a reason why it has no path to a tenant");
                assert!(!columns.contains("payload") && identifying.is_empty(), "{table}: {identifying:?}");
            }
            mark => panic!("{table} is marked {mark}, which is content, ids or none"),
        }
    }
}

#[tokio::test]
async fn who_may_read_a_table_is_what_the_database_grants() {
    let said = said();
    for (table, Found { readers, .. }) in found().await {
        assert_eq!(said[&table].readers, readers, "{table}");
    }
}

#[test]
fn every_table_has_a_class_and_an_end() {
    for (table, Said { kept, until, .. }) in said() {
        assert!(
            ["events", "work", "configuration", "record"].contains(&kept.as_str()),
            "{table} is kept as {kept}"
        );
        assert!(!until.is_empty(), "{table} has no end");
    }
}
