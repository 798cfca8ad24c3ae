-- What a transaction does with its events in its last pass inside COMMIT, and what the sequencer does with those that wait.

-- Gives the next numbers to the events of this transaction, all of them in seqline.pending_events, and tells listeners. Nothing of
-- the application comes after the lock, and no lock that ordinary work holds.
DROP FUNCTION seqline.number_transaction(xid8);
CREATE FUNCTION seqline.number_transaction(p_xid xid8, p_settings seqline.settings) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Only so that the value set below ends with this function.
SET lock_timeout = '5s'
AS $$
DECLARE
    v_count bigint;
    v_head bigint;
    v_upper_bound bigint;
    v_head_ceiling bigint;
    v_permission_version bigint;
    v_staging_open boolean;
BEGIN
    SELECT count(*) INTO v_count FROM seqline.pending_events WHERE xid = p_xid;
    IF v_count = 0 THEN
        RETURN;
    END IF;
    IF p_settings.notification <> 'in_transaction' AND current_setting('max_prepared_transactions') <> '0' THEN
        -- A prepared transaction would hold the numbering lock for as long as nobody finishes it. PostgreSQL refuses to prepare one
        -- that has exported its snapshot, as it does after a notification.
        PERFORM pg_export_snapshot();
    END IF;
    PERFORM seqline.lock_numbering(p_settings.numbering_lock_timeout_ms);

    -- From here on each statement sees what the holder before committed. So what depends on it is read by statements of their own,
    -- after the lock.
    SELECT s.staging_open, c.value, b.upper_bound, b.head_ceiling
    INTO v_staging_open, v_permission_version, v_upper_bound, v_head_ceiling
    FROM seqline.settings s, seqline.sequence_counters c, seqline.log_bounds b WHERE c.name = 'permission_version';
    IF v_staging_open THEN
        PERFORM seqline.number_all_staged();
    END IF;
    v_head := seqline.head();
    IF v_head + v_count >= v_upper_bound OR v_head >= v_head_ceiling THEN
        PERFORM seqline.check_bounds(v_head, v_count);
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
    -- An asynchronous commit is visible before it is durable. A reader could be given an event that a crash takes back, and the next
    -- event would get its number. The value lasts until this transaction ends. A caller who has said that it waits for the flush
    -- itself does so without the lock.
    IF current_setting('synchronous_commit') = 'off' AND coalesce(current_setting('seqline.grouped_commit', true), '') <> 'on' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF p_settings.notification = 'in_transaction' THEN
        PERFORM pg_notify('event_log', (v_head + v_count)::text);
    END IF;
END
$$;

-- The right to hand out the next numbers, until the transaction ends.
CREATE FUNCTION seqline.lock_numbering(p_lock_timeout_ms integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout_ms || 'ms', true);
    -- The log itself first, so that whoever holds the numbering lock waits for nothing: a detach of a partition
    -- is waited for here, where nobody else has to wait too.
    LOCK TABLE ONLY seqline.event_log IN ROW EXCLUSIVE MODE;
    LOCK TABLE seqline.numbering IN EXCLUSIVE MODE;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION USING
        ERRCODE = 'lock_not_available',
        MESSAGE = format('numbering lock not obtained within %s ms, held by %s', p_lock_timeout_ms,
            coalesce(seqline.lock_holder(), 'nobody any more')),
        HINT = 'Nothing was appended: retry the transaction.',
        SCHEMA = 'seqline',
        CONSTRAINT = 'seqline_numbering_lock';
END
$$;

-- Refuses numbers for which there is no partition, and brings the hints up to date once the head has left the partition that they name.
-- Under the numbering lock. Maintenance, which may hold the hints and wait for others, is not waited for.
CREATE FUNCTION seqline.check_bounds(p_head bigint, p_count bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_bounds seqline.log_bounds;
BEGIN
    SELECT * INTO v_bounds FROM seqline.log_bounds;
    IF p_head + p_count >= v_bounds.upper_bound THEN
        PERFORM seqline.require_partitions(p_head + 1, p_head + p_count);
    END IF;
    IF p_head >= v_bounds.head_ceiling THEN
        PERFORM FROM seqline.log_bounds FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM seqline.refresh_log_bounds();
        END IF;
    END IF;
END
$$;

-- Gives the next numbers to staged transactions, in the order of commit_order: those of `p_missing` that are there by now, and up to
-- `p_limit` above `p_high`; no more once they have 10,000 events or fill the partitions, but at least one. Under the numbering lock, so any number of
-- callers may do this. Returns the numbers of commit_order that it took, and whether it left some for the next batch.
CREATE FUNCTION seqline.number_staged(
    p_high bigint, p_missing bigint[], p_limit integer, OUT taken bigint[], OUT more boolean, OUT events bigint,
    OUT last_seq bigint)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- By index and one transaction after the other, whatever the tables held when the plan was made: over the dead rows that a
-- held snapshot keeps anything else would take longer and longer.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    c_events_max CONSTANT bigint := 10000;
    v_xids xid8[];
    v_head bigint := seqline.head();
    v_room bigint := (SELECT b.upper_bound FROM seqline.log_bounds b) - 1 - v_head;
    v_permission_version bigint;
BEGIN
    SELECT array_agg(t.n ORDER BY t.n) FILTER (WHERE t.fits), array_agg(t.xid ORDER BY t.n) FILTER (WHERE t.fits),
        coalesce(sum(t.events) FILTER (WHERE t.fits), 0),
        count(*) FILTER (WHERE NOT t.fits) > 0 OR count(*) FILTER (WHERE t.n > p_high) >= p_limit
    INTO taken, v_xids, events, more
    FROM (
        SELECT b.n, b.xid, c.events, sum(c.events) OVER (ORDER BY b.n) - c.events < c_events_max
            AND (sum(c.events) OVER (ORDER BY b.n) <= v_room OR row_number() OVER (ORDER BY b.n) = 1) AS fits
        FROM (
            SELECT s.n, s.xid FROM seqline.staged_transactions s WHERE s.n = ANY (p_missing)
            UNION ALL
            (SELECT s.n, s.xid FROM seqline.staged_transactions s WHERE s.n > p_high ORDER BY s.n LIMIT p_limit)
        ) b
        CROSS JOIN LATERAL (SELECT count(*) AS events FROM seqline.staged_events e WHERE e.xid = b.xid) c
    ) t;
    last_seq := v_head + events;
    IF taken IS NULL THEN
        taken := '{}';
        RETURN;
    END IF;
    SELECT c.value INTO v_permission_version FROM seqline.sequence_counters c WHERE c.name = 'permission_version';
    PERFORM seqline.check_bounds(v_head, events);

    WITH moved AS (
        DELETE FROM seqline.staged_events e USING unnest(v_xids) WITH ORDINALITY x (xid, position)
        WHERE e.xid = x.xid
        RETURNING x.position, e.*
    )
    INSERT INTO seqline.event_log (
        seq, id, type, schema_version, occurred_at, permission_version, actor_kind, actor_principal_id, space_id,
        channel_id, thread_id, resource_kind, resource_id, resource_version, audience_principal_id, receive_action,
        payload, truncated, client_msg_id, correlation_id, trace_context)
    SELECT
        v_head + row_number() OVER (ORDER BY m.position, m.ord), m.id, m.type, m.schema_version, m.occurred_at,
        v_permission_version, m.actor_kind, m.actor_principal_id, m.space_id, m.channel_id, m.thread_id,
        m.resource_kind, m.resource_id, m.resource_version, m.audience_principal_id, m.receive_action, m.payload,
        m.truncated, m.client_msg_id, m.correlation_id, m.trace_context
    FROM moved m;
    DELETE FROM seqline.staged_transactions s WHERE s.n = ANY (taken);
END
$$;

-- Everything that waits, for whoever numbers inside COMMIT while something may: it may have seen what those transactions did. Under the
-- numbering lock. All in one transaction, so whoever changes to at_commit lets the sequencer do most of it before.
--
-- What one look shows and no more: a later look could show a transaction together with one that it waited for, which drew a smaller number
-- and was not visible before.
CREATE FUNCTION seqline.number_all_staged() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_numbers bigint[];
    v_taken bigint[];
BEGIN
    SELECT array_agg(s.n ORDER BY s.n) INTO v_numbers
    FROM seqline.staged_transactions s WHERE s.n > (SELECT f.n FROM seqline.staging_floor f);
    WHILE cardinality(v_numbers) > 0 LOOP
        SELECT s.taken INTO v_taken FROM seqline.number_staged(9223372036854775807, v_numbers[1:1000], 1) s;
        v_numbers := v_numbers[cardinality(v_taken) + 1:];
    END LOOP;
END
$$;

-- One batch of the sequencer, in a transaction of its own. What it needs to know besides:
--
-- `drawn`, the highest number that was drawn before it looked: a smaller one that it neither took nor left belongs to a transaction
-- that is not finished, or has failed. `xid`, when it is asked for, is an id that is drawn now, and `xmin` the oldest that was not
-- finished before it looked. So a number that was missing before `xid` of some batch, and is still when `xmin` of a later one is
-- above that, will never come: its transaction had its id by then, and is finished.
CREATE FUNCTION seqline.sequence_staged(
    p_high bigint, p_missing bigint[], p_limit integer, p_mark boolean,
    OUT taken bigint[], OUT more boolean, OUT events bigint, OUT last_seq bigint, OUT drawn bigint, OUT xid bigint,
    OUT xmin bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
-- Only so that the value set below ends with this function.
SET lock_timeout = '5s'
AS $$
BEGIN
    drawn := coalesce(pg_sequence_last_value('seqline.commit_order'::regclass), 0);
    taken := '{}';
    more := false;
    events := 0;
    IF p_mark THEN
        xid := pg_current_xact_id()::text::bigint;
    END IF;
    xmin := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    PERFORM FROM seqline.staged_transactions s WHERE s.n = ANY (p_missing) LIMIT 1;
    IF NOT FOUND THEN
        PERFORM FROM seqline.staged_transactions s WHERE s.n > p_high LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM seqline.lock_numbering((SELECT s.numbering_lock_timeout_ms FROM seqline.settings s));
    SELECT s.taken, s.more, s.events, s.last_seq INTO taken, more, events, last_seq
    FROM seqline.number_staged(p_high, p_missing, p_limit) s;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- The last pass of a transaction that is not to wait for the sequencer, or can no longer.
CREATE FUNCTION seqline.number_now(p_xid xid8, p_in_staged boolean) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_settings seqline.settings;
    v_in_staged boolean := p_in_staged;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = 'numbering was changed to at_commit after this transaction began',
            HINT = 'Nothing was appended: retry the transaction, with ISOLATION LEVEL READ COMMITTED.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_isolation';
    END IF;
    SELECT * INTO v_settings FROM seqline.settings;
    IF v_settings.staging_open THEN
        -- It has staged events, was then to do something else before it ended, and meanwhile numbering was changed.
        DELETE FROM seqline.staged_transactions s WHERE s.xid = p_xid AND s.started_at = now();
        v_in_staged := v_in_staged OR FOUND;
    END IF;
    IF v_in_staged THEN
        WITH moved AS (DELETE FROM seqline.staged_events e WHERE e.xid = p_xid AND e.occurred_at = now() RETURNING *)
        INSERT INTO seqline.pending_events OVERRIDING SYSTEM VALUE
        SELECT m.xid, m.ord, m.id, m.type, m.schema_version, m.actor_kind, m.actor_principal_id, m.space_id,
            m.channel_id, m.thread_id, m.resource_kind, m.resource_id, m.resource_version,
            m.audience_principal_id, m.receive_action, m.payload, m.truncated, m.client_msg_id,
            m.correlation_id, m.trace_context, m.occurred_at
        FROM moved m;
    END IF;
    PERFORM seqline.number_transaction(p_xid, v_settings);
END
$$;

CREATE OR REPLACE FUNCTION seqline.number_at_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- For everything below. A plan made while the staging tables were empty would scan them for ever, over dead rows too: under a held
-- snapshot that halves the rate within seconds. What cannot be avoided then looks so expensive that it would be compiled each time.
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    c_passes CONSTANT integer := 4;
    v_started_at timestamptz;
BEGIN
    IF pg_trigger_depth() > 1 THEN
        -- Fired at once and not by COMMIT: SET CONSTRAINTS made this constraint immediate, and this is the
        -- echo of the UPDATE below, or an append in somebody's trigger. Wait for COMMIT after all, and count
        -- from the start, so that no sequence of SET CONSTRAINTS adds up to a last pass before COMMIT.
        SET CONSTRAINTS seqline.number_at_commit DEFERRED;
        UPDATE seqline.pending_transactions SET pass = 0 WHERE ctid = NEW.ctid;
        RETURN NULL;
    ELSIF NEW.pass < c_passes - 1 THEN
        -- By ctid and not by key: in a serializable neighbour an index read here would be a conflict.
        UPDATE seqline.pending_transactions SET pass = NEW.pass + 1 WHERE ctid = NEW.ctid;
        RETURN NULL;
    END IF;
    DELETE FROM seqline.pending_transactions WHERE ctid = NEW.ctid;
    IF NOT FOUND THEN
        RETURN NULL;  -- the echo of an older version of the marker
    END IF;
    -- One statement decides and stages: few statements are what a commit costs here. It takes the lock on the table first, so whoever
    -- closes staging has done so by now or waits for this transaction. The number is drawn here and not at the append: whoever waited
    -- for somebody's row has to come after them. Fired once more, because something of the application came even later, it draws a later one.
    INSERT INTO seqline.staged_transactions AS t (n, xid)
    SELECT nextval('seqline.commit_order'::regclass), NEW.xid FROM seqline.settings s
    WHERE s.sequencing = 'after_commit'
        AND s.sequencing_changes > coalesce(pg_sequence_last_value('seqline.staging_closed_at'::regclass), 0)
    ON CONFLICT (xid) DO UPDATE SET n = EXCLUDED.n
    RETURNING t.started_at INTO v_started_at;
    IF v_started_at IS NULL THEN
        PERFORM seqline.number_now(NEW.xid, NEW.in_staged);
    ELSIF v_started_at <> now() THEN
        PERFORM seqline.refuse_leftover(NEW.xid,
            'seqline.staged_transactions and seqline.staged_events, or let seqline serve number them,');
    ELSIF NEW.in_pending THEN
        WITH moved AS (DELETE FROM seqline.pending_events e WHERE e.xid = NEW.xid RETURNING *)
        INSERT INTO seqline.staged_events SELECT m.* FROM moved m;
    END IF;
    RETURN NULL;
END
$$;

-- What a client asks before COMMIT. `flushed_by` is set when the transaction has appended, is numbered inside COMMIT, and would wait for
-- its flush with the numbering lock in hand: then its own COMMIT does not wait, and the client has to call seqline.flush() before it
-- believes in it, once for many. The value tells servers apart, since a flush is for all commits of one, and what was before a crash from
-- what is after it: a server that has lost one of its processes goes on without being started again, and a flush then is none for a
-- commit that the crash took. `wake` says that nobody else tells listeners, so the client calls seqline.wake() afterwards.
CREATE FUNCTION seqline.prepare_commit(OUT flushed_by text, OUT wake boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_sequencing text;
    v_notification text;
    v_incarnation uuid;
BEGIN
    wake := false;
    SELECT s.sequencing, s.notification, i.id INTO v_sequencing, v_notification, v_incarnation
    FROM seqline.settings s LEFT JOIN seqline.incarnation i ON true;
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        IF NOT seqline.has_appended() THEN
            RETURN;
        END IF;
        wake := v_sequencing = 'at_commit' AND v_notification = 'after_commit';
        IF v_sequencing = 'at_commit' AND v_incarnation IS NULL THEN
            -- The first after a crash flushes alone.
            INSERT INTO seqline.incarnation DEFAULT VALUES ON CONFLICT DO NOTHING;
        ELSIF v_sequencing = 'at_commit' AND current_setting('synchronous_commit') IN ('on', 'off') THEN
            -- Other values wait for more, or for less, than the shared flush does.
            PERFORM set_config('synchronous_commit', 'off', true), set_config('seqline.grouped_commit', 'on', true);
            flushed_by :=
                concat_ws('/', v_incarnation, extract(epoch FROM pg_postmaster_start_time()), current_setting('port'));
            RETURN;
        END IF;
    END IF;
    -- With a flush of its own, so that an answer means the same. In a stricter isolation level it is not looked whether there are events:
    -- that would be a conflict in every serializable neighbour.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- A commit that is small and waits until it is durable, on synchronous standbys too, and with it all that were visible before. A
-- transaction that only has an id is not flushed, so it writes something. In a transaction of its own.
CREATE FUNCTION seqline.flush() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'seqline', '');
END
$$;

-- Tells listeners that there are new events, for whoever has committed some: unless the transaction that numbered them has done so,
-- or nobody is to be told. A full queue fails this statement and nothing else.
CREATE FUNCTION seqline.wake() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (SELECT s.notification FROM seqline.settings s) <> 'off' THEN
        PERFORM pg_notify('event_log', seqline.head()::text);
    END IF;
END
$$;
