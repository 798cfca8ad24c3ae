-- Appending, for both ways to number: an event is staged where its transaction will look for it.

DROP FUNCTION seqline.mark_transaction();
DROP FUNCTION seqline.check_new_ids(uuid[]);

-- Makes this transaction one whose events are numbered, and returns its id. `p_staged` is in which table the caller stages.
--
-- One statement that reads nothing by the rules of isolation: a look at the marker first would be a conflict in every
-- serializable neighbour.
CREATE FUNCTION seqline.mark_transaction(p_settings seqline.settings, p_staged boolean) RETURNS xid8
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_xid xid8;
    v_started_at timestamptz;
    v_is_first boolean;
BEGIN
    v_xid := pg_current_xact_id();
    INSERT INTO seqline.pending_transactions AS t (xid, in_pending, in_staged) VALUES (v_xid, NOT p_staged, p_staged)
    ON CONFLICT (xid) DO UPDATE
    SET in_pending = t.in_pending OR EXCLUDED.in_pending, in_staged = t.in_staged OR EXCLUDED.in_staged
    WHERE t.started_at <> now() OR (EXCLUDED.in_staged AND NOT t.in_staged) OR (EXCLUDED.in_pending AND NOT t.in_pending)
    RETURNING t.started_at, t.xmax = 0 INTO v_started_at, v_is_first;
    IF v_started_at <> now() THEN
        PERFORM seqline.refuse_leftover(v_xid, 'seqline.pending_transactions and seqline.pending_events');
    ELSIF v_is_first AND p_settings.sequencing = 'after_commit' THEN
        PERFORM seqline.refuse_backlog(p_settings.staged_transactions_max);
    END IF;
    RETURN v_xid;
END
$$;

-- Transaction ids repeat after a logical restore; with the start time a row of another history is recognised.
CREATE FUNCTION seqline.refuse_leftover(p_xid xid8, p_tables text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'object_not_in_prerequisite_state',
        MESSAGE = format('transaction id %s has a leftover row of an earlier history of this database', p_xid),
        HINT = format('Empty %s after a restore, before writers start.', p_tables),
        SCHEMA = 'seqline',
        CONSTRAINT = 'seqline_leftover';
END
$$;

-- How many transactions wait for the sequencer, or fewer. By the numbers that were drawn and those that are done with, so it
-- holds whether a sequencer runs or not and costs the same however many wait. Those that failed after they drew count until the
-- sequencer finds that out.
CREATE FUNCTION seqline.staged_at_most() RETURNS bigint
LANGUAGE sql VOLATILE
RETURN coalesce(pg_catalog.pg_sequence_last_value('seqline.commit_order'::regclass), 0)
    - coalesce(pg_catalog.pg_sequence_last_value('seqline.staging_done'::regclass), 0);

-- Refuses when too many transactions wait for the sequencer.
CREATE FUNCTION seqline.refuse_backlog(p_max bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_waiting bigint := seqline.staged_at_most();
BEGIN
    IF v_waiting >= p_max THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = format('append refused: %s transactions wait for the sequencer, staged_transactions_max is %s',
                v_waiting, p_max),
            HINT = 'Nothing was appended. Run seqline serve, whose sequencer numbers what waits, then retry.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_backlog';
    END IF;
END
$$;

-- Refuses an isolation level in which something that has to be known about an append cannot be.
CREATE FUNCTION seqline.check_isolation(p_settings seqline.settings, p_callers_id boolean) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_settings.sequencing = 'at_commit' THEN
        -- A stricter level keeps the snapshot of its first statement and would never see the current head.
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = format('append needs isolation level read committed, this transaction is %s',
                current_setting('transaction_isolation')),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED, or number after commit: '
                || 'seqline settings sequencing after_commit.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_isolation';
    ELSIF p_callers_id THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = format('an id of the caller''s own needs isolation level read committed, this transaction is %s',
                current_setting('transaction_isolation')),
            HINT = 'Leave the id out, or begin the transaction with ISOLATION LEVEL READ COMMITTED: '
                || 'with an older snapshot it cannot be seen whether the id is in the log.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_isolation';
    END IF;
END
$$;

-- Refuses ids that are in the log already. The caller holds them in the index of staged_events by now: whoever had one of them
-- before has ended, and a statement that begins now sees its event.
CREATE FUNCTION seqline.check_new_ids(ids uuid[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_id uuid;
BEGIN
    SELECT f.found_id INTO v_id FROM seqline.find_ids(ids) f;
    IF v_id IS NOT NULL THEN
        PERFORM seqline.refuse_duplicate(v_id);
    END IF;
END
$$;

-- Whether an event is one of those that need no closer look: true only when check_draft has nothing to refuse but a payload that is too
-- large, and no member is an empty text. `p_names` is the type, two bars, and all names and ids with bars between them; `p_longest` at least the
-- length of the longest of them; `p_stored` the payload as PostgreSQL stores it. Nearly all events are. Few functions, because each costs more to get ready
-- than to call, and that is done for every statement anew.
CREATE FUNCTION seqline.is_plain_event(
    p_type text, p_schema_version integer, p_resource_kind text, p_receive_action text, p_names text, p_longest integer,
    p_actor_kind text, p_actor_principal_id text, p_payload jsonb, p_stored text
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(
    p_type IS NOT NULL AND p_resource_kind IS NOT NULL AND p_receive_action <> 'self'
    AND coalesce(p_schema_version, 1) >= 1
    AND CASE WHEN p_actor_kind IS NULL THEN p_actor_principal_id IS NULL
        ELSE p_actor_kind IN ('user', 'agent', 'app', 'system') AND (p_actor_kind = 'system') = (p_actor_principal_id IS NULL) END
    AND p_longest <= 128
    AND p_names ~ E'^[a-z][a-z_]*([.][a-z][a-z_]*)+[|]([|][^|\\u0001-\\u001f\\u007f-\\u009f]+)+$'
    AND p_payload @> '{}'
    AND strpos(p_stored, 'null') = 0
    -- As many brackets as it takes to be too deep do not fit into less.
    AND (octet_length(p_stored) < 256 OR octet_length(p_stored) - octet_length(translate(p_stored, '[{', '')) <= 127), false);

CREATE OR REPLACE FUNCTION seqline.append(
    type text,
    payload jsonb,
    resource_kind text,
    receive_action text,
    resource_id text DEFAULT NULL,
    resource_version bigint DEFAULT NULL,
    space_id text DEFAULT NULL,
    channel_id text DEFAULT NULL,
    thread_id text DEFAULT NULL,
    actor_kind text DEFAULT NULL,
    actor_principal_id text DEFAULT NULL,
    audience_principal_id text DEFAULT NULL,
    schema_version integer DEFAULT 1,
    client_msg_id text DEFAULT NULL,
    id uuid DEFAULT NULL,
    truncated boolean DEFAULT false,
    traceparent text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
-- The parameter id is also the name of a column.
#variable_conflict use_column
DECLARE
    v_stored text := payload::text;
    v_names text := concat_ws('|', type || '|', resource_kind, receive_action, resource_id, space_id, channel_id, thread_id,
        actor_principal_id, audience_principal_id, client_msg_id);
    v_longest integer := length(v_names);
    v_correlation_id uuid;
    v_trace_context text;
    v_id uuid;
BEGIN
    IF v_longest > 128 THEN
        v_longest := greatest(length(type), length(resource_kind), length(receive_action), length(resource_id), length(space_id),
            length(channel_id), length(thread_id), length(actor_principal_id), length(audience_principal_id),
            length(client_msg_id));
    END IF;
    IF traceparent IS NOT NULL THEN
        v_correlation_id := seqline.correlation_of(traceparent);
        v_trace_context := seqline.sampled_context(traceparent);
    END IF;
    -- The first event of a transaction is one row, when nothing about it is unusual.
    IF id IS NULL AND seqline.is_plain_event(type, schema_version, resource_kind, receive_action, v_names, v_longest, actor_kind,
        actor_principal_id, payload, v_stored)
    THEN
        INSERT INTO seqline.pending_transactions AS t (
            xid, ord, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id,
            resource_kind, resource_id, resource_version, audience_principal_id, receive_action, payload, truncated,
            client_msg_id, correlation_id, trace_context)
        SELECT
            pg_current_xact_id(), nextval('seqline.pending_events_ord_seq'::regclass), seqline.uuid_v7(), type,
            coalesce(schema_version, 1), actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind,
            resource_id, resource_version, audience_principal_id, receive_action, payload, coalesce(truncated, false),
            client_msg_id, v_correlation_id, v_trace_context
        FROM seqline.settings s
        WHERE octet_length(v_stored) <= s.event_payload_max_bytes
            AND CASE WHEN s.sequencing = 'at_commit' THEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
                ELSE seqline.staged_at_most() < s.staged_transactions_max END
        ON CONFLICT (xid) DO NOTHING
        RETURNING t.id INTO v_id;
        IF v_id IS NOT NULL THEN
            RETURN v_id;
        END IF;
    END IF;
    RETURN seqline.append_draft(ROW(type, payload, resource_kind, receive_action, resource_id, resource_version, space_id,
        channel_id, thread_id, actor_kind, actor_principal_id, audience_principal_id, coalesce(schema_version, 1), client_msg_id,
        nullif(id, '00000000-0000-0000-0000-000000000000'), coalesce(truncated, false), traceparent)::seqline.event_draft);
END
$$;

-- Appends any event, or says what is wrong with it.
CREATE FUNCTION seqline.append_draft(d seqline.event_draft) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_settings seqline.settings;
    v_staged boolean;
    v_xid xid8;
    v_id uuid := coalesce(d.id, seqline.uuid_v7());
BEGIN
    SELECT * INTO v_settings FROM seqline.settings;
    v_staged := d.id IS NOT NULL OR v_settings.sequencing = 'after_commit';
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM seqline.check_isolation(v_settings, d.id IS NOT NULL);
    END IF;
    PERFORM seqline.check_draft(d, v_settings.event_payload_max_bytes, '');
    v_xid := seqline.mark_transaction(v_settings, v_staged);
    IF v_staged THEN
        -- For an id that another transaction has, it waits until that has ended.
        INSERT INTO seqline.staged_events (
            xid, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id,
            resource_kind, resource_id, resource_version, audience_principal_id, receive_action, payload, truncated,
            client_msg_id, correlation_id, trace_context, id_is_callers)
        VALUES (
            v_xid, v_id, d.type, d.schema_version, nullif(d.actor_kind, ''), nullif(d.actor_principal_id, ''),
            nullif(d.space_id, ''), nullif(d.channel_id, ''), nullif(d.thread_id, ''), d.resource_kind,
            nullif(d.resource_id, ''), d.resource_version, nullif(d.audience_principal_id, ''), d.receive_action, d.payload,
            d.truncated, nullif(d.client_msg_id, ''), seqline.correlation_of(d.traceparent),
            seqline.sampled_context(d.traceparent), d.id IS NOT NULL)
        ON CONFLICT (id) WHERE id_is_callers DO NOTHING;
        IF NOT FOUND THEN
            PERFORM seqline.refuse_duplicate(v_id);
        ELSIF d.id IS NOT NULL THEN
            PERFORM seqline.check_new_ids(ARRAY[v_id]);
        END IF;
    ELSE
        INSERT INTO seqline.pending_events (
            xid, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id,
            resource_kind, resource_id, resource_version, audience_principal_id, receive_action, payload, truncated,
            client_msg_id, correlation_id, trace_context)
        VALUES (
            v_xid, v_id, d.type, d.schema_version, nullif(d.actor_kind, ''), nullif(d.actor_principal_id, ''),
            nullif(d.space_id, ''), nullif(d.channel_id, ''), nullif(d.thread_id, ''), d.resource_kind,
            nullif(d.resource_id, ''), d.resource_version, nullif(d.audience_principal_id, ''), d.receive_action, d.payload,
            d.truncated, nullif(d.client_msg_id, ''), seqline.correlation_of(d.traceparent),
            seqline.sampled_context(d.traceparent));
    END IF;
    RETURN v_id;
END
$$;

-- What a member of a batch must be, when it is not; NULL when all is well, '' for a member that does not exist. As before, with a body
-- that planning puts in its place: called for each member of each event it was half of what a batch cost.
CREATE OR REPLACE FUNCTION seqline.expected_type(member text, value jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN member = 'payload' THEN NULL
    WHEN member IN ('type', 'resource_kind', 'receive_action', 'resource_id', 'space_id', 'channel_id',
        'thread_id', 'actor_kind', 'actor_principal_id', 'audience_principal_id', 'client_msg_id', 'traceparent')
        THEN CASE WHEN jsonb_typeof(value) NOT IN ('string', 'null') THEN 'a string' END
    WHEN member IN ('schema_version', 'resource_version')
        THEN CASE
            WHEN jsonb_typeof(value) = 'null' THEN NULL
            WHEN jsonb_typeof(value) <> 'number' THEN 'an integer'
            WHEN value::text !~ '^-?[0-9]+$' THEN 'an integer'
            WHEN member = 'schema_version' AND value::numeric NOT BETWEEN -2147483648 AND 2147483647
                THEN 'an integer'
            WHEN value::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807 THEN 'an integer'
        END
    WHEN member = 'truncated'
        THEN CASE WHEN jsonb_typeof(value) NOT IN ('boolean', 'null') THEN 'a boolean' END
    WHEN member = 'id'
        THEN CASE
            WHEN jsonb_typeof(value) = 'null' THEN NULL
            WHEN jsonb_typeof(value) <> 'string' THEN 'a UUID'
            WHEN value #>> '{}' !~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN 'a UUID'
        END
    ELSE ''
END;

-- As before, but it looks closer only when something is wrong, or null.
CREATE OR REPLACE FUNCTION seqline.check_batch_members(events jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_bad record;
BEGIN
    -- Not member by member, which takes longer.
    PERFORM FROM jsonb_array_elements(events) e (event)
    WHERE CASE WHEN jsonb_typeof(e.event) = 'object'
        THEN e.event - '{type, payload, resource_kind, receive_action, resource_id, resource_version, space_id, channel_id,
                thread_id, actor_kind, actor_principal_id, audience_principal_id, schema_version, client_msg_id, id,
                truncated, traceparent}'::text[] <> '{}'
            OR (e.event - '{payload, schema_version, resource_version, truncated}'::text[])
                @? 'strict $.* ? (@.type() != "string")'
            OR seqline.expected_type('schema_version', e.event -> 'schema_version') IS NOT NULL
            OR seqline.expected_type('resource_version', e.event -> 'resource_version') IS NOT NULL
            OR seqline.expected_type('truncated', e.event -> 'truncated') IS NOT NULL
            OR seqline.expected_type('id', e.event -> 'id') IS NOT NULL
        ELSE true END
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT e.position INTO v_bad
    FROM jsonb_array_elements(events) WITH ORDINALITY e (event, position)
    WHERE jsonb_typeof(e.event) <> 'object'
    ORDER BY e.position
    LIMIT 1;
    IF FOUND THEN
        PERFORM seqline.refuse('wrong_type', 'events', format('event %s must be a JSON object', v_bad.position));
    END IF;
    SELECT e.position, m.key, seqline.expected_type(m.key, m.value) AS expected INTO v_bad
    FROM jsonb_array_elements(events) WITH ORDINALITY e (event, position)
    CROSS JOIN LATERAL jsonb_each(e.event) m
    WHERE seqline.expected_type(m.key, m.value) IS NOT NULL
    ORDER BY e.position, m.key COLLATE "C"
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN;  -- members that are null
    ELSIF v_bad.expected = '' THEN
        PERFORM seqline.refuse('unknown_member', left(v_bad.key, 60),
            format('event %s: member %s is unknown', v_bad.position, left(v_bad.key, 60)));
    END IF;
    PERFORM seqline.refuse('wrong_type', v_bad.key,
        format('event %s: member %s must be %s', v_bad.position, v_bad.key, v_bad.expected));
END
$$;

-- A UUID of version 7 from 12 hexadecimal digits of milliseconds and at least 19 of chance.
CREATE FUNCTION seqline.uuid_v7_of(p_time text, p_random text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (p_time || '7' || substr(p_random, 1, 3) || translate(substr(p_random, 4, 1), '0123456789abcdef', '89ab89ab89ab89ab')
    || substr(p_random, 5, 15))::uuid;

-- The rows that an array of events becomes, checked, in its order.
CREATE FUNCTION seqline.staged_drafts(events jsonb, p_payload_max_bytes integer, p_xid xid8)
RETURNS SETOF seqline.staged_events
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p_xid, nextval('seqline.pending_events_ord_seq'::regclass), o.*
    FROM (
        SELECT
            CASE WHEN d.id <> '00000000-0000-0000-0000-000000000000' THEN d.id
                ELSE seqline.uuid_v7_of(g.time, r.random) END,
            d.type, coalesce(d.schema_version, 1), nullif(d.actor_kind, ''), nullif(d.actor_principal_id, ''),
            nullif(d.space_id, ''), nullif(d.channel_id, ''), nullif(d.thread_id, ''), d.resource_kind,
            nullif(d.resource_id, ''), d.resource_version, nullif(d.audience_principal_id, ''), d.receive_action,
            d.payload, coalesce(d.truncated, false), nullif(d.client_msg_id, ''),
            seqline.correlation_of(d.traceparent), seqline.sampled_context(d.traceparent), now(),
            coalesce(d.id <> '00000000-0000-0000-0000-000000000000', false)
        FROM (
            SELECT lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') AS time,
                uuid_send(gen_random_uuid()) AS seed
            OFFSET 0
        ) g
        CROSS JOIN jsonb_populate_recordset(NULL::seqline.event_draft, events) WITH ORDINALITY d
        CROSS JOIN LATERAL (
            -- Drawing each from the system would take longer than all else about an event, so one seed is, and spread.
            SELECT d.payload::text AS stored, encode(sha256(g.seed || int8send(d.ordinality)), 'hex') AS random,
                concat_ws('|', d.type || '|', d.resource_kind, d.receive_action, d.resource_id, d.space_id, d.channel_id,
                    d.thread_id, d.actor_principal_id, d.audience_principal_id, d.client_msg_id) AS names,
                greatest(length(d.type), length(d.resource_kind), length(d.receive_action), length(d.resource_id),
                    length(d.space_id), length(d.channel_id), length(d.thread_id), length(d.actor_principal_id),
                    length(d.audience_principal_id), length(d.client_msg_id)) AS longest
            OFFSET 0
        ) r
        WHERE CASE WHEN octet_length(r.stored) <= p_payload_max_bytes AND seqline.is_plain_event(d.type, d.schema_version,
                d.resource_kind, d.receive_action, r.names, r.longest, d.actor_kind, d.actor_principal_id, d.payload,
                r.stored) THEN true
            ELSE seqline.check_draft(
                ROW(d.type, d.payload, d.resource_kind, d.receive_action, d.resource_id, d.resource_version, d.space_id,
                    d.channel_id, d.thread_id, d.actor_kind, d.actor_principal_id, d.audience_principal_id, d.schema_version,
                    d.client_msg_id, d.id, d.truncated, d.traceparent)::seqline.event_draft,
                p_payload_max_bytes, 'event ' || d.ordinality || ': ') END
        ORDER BY d.ordinality
    ) o
$$;

CREATE OR REPLACE FUNCTION seqline.append_batch(events jsonb) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c_no_id CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    v_settings seqline.settings;
    v_xid xid8;
    v_callers_ids uuid[];
    v_ids uuid[];
    v_duplicate uuid;
BEGIN
    SELECT * INTO v_settings FROM seqline.settings;
    IF jsonb_typeof(events) IS DISTINCT FROM 'array' THEN
        PERFORM seqline.refuse('wrong_type', 'events', 'events must be a JSON array of objects');
    END IF;
    IF jsonb_array_length(events) > v_settings.append_batch_max_events THEN
        PERFORM seqline.refuse('batch_size', 'events', format(
            'the batch has %s events, more than append_batch_max_events allows (%s)',
            jsonb_array_length(events), v_settings.append_batch_max_events));
    END IF;
    PERFORM seqline.check_batch_members(events);
    IF jsonb_array_length(events) = 0 THEN
        RETURN ARRAY[]::uuid[];
    END IF;
    SELECT array_agg((e.event ->> 'id')::uuid) FILTER (WHERE (e.event ->> 'id')::uuid <> c_no_id)
    INTO v_callers_ids
    FROM jsonb_array_elements(events) e (event);
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM seqline.check_isolation(v_settings, v_callers_ids IS NOT NULL);
    END IF;
    IF v_callers_ids IS NULL AND v_settings.sequencing = 'at_commit' THEN
        v_xid := seqline.mark_transaction(v_settings, false);
        WITH staged AS (
            INSERT INTO seqline.pending_events AS p OVERRIDING SYSTEM VALUE
            SELECT d.xid, d.ord, d.id, d.type, d.schema_version, d.actor_kind, d.actor_principal_id, d.space_id,
                d.channel_id, d.thread_id, d.resource_kind, d.resource_id, d.resource_version,
                d.audience_principal_id, d.receive_action, d.payload, d.truncated, d.client_msg_id,
                d.correlation_id, d.trace_context
            FROM seqline.staged_drafts(events, v_settings.event_payload_max_bytes, v_xid) d
            RETURNING p.ord, p.id
        )
        SELECT array_agg(staged.id ORDER BY staged.ord) INTO v_ids FROM staged;
        RETURN v_ids;
    END IF;
    v_xid := seqline.mark_transaction(v_settings, true);
    -- Waits for another transaction that has one of the ids.
    WITH drafts AS MATERIALIZED (
        SELECT * FROM seqline.staged_drafts(events, v_settings.event_payload_max_bytes, v_xid)
    ),
    staged AS (
        INSERT INTO seqline.staged_events AS s SELECT * FROM drafts
        ON CONFLICT (id) WHERE id_is_callers DO NOTHING
        RETURNING s.ord
    )
    SELECT array_agg(d.id ORDER BY d.ord), (array_agg(d.id ORDER BY d.ord) FILTER (WHERE s.ord IS NULL))[1]
    INTO v_ids, v_duplicate
    FROM drafts d LEFT JOIN staged s ON s.ord = d.ord;
    IF v_duplicate IS NOT NULL THEN
        PERFORM seqline.refuse_duplicate(v_duplicate);
    END IF;
    IF v_callers_ids IS NOT NULL THEN
        PERFORM seqline.check_new_ids(v_callers_ids);
    END IF;
    RETURN v_ids;
END
$$;
