-- What a transaction does with its events in its last pass inside COMMIT, and what the sequencer does with those that wait.

-- Gives the next numbers to the events of this transaction and tells listeners, in its last pass inside COMMIT. Nothing of the application
-- comes after the lock, and no lock that ordinary work holds, but in check_bounds, for a tenth of a second.
DROP FUNCTION seqline.number_transaction(xid8);
CREATE FUNCTION seqline.number_transaction(p_marker seqline.pending_transactions, p_settings seqline.settings) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Only so that a value set below ends with this function.
SET lock_timeout = '5s'
AS $$
DECLARE
    -- From seqline.prepare_commit: 'on' when the client sees to the flush, 'tells' when it also tells listeners then.
    v_grouped text := coalesce(current_setting('seqline.grouped_commit', true), '');
    v_notify boolean := p_settings.notification = 'in_transaction' AND v_grouped <> 'tells';
    v_gathered boolean := p_marker.in_pending OR p_marker.in_staged OR p_settings.staging_open;
    v_count bigint;
    v_seq bigint;
    v_text text;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'serialization_failure',
            MESSAGE = 'numbering was changed to at_commit after this transaction began',
            HINT = 'Nothing was appended: retry the transaction, with ISOLATION LEVEL READ COMMITTED.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_isolation';
    END IF;
    IF v_gathered THEN
        v_count := seqline.gather_events(p_marker, p_settings.staging_open);
        IF v_count = 0 THEN
            RETURN false;
        END IF;
    END IF;
    IF NOT v_notify AND current_setting('max_prepared_transactions') <> '0' THEN
        -- A prepared transaction would hold the numbering lock for as long as nobody finishes it. PostgreSQL refuses to prepare one
        -- that has exported its snapshot, as it does after a notification.
        v_text := pg_export_snapshot();
    END IF;
    v_text := seqline.lock_numbering(p_settings.numbering_lock_timeout_ms);
    -- From here on each statement sees what the holder before committed. So what depends on it is read by statements of their own,
    -- after the lock.
    IF NOT v_gathered THEN
        v_seq := seqline.number_in_partition(p_marker, v_notify);
        IF v_seq IS NULL THEN
            v_count := seqline.gather_events(p_marker, false);
        END IF;
    END IF;
    IF v_seq IS NULL THEN
        v_text := seqline.number_gathered(p_marker.xid, v_count, v_notify);
    END IF;
    -- An asynchronous commit is visible before it is durable. A reader could be given an event that a crash takes back, and the next
    -- event would get its number. The value lasts until this transaction ends. A caller who has said that it waits for the flush
    -- itself does so without the lock.
    IF v_grouped NOT IN ('on', 'tells') AND current_setting('synchronous_commit') = 'off' THEN
        v_text := set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN true;
END
$$;

-- Gives the next numbers to the events of this transaction in seqline.pending_events. Under the numbering lock.
CREATE FUNCTION seqline.number_gathered(p_xid xid8, p_count bigint, p_notify boolean) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head bigint;
    v_permission_version bigint;
BEGIN
    IF (SELECT s.staging_open FROM seqline.settings s) THEN
        PERFORM seqline.number_all_staged();
    END IF;
    v_head := seqline.head();
    PERFORM seqline.check_bounds(v_head, p_count);
    SELECT c.value INTO v_permission_version FROM seqline.sequence_counters c WHERE c.name = 'permission_version';
    -- Two statements: what a DELETE returns would be stored and sorted in between.
    INSERT INTO seqline.event_log (
        seq, permission_version, occurred_at, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind, resource_id,
        resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id,
        trace_context)
    SELECT
        v_head + row_number() OVER (ORDER BY e.ord), v_permission_version, e.occurred_at, e.id, e.type, e.schema_version, e.actor_kind, e.actor_principal_id, e.space_id, e.channel_id, e.thread_id,
        e.resource_kind, e.resource_id, e.resource_version, e.audience_principal_id, e.receive_action, e.payload,
        e.truncated, e.client_msg_id, e.correlation_id, e.trace_context
    FROM seqline.pending_events e WHERE e.xid = p_xid;
    DELETE FROM seqline.pending_events e WHERE e.xid = p_xid;
    IF p_notify THEN
        PERFORM pg_notify('event_log', (v_head + p_count)::text);
    END IF;
END
$$;

-- Brings all events of this transaction together in seqline.pending_events, and says how many there are.
CREATE FUNCTION seqline.gather_events(p_marker seqline.pending_transactions, p_staging_open boolean) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_in_staged boolean := p_marker.in_staged;
BEGIN
    IF p_marker.id IS NOT NULL THEN
        INSERT INTO seqline.pending_events (xid, ord, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind, resource_id,
        resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id,
        trace_context)
        OVERRIDING SYSTEM VALUE VALUES (p_marker.xid, p_marker.ord, p_marker.id, p_marker.type, p_marker.schema_version, p_marker.actor_kind, p_marker.actor_principal_id,
            p_marker.space_id, p_marker.channel_id, p_marker.thread_id, p_marker.resource_kind, p_marker.resource_id,
            p_marker.resource_version, p_marker.audience_principal_id, p_marker.receive_action, p_marker.payload,
            p_marker.truncated, p_marker.client_msg_id, p_marker.correlation_id, p_marker.trace_context);
    END IF;
    IF p_staging_open THEN
        -- It has staged events, was then to do something else before it ended, and meanwhile numbering was changed.
        WITH gone AS (
            DELETE FROM seqline.staged_transactions s WHERE s.xid = p_marker.xid AND s.started_at = now() RETURNING *
        ), moved AS (
            INSERT INTO seqline.pending_events (xid, ord, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind, resource_id,
        resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id,
        trace_context)
            OVERRIDING SYSTEM VALUE
            SELECT g.xid, g.ord, g.id, g.type, g.schema_version, g.actor_kind, g.actor_principal_id, g.space_id, g.channel_id, g.thread_id,
                g.resource_kind, g.resource_id, g.resource_version, g.audience_principal_id, g.receive_action,
                g.payload, g.truncated, g.client_msg_id, g.correlation_id, g.trace_context
            FROM gone g WHERE g.id IS NOT NULL
        )
        SELECT v_in_staged OR coalesce(bool_or(g.in_staged), false) INTO v_in_staged FROM gone g;
    END IF;
    IF v_in_staged THEN
        WITH gone AS (
            DELETE FROM seqline.staged_events e WHERE e.xid = p_marker.xid AND e.occurred_at = now() RETURNING *
        )
        INSERT INTO seqline.pending_events (xid, ord, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind, resource_id,
        resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id,
        trace_context, occurred_at)
        OVERRIDING SYSTEM VALUE
        SELECT g.xid, g.ord, g.id, g.type, g.schema_version, g.actor_kind, g.actor_principal_id, g.space_id, g.channel_id, g.thread_id,
            g.resource_kind, g.resource_id, g.resource_version, g.audience_principal_id, g.receive_action, g.payload,
            g.truncated, g.client_msg_id, g.correlation_id, g.trace_context, g.occurred_at
        FROM gone g;
    END IF;
    RETURN (SELECT count(*) FROM seqline.pending_events e WHERE e.xid = p_marker.xid);
END
$$;

-- The right to hand out the next numbers, until the transaction ends.
CREATE FUNCTION seqline.lock_numbering(p_lock_timeout_ms integer) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text := set_config('lock_timeout', p_lock_timeout_ms || 'ms', true);
BEGIN
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
-- For whoever may hold what is written here: everybody waits meanwhile.
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_bounds seqline.log_bounds;
BEGIN
    SELECT * INTO v_bounds FROM seqline.log_bounds;
    IF p_head + p_count >= v_bounds.upper_bound THEN
        PERFORM seqline.require_partitions(p_head + 1, p_head + p_count);
    END IF;
    IF p_head >= v_bounds.head_ceiling THEN
        BEGIN
            PERFORM FROM seqline.log_bounds FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                PERFORM seqline.refresh_log_bounds();
            END IF;
        EXCEPTION WHEN OTHERS THEN
            -- Functions are written there: somebody may change rights to them at the moment, or have event triggers.
            RAISE WARNING 'hints about the log could not be brought up to date, appends go on without: %', SQLERRM;
        END;
    END IF;
END
$$;

-- Gives the next numbers to staged transactions, in the order of commit_order: those of `p_missing` that are there by now, and up to
-- `p_limit` above `p_high`; no more once they have 10,000 events or fill the partitions, but at least one. Under the numbering lock, so any number of
-- callers may do this. Returns the numbers of commit_order that it took, and whether it left some for the next batch.
CREATE FUNCTION seqline.number_staged(
    p_high bigint, p_missing bigint[], p_limit integer, OUT taken bigint[], OUT more boolean, OUT events bigint)
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
    v_head bigint := seqline.head();
    v_room bigint := (SELECT b.upper_bound FROM seqline.log_bounds b) - 1 - v_head;
    v_permission_version bigint;
BEGIN
    SELECT array_agg(t.n ORDER BY t.n) FILTER (WHERE t.fits),
        coalesce(sum(t.events) FILTER (WHERE t.fits), 0),
        count(*) FILTER (WHERE NOT t.fits) > 0 OR count(*) FILTER (WHERE t.n > p_high) >= p_limit
    INTO taken, events, more
    FROM (
        SELECT b.n, c.events, sum(c.events) OVER (ORDER BY b.n) - c.events < c_events_max
            AND (sum(c.events) OVER (ORDER BY b.n) <= v_room OR row_number() OVER (ORDER BY b.n) = 1) AS fits
        FROM (
            SELECT s.n, s.xid, s.in_staged, num_nonnulls(s.id) AS carried
            FROM seqline.staged_transactions s WHERE s.n = ANY (p_missing)
            UNION ALL
            (SELECT s.n, s.xid, s.in_staged, num_nonnulls(s.id)
             FROM seqline.staged_transactions s WHERE s.n > p_high ORDER BY s.n LIMIT p_limit)
        ) b
        CROSS JOIN LATERAL (
            SELECT b.carried + CASE WHEN b.in_staged THEN
                (SELECT count(*) FROM seqline.staged_events e WHERE e.xid = b.xid) ELSE 0 END AS events
        ) c
    ) t;
    IF taken IS NULL THEN
        taken := '{}';
        RETURN;
    END IF;
    SELECT c.value INTO v_permission_version FROM seqline.sequence_counters c WHERE c.name = 'permission_version';
    PERFORM seqline.check_bounds(v_head, events);

    WITH gone AS (
        DELETE FROM seqline.staged_transactions s WHERE s.n = ANY (taken) RETURNING *
    ), others AS (
        DELETE FROM seqline.staged_events e USING gone g WHERE g.in_staged AND e.xid = g.xid RETURNING g.n, e.*
    )
    INSERT INTO seqline.event_log (
        seq, permission_version, occurred_at, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind, resource_id,
        resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id,
        trace_context)
    SELECT
        v_head + row_number() OVER (ORDER BY m.n, m.ord), v_permission_version, m.occurred_at, m.id, m.type, m.schema_version, m.actor_kind, m.actor_principal_id, m.space_id, m.channel_id, m.thread_id,
        m.resource_kind, m.resource_id, m.resource_version, m.audience_principal_id, m.receive_action, m.payload,
        m.truncated, m.client_msg_id, m.correlation_id, m.trace_context
    FROM (
        SELECT g.n, g.ord, g.started_at AS occurred_at, g.id, g.type, g.schema_version, g.actor_kind, g.actor_principal_id, g.space_id, g.channel_id, g.thread_id,
            g.resource_kind, g.resource_id, g.resource_version, g.audience_principal_id, g.receive_action, g.payload,
            g.truncated, g.client_msg_id, g.correlation_id, g.trace_context
        FROM gone g WHERE g.id IS NOT NULL
        UNION ALL
        SELECT o.n, o.ord, o.occurred_at, o.id, o.type, o.schema_version, o.actor_kind, o.actor_principal_id, o.space_id, o.channel_id, o.thread_id,
            o.resource_kind, o.resource_id, o.resource_version, o.audience_principal_id, o.receive_action, o.payload,
            o.truncated, o.client_msg_id, o.correlation_id, o.trace_context
        FROM others o
    ) m;
END
$$;

-- The transactions that wait, up to p_max of them: by what the sequencer has noted, so that the dead rows of those that it has numbered are not
-- passed.
CREATE FUNCTION seqline.waiting_transactions(p_max bigint, OUT n bigint, OUT staged_at timestamptz) RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
    (SELECT s.n, s.staged_at FROM seqline.sequencer_progress p, seqline.staged_transactions s WHERE s.n = ANY (p.missing))
    UNION ALL
    (SELECT s.n, s.staged_at FROM seqline.sequencer_progress p, seqline.staged_transactions s WHERE s.n > p.high ORDER BY s.n)
    LIMIT p_max
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
    SELECT array_agg(w.n ORDER BY w.n) INTO v_numbers FROM seqline.waiting_transactions(NULL) w;
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
    OUT taken bigint[], OUT more boolean, OUT events bigint, OUT drawn bigint, OUT xid bigint,
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
    SELECT s.taken, s.more, s.events INTO taken, more, events
    FROM seqline.number_staged(p_high, p_missing, p_limit) s;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- What the trigger does in the last pass.
CREATE FUNCTION seqline.finish_transaction(p_ctid tid, p_marker seqline.pending_transactions) RETURNS boolean
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
        END IF;
    END IF;
    RETURN seqline.number_transaction(p_marker, v_settings);
END
$$;

-- Leaves the events of this transaction to the sequencer, if that is still how events are numbered, and says whether it is.
CREATE FUNCTION seqline.stage_transaction(p_marker seqline.pending_transactions) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_started_at timestamptz;
    v_again boolean;
BEGIN
    -- One statement decides and stages. It takes the lock on the table first, so whoever
    -- closes staging has done so by now or waits for this transaction. The number is drawn here and not at the append: whoever waited
    -- for somebody's row has to come after them. Fired once more, because something of the application came even later, it draws a later one.
    INSERT INTO seqline.staged_transactions AS t (
        n, xid, in_staged, ord, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind, resource_id,
        resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id,
        trace_context)
    SELECT
        nextval('seqline.commit_order'::regclass), p_marker.xid, p_marker.in_staged OR p_marker.in_pending, p_marker.ord,
        p_marker.id, p_marker.type, p_marker.schema_version, p_marker.actor_kind, p_marker.actor_principal_id,
        p_marker.space_id, p_marker.channel_id, p_marker.thread_id, p_marker.resource_kind, p_marker.resource_id,
        p_marker.resource_version, p_marker.audience_principal_id, p_marker.receive_action, p_marker.payload,
        p_marker.truncated, p_marker.client_msg_id, p_marker.correlation_id, p_marker.trace_context
    FROM seqline.settings s
    WHERE s.sequencing = 'after_commit'
        AND s.sequencing_changes > coalesce(pg_sequence_last_value('seqline.staging_closed_at'::regclass), 0)
    ON CONFLICT (xid) DO UPDATE SET n = EXCLUDED.n, in_staged = true
    RETURNING t.started_at, t.ord IS DISTINCT FROM p_marker.ord INTO v_started_at, v_again;
    IF v_started_at IS NULL THEN
        RETURN false;
    ELSIF v_started_at <> now() THEN
        PERFORM seqline.refuse_leftover(p_marker.xid,
            'seqline.staged_transactions and seqline.staged_events, or let seqline serve number them,');
    END IF;
    IF p_marker.in_pending THEN
        WITH gone AS (DELETE FROM seqline.pending_events e WHERE e.xid = p_marker.xid RETURNING *)
        INSERT INTO seqline.staged_events SELECT g.* FROM gone g;
    END IF;
    IF v_again AND p_marker.id IS NOT NULL THEN
        INSERT INTO seqline.staged_events (
            xid, ord, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind, resource_id,
        resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id,
        trace_context)
        VALUES (
            p_marker.xid, p_marker.ord, p_marker.id, p_marker.type, p_marker.schema_version, p_marker.actor_kind, p_marker.actor_principal_id,
            p_marker.space_id, p_marker.channel_id, p_marker.thread_id, p_marker.resource_kind, p_marker.resource_id,
            p_marker.resource_version, p_marker.audience_principal_id, p_marker.receive_action, p_marker.payload,
            p_marker.truncated, p_marker.client_msg_id, p_marker.correlation_id, p_marker.trace_context);
    END IF;
    RETURN true;
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
    v_done boolean;
BEGIN
    IF pg_trigger_depth() > 1 THEN
        -- Fired at once and not by COMMIT: SET CONSTRAINTS made this constraint immediate, and this is the
        -- echo of the UPDATE below, or an append in somebody's trigger. Wait for COMMIT after all, and count
        -- from the start, so that no sequence of SET CONSTRAINTS adds up to a last pass before COMMIT.
        SET CONSTRAINTS seqline.number_at_commit DEFERRED;
        UPDATE seqline.pending_transactions SET pass = 0 WHERE ctid = NEW.ctid;
    ELSIF NEW.pass < 3 THEN
        -- Four passes in all. By ctid and not by key: in a serializable neighbour an index read here would be a conflict.
        UPDATE seqline.pending_transactions SET pass = NEW.pass + 1 WHERE ctid = NEW.ctid;
    ELSE
        v_done := seqline.finish_transaction(NEW.ctid, NEW);
    END IF;
    RETURN NULL;
END
$$;

-- Tells databases apart, and what was before a crash from what is after it: a server that has lost one of its processes goes on without being
-- started again, and a flush then is none for a commit that the crash took.
CREATE FUNCTION seqline.flushed_by(p_incarnation uuid) RETURNS text
LANGUAGE sql STABLE
RETURN concat_ws('/', p_incarnation, current_database(), extract(epoch FROM pg_postmaster_start_time()), current_setting('port'));

-- What a client asks before COMMIT. `flushed_by` is set when the transaction has appended, is numbered inside COMMIT, and would wait for
-- its flush with the numbering lock in hand: then its own COMMIT does not wait, and the client has to call seqline.flush() before it
-- believes in it, once for many: what that returns is this value again, or the commit may be lost. `wake` says that nobody else tells
-- listeners, so the client calls seqline.wake() after that, once for many too:
-- with `p_crowd`, the client has more commits under way, also in place of the NOTIFY of each. That has a lock of its own over its COMMIT.
CREATE FUNCTION seqline.prepare_commit(p_crowd boolean, OUT flushed_by text, OUT wake boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_is_at_commit boolean;
    v_notification text;
    v_incarnation uuid;
    v_grouped text;
BEGIN
    wake := false;
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        SELECT s.sequencing = 'at_commit', s.notification, i.id INTO v_is_at_commit, v_notification, v_incarnation
        FROM seqline.pending_transactions t, seqline.settings s LEFT JOIN seqline.incarnation i ON true
        WHERE t.xid = pg_current_xact_id_if_assigned() AND t.started_at = now();
        IF NOT FOUND THEN
            RETURN;
        END IF;
        wake := v_is_at_commit AND v_notification = 'after_commit';
        IF v_is_at_commit AND v_incarnation IS NULL THEN
            -- The first after a crash flushes alone.
            INSERT INTO seqline.incarnation DEFAULT VALUES ON CONFLICT DO NOTHING;
        ELSIF v_is_at_commit AND current_setting('synchronous_commit') IN ('on', 'off') THEN
            -- Other values wait for more, or for less, than the shared flush does.
            v_grouped := 'on';
            -- A NOTIFY is also what keeps a transaction with numbers from being prepared, and the cheaper of two ways.
            IF p_crowd AND v_notification = 'in_transaction' AND current_setting('max_prepared_transactions') = '0' THEN
                wake := true;
                v_grouped := 'tells';
            END IF;
            v_grouped := set_config('seqline.grouped_commit', v_grouped, true);
            v_grouped := set_config('synchronous_commit', 'off', true);
            flushed_by := seqline.flushed_by(v_incarnation);
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
-- transaction that only has an id is not flushed, so it writes something. In a transaction of its own. Returns what prepare_commit calls
-- `flushed_by`.
CREATE FUNCTION seqline.flush() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text := set_config('synchronous_commit', 'on', true);
    v_lsn pg_lsn := pg_logical_emit_message(true, 'seqline', '');
BEGIN
    RETURN seqline.flushed_by((SELECT i.id FROM seqline.incarnation i));
END
$$;

-- Tells listeners that there are new events, for whoever has committed some, unless nobody is to be told. A full queue fails this statement
-- and nothing else.
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
