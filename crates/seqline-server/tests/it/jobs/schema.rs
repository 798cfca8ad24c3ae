//! River's schema, made by `seqline migrate`.

use seqline_testkit::{Role, TestDb, TestServer};

use super::ask;
use crate::migrate::apply;
use crate::support::{as_admin, on, run_sql, seqline, server_db};
use crate::worker::worker;

/// Everything that is in the schema of the jobs, with its owner and its rights.
async fn objects(db: &TestDb) -> Vec<String> {
    const SQL: &str = "
        WITH schema AS (SELECT * FROM pg_namespace WHERE nspname = 'seqline_jobs'),
        class AS (SELECT c.* FROM pg_class c JOIN schema s ON s.oid = c.relnamespace)
        SELECT array_agg(line ORDER BY line) FROM (
            SELECT concat_ws(' ', 'schema', nspname, nspowner::regrole, nspacl) AS line FROM schema
            UNION ALL SELECT concat_ws(' ', relkind, relname, relowner::regrole, relpersistence, relacl) FROM class
            UNION ALL SELECT pg_get_indexdef(class.oid) FROM class WHERE relkind = 'i'
            UNION ALL SELECT concat_ws(' ', relname, attname, format_type(atttypid, atttypmod), attnotnull,
                                       pg_get_expr(adbin, adrelid))
                      FROM class JOIN pg_attribute a ON a.attrelid = class.oid
                      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                      WHERE attnum > 0 AND NOT attisdropped
            UNION ALL SELECT concat_ws(' ', conname, pg_get_constraintdef(o.oid))
                      FROM pg_constraint o JOIN schema s ON s.oid = o.connamespace
            UNION ALL SELECT concat_ws(' ', pg_get_functiondef(p.oid), proowner::regrole, proacl)
                      FROM pg_proc p JOIN schema s ON s.oid = p.pronamespace
            UNION ALL SELECT concat_ws(' ', typname, string_agg(enumlabel, ' ' ORDER BY enumsortorder))
                      FROM pg_enum JOIN pg_type t ON t.oid = enumtypid GROUP BY typname
            UNION ALL SELECT concat_ws(' ', line, version) FROM seqline_jobs.river_migration
        ) AS lines";
    ask(db, SQL).await
}

#[tokio::test]
async fn the_printed_sql_makes_what_migrate_makes_and_does_nothing_a_second_time() {
    let (printed, migrated) = (TestDb::empty().await, TestDb::empty().await);
    let script = seqline(["migrate", "--print"]).ok().await;
    apply(&printed, &script).await;
    on(&migrated, Role::Admin, ["migrate"]).ok().await;
    let made = objects(&migrated).await;
    assert!(
        made.len() > 60 && made.iter().any(|line| line.starts_with("r river_job seqline_owner")),
        "{made:#?}"
    );
    assert_eq!(objects(&printed).await, made);
    let version = seqline::migrate::newest_version().to_string();
    let rest = seqline(["migrate", "--print", "--after", &version]).ok().await;
    apply(&printed, &rest).await;
    assert_eq!(objects(&printed).await, made);
    let said = on(&printed, Role::Admin, ["migrate"]).ok().await;
    assert!(said.ends_with("\njobs schema seqline_jobs is current (River version 8)\n"), "{said}");
    assert_eq!(objects(&printed).await, made);
}

#[tokio::test]
async fn the_printed_sql_goes_on_where_a_migration_stopped() {
    let db = TestDb::empty().await;
    let script = seqline(["migrate", "--print"]).ok().await;
    let (before, _) = script.split_once("\n-- River version 4 ").unwrap();
    apply(&db, before).await;
    let version = seqline::migrate::newest_version().to_string();
    apply(&db, &seqline(["migrate", "--print", "--after", &version]).ok().await).await;
    let migrated = server_db().await;
    assert_eq!(objects(&db).await, objects(&migrated).await);
}

#[tokio::test]
async fn it_is_where_the_configuration_says() {
    let db = TestDb::empty().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seqline.toml");
    std::fs::write(&file, "[jobs]\nschema = \"work\"\n").unwrap();
    let said = on(&db, Role::Admin, ["migrate", "--config"]).arg(&file).ok().await;
    assert!(said.ends_with("\njobs schema work created (River version 8)\n"), "{said}");
    let again = on(&db, Role::Admin, ["migrate"]).env("SEQLINE_JOBS__SCHEMA", "work").ok().await;
    assert!(again.ends_with("\njobs schema work is current (River version 8)\n"), "{again}");
    let script = seqline(["migrate", "--print", "--config"]).arg(&file).ok().await;
    assert!(script.contains("\"work\".river_job") && !script.contains("seqline_jobs"), "{script}");
}

#[tokio::test]
async fn a_schema_of_somebody_else_is_refused_before_anything_is_done() {
    let db = TestDb::empty().await;
    as_admin(&db, "CREATE SCHEMA theirs").await;
    as_admin(&db, "CREATE SCHEMA ours AUTHORIZATION pg_database_owner").await;
    for (name, owner) in [("theirs", "postgres"), ("ours", "pg_database_owner")] {
        let sentence = on(&db, Role::Admin, ["migrate"]).env("SEQLINE_JOBS__SCHEMA", name).refused(4).await;
        let expected = format!(
            "the schema {name} exists and belongs to {owner}: give the jobs another one with jobs.schema"
        );
        assert_eq!(sentence, expected);
    }
    assert!(!ask::<bool>(&db, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'seqline')").await);
}

#[tokio::test]
async fn a_schema_with_other_tables_is_refused() {
    let db = TestDb::new().await;
    as_admin(&db, "CREATE SCHEMA work AUTHORIZATION seqline_owner; CREATE TABLE work.orders ()").await;
    assert_eq!(
        on(&db, Role::Admin, ["migrate"]).env("SEQLINE_JOBS__SCHEMA", "work").refused(4).await,
        "the schema work holds something else than River's tables: give the jobs another one with jobs.schema"
    );
    as_admin(&db, "DROP TABLE work.orders").await;
    let said = on(&db, Role::Admin, ["migrate"]).env("SEQLINE_JOBS__SCHEMA", "work").ok().await;
    assert!(said.ends_with("\njobs schema work created (River version 8)\n"), "{said}");
}

#[tokio::test]
async fn a_newer_river_is_refused_by_all_and_an_older_one_by_workers() {
    let db = server_db().await;
    as_admin(&db, "INSERT INTO seqline_jobs.river_migration (line, version) VALUES ('main', 9)").await;
    let newer =
        "the schema seqline_jobs of the jobs has River version 9, this program knows 8: use a newer program";
    assert_eq!(on(&db, Role::Admin, ["migrate"]).refused(4).await, newer);
    assert_eq!(worker(&db).refused(4).await, newer);
    assert_eq!(on(&db, Role::App, ["jobs", "list"]).refused(4).await, newer);
    as_admin(&db, "DELETE FROM seqline_jobs.river_migration WHERE version IN (8, 9)").await;
    assert_eq!(
        worker(&db).refused(4).await,
        "the schema seqline_jobs of the jobs has River version 7, this program needs 8: run seqline migrate"
    );
    let said = on(&db, Role::Admin, ["migrate"]).ok().await;
    assert!(said.ends_with("\njobs schema seqline_jobs updated (River version 7 to 8)\n"), "{said}");
}

#[tokio::test]
async fn a_worker_does_not_start_without_it_or_without_its_rights() {
    let db = TestDb::new().await;
    let missing = "no jobs are in the schema seqline_jobs: run seqline migrate, or correct jobs.schema";
    assert_eq!(worker(&db).refused(4).await, missing);
    assert_eq!(on(&db, Role::App, ["jobs", "list"]).refused(4).await, missing);
    let db = crate::support::with_jobs(db).await;
    as_admin(&db, "REVOKE USAGE ON SCHEMA seqline_jobs FROM seqline_app").await;
    assert_eq!(
        worker(&db).refused(4).await,
        "permission denied for schema seqline_jobs (SQLSTATE 42501): grant this role seqline_app"
    );
    // A migration gives back what is missing.
    on(&db, Role::Admin, ["migrate"]).ok().await;
    assert_eq!(on(&db, Role::App, ["jobs", "list", "--json"]).ok().await, "[]\n");
}

/// On a server of its own: a membership holds on the whole server.
#[tokio::test]
async fn whoever_may_not_make_it_is_told_what_somebody_else_has_to_run() {
    let server = TestServer::fast().await;
    let db = TestDb::on(&server).await;
    let outcome = on(&db, Role::App, ["migrate"]).run().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(4), ""), "{outcome:?}");
    let (sentence, sql) = outcome.stderr.split_once("\n\n").unwrap();
    let login = Role::App.login();
    assert_eq!(
        sentence,
        format!(
            "seqline: role {login} may not create or change the schema seqline_jobs of the jobs in database {}. Ask somebody who may to run this, then migrate again:",
            db.name()
        )
    );
    run_sql(&mut db.connect(Role::Admin).await, sql).await;
    let said = on(&db, Role::App, ["migrate"]).ok().await;
    assert!(said.ends_with("\njobs schema seqline_jobs created (River version 8)\n"), "{said}");
}

/// The tables of the log are compared by the library's own test.
#[tokio::test]
async fn the_page_about_what_is_kept_has_exactly_these_tables_and_who_may_read_them() {
    const PAGE: &str = "docs/guide/operate/data.md";
    const SQL: &str = "
        SELECT array_agg(line ORDER BY line) FROM (
            SELECT concat_ws(' ', c.relname,
                       (SELECT string_agg(x.grantee::regrole::text, ' ' ORDER BY x.grantee::regrole::text)
                        FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) x
                        WHERE x.privilege_type = 'SELECT' AND x.grantee <> c.relowner)) AS line
            FROM pg_class c WHERE c.relnamespace = 'seqline_jobs'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
        ) AS lines";
    let found: Vec<String> = ask(&server_db().await, SQL).await;
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let page = std::fs::read_to_string(page).expect("the page is there");
    let (_, section) = page.split_once("## Schema of the jobs\n").expect("the page has the section");
    let (section, _) = section.split_once("\n## ").expect("another section follows");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [table, readers] = [cells[0], cells[5]].map(|cell| {
            let words: Vec<&str> = cell.split('`').filter(|word| word.contains('_')).collect();
            words.join(" ")
        });
        format!("{table} {readers}").trim_end().to_owned()
    };
    let mut said: Vec<String> = section.lines().filter(|line| line.starts_with("| `")).map(row).collect();
    said.sort();
    assert_eq!(said, found, "{PAGE}");
}
