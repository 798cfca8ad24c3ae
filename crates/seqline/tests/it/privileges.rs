//! Who may do what after all migrations, as golden lists: a change of a right is seen in review.

use seqline::CommitError;
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

use crate::support::{append, head};

/// One line per row.
async fn lines(connection: &mut PgConnection, sql: &'static str) -> String {
    let lines: Vec<String> =
        sqlx::query_scalar(sql).fetch_all(connection).await.expect("the catalog can be read");
    lines.join("\n")
}

async fn sqlstate(db: &TestDb, role: Role, sql: &'static str) -> Option<String> {
    let error = sqlx::raw_sql(sql).execute(&mut db.connect(role).await).await.err()?;
    Some(error.as_database_error()?.code()?.into_owned())
}

const APPEND: &str = "SELECT seqline.append('test.happened', '{}', 'test', 'any')";
const REFUSED: Option<&str> = Some("42501");

#[tokio::test]
async fn the_triggers_are_these() {
    let db = TestDb::new().await;
    let triggers = lines(
        &mut db.connect(Role::Admin).await,
        "SELECT format('%s (%s)', pg_get_triggerdef(t.oid, true), CASE t.tgenabled
             WHEN 'A' THEN 'always' WHEN 'O' THEN 'origin' WHEN 'R' THEN 'replica' WHEN 'D' THEN 'disabled' END)
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = 'seqline'::regnamespace AND (NOT t.tgisinternal OR t.tgenabled <> 'O') ORDER BY 1",
    )
    .await;
    insta::assert_snapshot!(triggers);
}

#[tokio::test]
async fn the_functions_that_act_as_their_owner_are_these() {
    let db = TestDb::new().await;
    let functions = lines(
        &mut db.connect(Role::Admin).await,
        "SELECT format('%s owner %s, %s, executable by %s', p.oid::regprocedure, p.proowner::regrole,
             coalesce(array_to_string(p.proconfig, '; '), 'no configuration'),
             coalesce((SELECT string_agg(CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END, ', '
                       ORDER BY x.grantee::regrole::text)
                       FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x
                       WHERE x.grantee <> p.proowner), 'nobody else'))
         FROM pg_proc p WHERE p.pronamespace = 'seqline'::regnamespace AND p.prosecdef ORDER BY 1",
    )
    .await;
    insta::assert_snapshot!(functions);
}

#[tokio::test]
async fn the_rights_of_each_role_are_these() {
    let db = TestDb::new().await;
    // What the owner has is left out: it is everything, and grows with PostgreSQL.
    let rights = lines(
        &mut db.connect(Role::Admin).await,
        "SELECT format('%s: %s on %s%s', grantee, string_agg(privilege, ', ' ORDER BY privilege), object,
             CASE WHEN bool_or(grantable) THEN ' with grant option' ELSE '' END)
         FROM (
             SELECT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END AS grantee,
                    x.privilege_type AS privilege, o.object, x.is_grantable AS grantable
             FROM (
                 SELECT 'schema seqline' AS object, nspowner AS owner, coalesce(nspacl, acldefault('n', nspowner)) AS acl
                 FROM pg_namespace WHERE nspname = 'seqline'
                 UNION ALL
                 SELECT format('%s %s', CASE relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, relname), relowner,
                        coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", relowner))
                 FROM pg_class WHERE relnamespace = 'seqline'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
                 UNION ALL
                 SELECT format('column %s.%s', c.relname, a.attname), c.relowner, a.attacl
                 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                 WHERE c.relnamespace = 'seqline'::regnamespace AND a.attacl IS NOT NULL
                 UNION ALL
                 SELECT format('function %s', oid::regprocedure), proowner, coalesce(proacl, acldefault('f', proowner))
                 FROM pg_proc WHERE pronamespace = 'seqline'::regnamespace
             ) o CROSS JOIN LATERAL aclexplode(o.acl) x
             WHERE x.grantee <> o.owner
         ) r
         GROUP BY grantee, object ORDER BY grantee COLLATE \"C\", object COLLATE \"C\"",
    )
    .await;
    insta::assert_snapshot!(rights);
}

#[tokio::test]
async fn the_public_has_no_right() {
    let db = TestDb::new().await;
    let public = lines(
        &mut db.connect(Role::Admin).await,
        "SELECT format('%s on %s', x.privilege_type, o.object)
         FROM (
             SELECT 'schema' AS object, coalesce(nspacl, acldefault('n', nspowner)) AS acl
             FROM pg_namespace WHERE nspname = 'seqline'
             UNION ALL
             SELECT relname, coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::\"char\", relowner))
             FROM pg_class WHERE relnamespace = 'seqline'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
             UNION ALL
             SELECT oid::regprocedure::text, coalesce(proacl, acldefault('f', proowner))
             FROM pg_proc WHERE pronamespace = 'seqline'::regnamespace
         ) o CROSS JOIN LATERAL aclexplode(o.acl) x
         WHERE x.grantee = 0 ORDER BY 1",
    )
    .await;
    assert_eq!(public, "");
}

#[tokio::test]
async fn every_function_that_acts_as_its_owner_pins_where_names_are_looked_up() {
    let db = TestDb::new().await;
    let loose = lines(
        &mut db.connect(Role::Admin).await,
        "SELECT p.oid::regprocedure::text FROM pg_proc p
         WHERE p.pronamespace = 'seqline'::regnamespace AND p.prosecdef
           AND NOT EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c ~ '^search_path=.*\\mpg_temp$')",
    )
    .await;
    assert_eq!(loose, "");
}

/// A plan without a sequential scan where only that is possible costs ten thousand millions before PostgreSQL 18, and
/// every plan as dear as that is compiled first, which takes 70 ms.
#[tokio::test]
async fn every_function_that_forbids_sequential_scans_forbids_compilation_too() {
    let db = TestDb::new().await;
    let compiled = lines(
        &mut db.connect(Role::Admin).await,
        "SELECT p.oid::regprocedure::text FROM pg_proc p
         WHERE p.pronamespace = 'seqline'::regnamespace AND 'enable_seqscan=off' = ANY (p.proconfig)
           AND NOT 'jit=off' = ANY (p.proconfig)",
    )
    .await;
    assert_eq!(compiled, "");
}

#[tokio::test]
async fn the_roles_of_the_product_cannot_log_in_and_are_nothing_special() {
    let db = TestDb::new().await;
    let special = lines(
        &mut db.connect(Role::Admin).await,
        "SELECT rolname::text FROM pg_roles WHERE rolname LIKE 'seqline\\_%' AND rolname NOT LIKE 'seqline\\_test\\_%'
           AND (rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)
         UNION ALL
         SELECT format('%s in %s', m.member::regrole, m.roleid::regrole) FROM pg_auth_members m
         WHERE m.member::regrole::text LIKE 'seqline\\_%' AND m.member::regrole::text NOT LIKE 'seqline\\_test\\_%'",
    )
    .await;
    assert_eq!(special, "");
}

#[tokio::test]
async fn a_producer_can_append_and_not_read() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=2).await;
    for sql in [
        "SELECT seq FROM seqline.event_log",
        "SELECT seqline.head()",
        "SELECT payload FROM seqline.pending_events",
        "SELECT payload FROM seqline.staged_events",
    ] {
        assert_eq!(sqlstate(&db, Role::Producer, sql).await.as_deref(), REFUSED, "{sql}");
    }
}

#[tokio::test]
async fn a_reader_can_read_and_not_append() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    assert_eq!(crate::support::numbers(&mut db.connect(Role::Reader).await).await, [1]);
    assert_eq!(sqlstate(&db, Role::Reader, APPEND).await.as_deref(), REFUSED);
    assert_eq!(sqlstate(&db, Role::Reader, "SELECT seqline.append_batch('[]')").await.as_deref(), REFUSED);
}

#[tokio::test]
async fn the_application_cannot_write_what_the_log_consists_of() {
    let db = TestDb::new().await;
    append(&db.app(), [1]).await;
    for sql in [
        "INSERT INTO seqline.event_log (seq) VALUES (2)",
        "UPDATE seqline.event_log SET payload = '{}'",
        "DELETE FROM seqline.event_log",
        "DELETE FROM seqline.event_log_from_0000000000000000001",
        "SELECT seq FROM seqline.event_log_from_0000000000000000001",
        "INSERT INTO seqline.pending_events (xid) VALUES ('1')",
        "DELETE FROM seqline.pending_events",
        "INSERT INTO seqline.pending_transactions (xid) VALUES ('1')",
        "DELETE FROM seqline.pending_transactions",
        "UPDATE seqline.settings SET event_payload_max_bytes = 10",
        "UPDATE seqline.log_bounds SET head_floor = 1",
        "UPDATE seqline.log_identity SET epoch = gen_random_uuid()",
        "UPDATE seqline.log_identity SET broken_at = NULL, broken_reason = NULL",
        "SELECT seqline.hold_identity()",
        "SELECT seqline.lanes_above(0)",
        "SELECT seqline.server_identity()",
        "UPDATE seqline.sequence_counters SET value = 7",
        "DELETE FROM seqline.schema_version",
        "INSERT INTO seqline.staged_events (xid) VALUES ('1')",
        "DELETE FROM seqline.staged_events",
        "INSERT INTO seqline.staged_transactions (n, xid) VALUES (1, '1')",
        "DELETE FROM seqline.staged_transactions",
        "UPDATE seqline.sequencer_progress SET high = 7",
        "SELECT setval('seqline.staging_done', 7)",
        "UPDATE seqline.sequencer_lease SET holder = NULL",
        "SELECT nextval('seqline.commit_order')",
        "SELECT setval('seqline.staging_closed_at', 7)",
        "SELECT seqline.number_transaction(NULL, NULL)",
        "SELECT seqline.mark_transaction(NULL, true)",
        "SELECT seqline.finish_transaction('(0,1)', NULL)",
        "SELECT seqline.stage_transaction(NULL)",
        "SELECT seqline.number_in_partition(NULL, false)",
        "SELECT seqline.append_draft(NULL)",
        "DELETE FROM seqline.incarnation",
        "SELECT seqline.number_staged(0, '{}', 1)",
        "SELECT seqline.number_all_staged()",
        "ALTER TABLE seqline.pending_transactions DISABLE TRIGGER number_at_commit",
    ] {
        assert_eq!(sqlstate(&db, Role::App, sql).await.as_deref(), REFUSED, "{sql}");
    }
}

#[tokio::test]
async fn a_login_without_a_role_can_do_nothing() {
    let db = TestDb::new().await;
    append(&db.app(), [1]).await;
    for sql in [
        APPEND,
        "SELECT seqline.append_batch('[]')",
        "SELECT seqline.head()",
        "SELECT seqline.without_nulls('{}')",
        "SELECT seq FROM seqline.event_log",
        "SELECT * FROM seqline.settings",
        "SELECT seqline.sync_event_log_drop_expired(now(), now(), 1, '1 s')",
    ] {
        assert_eq!(sqlstate(&db, Role::Nobody, sql).await.as_deref(), REFUSED, "{sql}");
    }
}

/// [`seqline::commit`] asks the log what it has to do. Without any right to it the driver's own COMMIT remains.
#[tokio::test]
async fn the_commit_of_the_product_is_for_those_who_may_append() {
    let db = TestDb::new().await;
    for role in [Role::App, Role::Producer] {
        seqline::commit(seqline::begin(&db.pool(role, 1)).await.unwrap()).await.unwrap();
    }
    let error = seqline::commit(seqline::begin(&db.nobody()).await.unwrap()).await.unwrap_err();
    let CommitError::Database(database) = &error else { panic!("{error:?}") };
    assert_eq!((database.sqlstate(), error.is_retryable(), error.had_no_effect()), (REFUSED, false, true));
    seqline::begin(&db.nobody()).await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn nobody_but_the_owner_can_hold_up_numbering() {
    let db = TestDb::new().await;
    for role in [Role::App, Role::Producer, Role::Reader, Role::Nobody] {
        for sql in [
            "BEGIN; LOCK TABLE seqline.numbering IN ACCESS SHARE MODE",
            "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE",
            "SELECT FROM seqline.numbering",
            "BEGIN; LOCK TABLE seqline.staged_transactions IN ACCESS SHARE MODE",
            "BEGIN; LOCK TABLE seqline.staged_transactions IN ROW EXCLUSIVE MODE",
            "SELECT FROM seqline.staged_transactions",
        ] {
            assert_eq!(sqlstate(&db, role, sql).await.as_deref(), REFUSED, "{role:?}: {sql}");
        }
    }
}

#[tokio::test]
async fn nobody_but_the_owner_can_hold_up_maintenance() {
    let db = TestDb::new().await;
    for role in [Role::App, Role::Producer, Role::Reader, Role::Nobody] {
        let sql = "BEGIN; SELECT FROM seqline.log_bounds FOR SHARE";
        assert_eq!(sqlstate(&db, role, sql).await.as_deref(), REFUSED, "{role:?}");
    }
}

#[tokio::test]
async fn an_object_of_the_callers_own_cannot_stand_in_for_one_that_a_function_uses() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    // Temporary objects come first for whoever does not pin the path.
    sqlx::raw_sql(
        "CREATE TEMPORARY TABLE settings (event_payload_max_bytes int); INSERT INTO settings VALUES (1);
         CREATE FUNCTION public.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS 'SELECT ''hijacked''';
         CREATE FUNCTION pg_temp.length(text) RETURNS int LANGUAGE sql AS 'SELECT 1/0';
         SET search_path = pg_temp, public, pg_catalog",
    )
    .execute(&mut app)
    .await
    .unwrap();
    sqlx::raw_sql(APPEND).execute(&mut app).await.unwrap();
    assert_eq!(head(&db).await, 1);
}
