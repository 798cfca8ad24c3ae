//! What keeps jobs from being worked is said, and mends itself when the reason is gone.

use seqline_testkit::{Role, TestServer};

use super::*;
use crate::support::{as_admin, on, server_db};
use crate::worker::Worker;

#[tokio::test]
async fn rights_that_are_missing_are_said_at_the_start_and_later() {
    let db = server_db().await;
    for table in ["river_job", "river_leader", "river_queue"] {
        as_admin(&db, &format!("REVOKE INSERT ON seqline_jobs.{table} FROM seqline_app")).await;
        assert_eq!(
            worker(&db).refused(4).await,
            "this role may not work the jobs in schema seqline_jobs: run seqline migrate, and grant the role seqline_app",
            "{table}"
        );
        on(&db, Role::Admin, ["migrate"]).ok().await;
    }
    let worker = Worker::start(worker(&db)).await;
    there_is(&db, "state = 'completed'").await;
    as_admin(&db, "REVOKE UPDATE ON seqline_jobs.river_leader FROM seqline_app").await;
    let said = "jobs cannot be worked, this role lacks rights in their schema: run seqline migrate";
    worker.says(said).await;
    on(&db, Role::Admin, ["migrate"]).ok().await;
    worker.says("jobs are worked again").await;
    assert_eq!((worker.count(said), worker.count("jobs are worked again")), (1, 1));
    worker.stop().await;
}

#[tokio::test]
async fn a_paused_queue_and_jobs_that_nobody_takes_are_said() {
    let db = server_db().await;
    as_admin(
        &db,
        "INSERT INTO seqline_jobs.river_queue (name, updated_at, paused_at) VALUES ('maintenance', now(), now())",
    )
    .await;
    let worker = Worker::start(worker(&db)).await;
    let line = worker.says("jobs wait in a paused queue").await;
    assert_eq!(line["queues"], "maintenance");
    there_is(&db, "state = 'available'").await;
    as_admin(
        &db,
        "UPDATE seqline_jobs.river_queue SET paused_at = NULL;
         INSERT INTO seqline_jobs.river_job (kind, queue, state, max_attempts, args, scheduled_at)
         VALUES ('a.canary', 'nobodys', 'available', 1, '{}', now() - interval '6 min')",
    )
    .await;
    worker.says("jobs are due for long and nobody works them").await;
    there_is(&db, "state = 'completed'").await;
    as_admin(&db, "DELETE FROM seqline_jobs.river_job WHERE queue = 'nobodys'").await;
    worker.says("jobs are worked again").await;
    worker.stop().await;
}

#[tokio::test]
async fn a_run_that_could_not_be_inserted_in_time_comes_a_little_later() {
    let db = server_db().await;
    as_admin(
        &db,
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON seqline_jobs.river_job EXECUTE FUNCTION public.refuse();
         CREATE TABLE public.refused ()",
    )
    .await;
    // A quarter of this is how often it is offered; the whole is far beyond the deadline of a test.
    let worker = Worker::start(with(&db, &[("sync.partition_maintenance_interval", "2min")])).await;
    eventually(DEADLINE, "somebody leads", async || {
        let leaders = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM seqline_jobs.river_leader");
        leaders.fetch_one(&db.admin()).await.unwrap() == 1
    })
    .await;
    as_admin(&db, "DROP TRIGGER refuse ON seqline_jobs.river_job").await;
    eventually(2 * DEADLINE, "it is offered again", async || {
        ask::<i64>(&db, "SELECT count(*) FROM jobs WHERE state = 'completed'").await == 1
    })
    .await;
    worker.stop().await;
}

/// On a server of its own: a membership holds on the whole server.
#[tokio::test]
async fn whoever_migrates_needs_no_rights_of_an_application_and_an_application_none_of_theirs() {
    let server = TestServer::fast().await;
    let db = TestDb::on(&server).await;
    let login = Role::Nobody.login();
    let numbers = "SELECT current_setting('server_version_num')::int >= 160000";
    let option = match ask::<bool>(&db, numbers).await {
        true => " WITH INHERIT FALSE, SET TRUE",
        false => "",
    };
    as_admin(
        &db,
        &format!(
            "GRANT seqline_owner TO {login}{option};
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {login}', current_database()); END $$"
        ),
    )
    .await;
    let said = on(&db, Role::Nobody, ["migrate"]).ok().await;
    assert!(said.ends_with("\njobs schema seqline_jobs created (River version 8)\n"), "{said}");
    as_admin(&db, "REVOKE ALL ON ALL TABLES IN SCHEMA seqline_jobs FROM seqline_app").await;
    let said = on(&db, Role::Nobody, ["migrate"]).ok().await;
    assert!(said.ends_with("\njobs schema seqline_jobs is current (River version 8)\n"), "{said}");
    let mut app = db.connect(Role::App).await;
    for sql in [
        "INSERT INTO seqline_jobs.river_migration (line, version) VALUES ('main', 9)",
        "DELETE FROM seqline_jobs.river_migration",
    ] {
        let error = sqlx::raw_sql(sql).execute(&mut app).await.expect_err(sql);
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("42501"));
    }
    as_admin(&db, "DELETE FROM seqline_jobs.river_migration").await;
    assert_eq!(
        on(&db, Role::Nobody, ["migrate"]).refused(4).await,
        "the schema seqline_jobs of the jobs has a table river_migration that names no version: somebody changed it"
    );
}

#[tokio::test]
async fn a_second_schema_of_jobs_is_refused() {
    let db = server_db().await;
    assert_eq!(
        on(&db, Role::Admin, ["migrate"]).env("SEQLINE_JOBS__SCHEMA", "mistyped").refused(4).await,
        "the jobs of this database are in the schema seqline_jobs: set jobs.schema to it, or rename that schema to mistyped"
    );
    as_admin(&db, "ALTER SCHEMA seqline_jobs RENAME TO mistyped").await;
    let said = on(&db, Role::Admin, ["migrate"]).env("SEQLINE_JOBS__SCHEMA", "mistyped").ok().await;
    assert!(said.ends_with("\njobs schema mistyped is current (River version 8)\n"), "{said}");
}
