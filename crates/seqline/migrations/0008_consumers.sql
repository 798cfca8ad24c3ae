-- Consumers: each has a cursor in the log, which moves in the transaction that handles the events. Whoever
-- holds the row's lock works; whoever finds it locked goes away and comes back.

CREATE TABLE seqline.event_consumer_cursors (
    name text PRIMARY KEY CONSTRAINT event_consumer_cursors_name_check CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    -- worker: a program runs a handler for it. poll: somebody calls seqline.poll. Never both, or the events would be
    -- divided between two that do different things.
    kind text NOT NULL DEFAULT 'worker'
        CONSTRAINT event_consumer_cursors_kind_check CHECK (kind IN ('worker', 'poll')),
    last_seq bigint NOT NULL DEFAULT 0
        CONSTRAINT event_consumer_cursors_last_seq_check CHECK (last_seq >= 0),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

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
        TABLE = 'event_consumer_cursors',
        CONSTRAINT = 'seqline_' || rule;
END
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
AS $$
DECLARE
    v_cursor seqline.event_consumer_cursors;
BEGIN
    -- A CHECK would do, but its error shows the row and not the rule.
    IF (p_name ~ '^[a-z][a-z0-9_]{0,62}$') IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_name', 'the name of the consumer is not valid',
            'Use 1 to 63 lowercase letters, digits and underscores, beginning with a letter.');
    END IF;
    SELECT * INTO v_cursor FROM seqline.event_consumer_cursors c WHERE c.name = p_name;
    IF NOT FOUND THEN
        INSERT INTO seqline.event_consumer_cursors (name, kind, last_seq)
        VALUES (p_name, p_kind, seqline.consumer_start(p_start_at))
        ON CONFLICT (name) DO NOTHING;
        -- Ours, or that of somebody who was faster.
        SELECT * INTO STRICT v_cursor FROM seqline.event_consumer_cursors c WHERE c.name = p_name;
    END IF;
    IF v_cursor.kind <> p_kind THEN
        PERFORM seqline.refuse_consumer('consumer_kind',
            format('consumer %s is of kind %s, not %s', p_name, v_cursor.kind, p_kind),
            'Use another name: one cursor cannot serve two programs.');
    END IF;
    RETURN v_cursor.last_seq;
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

-- Whether the present transaction has appended events that are still to be numbered.
CREATE FUNCTION seqline.has_appended() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- By the key: rows of others that are dead by now can be many.
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT EXISTS (
        SELECT FROM seqline.pending_transactions t
        WHERE t.xid = pg_current_xact_id_if_assigned() AND t.started_at = transaction_timestamp())
$$;

REVOKE ALL ON FUNCTION
    seqline.refuse_consumer(text, text, text), seqline.consumer_start(text), seqline.ensure_consumer(text, text, text),
    seqline.register_consumer(text, text), seqline.has_appended()
FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE ON seqline.event_consumer_cursors, seqline.event_consumer_failures TO seqline_app;
GRANT SELECT, INSERT ON seqline.lost_ranges TO seqline_app;
GRANT EXECUTE ON FUNCTION seqline.ensure_consumer(text, text, text), seqline.has_appended() TO seqline_app;
GRANT EXECUTE ON FUNCTION seqline.register_consumer(text, text) TO seqline_consumer, seqline_app;
