-- What the sequencer and the operator call: the lease, its progress, what waits, and the change from one way to number to the other.

-- Takes or renews the right to sequence, and says whether the caller has it. By the clock of the database. A lease that ends far in
-- the future was made by a clock that was wrong.
--
-- A lease need not survive a crash. With a synchronous standby that is away a commit that waits for it would keep the row locked, and those
-- that want it next would queue up behind, one for each attempt.
CREATE FUNCTION seqline.hold_sequencer(p_holder uuid, p_lease interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Several times a second, and worth nothing after a crash.
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE seqline.sequencer_lease l SET holder = p_holder, expires_at = clock_timestamp() + p_lease
    WHERE l.holder IS NOT DISTINCT FROM p_holder OR l.expires_at < clock_timestamp()
        OR l.expires_at > clock_timestamp() + interval '1 minute';
    RETURN FOUND;
END
$$;

-- Gives it back, so that another need not wait until it expires.
CREATE FUNCTION seqline.release_sequencer(p_holder uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE seqline.sequencer_lease l SET holder = NULL, expires_at = '-infinity' WHERE l.holder = p_holder;
END
$$;

-- Remembers how far the sequencer has come, unless another was further. Never over something that waits.
CREATE FUNCTION seqline.note_progress(p_high bigint, p_missing bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_before seqline.sequencer_progress;
BEGIN
    IF EXISTS (SELECT FROM unnest(p_missing) m WHERE m IS NULL OR m NOT BETWEEN 1 AND p_high) THEN
        RAISE EXCEPTION 'missing numbers are between 1 and %', p_high USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO v_before FROM seqline.sequencer_progress;
    IF p_high < v_before.high OR (p_high = v_before.high AND p_missing = v_before.missing) THEN
        RETURN;
    END IF;
    -- Only among those that were not done with before and are now: a backlog is looked through no further.
    IF EXISTS (SELECT FROM seqline.staged_transactions s WHERE s.n = ANY (v_before.missing) AND s.n <> ALL (p_missing))
        OR EXISTS (SELECT FROM seqline.staged_transactions s
            WHERE s.n > v_before.high AND s.n <= p_high AND s.n <> ALL (p_missing))
        OR p_high > coalesce(pg_sequence_last_value('seqline.commit_order'::regclass), 0) THEN
        RAISE EXCEPTION 'transactions can still wait up to %', p_high USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    -- What it says was durable before; after a crash an older one is as good.
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE seqline.sequencer_progress p SET high = p_high, missing = p_missing WHERE p.high <= p_high;
    IF FOUND THEN
        PERFORM setval('seqline.staging_done'::regclass, p_high - cardinality(p_missing));
    END IF;
END
$$;

CREATE FUNCTION seqline.sequencer_progress(OUT high bigint, OUT missing bigint[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.high, p.missing FROM seqline.sequencer_progress p
$$;

-- What waits for the sequencer: how many transactions, and since when the first of them. Up to p_max are counted.
CREATE FUNCTION seqline.staged_backlog(p_max bigint, OUT transactions bigint, OUT oldest_at timestamptz, OUT sequencer uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    SELECT count(*), min(s.staged_at) INTO transactions, oldest_at
    FROM seqline.waiting_transactions(p_max) s;
    SELECT l.holder INTO sequencer FROM seqline.sequencer_lease l WHERE l.expires_at >= clock_timestamp();
END
$$;

-- Changes when events get their numbers, for transactions that come to their end from now on, and says whether that was a change. Those
-- that are open go on: each decides in its last pass. Under the numbering lock, so what is numbered inside COMMIT is before or after it.
--
-- Whoever changes to at_commit has the backlog numbered in batches before: the first commit after it numbers what is left.
CREATE FUNCTION seqline.set_sequencing(p_sequencing text, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Only so that the value set below ends with this function.
SET lock_timeout = '5s'
AS $$
DECLARE
    v_before seqline.settings;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF p_sequencing IS NULL OR p_sequencing NOT IN ('at_commit', 'after_commit') THEN
        RAISE EXCEPTION 'sequencing is at_commit or after_commit' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO v_before FROM seqline.settings FOR UPDATE;
    PERFORM seqline.lock_numbering(v_before.numbering_lock_timeout_ms);
    IF v_before.sequencing = p_sequencing THEN
        RETURN false;
    END IF;
    UPDATE seqline.settings
    SET sequencing = p_sequencing, sequencing_changes = sequencing_changes + 1, staging_open = true;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('settings.sequencing', 'sequencing', to_jsonb(v_before.sequencing), to_jsonb(p_sequencing), p_why);
    RETURN true;
END
$$;

-- Ends a change to at_commit: numbers what still waits and says that nothing can wait any more, so that nobody has to look. False when a
-- transaction that stages is open, a prepared one too, or somebody else is at it: to be tried again. True when there is nothing to do.
CREATE FUNCTION seqline.close_staging() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_settings seqline.settings;
BEGIN
    SELECT * INTO v_settings FROM seqline.settings;
    IF v_settings.sequencing <> 'at_commit' OR NOT v_settings.staging_open THEN
        RETURN true;
    END IF;
    PERFORM seqline.lock_numbering(v_settings.numbering_lock_timeout_ms);
    BEGIN
        -- Nothing is waited for with the numbering lock in hand.
        LOCK TABLE seqline.staged_transactions IN EXCLUSIVE MODE NOWAIT;
        SELECT * INTO v_settings FROM seqline.settings FOR UPDATE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
    IF v_settings.sequencing = 'at_commit' AND v_settings.staging_open THEN
        PERFORM seqline.number_all_staged();
        PERFORM setval('seqline.staging_closed_at'::regclass, v_settings.sequencing_changes);
        UPDATE seqline.settings SET staging_open = false;
    END IF;
    RETURN true;
END
$$;

CREATE FUNCTION seqline.set_notification(p_notification text, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before text;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF p_notification IS NULL OR p_notification NOT IN ('in_transaction', 'after_commit', 'off') THEN
        RAISE EXCEPTION 'notification is in_transaction, after_commit or off' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.notification INTO v_before FROM seqline.settings s FOR UPDATE;
    IF v_before = p_notification THEN
        RETURN false;
    END IF;
    UPDATE seqline.settings SET notification = p_notification;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('settings.notification', 'notification', to_jsonb(v_before), to_jsonb(p_notification), p_why);
    RETURN true;
END
$$;

-- Changes how many transactions may wait for the sequencer before appends are refused, from the next append on.
CREATE FUNCTION seqline.set_staged_transactions_max(p_max bigint, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before bigint;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF p_max IS NULL OR p_max NOT BETWEEN 1 AND 1000000000 THEN
        RAISE EXCEPTION 'staged_transactions_max is 1 to 1000000000' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT s.staged_transactions_max INTO v_before FROM seqline.settings s FOR UPDATE;
    IF v_before = p_max THEN
        RETURN false;
    END IF;
    UPDATE seqline.settings SET staged_transactions_max = p_max;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('settings.staged', 'staged_transactions_max', to_jsonb(v_before), to_jsonb(p_max), p_why);
    RETURN true;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA seqline FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.prepare_commit(boolean), seqline.flush(), seqline.wake()
TO seqline_producer, seqline_reader, seqline_consumer, seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.hold_sequencer(uuid, interval), seqline.release_sequencer(uuid), seqline.note_progress(bigint, bigint[]),
    seqline.sequencer_progress(), seqline.staged_backlog(bigint), seqline.sequence_staged(bigint, bigint[], integer, boolean),
    seqline.set_sequencing(text, text), seqline.close_staging(), seqline.set_notification(text, text),
    seqline.set_staged_transactions_max(bigint, text)
TO seqline_app;
