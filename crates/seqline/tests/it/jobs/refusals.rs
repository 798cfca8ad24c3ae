//! What somebody is told whose jobs cannot be inserted, and what can be done with the transaction then.

use std::error::Error;

use sqlx::PgTransaction;

use super::*;

/// In the arguments of every job here. Nobody is told what they say.
const MARKER: &str = "swordfish";

fn secret() -> Vec<Job> {
    checked([NewJob::new(KIND, JobArgs::new().with("order_id", MARKER))])
}

/// All that an error says, with its causes.
fn said(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let said = causes.map(|error| format!("{error}\n{error:?}")).collect::<Vec<_>>().join("\n");
    assert!(!said.contains(MARKER), "{said}");
    error.to_string()
}

/// Refused with this sentence, by the sink and by its health, and the transaction is usable.
async fn assert_refused(db: &TestDb, role: Role, sink: &River, expected: &str) {
    let mut tx = seqline::begin(&db.pool(role, 1)).await.unwrap();
    let error = sink.insert(&mut tx, &secret()).await.expect_err(expected);
    assert_eq!(said(&error), expected);
    assert!(is_usable(&mut tx).await, "{expected}");
    let error = sink.health(&mut tx).await.expect_err(expected);
    assert_eq!(said(&error), expected);
    assert!(is_usable(&mut tx).await, "{expected}");
}

async fn is_usable(tx: &mut PgTransaction<'_>) -> bool {
    sqlx::query("SELECT 1").execute(&mut **tx).await.is_ok()
}

#[tokio::test]
async fn a_database_without_river_is_told_to_get_it() {
    let db = TestDb::new().await;
    let expected = "schema queue has no River tables: run River's migrations there";
    assert_refused(&db, Role::App, &river(), expected).await;
    as_admin(&db, "CREATE SCHEMA queue").await;
    assert_refused(&db, Role::App, &river(), expected).await;
    as_admin(&db, "CREATE SCHEMA other CREATE VIEW river_job AS SELECT 1").await;
    assert_refused(&db, Role::App, &river(), expected).await;
    bring_up(&db, "other_one", None).await;
    let elsewhere = format!("{expected}, or name the schema that has them: other_one");
    assert_refused(&db, Role::App, &river(), &elsewhere).await;
    bring_up(&db, "My Queue", None).await;
    let elsewhere = format!("{expected}, or name the schema that has them: My Queue, other_one");
    assert_refused(&db, Role::App, &river(), &elsewhere).await;
}

#[tokio::test]
async fn river_tables_of_an_unknown_version_are_not_written() {
    let db = database().await;
    as_admin(&db, "DROP TABLE queue.river_migration").await;
    let expected = "schema queue has River tables and no table river_migration, so their version is not known: run River's migrations";
    assert_refused(&db, Role::App, &river(), expected).await;
}

#[tokio::test]
async fn a_schema_whose_name_has_to_be_quoted_is_quoted() {
    for schema in ["My Queue", "quo\"ted", "quo'ted", "semi;colon", "select"] {
        let db = TestDb::new().await;
        bring_up(&db, SCHEMA, None).await;
        let quoted = schema.replace('"', "\"\"");
        as_admin(&db, &format!("ALTER SCHEMA queue RENAME TO \"{quoted}\"")).await;
        let sink = River::in_schema(schema);
        let unique = Some(seqline::job::Unique { by_args: true, ..Default::default() });
        let wanted = checked([new_job(1), NewJob { unique, ..new_job(2) }, NewJob { unique, ..new_job(2) }]);
        let inserted = insert(&db.app(), &sink, &wanted).await.expect(schema);
        assert_eq!((inserted.inserted, inserted.duplicates.len()), (2, 1), "{schema}");
        assert_eq!(jobs_in(&db, &quoted).await, [1, 2], "{schema}");
        let health = sink.health(&mut db.connect(Role::App).await).await.expect(schema);
        assert_eq!(health.version, Some(8), "{schema}");
    }
}

#[tokio::test]
async fn a_role_needs_the_rights_that_it_is_told_and_no_other() {
    let db = database().await;
    let role = Role::Nobody.login();
    let rights = [
        "USAGE ON SCHEMA queue",
        "SELECT ON queue.river_job",
        "INSERT ON queue.river_job",
        "UPDATE ON queue.river_job",
        "USAGE ON SEQUENCE queue.river_job_id_seq",
        "SELECT ON queue.river_migration",
        "SELECT ON queue.river_queue",
    ];
    let expected = format!(
        "role {role} may not insert jobs in schema queue: it needs USAGE on the schema, SELECT, INSERT and UPDATE on river_job, USAGE on the sequence river_job_id_seq, and SELECT on river_migration and river_queue"
    );
    assert_refused(&db, Role::Nobody, &river(), &expected).await;
    for right in rights {
        as_admin(&db, &format!("GRANT {right} TO {role}")).await;
    }
    let sink = river();
    let unique = Some(seqline::job::Unique { by_args: true, ..Default::default() });
    let wanted = checked([new_job(1), NewJob { unique, tags: vec!["tag".to_owned()], ..new_job(2) }]);
    insert(&db.nobody(), &sink, &wanted).await.expect("these rights are enough");
    let again = insert(&db.nobody(), &sink, &wanted).await.expect("also for duplicates");
    assert_eq!((again.inserted, again.duplicates.len()), (1, 1));
    sink.health(&mut db.connect(Role::Nobody).await).await.expect("also for its health");
    for right in rights {
        as_admin(&db, &format!("REVOKE {right} FROM {role}")).await;
        assert_refused(&db, Role::Nobody, &river(), &expected).await;
        // One who had them finds out by failing, and is told by the next call.
        let error = insert(&db.nobody(), &sink, &wanted).await.expect_err(right);
        if let JobError::Database(error) = &error {
            assert_eq!(error.sqlstate(), Some("42501"), "{right}");
            let error = insert(&db.nobody(), &sink, &wanted).await.expect_err(right);
            assert_eq!(said(&error), expected, "{right}");
        } else {
            panic!("{right}: {error:?}");
        }
        as_admin(&db, &format!("GRANT {right} TO {role}")).await;
        insert(&db.nobody(), &sink, &wanted).await.expect(right);
    }
}

#[tokio::test]
async fn what_the_database_refuses_is_told_without_what_is_in_it() {
    let db = database().await;
    let no_fish = format!(
        "ALTER TABLE queue.river_job ADD CONSTRAINT no_fish CHECK (args ->> 'order_id' <> '{}')",
        MARKER
    );
    as_admin(&db, &no_fish).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let error = river().insert(&mut tx, &secret()).await.expect_err("it is no fish");
    assert!(matches!(error, JobError::Database(_)) && !error.is_retryable(), "{error:?}");
    let expected = r#"database refused the jobs: new row for relation "river_job" violates check constraint "no_fish" (SQLSTATE 23514)"#;
    assert_eq!(said(&error), expected);
    assert!(!is_usable(&mut tx).await, "the transaction has failed");
}

#[tokio::test]
async fn jobs_that_lose_a_deadlock_may_be_tried_again() {
    let db = database().await;
    as_admin(
        &db,
        "CREATE FUNCTION loses() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END $$;
         CREATE TRIGGER loses BEFORE INSERT ON queue.river_job EXECUTE FUNCTION loses()",
    )
    .await;
    let error = insert(&db.app(), &river(), &secret()).await.expect_err("the trigger raises");
    assert!(error.is_retryable(), "{error:?}");
}
