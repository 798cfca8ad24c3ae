-- Appending: validate, stage, mark the transaction. Numbers come later, inside COMMIT (next file).

-- A random UUID whose first 48 bits are the time in milliseconds, version 7 of RFC 9562. PostgreSQL has
-- its own from 18 on; this one is the same on every version.
CREATE FUNCTION seqline.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT encode(
        int8send(((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 16)
            | x'7000'::bigint
            | ((get_byte(r.bytes, 6) & 15) << 8 | get_byte(r.bytes, 7))::bigint)
        || substr(r.bytes, 9),
        'hex'
    )::uuid
    FROM (SELECT uuid_send(gen_random_uuid()) AS bytes) r
$$;

-- The same JSON without null members and without null elements, at any depth.
CREATE FUNCTION seqline.without_nulls(value jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_stripped jsonb := jsonb_strip_nulls(value);
BEGIN
    -- What is left can only be inside arrays, which is rare.
    IF NOT jsonb_path_exists(v_stripped, 'strict $.** ? (@ == null)') THEN
        RETURN v_stripped;
    END IF;
    CASE jsonb_typeof(v_stripped)
        WHEN 'object' THEN
            RETURN (SELECT jsonb_object_agg(m.key, seqline.without_nulls(m.value))
                    FROM jsonb_each(v_stripped) m);
        WHEN 'array' THEN
            RETURN (SELECT coalesce(jsonb_agg(seqline.without_nulls(e.value) ORDER BY e.position), '[]')
                    FROM jsonb_array_elements(v_stripped) WITH ORDINALITY e (value, position)
                    WHERE jsonb_typeof(e.value) <> 'null');
        ELSE
            RETURN v_stripped;
    END CASE;
END
$$;

-- Where the first null is (in byte order of the paths), as a JSON pointer without leading "/payload".
CREATE FUNCTION seqline.first_null_path(payload jsonb) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE node (path, value) AS (
        SELECT ''::text, payload
        UNION ALL
        SELECT node.path || '/' || replace(replace(child.key, '~', '~0'), '/', '~1'), child.value
        FROM node
        CROSS JOIN LATERAL (
            SELECT m.key, m.value
            FROM jsonb_each(CASE jsonb_typeof(node.value) WHEN 'object' THEN node.value ELSE '{}' END) m
            UNION ALL
            SELECT (e.position - 1)::text, e.value
            FROM jsonb_array_elements(CASE jsonb_typeof(node.value) WHEN 'array' THEN node.value ELSE '[]' END)
                WITH ORDINALITY e (value, position)
        ) child
    )
    SELECT path FROM node WHERE jsonb_typeof(value) = 'null' ORDER BY path COLLATE "C" LIMIT 1
$$;

-- Raises a refusal that programs can read: the rule is the constraint, the member is the column.
CREATE FUNCTION seqline.refuse(rule text, member text, message text, hint text DEFAULT '') RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = message,
        HINT = CASE WHEN hint <> '' THEN hint ELSE 'Nothing was appended: correct the event and append it again.' END,
        SCHEMA = 'seqline',
        TABLE = 'event_log',
        COLUMN = member,
        CONSTRAINT = 'seqline_' || rule;
END
$$;

-- The members of an event as a caller may state them.
CREATE TYPE seqline.event_draft AS (
    type text,
    payload jsonb,
    resource_kind text,
    receive_action text,
    resource_id text,
    resource_version bigint,
    space_id text,
    channel_id text,
    thread_id text,
    actor_kind text,
    actor_principal_id text,
    audience_principal_id text,
    schema_version integer,
    client_msg_id text,
    id uuid,
    truncated boolean,
    traceparent text
);

-- Refuses a name or id that is too long or holds a control character. Ranges and not [[:cntrl:]], which
-- depends on the locale of the database. Written as an escape string, because the text of a function is
-- parsed with the caller's standard_conforming_strings.
CREATE FUNCTION seqline.check_text(label text, member text, value text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(value) > 128 THEN
        PERFORM seqline.refuse('too_long', member, format('%smember %s is longer than 128 characters', label, member));
    ELSIF value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        PERFORM seqline.refuse('control_character', member,
            format('%smember %s contains a control character', label, member));
    END IF;
END
$$;

-- Refuses a draft that breaks a rule, true otherwise. The client library checks the same rules, in the
-- same words; this is the check that counts. `label` names the event within a batch.
CREATE FUNCTION seqline.check_draft(d seqline.event_draft, payload_max_bytes integer, label text) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text;
    -- One look at all texts at once; only a draft that fails it is looked at member by member.
    v_all text := concat_ws('|', d.resource_kind, d.receive_action, d.resource_id, d.space_id, d.channel_id,
        d.thread_id, d.actor_principal_id, d.audience_principal_id, d.client_msg_id);
BEGIN
    IF d.type IS NULL OR d.type = '' THEN
        PERFORM seqline.refuse('missing', 'type', label || 'member type is missing');
    ELSIF length(d.type) > 128 THEN
        PERFORM seqline.check_text(label, 'type', d.type);
    ELSIF d.type !~ '^[a-z][a-z_]*([.][a-z][a-z_]*)+$' THEN
        PERFORM seqline.refuse('type_format', 'type', label
            || 'member type must be two or more lowercase words joined by dots, such as order.created');
    END IF;
    IF d.schema_version < 1 THEN
        PERFORM seqline.refuse('schema_version', 'schema_version', label || 'member schema_version must be at least 1');
    END IF;
    IF d.resource_kind IS NULL OR d.resource_kind = '' THEN
        PERFORM seqline.refuse('missing', 'resource_kind', label || 'member resource_kind is missing');
    END IF;
    IF d.receive_action IS NULL OR d.receive_action = '' THEN
        PERFORM seqline.refuse('missing', 'receive_action', label || 'member receive_action is missing');
    END IF;
    IF length(v_all) > 128 OR v_all ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        PERFORM seqline.check_text(label, 'resource_kind', d.resource_kind);
        PERFORM seqline.check_text(label, 'resource_id', d.resource_id);
        PERFORM seqline.check_text(label, 'receive_action', d.receive_action);
        PERFORM seqline.check_text(label, 'space_id', d.space_id);
        PERFORM seqline.check_text(label, 'channel_id', d.channel_id);
        PERFORM seqline.check_text(label, 'thread_id', d.thread_id);
        PERFORM seqline.check_text(label, 'actor_principal_id', d.actor_principal_id);
        PERFORM seqline.check_text(label, 'audience_principal_id', d.audience_principal_id);
        PERFORM seqline.check_text(label, 'client_msg_id', d.client_msg_id);
    END IF;
    IF d.actor_kind NOT IN ('user', 'agent', 'app', 'system', '') THEN
        PERFORM seqline.refuse('actor_kind', 'actor_kind', label
            || 'member actor_kind must be user, agent, app or system');
    END IF;
    IF coalesce(d.actor_kind IN ('user', 'agent', 'app'), false) THEN
        IF d.actor_principal_id IS NULL OR d.actor_principal_id = '' THEN
            PERFORM seqline.refuse('actor_principal_missing', 'actor_principal_id', label
                || 'member actor_principal_id is missing: an actor of kind user, agent or app names its principal');
        END IF;
    ELSIF d.actor_principal_id <> '' THEN
        PERFORM seqline.refuse('actor_principal_unexpected', 'actor_principal_id', label
            || 'member actor_principal_id needs an actor_kind of user, agent or app');
    END IF;
    IF d.receive_action = 'self' AND (d.audience_principal_id IS NULL OR d.audience_principal_id = '') THEN
        PERFORM seqline.refuse('audience_missing', 'audience_principal_id', label
            || 'member audience_principal_id is missing: receive_action self needs it');
    END IF;
    IF d.payload IS NULL THEN
        PERFORM seqline.refuse('missing', 'payload', label || 'member payload is missing');
    ELSIF jsonb_typeof(d.payload) <> 'object' THEN
        PERFORM seqline.refuse('payload_object', 'payload', label || 'member payload must be a JSON object');
    END IF;
    v_text := d.payload::text;
    IF octet_length(v_text) > payload_max_bytes THEN
        PERFORM seqline.refuse('payload_size', 'payload', format(
            '%smember payload has %s bytes as stored, more than event_payload_max_bytes allows (%s)',
            label, octet_length(v_text), payload_max_bytes));
    END IF;
    -- Deeper than the parsers of readers go. Without that many brackets it cannot be.
    IF octet_length(v_text) - octet_length(translate(v_text, '[{', '')) > 127
        AND jsonb_path_exists(d.payload, 'strict $.**{127 to last} ? (@.type() == "object" || @.type() == "array")')
    THEN
        PERFORM seqline.refuse('payload_syntax', 'payload', label || 'member payload is nested deeper than 127 levels');
    END IF;
    -- Without the letters there is no null token; with them it may still be part of a string.
    IF strpos(v_text, 'null') > 0 AND jsonb_path_exists(d.payload, 'strict $.** ? (@ == null)') THEN
        PERFORM seqline.refuse('payload_null', 'payload',
            format('%spayload member %s is null', label, left(seqline.first_null_path(d.payload), 200)),
            'Leave the member out, or pass seqline.without_nulls(payload).');
    END IF;
    RETURN true;
END
$$;

-- Makes this transaction one that will be numbered at COMMIT and returns its id.
CREATE FUNCTION seqline.mark_transaction() RETURNS xid8
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- A plan made while the table was empty would scan it for ever, over dead rows too. What cannot be avoided
-- then looks so expensive that it would be compiled each time.
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_xid xid8;
BEGIN
    -- A stricter level keeps the snapshot of its first statement and would never see the current head.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = format('append needs isolation level read committed, this transaction is %s',
                current_setting('transaction_isolation')),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_isolation';
    END IF;
    v_xid := pg_current_xact_id();
    PERFORM 1 FROM seqline.pending_transactions WHERE xid = v_xid AND started_at = now();
    IF NOT FOUND THEN
        INSERT INTO seqline.pending_transactions (xid) VALUES (v_xid) ON CONFLICT (xid) DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('transaction id %s has a leftover row of an earlier history of this database', v_xid),
                HINT = 'Empty seqline.pending_transactions and seqline.pending_events after a restore, before writers start.',
                SCHEMA = 'seqline',
                CONSTRAINT = 'seqline_leftover';
        END IF;
    END IF;
    RETURN v_xid;
END
$$;

-- Refuses caller-supplied ids that are in the log already, and returns the head up to which that is known.
CREATE FUNCTION seqline.check_new_ids(ids uuid[]) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- First the head, then the look-up: whatever the look-up cannot see gets a number above this head.
    v_head bigint := seqline.head();
    v_id uuid;
BEGIN
    SELECT f.found_id INTO v_id FROM seqline.find_ids(ids) f;
    IF v_id IS NOT NULL THEN
        PERFORM seqline.refuse_duplicate(v_id);
    END IF;
    RETURN v_head;
END
$$;

CREATE FUNCTION seqline.refuse_duplicate(id uuid) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'unique_violation',
        MESSAGE = format('event id %s is already in the log', id),
        SCHEMA = 'seqline',
        TABLE = 'event_log',
        COLUMN = 'id',
        CONSTRAINT = 'seqline_duplicate_id';
END
$$;

-- Appends one event in the caller's transaction and returns its id. It gets its number when the
-- transaction commits, and is gone when it does not.
CREATE FUNCTION seqline.append(
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
DECLARE
    v_draft seqline.event_draft := ROW(
        type, payload, resource_kind, receive_action, resource_id, resource_version, space_id, channel_id,
        thread_id, actor_kind, actor_principal_id, audience_principal_id, coalesce(schema_version, 1),
        client_msg_id, nullif(id, '00000000-0000-0000-0000-000000000000'), coalesce(truncated, false),
        traceparent);
    v_xid xid8;
    v_id uuid;
BEGIN
    PERFORM seqline.check_draft(v_draft, (SELECT event_payload_max_bytes FROM seqline.settings), '');
    v_xid := seqline.mark_transaction();
    INSERT INTO seqline.pending_events AS p (
        xid, id, id_checked_at, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id,
        thread_id, resource_kind, resource_id, resource_version, audience_principal_id, receive_action,
        payload, truncated, client_msg_id, correlation_id, trace_context)
    VALUES (
        v_xid,
        coalesce(v_draft.id, seqline.uuid_v7()),
        CASE WHEN v_draft.id IS NOT NULL THEN seqline.check_new_ids(ARRAY[v_draft.id]) END,
        v_draft.type, v_draft.schema_version, nullif(v_draft.actor_kind, ''),
        nullif(v_draft.actor_principal_id, ''), nullif(v_draft.space_id, ''), nullif(v_draft.channel_id, ''),
        nullif(v_draft.thread_id, ''), v_draft.resource_kind, nullif(v_draft.resource_id, ''),
        v_draft.resource_version, nullif(v_draft.audience_principal_id, ''), v_draft.receive_action,
        v_draft.payload, v_draft.truncated, nullif(v_draft.client_msg_id, ''),
        seqline.correlation_of(v_draft.traceparent), seqline.sampled_context(v_draft.traceparent))
    RETURNING p.id INTO v_id;
    RETURN v_id;
END
$$;

-- The trace id of a W3C traceparent as UUID. NULL for none and for a malformed one: a header that some
-- client sent must not be able to fail the business transaction.
CREATE FUNCTION seqline.correlation_of(traceparent text) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN traceparent ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
        THEN pg_catalog.substr(traceparent, 4, 32)::uuid
    END
$$;

-- The traceparent itself, only when it is well formed and its trace is recorded.
CREATE FUNCTION seqline.sampled_context(traceparent text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN traceparent ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]$'
        THEN traceparent
    END
$$;

-- What a member of a batch must be, when it is not; NULL when all is well, '' for a member that does not exist.
CREATE FUNCTION seqline.expected_type(member text, value jsonb) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
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
    END
$$;

-- Refuses the first member of a batch that does not exist or has the wrong JSON type.
CREATE FUNCTION seqline.check_batch_members(events jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_bad record;
BEGIN
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
        RETURN;
    ELSIF v_bad.expected = '' THEN
        PERFORM seqline.refuse('unknown_member', left(v_bad.key, 60),
            format('event %s: member %s is unknown', v_bad.position, left(v_bad.key, 60)));
    END IF;
    PERFORM seqline.refuse('wrong_type', v_bad.key,
        format('event %s: member %s must be %s', v_bad.position, v_bad.key, v_bad.expected));
END
$$;

-- Appends an array of events, all or none, and returns their ids in the same order.
CREATE FUNCTION seqline.append_batch(events jsonb) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_settings seqline.settings;
    v_xid xid8;
    v_supplied uuid[];
    v_checked_at bigint;
    v_ids uuid[];
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
    SELECT array_agg(nullif(e.event ->> 'id', '00000000-0000-0000-0000-000000000000')::uuid)
        FILTER (WHERE e.event ->> 'id' <> '00000000-0000-0000-0000-000000000000')
    INTO v_supplied
    FROM jsonb_array_elements(events) e (event);
    IF v_supplied IS NOT NULL THEN
        v_checked_at := seqline.check_new_ids(v_supplied);
    END IF;
    v_xid := seqline.mark_transaction();
    WITH staged AS (
        INSERT INTO seqline.pending_events AS p (
            xid, id, id_checked_at, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id,
            thread_id, resource_kind, resource_id, resource_version, audience_principal_id, receive_action,
            payload, truncated, client_msg_id, correlation_id, trace_context)
        SELECT
            v_xid, coalesce(nullif(d.id, '00000000-0000-0000-0000-000000000000'), seqline.uuid_v7()),
            CASE WHEN d.id <> '00000000-0000-0000-0000-000000000000' THEN v_checked_at END,
            d.type, coalesce(d.schema_version, 1), nullif(d.actor_kind, ''), nullif(d.actor_principal_id, ''),
            nullif(d.space_id, ''), nullif(d.channel_id, ''), nullif(d.thread_id, ''), d.resource_kind,
            nullif(d.resource_id, ''), d.resource_version, nullif(d.audience_principal_id, ''), d.receive_action,
            d.payload, coalesce(d.truncated, false), nullif(d.client_msg_id, ''),
            seqline.correlation_of(d.traceparent), seqline.sampled_context(d.traceparent)
        FROM jsonb_array_elements(events) WITH ORDINALITY e (event, position)
        CROSS JOIN LATERAL jsonb_populate_record(NULL::seqline.event_draft, e.event) d
        WHERE seqline.check_draft(d, v_settings.event_payload_max_bytes, 'event ' || e.position || ': ')
        ORDER BY e.position
        RETURNING p.ord, p.id
    )
    SELECT array_agg(staged.id ORDER BY staged.ord) INTO v_ids FROM staged;
    RETURN v_ids;
END
$$;
