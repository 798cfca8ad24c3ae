-- Numbering: inside COMMIT, as late as possible, under one lock that is held until the commit is done.
--
-- Why inside COMMIT: whoever holds the lock keeps every other appender waiting, so it must not be held
-- across a client's round trip. Why as late as possible: deferred constraints and triggers of the
-- application run inside COMMIT too, and may wait for anybody's row lock; they must have run before.

-- Takes the numbering lock, gives the transaction's events the next numbers in the order in which they
-- were appended, and tells listeners. Nothing of the application comes after the lock, and no lock that
-- ordinary work holds.
CREATE FUNCTION seqline.number_transaction(p_xid xid8) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Only so that the value set below ends with this function.
SET lock_timeout = '5s'
AS $$
DECLARE
    v_lock_timeout_ms integer;
    v_count bigint;
    v_supplied bigint;
    v_checked_at bigint;
    v_head bigint;
    v_permission_version bigint;
    v_id uuid;
BEGIN
    SELECT count(*), count(id_checked_at), min(id_checked_at)
    INTO v_count, v_supplied, v_checked_at
    FROM seqline.pending_events WHERE xid = p_xid;
    IF v_count = 0 THEN
        RETURN;
    END IF;
    IF v_supplied > 0 THEN
        SELECT id INTO v_id FROM seqline.pending_events WHERE xid = p_xid GROUP BY id HAVING count(*) > 1 LIMIT 1;
        IF FOUND THEN
            PERFORM seqline.refuse_duplicate(v_id);
        END IF;
    END IF;

    SELECT numbering_lock_timeout_ms INTO v_lock_timeout_ms FROM seqline.settings;
    PERFORM set_config('lock_timeout', v_lock_timeout_ms || 'ms', true);
    -- The log itself first, so that whoever holds the numbering lock waits for nothing: a detach of a partition
    -- is waited for here, where nobody else has to wait too.
    BEGIN
        LOCK TABLE ONLY seqline.event_log IN ROW EXCLUSIVE MODE;
        LOCK TABLE seqline.numbering IN EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION USING
            ERRCODE = 'lock_not_available',
            MESSAGE = format('numbering lock not obtained within %s ms, held by %s', v_lock_timeout_ms,
                coalesce(seqline.lock_holder(), 'nobody any more')),
            HINT = 'Nothing was appended: retry the transaction.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_numbering_lock';
    END;

    -- From here on each statement sees what the holder before committed. So the head and the permission
    -- version are read by statements of their own, after the lock.
    SELECT seqline.head() INTO v_head;
    SELECT value INTO v_permission_version FROM seqline.sequence_counters WHERE name = 'permission_version';

    IF v_supplied > 0 THEN
        -- Only what came since the look-up at append time.
        EXECUTE format(
            'SELECT p.id FROM seqline.pending_events p WHERE p.xid = $1 AND p.id_checked_at IS NOT NULL
             AND EXISTS (SELECT FROM seqline.event_log e WHERE e.id = p.id AND e.seq > %s AND e.seq <= %s) LIMIT 1',
            v_checked_at, v_head)
        INTO v_id USING p_xid;
        IF v_id IS NOT NULL THEN
            PERFORM seqline.refuse_duplicate(v_id);
        END IF;
    END IF;
    IF v_head + v_count >= (SELECT upper_bound FROM seqline.log_bounds) THEN
        PERFORM seqline.require_partitions(v_head + 1, v_head + v_count);
    END IF;

    WITH staged AS (
        DELETE FROM seqline.pending_events WHERE xid = p_xid RETURNING *
    )
    INSERT INTO seqline.event_log (
        seq, id, type, schema_version, permission_version, actor_kind, actor_principal_id, space_id, channel_id,
        thread_id, resource_kind, resource_id, resource_version, audience_principal_id, receive_action, payload,
        truncated, client_msg_id, correlation_id, trace_context)
    SELECT
        v_head + row_number() OVER (ORDER BY s.ord), s.id, s.type, s.schema_version, v_permission_version,
        s.actor_kind, s.actor_principal_id, s.space_id, s.channel_id, s.thread_id, s.resource_kind, s.resource_id,
        s.resource_version, s.audience_principal_id, s.receive_action, s.payload, s.truncated, s.client_msg_id,
        s.correlation_id, s.trace_context
    FROM staged s;
    -- An asynchronous commit is visible before it is durable. A reader could be given an event that a crash
    -- takes back, and the next event would get its number. The value lasts until this transaction ends.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM pg_notify('event_log', (v_head + v_count)::text);
END
$$;

-- Who holds a lock that numbering waits for, for the message of somebody who waited in vain.
CREATE FUNCTION seqline.lock_holder() RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('process %s (application %s)', l.pid, quote_literal(coalesce(a.application_name, '')))
    FROM pg_locks l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'relation'
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.granted
      AND l.pid <> pg_backend_pid()
      -- The modes that conflict with ours. A dump's is in nobody's way.
      AND (l.relation = 'seqline.numbering'::regclass AND l.mode <> 'AccessShareLock'
        OR l.relation = 'seqline.event_log'::regclass
            AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
    LIMIT 1
$$;

-- The trigger. It fires inside COMMIT, puts itself again behind everything that is queued by then, and
-- numbers when it has done so often enough.
--
-- Each pass lets the application's deferred work go one level deeper: a deferred trigger that inserts
-- into a table with a deferred foreign key has depth 2 and needs one pass more than its depth.
CREATE FUNCTION seqline.number_at_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- For everything below, number_transaction included. A plan made while the staging tables were empty would
-- scan them for ever, over dead rows too: under a held snapshot that halves the rate within seconds. What
-- cannot be avoided then looks so expensive that it would be compiled each time.
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    c_passes CONSTANT integer := 4;
BEGIN
    IF pg_trigger_depth() > 1 THEN
        -- Fired at once and not by COMMIT: SET CONSTRAINTS made this constraint immediate, and this is the
        -- echo of the UPDATE below, or an append in somebody's trigger. Wait for COMMIT after all, and count
        -- from the start, so that no sequence of SET CONSTRAINTS adds up to a last pass before COMMIT.
        SET CONSTRAINTS seqline.number_at_commit DEFERRED;
        UPDATE seqline.pending_transactions SET pass = 0 WHERE ctid = NEW.ctid;
    ELSIF NEW.pass < c_passes - 1 THEN
        -- By ctid and not by key: in a serializable neighbour an index read here would be a conflict.
        UPDATE seqline.pending_transactions SET pass = NEW.pass + 1 WHERE ctid = NEW.ctid;
    ELSE
        PERFORM seqline.number_transaction(NEW.xid);
        DELETE FROM seqline.pending_transactions WHERE ctid = NEW.ctid;
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER number_at_commit
    AFTER INSERT OR UPDATE ON seqline.pending_transactions
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION seqline.number_at_commit();
-- Also with session_replication_role = replica: an append that is never numbered would be a lost event.
ALTER TABLE seqline.pending_transactions ENABLE ALWAYS TRIGGER number_at_commit;
