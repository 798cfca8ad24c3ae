-- Maintenance: a database whose log takes no events for a while, and all else goes on.

ALTER TABLE seqline.settings
    ADD COLUMN maintenance text NOT NULL DEFAULT 'off' CHECK (maintenance IN ('off', 'read_only'));

-- Says that nothing can be appended at present. Called where a row of the settings says so, in a condition.
CREATE FUNCTION seqline.refuse_read_only() RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'configuration_limit_exceeded',
        MESSAGE = 'append refused: the log is read only for maintenance, until seqline settings maintenance off',
        HINT = 'Nothing was appended. Reading and consumers go on; retry when the maintenance is over.',
        SCHEMA = 'seqline',
        CONSTRAINT = 'seqline_read_only';
END
$$;

-- As before, and no transaction is marked while the log is read only. One statement takes the lock on the table, and then looks at the
-- setting: so whoever has changed that, and finds nobody with the lock from before, knows that nobody has appended any more.
CREATE OR REPLACE FUNCTION seqline.mark_transaction(p_settings seqline.settings, p_staged boolean) RETURNS xid8
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_xid xid8;
    v_started_at timestamptz;
    v_is_first boolean;
BEGIN
    v_xid := pg_current_xact_id();
    INSERT INTO seqline.pending_transactions AS t (xid, in_pending, in_staged)
    SELECT v_xid, NOT p_staged, p_staged
    FROM seqline.settings s
    WHERE CASE WHEN s.maintenance = 'off' THEN true ELSE seqline.refuse_read_only() END
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

-- As before, and while the log is read only nothing is plain: the closer look ends in mark_transaction.
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
        WHERE s.maintenance = 'off'
            AND octet_length(v_stored) <= s.event_payload_max_bytes
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

-- As before. A transaction with an older snapshot can also have missed that the log was made read only.
CREATE OR REPLACE FUNCTION seqline.finish_transaction(p_ctid tid, p_marker seqline.pending_transactions) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_settings seqline.settings;
    v_staged boolean;
BEGIN
    DELETE FROM seqline.pending_transactions t USING seqline.settings s WHERE t.ctid = p_ctid RETURNING s.* INTO v_settings;
    IF NOT FOUND THEN
        RETURN false;  -- the echo of an older version of the marker
    END IF;
    IF v_settings.sequencing = 'after_commit' THEN
        v_staged := seqline.stage_transaction(p_marker);
        IF v_staged THEN
            RETURN true;
        ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'serialization_failure',
                MESSAGE = 'the log was made read only, or numbering changed to at_commit, after this transaction began',
                HINT = 'Nothing was appended: retry the transaction, which tells what it is.',
                SCHEMA = 'seqline',
                CONSTRAINT = 'seqline_isolation';
        END IF;
    END IF;
    RETURN seqline.number_transaction(p_marker, v_settings);
END
$$;

-- Changes whether appends are refused, from the next append on, and says whether that was a change. What was appended before is numbered
-- when its transaction commits. It counts as a change of sequencing, by which transactions with an older snapshot are told apart.
CREATE FUNCTION seqline.set_maintenance(p_maintenance text, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before text;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF p_maintenance IS NULL OR p_maintenance NOT IN ('off', 'read_only') THEN
        RAISE EXCEPTION 'maintenance is off or read_only' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.maintenance INTO v_before FROM seqline.settings s FOR UPDATE;
    IF v_before = p_maintenance THEN
        RETURN false;
    END IF;
    UPDATE seqline.settings
    SET maintenance = p_maintenance,
        sequencing_changes = sequencing_changes + CASE p_maintenance WHEN 'read_only' THEN 1 ELSE 0 END;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('settings.maintenance', 'maintenance', to_jsonb(v_before), to_jsonb(p_maintenance), p_why);
    RETURN true;
END
$$;

-- While the log is read only: from now on no transaction that does not see that can stage what it has appended. It is refused at its COMMIT.
-- In a transaction of its own, after the one that has made the log read only: a sequence does not wait for a commit.
CREATE FUNCTION seqline.refuse_older_snapshots() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_settings seqline.settings;
BEGIN
    SELECT * INTO v_settings FROM seqline.settings FOR UPDATE;
    IF v_settings.maintenance = 'read_only' AND v_settings.sequencing = 'after_commit'
        AND v_settings.sequencing_changes - 1 > coalesce(pg_sequence_last_value('seqline.staging_closed_at'::regclass), 0)
    THEN
        PERFORM setval('seqline.staging_closed_at'::regclass, v_settings.sequencing_changes - 1);
    END IF;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.refuse_read_only(), seqline.set_maintenance(text, text), seqline.refuse_older_snapshots()
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.set_maintenance(text, text), seqline.refuse_older_snapshots() TO seqline_app;
