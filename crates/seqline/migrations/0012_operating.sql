-- What people do to consumers while workers run, and who did it.

ALTER TABLE seqline.event_consumers
    -- Since when no round of it begins.
    ADD COLUMN paused_at timestamptz;

-- Whether a consumer is paused.
CREATE FUNCTION seqline.is_paused(p_name text) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM seqline.event_consumers e WHERE e.name = p_name AND e.paused_at IS NOT NULL)
$$;

-- Where consumers stand and where the log ends, without any lock. Those without a cursor are left out.
DROP FUNCTION seqline.consumer_positions(text[]);
CREATE FUNCTION seqline.consumer_positions(p_names text[])
RETURNS TABLE (name text, last_seq bigint, head bigint, paused boolean)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- By the key: versions that are dead by now can be many, and the plan may be from when there were few.
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT n.name, c.last_seq, h.head, e.paused_at IS NOT NULL
    FROM (SELECT seqline.head() AS head) h
    CROSS JOIN unnest(p_names) AS n (name)
    JOIN seqline.event_consumers e ON e.name = n.name
    CROSS JOIN LATERAL (
        SELECT k.last_seq FROM seqline.event_consumer_cursors k WHERE k.name = n.name ORDER BY k.last_seq DESC LIMIT 1
    ) c
$$;

-- Takes the cursor of a consumer for the present transaction, without waiting: held, locked by another, or missing. One that is
-- paused counts as locked: somebody has it in hand.
-- p_known is where it stood a moment ago. It never goes back by itself, and without that bound a cursor that is locked would be
-- searched for among all dead versions.
CREATE OR REPLACE FUNCTION seqline.lock_consumer(p_name text, p_known bigint, OUT state text, OUT last_seq bigint, OUT xid text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    SELECT c.last_seq INTO lock_consumer.last_seq FROM seqline.event_consumer_cursors c
    WHERE c.name = p_name AND c.last_seq >= p_known
    ORDER BY c.last_seq DESC LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        state := CASE WHEN seqline.consumer_position(p_name) IS NULL THEN 'missing' ELSE 'locked' END;
    -- Behind the lock, which whoever pauses takes too: when they are told that it is paused, no round is under way.
    ELSIF seqline.is_paused(p_name) THEN
        state := 'locked';
    ELSE
        state := 'held';
        xid := pg_current_xact_id()::text;
    END IF;
END
$$;

-- Pauses a consumer or lets it go on, and says whether that changed anything. It waits for a round that is under way.
CREATE FUNCTION seqline.set_consumer_paused(p_name text, p_paused boolean, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.event_consumers;
    v_after seqline.event_consumers;
BEGIN
    IF length(p_why) > 1000 THEN
        PERFORM seqline.refuse_consumer('audit_why', 'the reason has more than 1000 characters', 'Name a ticket.');
    END IF;
    IF p_paused IS NULL THEN
        PERFORM seqline.refuse_consumer('consumer_paused', 'paused is neither true nor false', 'Pass one of them.');
    END IF;
    -- Changing the row and not only locking it: a round that sees the log as it was before is refused then.
    UPDATE seqline.event_consumer_cursors c SET updated_at = c.updated_at WHERE c.name = p_name;
    SELECT * INTO v_before FROM seqline.event_consumers e WHERE e.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'there is no consumer of this name',
            'seqline consumers list shows those that there are.');
    ELSIF (v_before.paused_at IS NOT NULL) = p_paused THEN
        RETURN false;
    END IF;
    UPDATE seqline.event_consumers e SET paused_at = CASE WHEN p_paused THEN now() END WHERE e.name = p_name
    RETURNING * INTO v_after;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES (CASE WHEN p_paused THEN 'consumer.pause' ELSE 'consumer.resume' END, p_name,
        jsonb_build_object('paused_at', v_before.paused_at), jsonb_build_object('paused_at', v_after.paused_at), p_why);
    RETURN true;
END
$$;

-- Waits until a consumer has passed a number, and says whether it has: for whoever has appended the event and wants to read what
-- comes of it. It looks again and again, so it holds its session and a snapshot, and the transaction has to be one in which others can
-- be seen.
CREATE FUNCTION seqline.wait_for(consumer text, seq bigint, timeout interval DEFAULT interval '10 seconds') RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_end timestamptz := clock_timestamp() + timeout;
    v_pause double precision := 0.002;
    v_position bigint;
BEGIN
    IF seq IS NULL THEN
        PERFORM seqline.refuse_consumer('wait_for', 'seq is missing: the event is not in the log',
            'Wait after the commit of its transaction, or for all that are there: seqline.wait_for_head(consumer).');
    ELSIF timeout IS NULL OR timeout < interval '0' OR timeout > interval '1 minute' THEN
        PERFORM seqline.refuse_consumer('wait_for', 'timeout is not between 0 and 1 minute',
            'Wait again for what takes longer.');
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM seqline.refuse_consumer('wait_for', 'the transaction sees nothing that is committed after its beginning',
            'Wait in a transaction of isolation level READ COMMITTED.');
    END IF;
    LOOP
        v_position := seqline.consumer_position(consumer);
        IF v_position IS NULL THEN
            PERFORM seqline.refuse_consumer('consumer_unknown', 'there is no consumer of this name',
                'A consumer has a cursor when its worker has started, or when it was registered.');
        ELSIF v_position >= seq THEN
            RETURN true;
        ELSIF clock_timestamp() >= v_end THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(least(v_pause, greatest(extract(epoch FROM v_end - clock_timestamp()), 0)));
        v_pause := least(v_pause * 2, 0.1);
    END LOOP;
END
$$;

-- The same for all that are in the log now.
CREATE FUNCTION seqline.wait_for_head(consumer text, timeout interval DEFAULT interval '10 seconds') RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head bigint;
BEGIN
    -- In a subtransaction that is undone: its locks on the log would keep retention waiting, and appends behind it.
    BEGIN
        v_head := seqline.head();
        RAISE EXCEPTION USING ERRCODE = 'SQ001', MESSAGE = 'undone';
    EXCEPTION WHEN SQLSTATE 'SQ001' THEN
        NULL;
    END;
    RETURN seqline.wait_for(consumer, v_head, timeout);
END
$$;

REVOKE ALL ON FUNCTION
    seqline.is_paused(text), seqline.consumer_positions(text[]), seqline.set_consumer_paused(text, boolean, text),
    seqline.wait_for(text, bigint, interval), seqline.wait_for_head(text, interval)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    seqline.consumer_positions(text[]), seqline.set_consumer_paused(text, boolean, text)
TO seqline_app;
GRANT EXECUTE ON FUNCTION seqline.wait_for(text, bigint, interval), seqline.wait_for_head(text, interval)
TO seqline_app, seqline_producer, seqline_reader, seqline_consumer;
