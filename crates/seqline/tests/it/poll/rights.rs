//! Who may poll, and that it gives no other right; and that nothing of the caller's session gets into the function.

use seqline_testkit::{Role, TestDb};

use super::*;
use crate::support::append;

const REFUSED: &str = "42501";

#[tokio::test]
async fn a_consumer_may_register_and_poll_and_nothing_else() {
    let (db, _) = with_events(2).await;
    let mut session = session(&db).await;
    for sql in [
        "SELECT * FROM seqline.event_consumer_cursors",
        "INSERT INTO seqline.event_consumer_cursors (name) VALUES ('mine')",
        "UPDATE seqline.event_consumer_cursors SET last_seq = 0",
        "DELETE FROM seqline.event_consumer_cursors",
        "SELECT FROM seqline.event_consumer_cursors FOR UPDATE",
        "BEGIN; LOCK TABLE seqline.event_consumer_cursors IN ACCESS SHARE MODE",
        "SELECT * FROM seqline.event_consumer_failures",
        "SELECT * FROM seqline.lost_ranges",
        "INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('totals', 1, 2)",
        "SELECT seq FROM seqline.event_log",
        "SELECT seq FROM seqline.event_log_from_0000000000000000001",
        "SELECT * FROM seqline.settings",
        "SELECT * FROM seqline.log_bounds",
        "SELECT * FROM seqline.log_identity",
        "SELECT seqline.head()",
        "SELECT seqline.min_retained()",
        "SELECT seqline.seq_of(gen_random_uuid())",
        "SELECT seqline.append('test.happened', '{}', 'test', 'any')",
        "SELECT seqline.append_batch('[]')",
        "SELECT seqline.has_appended()",
        "SELECT seqline.ensure_consumer('mine', 'worker', 'head')",
        "SELECT seqline.consumer_start('head')",
        "SELECT seqline.refuse_consumer('a', 'b', 'c')",
        "SELECT seqline.refuse_gap('a', 1, 2)",
        "SELECT seqline.sync_event_log_drop_expired(now(), now(), 1, '1 s')",
        "SET ROLE seqline_owner",
    ] {
        assert_eq!(run_refused(&mut session, sql).await.sqlstate, REFUSED, "{sql}");
        run(&mut session, "ROLLBACK").await;
    }
    assert_eq!(poll(&mut session, "totals", 10).await, [1, 2]);
}

#[tokio::test]
async fn a_producer_a_reader_and_anybody_else_may_not_poll() {
    let (db, _) = with_events(2).await;
    for role in [Role::Producer, Role::Reader, Role::Nobody] {
        let mut other = db.connect(role).await;
        for sql in [
            "SELECT seqline.register_consumer('mine')",
            "SELECT seqline.register_consumer('totals')",
            "SELECT * FROM seqline.poll('totals', 1)",
        ] {
            assert_eq!(run_refused(&mut other, sql).await.sqlstate, REFUSED, "{role:?}: {sql}");
        }
    }
    assert_eq!(cursor(&db, "totals").await, 0);
}

#[tokio::test]
async fn the_application_may_register_and_poll_too() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=2).await;
    let mut app = db.connect(Role::App).await;
    register(&mut app, "totals", "oldest").await;
    assert_eq!(poll(&mut app, "totals", 1).await, [1]);
}

#[tokio::test]
async fn an_object_of_the_callers_own_cannot_stand_in_for_one_that_polling_uses() {
    let (db, mut session) = with_events(3).await;
    run(
        &mut session,
        "CREATE TEMPORARY TABLE settings (poll_max_events int); INSERT INTO pg_temp.settings VALUES (1);
         CREATE TEMPORARY TABLE event_consumers (name text, kind text); INSERT INTO pg_temp.event_consumers VALUES ('totals', 'poll');
         CREATE TEMPORARY TABLE event_consumer_cursors (name text, last_seq bigint, updated_at timestamptz);
         INSERT INTO pg_temp.event_consumer_cursors VALUES ('totals', 100, now());
         CREATE TEMPORARY TABLE event_log (seq bigint); CREATE TEMPORARY TABLE lost_ranges (consumer text);
         CREATE FUNCTION pg_temp.head() RETURNS bigint LANGUAGE sql AS 'SELECT 1000::bigint';
         CREATE FUNCTION public.format(text, bigint, bigint) RETURNS text LANGUAGE sql AS 'SELECT ''SELECT 1/0''::text';
         CREATE FUNCTION public.hijacked(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT 1/0 = 1';
         CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.hijacked);
         CREATE OPERATOR public.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = public.hijacked);
         CREATE FUNCTION public.coalesce_not(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
         CREATE OPERATOR public.<> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.coalesce_not);
         SET search_path = pg_temp, public, pg_catalog",
    )
    .await;
    assert_eq!(register(&mut session, "totals", "head").await, 0);
    assert_eq!(register(&mut session, "other", "2").await, 1);
    assert_eq!(poll(&mut session, "totals", 2).await, [1, 2]);
    assert_eq!(cursor(&db, "totals").await, 2);
}

#[tokio::test]
async fn settings_of_the_callers_session_change_nothing() {
    let (db, mut session) = with_events(3).await;
    append(&db.producer(), [4]).await;
    for (settings, expected) in [
        (
            "SET standard_conforming_strings = off; SET escape_string_warning = off; SET backslash_quote = on",
            1,
        ),
        (
            "SET DateStyle = 'German, DMY'; SET IntervalStyle = 'sql_standard'; SET timezone = 'Pacific/Apia'",
            2,
        ),
        (
            "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_partition_pruning = off;
             SET constraint_exclusion = off; SET enable_sort = off; SET enable_hashagg = off",
            3,
        ),
        (
            "SET plan_cache_mode = force_generic_plan; SET jit = on; SET jit_above_cost = 0;
             SET client_min_messages = error; SET row_security = off; SET work_mem = '64kB';
             SET plpgsql.extra_errors = 'all'; SET transform_null_equals = on; SET quote_all_identifiers = on; SET array_nulls = off",
            4,
        ),
    ] {
        run(&mut session, settings).await;
        assert_eq!(poll(&mut session, "totals", 1).await, [expected], "{settings}");
    }
    assert_eq!(cursor(&db, "totals").await, 4);
}

#[tokio::test]
async fn a_session_that_acts_as_the_role_itself_may_poll() {
    let (_db, mut session) = with_events(2).await;
    run(&mut session, "SET ROLE seqline_consumer").await;
    assert_eq!(poll(&mut session, "totals", 1).await, [1]);
}
