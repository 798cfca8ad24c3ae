-- What people do to consumers while workers run, and who did it.

ALTER TABLE seqline.event_consumers
    -- Since when no round of it begins.
    ADD COLUMN paused_at timestamptz;

-- Who did what, and why. Rows are only ever added, by the functions below.
CREATE TABLE seqline.audit_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    -- The login, whatever role it acts as.
    who text NOT NULL DEFAULT session_user,
    action text NOT NULL CHECK (action ~ '^[a-z]+([.][a-z]+)*$'),
    subject text NOT NULL,
    before jsonb NOT NULL,
    after jsonb NOT NULL,
    why text CHECK (length(why) <= 1000)
);

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

-- Takes the cursor of a consumer for the present transaction, without waiting: held, locked by another, paused, or missing.
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
        state := 'paused';
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
    PERFORM FROM seqline.event_consumer_cursors c WHERE c.name = p_name FOR UPDATE;
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

-- Waits until a consumer has handled an event, or all that are in the log now, and says whether it has: for whoever has appended it and
-- wants to read what comes of it. It looks again and again, so it holds its session, and the transaction has to be one in which others can be seen.
CREATE FUNCTION seqline.wait_for(consumer text, seq bigint DEFAULT NULL, timeout interval DEFAULT interval '10 seconds') RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_seq bigint := coalesce(seq, seqline.head());
    v_end timestamptz := clock_timestamp() + timeout;
    v_pause double precision := 0.002;
    v_position bigint;
BEGIN
    IF timeout IS NULL OR timeout < interval '0' OR timeout > interval '5 minutes' THEN
        PERFORM seqline.refuse_consumer('wait_for', 'timeout is not between 0 and 5 minutes',
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
        ELSIF v_position >= v_seq THEN
            RETURN true;
        ELSIF clock_timestamp() >= v_end THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(least(v_pause, greatest(extract(epoch FROM v_end - clock_timestamp()), 0)));
        v_pause := least(v_pause * 2, 0.1);
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.is_paused(text), seqline.consumer_positions(text[]), seqline.set_consumer_paused(text, boolean, text),
    seqline.wait_for(text, bigint, interval)
FROM PUBLIC;
GRANT SELECT ON seqline.audit_log TO seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.consumer_positions(text[]), seqline.set_consumer_paused(text, boolean, text)
TO seqline_app;
GRANT EXECUTE ON FUNCTION seqline.wait_for(text, bigint, interval)
TO seqline_app, seqline_producer, seqline_reader, seqline_consumer;
