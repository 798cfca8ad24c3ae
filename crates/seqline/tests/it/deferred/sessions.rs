//! Whatever a session sets, its appends are numbered as everybody's.

use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{append, assert_nothing_staged, event, numbers};

const PUT_1: &str = "SELECT seqline.append('test.happened', '{\"n\": 1}', 'test', 'any');";

/// The script, run by this role, appends event 1 and commits it; another one can be appended after it.
async fn assert_numbered(connection: &mut PgConnection, db: &TestDb, script: &str) {
    let script = script.replace("PUT_1;", PUT_1);
    sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await.unwrap();
    append(&db.producer(), [2]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn a_replicating_session_is_numbered() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    assert_numbered(&mut admin, &db, "SET session_replication_role = replica; BEGIN; PUT_1; COMMIT").await;
}

#[tokio::test]
async fn forced_parallel_plans_change_nothing() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql(
        "SELECT set_config(CASE WHEN current_setting('server_version_num')::int >= 160000
             THEN 'debug_parallel_query' ELSE 'force_parallel_mode' END, 'on', false);
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET min_parallel_index_scan_size = 0",
    )
    .execute(&mut app)
    .await
    .unwrap();
    assert_numbered(&mut app, &db, "BEGIN; PUT_1; COMMIT").await;
}

#[tokio::test]
async fn planner_settings_of_the_session_change_nothing() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    assert_numbered(
        &mut app,
        &db,
        "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SET enable_tidscan = off;
         SET plan_cache_mode = force_generic_plan; BEGIN; PUT_1; COMMIT",
    )
    .await;
}

#[tokio::test]
async fn discard_all_between_two_transactions_changes_nothing() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    for n in 1..=4 {
        let append = format!("SELECT seqline.append('test.happened', '{{\"n\": {n}}}', 'test', 'any')");
        sqlx::raw_sql(AssertSqlSafe(append)).execute(&mut app).await.unwrap();
        sqlx::raw_sql("DISCARD ALL").execute(&mut app).await.unwrap();
    }
    assert_eq!(numbers(&mut app).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn the_role_of_the_append_need_not_be_that_of_the_commit() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    let script = "BEGIN; SET ROLE seqline_test_producer; PUT_1; RESET ROLE; COMMIT";
    assert_numbered(&mut admin, &db, script).await;
}

#[tokio::test]
async fn a_role_without_any_right_may_commit_what_another_has_appended() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    let script =
        "BEGIN; SET ROLE seqline_test_producer; PUT_1; SET ROLE seqline_test_none; COMMIT; RESET ROLE";
    assert_numbered(&mut admin, &db, script).await;
}

/// Functions, operators and tables that would be found first if anything in the log's own functions were looked up by the
/// session's search path; each fails when it is used.
const HOSTILE: &str = "
CREATE SCHEMA hostile;
GRANT USAGE ON SCHEMA hostile TO PUBLIC;
CREATE FUNCTION hostile.trap() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
DO $$
DECLARE
    f record;
BEGIN
    -- Everything that the log's functions could call, with the same arguments and results.
    FOR f IN
        SELECT DISTINCT p.oid, p.proname, pg_get_function_identity_arguments(p.oid) AS args, p.prorettype::regtype AS result
        FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0
          AND p.prorettype::regtype::text NOT IN ('internal', 'trigger', 'record', 'void', 'cstring')
          AND p.proname IN ('now', 'length', 'octet_length', 'left', 'replace', 'strpos', 'encode', 'substr', 'get_byte',
              'set_config', 'current_setting', 'pg_current_xact_id', 'pg_trigger_depth', 'jsonb_typeof',
              'jsonb_array_length', 'jsonb_strip_nulls', 'clock_timestamp', 'gen_random_uuid', 'int8send', 'uuid_send',
              'quote_literal', 'jsonb_path_exists', 'extract')
          AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) t WHERE t::regtype::text LIKE 'any%' OR t::regtype::text = 'internal')
    LOOP
        EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS
            $trap$ BEGIN RAISE EXCEPTION ''trapped in %s''; END $trap$', f.proname, f.args, f.result, f.proname);
    END LOOP;
    EXECUTE 'CREATE FUNCTION hostile.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS
        $trap$ BEGIN RAISE EXCEPTION ''trapped in pg_notify''; END $trap$';
    EXECUTE 'CREATE FUNCTION hostile.coalesce_text(text, text) RETURNS boolean LANGUAGE plpgsql AS
        $trap$ BEGIN RAISE EXCEPTION ''trapped in an operator''; END $trap$';
    FOR f IN SELECT unnest(ARRAY['=', '<>', '~', '!~', '!~*', '>', '<']) AS name LOOP
        EXECUTE format('CREATE OPERATOR hostile.%s (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.coalesce_text)', f.name);
    END LOOP;
END
$$;
CREATE TABLE hostile.settings (event_payload_max_bytes text);
CREATE TABLE hostile.pending_events ();
CREATE TABLE hostile.pending_transactions ();
CREATE TABLE hostile.event_log (seq text);
CREATE TABLE hostile.numbering ();
CREATE TABLE hostile.log_bounds ();
CREATE TABLE hostile.sequence_counters ();
CREATE DOMAIN hostile.uuid AS pg_catalog.text;
CREATE DOMAIN hostile.jsonb AS pg_catalog.text;";

#[tokio::test]
async fn a_hostile_search_path_changes_nothing() {
    let db = TestDb::new().await;
    sqlx::raw_sql(HOSTILE).execute(&db.admin()).await.unwrap();
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql("SET search_path = hostile, pg_catalog, public").execute(&mut app).await.unwrap();
    // The trap works: what is not looked up with care falls into it.
    for bait in ["SELECT length('x'::text)", "SELECT now()", "SELECT 'a'::text = 'b'::text"] {
        let error = sqlx::raw_sql(bait).execute(&mut app).await.unwrap_err();
        assert!(error.to_string().contains("trapped"), "{error}");
    }
    assert_numbered(
        &mut app,
        &db,
        "BEGIN; PUT_1; SET CONSTRAINTS ALL IMMEDIATE; COMMIT; SELECT seqline.head()",
    )
    .await;
    let batch = sqlx::raw_sql(
        "SELECT seqline.append_batch('[{\"type\": \"test.happened\", \"resource_kind\": \"test\", \"receive_action\": \"any\",
             \"payload\": {\"n\": 3}, \"id\": \"01890000-0000-7000-8000-000000000000\",
             \"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}]');
         SELECT seqline.min_retained(), seqline.seq_of('01890000-0000-7000-8000-000000000000'),
             seqline.without_nulls('{\"a\": [null]}')",
    );
    batch.execute(&mut app).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3]);
}

#[tokio::test]
async fn temporary_objects_that_shadow_the_catalog_change_nothing() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql(
        "CREATE TEMPORARY TABLE pg_class (oid oid, relname text);
         CREATE TEMPORARY TABLE pg_locks (pid int);
         CREATE TEMPORARY TABLE pending_events ();
         CREATE TEMPORARY TABLE event_log ();
         CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
         CREATE FUNCTION pg_temp.length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$",
    )
    .execute(&mut app)
    .await
    .unwrap();
    assert_numbered(&mut app, &db, "SET search_path = pg_temp, pg_catalog; BEGIN; PUT_1; COMMIT").await;
}

#[tokio::test]
async fn a_unit_with_temporary_tables_and_cursors_is_numbered() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    sqlx::raw_sql(
        "CREATE TEMPORARY TABLE scratch (n int) ON COMMIT DROP; INSERT INTO scratch SELECT generate_series(1, 100);
         DECLARE held CURSOR WITH HOLD FOR SELECT n FROM scratch",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1]);
}
