-- Who may use the log over the network, and which events each of them may see.
--
-- Applications change these tables in their own transactions: a person is taken out of a channel and out of its events by one commit.
-- Every change advances the permission version in the same transaction, and events carry the version that was in force when they got their
-- number. So whoever knows permissions of one version can tell from any later event that they are out of date.

CREATE TABLE seqline.principals (
    -- The id that events name as their actor or audience.
    id text PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 128 AND id !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'),
    kind text NOT NULL CHECK (kind IN ('user', 'agent', 'app')),
    name text CHECK (length(name) BETWEEN 1 AND 128 AND name !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'),
    -- What it may do. Reading needs no right: what a principal may see decides that.
    rights text[] NOT NULL DEFAULT '{}' CHECK (rights <@ ARRAY['append', 'operate'] AND cardinality(rights) <= 2),
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Since when it can do nothing and see nothing.
    disabled_at timestamptz
);

-- Only what tells a token from others is kept. Whoever reads this table can use none of them.
CREATE TABLE seqline.api_tokens (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    principal_id text NOT NULL REFERENCES seqline.principals ON DELETE CASCADE,
    -- SHA-256 of the token's text. It has 256 random bits, so there is nothing to guess and no slow hash is needed.
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    -- Its beginning, by which people tell it from others.
    hint text NOT NULL CHECK (length(hint) BETWEEN 1 AND 16),
    label text CHECK (length(label) BETWEEN 1 AND 128 AND label !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
CREATE INDEX api_tokens_principal_id_idx ON seqline.api_tokens (principal_id);

-- A principal receives events of a receive action. Without a scope all of them, with one those whose members are equal to each that is
-- given.
CREATE TABLE seqline.grants (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    principal_id text NOT NULL REFERENCES seqline.principals ON DELETE CASCADE,
    action text NOT NULL CHECK (length(action) BETWEEN 1 AND 128 AND action !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'),
    space_id text CHECK (length(space_id) BETWEEN 1 AND 128 AND space_id !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'),
    channel_id text CHECK (length(channel_id) BETWEEN 1 AND 128 AND channel_id !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'),
    thread_id text CHECK (length(thread_id) BETWEEN 1 AND 128 AND thread_id !~ E'[\\u0001-\\u001f\\u007f-\\u009f]'),
    -- Which parts of the scope are given: 4 for the space, 2 for the channel, 1 for the thread.
    parts smallint NOT NULL GENERATED ALWAYS AS (CASE WHEN space_id IS NULL THEN 0 ELSE 4 END
        + CASE WHEN channel_id IS NULL THEN 0 ELSE 2 END + CASE WHEN thread_id IS NULL THEN 0 ELSE 1 END) STORED
);
-- Unique with NULLs equal, on every version of PostgreSQL: no id is empty. It is also the one index by which an event is looked up.
CREATE UNIQUE INDEX grants_scope_key ON seqline.grants
    (principal_id, parts, action, coalesce(space_id, ''), coalesce(channel_id, ''), coalesce(thread_id, ''));

-- One row if an event with these members may be seen by the principal, none if not: the one place in SQL that knows. Whoever reads events for
-- somebody joins it in the same statement (FROM seqline.event_log e CROSS JOIN LATERAL seqline.visible_to(...)), so that events and
-- permissions are of the same state.
--
-- It is a set, and its names are resolved here, so that planning puts its body in the place of the call. The grants of each form of a scope
-- are asked for on their own: planning can then look each event up in the index, or read the grants once and hash them, whichever costs less
-- for so many events. None of a form, and asking costs nothing.
CREATE FUNCTION seqline.visible_to(
    p_principal text, p_audience text, p_action text, p_space text, p_channel text, p_thread text
) RETURNS SETOF boolean
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1
BEGIN ATOMIC
    SELECT true
    WHERE EXISTS (SELECT FROM seqline.principals p WHERE p.id = p_principal AND p.disabled_at IS NULL)
      AND CASE
          WHEN p_audience IS NOT NULL THEN p_audience = p_principal
          WHEN p_action = 'any' THEN true
          ELSE
              EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 0 AND g.action = p_action)
              OR EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 4 AND g.action = p_action
                  AND coalesce(g.space_id, '') = p_space)
              OR EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 2 AND g.action = p_action
                  AND coalesce(g.channel_id, '') = p_channel)
              OR EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 6 AND g.action = p_action
                  AND coalesce(g.space_id, '') = p_space AND coalesce(g.channel_id, '') = p_channel)
              OR EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 1 AND g.action = p_action
                  AND coalesce(g.thread_id, '') = p_thread)
              OR EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 5 AND g.action = p_action
                  AND coalesce(g.space_id, '') = p_space AND coalesce(g.thread_id, '') = p_thread)
              OR EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 3 AND g.action = p_action
                  AND coalesce(g.channel_id, '') = p_channel AND coalesce(g.thread_id, '') = p_thread)
              OR EXISTS (SELECT FROM seqline.grants g WHERE g.principal_id = p_principal AND g.parts = 7 AND g.action = p_action
                  AND coalesce(g.space_id, '') = p_space AND coalesce(g.channel_id, '') = p_channel
                  AND coalesce(g.thread_id, '') = p_thread)
      END;
END;

-- The history of a resource as a principal may see it: up to p_limit of its events with numbers above p_after, in order. position is the number
-- up to which all of them were looked at: the head, or less when the limit, p_reach events of the resource or as much as fits into a page came
-- first. All of it is one state of the log, with the permissions of that state.
CREATE FUNCTION seqline.visible_history(
    p_principal text, p_kind text, p_id text, p_after bigint, p_limit bigint, p_reach bigint,
    OUT head bigint, OUT min_retained bigint, OUT "position" bigint, OUT events seqline.event_log[]
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    v_lower bigint;
    v_upper bigint;
    v_found seqline.event_log[];
    v_looked bigint;
    v_last bigint;
    v_reach bigint := p_reach;
    -- Of all events in hand: a value has 1 GB at most. By what a payload can have at most, which is known without unpacking it: when it is
    -- compressed 255 times what is stored, and never more than 4 times its text ("0, " takes 12 bytes). The first event is always in it.
    c_bytes CONSTANT bigint := 268435456;
    v_unpacked_max bigint := 4 * (SELECT s.event_payload_max_bytes::bigint FROM seqline.settings s);
    v_bytes bigint := 0;
    v_found_bytes bigint;
    v_cut boolean;
BEGIN
    head := seqline.head();
    position := greatest(p_after, head);
    events := '{}';
    -- One partition after the other, by literals, oldest first: the index of resources does not know numbers, and opening all would take
    -- thousands of locks. Undone, so that those of one partition are held at a time.
    FOR v_lower, v_upper IN
        SELECT b.bounds[1]::bigint, b.bounds[2]::bigint
        FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid
        CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid),
            'FROM [(]''?(-?[0-9]+)''?[)] TO [(]''?(-?[0-9]+)''?[)]')) AS b (bounds)
        WHERE i.inhparent = 'seqline.event_log'::regclass
          AND b.bounds[2]::bigint - 1 > p_after AND b.bounds[1]::bigint <= head
        ORDER BY 1
    LOOP
        BEGIN
            EXECUTE format(
                'WITH looked AS MATERIALIZED (
                     SELECT e.seq, e.audience_principal_id, e.receive_action, e.space_id, e.channel_id, e.thread_id,
                         CASE WHEN pg_column_compression(e.payload) IS NULL THEN pg_column_size(e.payload)
                             ELSE least(255 * pg_column_size(e.payload)::bigint, $4) END AS bytes
                     FROM seqline.event_log e
                     WHERE e.seq > %1$s AND e.seq < %2$s AND e.resource_kind = $2 AND e.resource_id = $3
                     ORDER BY e.seq LIMIT %3$s
                 ), found AS MATERIALIZED (
                     SELECT l.seq, sum(l.bytes) OVER (ORDER BY l.seq)::bigint AS bytes, l.bytes AS own FROM looked l
                     CROSS JOIN LATERAL seqline.visible_to($1, l.audience_principal_id, l.receive_action, l.space_id, l.channel_id, l.thread_id)
                     ORDER BY l.seq LIMIT %4$s
                 ), kept AS MATERIALIZED (
                     SELECT f.seq, f.bytes FROM found f WHERE f.bytes - f.own < $5
                 )
                 SELECT coalesce((SELECT array_agg(e ORDER BY e.seq) FROM seqline.event_log e
                                  WHERE e.seq > %1$s AND e.seq < %2$s AND e.seq IN (SELECT k.seq FROM kept k)), ''{}''),
                        -- Only when they are few: what is behind the last one that was found is not read otherwise.
                        CASE WHEN (SELECT count(*) FROM found) < %4$s THEN (SELECT count(*) FROM looked) END,
                        CASE WHEN (SELECT count(*) FROM found) < %4$s THEN (SELECT max(l.seq) FROM looked l) END,
                        coalesce((SELECT max(k.bytes) FROM kept k), 0), (SELECT count(*) FROM kept) < (SELECT count(*) FROM found)',
                greatest(v_lower - 1, p_after), v_upper, v_reach, p_limit - cardinality(events))
            INTO v_found, v_looked, v_last, v_found_bytes, v_cut USING p_principal, p_kind, p_id, v_unpacked_max, c_bytes - v_bytes;
            RAISE EXCEPTION USING ERRCODE = 'SQ001', MESSAGE = 'undone';
        EXCEPTION WHEN SQLSTATE 'SQ001' THEN
            NULL;
        END;
        events := events || v_found;
        v_bytes := v_bytes + v_found_bytes;
        IF cardinality(events) >= p_limit OR v_cut OR v_bytes >= c_bytes THEN
            position := events[cardinality(events)].seq;
            EXIT;
        ELSIF v_looked >= v_reach THEN
            position := v_last;
            EXIT;
        END IF;
        v_reach := v_reach - v_looked;
    END LOOP;
    -- Behind the reads: what retention took meanwhile was not read.
    min_retained := seqline.min_retained();
END
$$;

-- Raises a refusal that programs can read.
CREATE FUNCTION seqline.refuse_access(rule text, message text, hint text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = message,
        HINT = hint,
        SCHEMA = 'seqline',
        TABLE = 'principals',
        CONSTRAINT = 'seqline_' || rule;
END
$$;

-- The trigger behind every change, whoever makes it. A statement that changed no row changes nothing.
--
-- The row of the version stays locked until the transaction ends, so permissions change one transaction after the other, and each version is
-- seen by others together with what it stands for.
CREATE FUNCTION seqline.advance_permission_version() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    -- All grants of a principal are held in memory by each server that it talks to.
    c_grants_max CONSTANT bigint := 10000;
    v_principal text;
BEGIN
    IF TG_OP <> 'TRUNCATE' THEN
        IF NOT EXISTS (SELECT FROM changed) THEN
            RETURN NULL;
        END IF;
    END IF;
    UPDATE seqline.sequence_counters c SET value = c.value + 1 WHERE c.name = 'permission_version';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the permission version is missing: nobody would notice the change' USING ERRCODE = 'data_corrupted';
    END IF;
    -- Behind that lock, so that nobody else adds some meanwhile.
    IF TG_TABLE_NAME = 'grants' AND TG_OP IN ('INSERT', 'UPDATE') THEN
        FOR v_principal IN EXECUTE 'SELECT DISTINCT principal_id FROM changed' LOOP
            IF (SELECT count(*) FROM (SELECT FROM seqline.grants g WHERE g.principal_id = v_principal LIMIT c_grants_max + 1) g)
               > c_grants_max
            THEN
                PERFORM seqline.refuse_access('grants_max',
                    format('a principal would have more than %s grants', c_grants_max),
                    'Grant the space and not each of its channels, or put those who see the same into a channel of their own.');
            END IF;
        END LOOP;
    END IF;
    RETURN NULL;
END
$$;

-- Always: also for a session with session_replication_role = replica, or a change would go unnoticed. What logical replication applies fires no
-- trigger of a statement, so nobody may feed these tables by it.
DO $$
DECLARE
    v_table text;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['principals', 'api_tokens', 'grants'] LOOP
        EXECUTE format('CREATE TRIGGER permission_version_insert AFTER INSERT ON seqline.%I REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION seqline.advance_permission_version()', v_table);
        EXECUTE format('CREATE TRIGGER permission_version_update AFTER UPDATE ON seqline.%I REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION seqline.advance_permission_version()', v_table);
        EXECUTE format('CREATE TRIGGER permission_version_delete AFTER DELETE ON seqline.%I REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION seqline.advance_permission_version()', v_table);
        EXECUTE format('CREATE TRIGGER permission_version_truncate AFTER TRUNCATE ON seqline.%I
            FOR EACH STATEMENT EXECUTE FUNCTION seqline.advance_permission_version()', v_table);
        EXECUTE format('ALTER TABLE seqline.%I ENABLE ALWAYS TRIGGER permission_version_insert,
            ENABLE ALWAYS TRIGGER permission_version_update, ENABLE ALWAYS TRIGGER permission_version_delete,
            ENABLE ALWAYS TRIGGER permission_version_truncate', v_table);
    END LOOP;
END
$$;

-- What people change by command. Each is written to the audit log; what applications change with their own statements is theirs to record.

-- A text that may be an id or a name.
CREATE FUNCTION seqline.check_access_text(p_what text, p_value text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(p_value) NOT BETWEEN 1 AND 128 OR p_value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        PERFORM seqline.refuse_access('access_text', format('the %s is empty, too long or has a control character', p_what),
            'It has 1 to 128 characters.');
    END IF;
END
$$;

-- A principal, for a change that this transaction makes. Others can go on granting something to it.
CREATE FUNCTION seqline.hold_principal(p_id text) RETURNS seqline.principals
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_principal seqline.principals;
BEGIN
    SELECT * INTO v_principal FROM seqline.principals p WHERE p.id = p_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_access('principal_unknown', 'there is no principal of this id',
            'seqline principals list shows those that there are.');
    END IF;
    RETURN v_principal;
END
$$;

CREATE FUNCTION seqline.check_rights(p_rights text[]) RETURNS text[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_rights IS NULL OR NOT p_rights <@ ARRAY['append', 'operate'] THEN
        PERFORM seqline.refuse_access('principal_rights', 'there is no such right', 'Rights are append and operate.');
    END IF;
    RETURN ARRAY(SELECT DISTINCT r.name FROM unnest(p_rights) AS r (name) ORDER BY r.name);
END
$$;

CREATE FUNCTION seqline.create_principal(p_id text, p_kind text, p_name text, p_rights text[], p_why text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_rights text[] := seqline.check_rights(p_rights);
BEGIN
    PERFORM seqline.check_why(p_why, false);
    PERFORM seqline.check_access_text('id', coalesce(p_id, ''));
    PERFORM seqline.check_access_text('name', p_name);
    IF p_kind IS NULL OR p_kind NOT IN ('user', 'agent', 'app') THEN
        PERFORM seqline.refuse_access('principal_kind', 'there is no such kind of principal', 'Kinds are user, agent and app.');
    END IF;
    INSERT INTO seqline.principals (id, kind, name, rights) VALUES (p_id, p_kind, p_name, v_rights) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_access('principal_exists', 'there is a principal of this id already',
            'seqline principals show tells what it may do.');
    END IF;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('principal.create', p_id, '{}',
        jsonb_strip_nulls(jsonb_build_object('kind', p_kind, 'name', p_name, 'rights', v_rights)), p_why);
END
$$;

-- Sets what a principal may do, and returns what it was allowed before.
CREATE FUNCTION seqline.set_principal_rights(p_id text, p_rights text[], p_why text) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_rights text[] := seqline.check_rights(p_rights);
    v_before seqline.principals := seqline.hold_principal(p_id);
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF v_before.rights <@ v_rights AND v_rights <@ v_before.rights THEN
        RETURN v_before.rights;
    END IF;
    UPDATE seqline.principals p SET rights = v_rights WHERE p.id = p_id;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('principal.rights', p_id, jsonb_build_object('rights', v_before.rights), jsonb_build_object('rights', v_rights), p_why);
    RETURN v_before.rights;
END
$$;

-- Takes everything from a principal, or gives it back, and says whether that changed anything.
CREATE FUNCTION seqline.set_principal_disabled(p_id text, p_disabled boolean, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.principals := seqline.hold_principal(p_id);
    v_after seqline.principals;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF p_disabled IS NULL THEN
        PERFORM seqline.refuse_access('principal_disabled', 'disabled is neither true nor false', 'Pass one of them.');
    ELSIF (v_before.disabled_at IS NOT NULL) = p_disabled THEN
        RETURN false;
    END IF;
    UPDATE seqline.principals p SET disabled_at = CASE WHEN p_disabled THEN now() END WHERE p.id = p_id RETURNING * INTO v_after;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES (CASE WHEN p_disabled THEN 'principal.disable' ELSE 'principal.enable' END, p_id,
        jsonb_strip_nulls(jsonb_build_object('disabled_at', v_before.disabled_at)),
        jsonb_strip_nulls(jsonb_build_object('disabled_at', v_after.disabled_at)), p_why);
    RETURN true;
END
$$;

-- Removes a principal with its tokens and grants. Without p_apply it only says how many those are. Events go on to name it.
CREATE FUNCTION seqline.delete_principal(p_id text, p_apply boolean, p_why text, OUT tokens bigint, OUT grants bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.principals;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF p_apply IS TRUE THEN
        v_before := seqline.hold_principal(p_id);
    ELSIF NOT EXISTS (SELECT FROM seqline.principals p WHERE p.id = p_id) THEN
        PERFORM seqline.hold_principal(p_id);
    END IF;
    SELECT count(*) INTO tokens FROM seqline.api_tokens t WHERE t.principal_id = p_id;
    SELECT count(*) INTO delete_principal.grants FROM seqline.grants g WHERE g.principal_id = p_id;
    IF p_apply IS TRUE THEN
        DELETE FROM seqline.principals p WHERE p.id = p_id;
        INSERT INTO seqline.audit_log (action, subject, before, after, why)
        VALUES ('principal.delete', p_id, jsonb_strip_nulls(jsonb_build_object('kind', v_before.kind, 'name', v_before.name,
            'rights', v_before.rights, 'tokens', tokens, 'grants', delete_principal.grants)), '{}', p_why);
    END IF;
END
$$;

-- Records a token that the caller has made, and returns until when it is good, NULL for ever.
CREATE FUNCTION seqline.create_api_token(
    p_id uuid, p_principal text, p_hash bytea, p_hint text, p_label text, p_expires_in interval, p_why text
) RETURNS timestamptz
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_expires_at timestamptz := now() + p_expires_in;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    PERFORM seqline.check_access_text('label', p_label);
    PERFORM seqline.hold_principal(p_principal);
    IF p_expires_in <= interval '0' THEN
        PERFORM seqline.refuse_access('token_expiry', 'the token would have expired already', 'Give a time that is still to come.');
    END IF;
    INSERT INTO seqline.api_tokens (id, principal_id, hash, hint, label, expires_at)
    VALUES (p_id, p_principal, p_hash, p_hint, p_label, v_expires_at);
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('token.create', p_principal, '{}',
        jsonb_strip_nulls(jsonb_build_object('token', p_id, 'label', p_label, 'expires_at', v_expires_at)), p_why);
    RETURN v_expires_at;
END
$$;

-- Ends a token for good, and says whether that changed anything.
CREATE FUNCTION seqline.revoke_api_token(p_id uuid, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_token seqline.api_tokens;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    UPDATE seqline.api_tokens t SET revoked_at = now() WHERE t.id = p_id AND t.revoked_at IS NULL RETURNING * INTO v_token;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT FROM seqline.api_tokens t WHERE t.id = p_id) THEN
            PERFORM seqline.refuse_access('token_unknown', 'there is no token of this id', 'seqline tokens list shows those that there are.');
        END IF;
        RETURN false;
    END IF;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('token.revoke', v_token.principal_id,
        jsonb_strip_nulls(jsonb_build_object('token', p_id, 'label', v_token.label, 'expires_at', v_token.expires_at)),
        jsonb_build_object('revoked_at', v_token.revoked_at), p_why);
    RETURN true;
END
$$;

CREATE FUNCTION seqline.grant_facts(p_action text, p_space text, p_channel text, p_thread text) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('action', p_action, 'space_id', p_space, 'channel_id', p_channel, 'thread_id', p_thread))
$$;

-- Lets a principal receive events, and says whether that changed anything.
CREATE FUNCTION seqline.add_grant(
    p_principal text, p_action text, p_space text, p_channel text, p_thread text, p_why text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM seqline.check_why(p_why, false);
    PERFORM seqline.check_access_text('action', coalesce(p_action, ''));
    PERFORM seqline.check_access_text('space', p_space);
    PERFORM seqline.check_access_text('channel', p_channel);
    PERFORM seqline.check_access_text('thread', p_thread);
    IF p_action IN ('any', 'self') THEN
        PERFORM seqline.refuse_access('grant_action', format('receive action %s needs no grant', p_action),
            'Every principal receives events of any, and those of self are for the one that they name.');
    END IF;
    PERFORM seqline.hold_principal(p_principal);
    INSERT INTO seqline.grants (principal_id, action, space_id, channel_id, thread_id)
    VALUES (p_principal, p_action, p_space, p_channel, p_thread) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('grant.add', p_principal, '{}', seqline.grant_facts(p_action, p_space, p_channel, p_thread), p_why);
    RETURN true;
END
$$;

-- Takes back exactly this grant, and says whether that changed anything. Others that cover the same events stay.
CREATE FUNCTION seqline.remove_grant(
    p_principal text, p_action text, p_space text, p_channel text, p_thread text, p_why text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM seqline.check_why(p_why, false);
    PERFORM seqline.hold_principal(p_principal);
    DELETE FROM seqline.grants g
    WHERE g.principal_id = p_principal AND g.action = p_action AND coalesce(g.space_id, '') = coalesce(p_space, '')
      AND coalesce(g.channel_id, '') = coalesce(p_channel, '') AND coalesce(g.thread_id, '') = coalesce(p_thread, '');
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('grant.remove', p_principal, seqline.grant_facts(p_action, p_space, p_channel, p_thread), '{}', p_why);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.visible_to(text, text, text, text, text, text), seqline.visible_history(text, text, text, bigint, bigint, bigint),
    seqline.refuse_access(text, text, text),
    seqline.advance_permission_version(), seqline.check_access_text(text, text), seqline.hold_principal(text),
    seqline.check_rights(text[]), seqline.create_principal(text, text, text, text[], text),
    seqline.set_principal_rights(text, text[], text), seqline.set_principal_disabled(text, boolean, text),
    seqline.delete_principal(text, boolean, text), seqline.create_api_token(uuid, text, bytea, text, text, interval, text),
    seqline.revoke_api_token(uuid, text), seqline.grant_facts(text, text, text, text),
    seqline.add_grant(text, text, text, text, text, text), seqline.remove_grant(text, text, text, text, text, text)
FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON seqline.principals, seqline.api_tokens, seqline.grants TO seqline_app;
GRANT SELECT ON seqline.sequence_counters TO seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.visible_to(text, text, text, text, text, text), seqline.visible_history(text, text, text, bigint, bigint, bigint),
    seqline.create_principal(text, text, text, text[], text),
    seqline.set_principal_rights(text, text[], text), seqline.set_principal_disabled(text, boolean, text),
    seqline.delete_principal(text, boolean, text), seqline.create_api_token(uuid, text, bytea, text, text, interval, text),
    seqline.revoke_api_token(uuid, text), seqline.add_grant(text, text, text, text, text, text),
    seqline.remove_grant(text, text, text, text, text, text)
TO seqline_app;
