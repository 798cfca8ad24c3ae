//! Most events are only looked at as a whole. Whatever is taken for plain there has to be what the closer look has nothing against.

use seqline_testkit::{Role, TestDb};

/// A list of values for each member; every two members take all of theirs, the others are as in a valid event.
const CASES: &str = r#"
CREATE TEMPORARY TABLE outcome AS
WITH texts (value) AS (VALUES
    (NULL), (''), ('a'), ('|'), ('a|b'), ('||'), ('a||b'), ('|a'), ('self'), ('null'), (E'a\tb'), (E'\u0085'), (E'a\nb'), (repeat('x', 128)),
    (repeat('x', 129)), (repeat(E'\u00e4', 128))
), types (value) AS (VALUES
    (NULL), (''), ('a'), ('a.b'), ('a.b_c.d'), ('a.b|c'), ('a.b||c'), ('a.b|'), ('A.b'), ('.b'), ('a.'), ('a..b'), (E'a.b\n'), ('a.b' || repeat('x', 125)),
    ('a.b' || repeat('x', 126))
), kinds (value) AS (VALUES (NULL), (''), ('user'), ('agent'), ('app'), ('system'), ('User'), ('user|x')
), versions (value) AS (VALUES (NULL), ('1'), ('0'), ('-1'), ('2147483647')
), payloads (value) AS (VALUES
    (NULL), ('{}'), ('[]'), ('[{}]'), ('1'), ('"x"'), ('null'), ('{"a": null}'), ('{"a": "null"}'), ('{"null": 1}'), ('{"a": [null]}'),
    (repeat('{"a":', 126) || '1' || repeat('}', 126)), (repeat('{"a":', 127) || '1' || repeat('}', 127)),
    (repeat('{"a":', 128) || '1' || repeat('}', 128)), ('{"a": ' || repeat('[', 127) || repeat(']', 127) || '}'),
    ('{"a": "' || repeat('[', 200) || '"}')
), members (n, name, valid) AS (VALUES
    (1, 'type', 'order.created'), (2, 'schema_version', '1'), (3, 'resource_kind', 'order'), (4, 'receive_action', 'any'),
    (5, 'actor_kind', NULL), (6, 'actor_principal_id', NULL), (7, 'payload', '{}'), (8, 'resource_id', '17'),
    (9, 'audience_principal_id', NULL), (10, 'client_msg_id', NULL)
), choices AS (
    SELECT m.n, m.name, v.value FROM members m JOIN LATERAL (
        SELECT value FROM types WHERE m.name = 'type'
        UNION ALL SELECT value FROM versions WHERE m.name = 'schema_version'
        UNION ALL SELECT value FROM kinds WHERE m.name = 'actor_kind'
        UNION ALL SELECT value FROM payloads WHERE m.name = 'payload'
        UNION ALL SELECT value FROM texts WHERE m.name NOT IN ('type', 'schema_version', 'actor_kind', 'payload')) v ON true
)
SELECT (SELECT jsonb_object_agg(m.name, CASE m.n WHEN a.n THEN a.value WHEN b.n THEN b.value ELSE m.valid END) FROM members m) AS event,
    false AS plain, NULL::text AS refusal
FROM choices a JOIN choices b ON a.n < b.n;

DO $do$
DECLARE
    r record;
    d seqline.event_draft;
    v_stored text;
    v_refusal text;
    v_plain boolean;
    v_names text;
BEGIN
    FOR r IN SELECT ctid, event FROM outcome LOOP
        d := jsonb_populate_record(NULL::seqline.event_draft, r.event - 'payload');
        d.payload := (r.event ->> 'payload')::jsonb;
        v_stored := d.payload::text;
        v_names := concat_ws('|', d.type || '|', d.resource_kind, d.receive_action, d.resource_id, d.space_id, d.channel_id,
            d.thread_id, d.actor_principal_id, d.audience_principal_id, d.client_msg_id);
        v_plain := seqline.is_plain_event(d.type, d.schema_version, d.resource_kind, d.receive_action, v_names,
            greatest(length(d.type), length(d.resource_kind), length(d.receive_action), length(d.resource_id),
                length(d.actor_principal_id), length(d.audience_principal_id), length(d.client_msg_id)),
            d.actor_kind, d.actor_principal_id, d.payload, v_stored);
        v_refusal := NULL;
        BEGIN
            PERFORM seqline.check_draft(d, 65536, '');
        EXCEPTION WHEN invalid_parameter_value THEN
            v_refusal := SQLERRM;
        END;
        IF v_plain AND '' IN (d.actor_kind, d.actor_principal_id, d.resource_id, d.audience_principal_id, d.client_msg_id) THEN
            v_refusal := 'an empty text would be stored';
        END IF;
        UPDATE outcome SET plain = v_plain, refusal = v_refusal WHERE ctid = r.ctid;
    END LOOP;
END
$do$;
"#;

#[tokio::test]
async fn nothing_is_taken_for_plain_that_would_be_refused() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql(CASES).execute(&mut admin).await.unwrap();
    let wrong: Vec<String> = sqlx::query_scalar(
        "SELECT event::text || ': ' || refusal FROM outcome WHERE plain AND refusal IS NOT NULL LIMIT 5",
    )
    .fetch_all(&mut admin)
    .await
    .unwrap();
    assert_eq!(wrong, Vec::<String>::new());
    let (all, plain, refused): (i64, i64, i64) = sqlx::query_as(
        "SELECT count(*), count(*) FILTER (WHERE plain), count(*) FILTER (WHERE refusal IS NOT NULL) FROM outcome",
    )
    .fetch_one(&mut admin)
    .await
    .unwrap();
    assert!(all > 8_000 && plain > 500 && refused > 2_000, "{all} events, {plain} plain, {refused} refused");
}
