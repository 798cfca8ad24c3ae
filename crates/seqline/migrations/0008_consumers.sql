-- Consumers: each has a cursor in the log, which moves in the transaction that handles the events. Whoever
-- holds the row's lock works; whoever finds it locked goes away and comes back.

CREATE TABLE seqline.event_consumers (
    name text PRIMARY KEY CONSTRAINT event_consumers_name_check CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    -- worker: a program runs a handler for it. poll: somebody calls seqline.poll. Never both, or the events would be
    -- divided between two that do different things.
    kind text NOT NULL DEFAULT 'worker' CONSTRAINT event_consumers_kind_check CHECK (kind IN ('worker', 'poll')),
    registered_at timestamptz NOT NULL DEFAULT now()
);

-- One row for each consumer. The number is part of the key, and there is no key without it: a cursor that moves leaves a
-- dead version at each step, and while somebody holds a snapshot none of them goes away. All of them under one key would
-- have to be walked through by each round; so each is under a key of its own, and the one that counts is the highest.
-- Only the functions below write here.
CREATE TABLE seqline.event_consumer_cursors (
    name text NOT NULL REFERENCES seqline.event_consumers,
    last_seq bigint NOT NULL DEFAULT 0
        CONSTRAINT event_consumer_cursors_last_seq_check CHECK (last_seq >= 0),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, last_seq)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The last failure of a consumer's rounds, for people. Apart from the cursor, whose lock another worker may hold.
-- A closed word and a number, never what a handler said: that can hold a payload.
CREATE TABLE seqline.event_consumer_failures (
    name text PRIMARY KEY,
    error_type text NOT NULL CHECK (error_type ~ '^[a-z][a-z_]{0,62}$'),
    -- The event that could not be passed, if it was one.
    seq bigint,
    failed_at timestamptz NOT NULL DEFAULT now(),
    recovered_at timestamptz
);

-- Events that retention took before a consumer had come to them. Written with the step over them.
CREATE TABLE seqline.lost_ranges (
    -- Not the range: in a database that was taken back the same can happen again.
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text NOT NULL,
    lost_from bigint NOT NULL,
    lost_to bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CHECK (lost_to >= lost_from)
);
CREATE INDEX lost_ranges_consumer_idx ON seqline.lost_ranges (consumer);

-- Raises a refusal that programs can read: the rule is the constraint.
CREATE FUNCTION seqline.refuse_consumer(rule text, message text, hint text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = message,
        HINT = hint,
        SCHEMA = 'seqline',
        TABLE = 'event_consumers',
        CONSTRAINT = 'seqline_' || rule;
END
$$;

-- Where a consumer stands, NULL without a cursor.
CREATE FUNCTION seqline.consumer_position(p_name text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.last_seq FROM seqline.event_consumer_cursors c WHERE c.name = p_name ORDER BY c.last_seq DESC LIMIT 1
$$;

-- Where a new consumer stands, given the first event that it wants: the number before that.
CREATE FUNCTION seqline.consumer_start(start_at text) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head bigint := seqline.head();
    v_min_retained bigint := seqline.min_retained();
    v_first numeric;
BEGIN
    IF start_at = 'head' THEN
        RETURN v_head;
    ELSIF start_at = 'oldest' THEN
        RETURN v_min_retained - 1;
    ELSIF start_at ~ '^[0-9]{1,30}$' THEN
        -- It can be larger than any seq.
        v_first := start_at::numeric;
        -- Above the head it would wait for numbers that are not there, which is what a restored database looks like.
        IF v_first BETWEEN v_min_retained AND v_head + 1 THEN
            RETURN v_first - 1;
        END IF;
        PERFORM seqline.refuse_consumer('consumer_start',
            format('seq %s is not in the log: ', v_first) || CASE WHEN v_min_retained <= v_head
                THEN format('it holds %s to %s', v_min_retained, v_head)
                ELSE format('it is empty, and the next event gets %s', v_head + 1) END,
            'Start at head, at oldest or at a seq in between.');
    END IF;
    PERFORM seqline.refuse_consumer('consumer_start', 'start_at is not head, oldest or a seq',
        'Write start_at => ''head'', ''oldest'' or the number of the first event to get.');
END
$$;

-- Makes sure that a consumer exists and returns its cursor. One that exists stays where it is, so calling this at every
-- start is right.
CREATE FUNCTION seqline.ensure_consumer(p_name text, p_kind text, p_start_at text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_kind text;
    v_last_seq bigint;
BEGIN
    -- A CHECK would do, but its error shows the row and not the rule.
    IF (p_name ~ '^[a-z][a-z0-9_]{0,62}$') IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_name', 'the name of the consumer is not valid',
            'Use 1 to 63 lowercase letters, digits and underscores, beginning with a letter.');
    END IF;
    SELECT e.kind INTO v_kind FROM seqline.event_consumers e WHERE e.name = p_name;
    IF NOT FOUND THEN
        INSERT INTO seqline.event_consumers (name, kind) VALUES (p_name, p_kind) ON CONFLICT (name) DO NOTHING;
        -- Ours, or that of somebody who was faster.
        SELECT e.kind INTO STRICT v_kind FROM seqline.event_consumers e WHERE e.name = p_name;
    END IF;
    IF v_kind <> p_kind THEN
        PERFORM seqline.refuse_consumer('consumer_kind',
            format('consumer %s is of kind %s, not %s', p_name, v_kind, p_kind),
            'Use another name: one cursor cannot serve two programs.');
    END IF;
    v_last_seq := seqline.consumer_position(p_name);
    IF v_last_seq IS NULL THEN
        -- One at a time, so that there is one cursor. Changing the row and not only locking it: who sees the log as it was
        -- before somebody else has made the cursor is refused then.
        UPDATE seqline.event_consumers e SET kind = e.kind WHERE e.name = p_name;
        v_last_seq := seqline.consumer_position(p_name);
        IF v_last_seq IS NULL THEN
            v_last_seq := seqline.consumer_start(p_start_at);
            INSERT INTO seqline.event_consumer_cursors (name, last_seq) VALUES (p_name, v_last_seq);
        END IF;
    END IF;
    RETURN v_last_seq;
END
$$;

-- Registers a consumer for seqline.poll and returns its cursor. start_at is head, oldest, or the number of the first
-- event that it shall get; it says nothing to a consumer that exists.
CREATE FUNCTION seqline.register_consumer(name text, start_at text DEFAULT 'head') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF name IN ('push', 'webhooks') THEN
        PERFORM seqline.refuse_consumer('consumer_name', format('the name %s is reserved', name),
            'Use another name.');
    END IF;
    RETURN seqline.ensure_consumer(name, 'poll', start_at);
END
$$;

-- Where consumers stand and where the log ends, without any lock. Those without a cursor are left out.
CREATE FUNCTION seqline.consumer_positions(p_names text[])
RETURNS TABLE (name text, last_seq bigint, head bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- By the key: versions that are dead by now can be many, and the plan may be from when there were few.
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT n.name, c.last_seq, h.head
    FROM (SELECT seqline.head() AS head) h
    CROSS JOIN unnest(p_names) AS n (name)
    CROSS JOIN LATERAL (
        SELECT k.last_seq FROM seqline.event_consumer_cursors k WHERE k.name = n.name ORDER BY k.last_seq DESC LIMIT 1
    ) c
$$;

-- Takes the cursor of a consumer for the present transaction, without waiting: held, locked by another, or missing.
-- p_known is where it stood a moment ago. It never goes back by itself, and without that bound a cursor that is locked would be
-- searched for among all dead versions.
CREATE FUNCTION seqline.lock_consumer(p_name text, p_known bigint, OUT state text, OUT last_seq bigint, OUT xid text)
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
    IF FOUND THEN
        state := 'held';
        xid := pg_current_xact_id()::text;
    ELSE
        state := CASE WHEN seqline.consumer_position(p_name) IS NULL THEN 'missing' ELSE 'locked' END;
    END IF;
END
$$;

-- Whether the present transaction has appended events that are still to be numbered.
CREATE FUNCTION seqline.has_appended() RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (
        SELECT FROM seqline.pending_transactions t
        WHERE t.xid = pg_current_xact_id_if_assigned() AND t.started_at = transaction_timestamp())
$$;

-- Moves a cursor if everything is as it was when it was locked: the same transaction, the same number, and nothing appended
-- unless that is allowed. Says what it did, or why not.
CREATE FUNCTION seqline.advance_consumer(
    p_name text, p_last_seq bigint, p_new_last_seq bigint, p_xid text, p_may_append boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    IF p_new_last_seq <= p_last_seq THEN
        RAISE EXCEPTION 'a cursor moves forward only' USING ERRCODE = 'invalid_parameter_value';
    ELSIF pg_current_xact_id() <> p_xid::xid8 THEN
        RETURN 'transaction_ended';
    ELSIF NOT p_may_append AND seqline.has_appended() THEN
        RETURN 'appended';
    END IF;
    UPDATE seqline.event_consumer_cursors c SET last_seq = p_new_last_seq, updated_at = now()
    WHERE c.name = p_name AND c.last_seq = p_last_seq;
    RETURN CASE WHEN FOUND THEN 'advanced' ELSE 'cursor_moved' END;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.refuse_consumer(text, text, text), seqline.consumer_start(text), seqline.consumer_position(text),
    seqline.ensure_consumer(text, text, text), seqline.register_consumer(text, text), seqline.consumer_positions(text[]),
    seqline.lock_consumer(text, bigint), seqline.advance_consumer(text, bigint, bigint, text, boolean),
    seqline.has_appended()
FROM PUBLIC;
GRANT SELECT ON seqline.event_consumers, seqline.event_consumer_cursors TO seqline_app;
GRANT SELECT, INSERT, UPDATE ON seqline.event_consumer_failures TO seqline_app;
GRANT SELECT, INSERT ON seqline.lost_ranges TO seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.ensure_consumer(text, text, text), seqline.consumer_positions(text[]),
    seqline.lock_consumer(text, bigint), seqline.advance_consumer(text, bigint, bigint, text, boolean)
TO seqline_app;
GRANT EXECUTE ON FUNCTION seqline.register_consumer(text, text) TO seqline_consumer, seqline_app;
