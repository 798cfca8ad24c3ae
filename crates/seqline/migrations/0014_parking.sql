-- Parking: a consumer that may puts an event aside that it cannot handle, and goes on. Marks say which events were tried, and how often,
-- also by a process that died of it.

-- What the rounds of a lane have tried. A mark is written before the handler runs, in a transaction of its own, and it counts while
-- the cursor is in the range: a round that succeeds leaves it behind. Keyed like the cursor, for the same reason.
CREATE TABLE seqline.round_marks (
    consumer text NOT NULL REFERENCES seqline.event_consumers,
    lane integer NOT NULL,
    -- Where the cursor was.
    last_seq bigint NOT NULL,
    -- The last event of the round that took many. Until the cursor is there, rounds take one.
    until_seq bigint NOT NULL,
    -- The one event that was tried alone, and how often; NULL and 0 for a round of many.
    tried_seq bigint,
    attempts integer NOT NULL CHECK (attempts >= 0),
    -- When it is tried again.
    next_attempt_at timestamptz NOT NULL,
    -- How the last attempt ended. Nothing else is known of one whose process died.
    error_type text NOT NULL DEFAULT 'aborted' CHECK (error_type ~ '^[a-z][a-z_]{0,62}$'),
    PRIMARY KEY (consumer, lane, last_seq)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The mark of a lane, and in how many seconds the next attempt is due. Only for whoever holds the cursor.
CREATE FUNCTION seqline.round_mark(
    p_name text, p_lane integer,
    OUT last_seq bigint, OUT until_seq bigint, OUT tried_seq bigint, OUT attempts integer, OUT due_in double precision,
    OUT error_type text
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT m.last_seq, m.until_seq, m.tried_seq, m.attempts,
           greatest(extract(epoch FROM m.next_attempt_at - clock_timestamp()), 0)::double precision, m.error_type
    FROM seqline.round_marks m WHERE m.consumer = p_name AND m.lane = p_lane ORDER BY m.last_seq DESC LIMIT 1
$$;

-- Writes the mark of a lane. Whoever holds the cursor calls this on another connection and commits it before the handler runs; that it
-- survives the process is enough, so the commit does not wait for the disk. Nor does it wait long for a lock, for the caller holds the
-- cursor meanwhile, and what it gives up must not be done later.
CREATE FUNCTION seqline.mark_round(
    p_name text, p_lane integer, p_last_seq bigint, p_until_seq bigint, p_tried_seq bigint, p_attempts integer, p_pause interval,
    p_error_type text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_known bigint := (SELECT m.last_seq FROM seqline.round_mark(p_name, p_lane) m);
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
    IF v_known IS NULL THEN
        INSERT INTO seqline.round_marks (consumer, lane, last_seq, until_seq, tried_seq, attempts, next_attempt_at, error_type)
        VALUES (p_name, p_lane, p_last_seq, p_until_seq, p_tried_seq, p_attempts, clock_timestamp() + p_pause, p_error_type);
    -- Not back: whoever takes something back that late has lost the cursor to somebody else.
    ELSIF v_known <= p_last_seq THEN
        UPDATE seqline.round_marks m
        SET last_seq = p_last_seq, until_seq = p_until_seq, tried_seq = p_tried_seq, attempts = p_attempts,
            next_attempt_at = clock_timestamp() + p_pause, error_type = p_error_type
        WHERE m.consumer = p_name AND m.lane = p_lane AND m.last_seq = v_known;
    END IF;
END
$$;

-- Says how the attempt ended that was marked last, for an attempt at the log or at a parked event.
CREATE FUNCTION seqline.note_attempt(p_name text, p_lane integer, p_parked_seq bigint, p_error_type text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
    IF p_parked_seq IS NULL THEN
        UPDATE seqline.round_marks m SET error_type = p_error_type
        WHERE m.consumer = p_name AND m.lane = p_lane
          AND m.last_seq = (SELECT r.last_seq FROM seqline.round_mark(p_name, p_lane) r);
    ELSE
        UPDATE seqline.parked_events p SET error_type = p_error_type WHERE p.consumer = p_name AND p.seq = p_parked_seq;
    END IF;
END
$$;

-- Writes that a parked event is tried for the p_attempts'th time, like mark_round. p_pause is how long to wait after it, NULL when it
-- is the last attempt that nobody has to ask for.
CREATE FUNCTION seqline.mark_parked(
    p_name text, p_seq bigint, p_attempts integer, p_pause interval, p_error_type text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true);
    UPDATE seqline.parked_events p
    SET attempts = p_attempts, next_attempt_at = clock_timestamp() + p_pause, error_type = p_error_type
    WHERE p.consumer = p_name AND p.seq = p_seq;
END
$$;

-- Refuses one more parked event than a consumer may have.
CREATE FUNCTION seqline.require_parking(p_name text, p_events bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_max integer := (SELECT s.parked_max_events FROM seqline.settings s);
BEGIN
    IF (SELECT count(*) FROM seqline.parked_events p WHERE p.consumer = p_name) + p_events > v_max THEN
        PERFORM seqline.refuse_consumer('parked_max_events',
            format('consumer %s has %s parked events, and more would be too many', p_name,
                   (SELECT count(*) FROM seqline.parked_events p WHERE p.consumer = p_name)),
            'Retry or discard some: seqline parked list shows them.');
    END IF;
END
$$;

-- Parks one event, in the round that moves the cursor over it.
CREATE FUNCTION seqline.park_event(p_name text, p_seq bigint, p_attempts integer, p_error_type text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    PERFORM seqline.require_parking(p_name, 1);
    EXECUTE format(
        'INSERT INTO seqline.parked_events (consumer, seq, key, attempts, error_type)
         SELECT c.name, e.seq, seqline.key_of(c.lane_key, e.resource_kind, e.resource_id, e.channel_id, e.thread_id, e.space_id),
                $2, $3
         FROM seqline.event_consumers c, seqline.event_log e WHERE c.name = $1 AND e.seq = %s', p_seq)
    USING p_name, p_attempts, p_error_type;
END
$$;

-- Parks those of these events whose key has a parked event, in the round that moves the cursor over them, and returns them.
CREATE FUNCTION seqline.park_behind(p_name text, p_seqs bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_parked bigint[];
BEGIN
    EXECUTE format(
        'WITH behind AS (
             SELECT c.name, e.seq, k.key
             FROM seqline.event_consumers c
             CROSS JOIN seqline.event_log e
             CROSS JOIN LATERAL seqline.key_of(
                 c.lane_key, e.resource_kind, e.resource_id, e.channel_id, e.thread_id, e.space_id) AS k (key)
             WHERE c.name = $1 AND e.seq = ANY ($2) AND e.seq BETWEEN %s AND %s
               AND EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = $1 AND p.key = k.key)
         ), parked AS (
             INSERT INTO seqline.parked_events (consumer, seq, key) SELECT b.name, b.seq, b.key FROM behind b RETURNING seq
         )
         SELECT array_agg(p.seq ORDER BY p.seq) FROM parked p',
        (SELECT min(s.seq) FROM unnest(p_seqs) AS s (seq)), (SELECT max(s.seq) FROM unnest(p_seqs) AS s (seq)))
    INTO v_parked USING p_name, p_seqs;
    IF v_parked IS NOT NULL THEN
        PERFORM seqline.require_parking(p_name, 0);
    END IF;
    RETURN coalesce(v_parked, '{}');
END
$$;

-- Has the first parked event of each of these keys tried that has only waited for those before it. Whoever takes a parked event away calls
-- this, holding the cursors of the consumer.
CREATE FUNCTION seqline.release_parked(p_name text, p_keys text[]) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    UPDATE seqline.parked_events p SET next_attempt_at = now()
    FROM (SELECT DISTINCT k.key FROM unnest(p_keys) AS k (key) WHERE k.key IS NOT NULL) k
    WHERE p.consumer = p_name AND p.error_type IS NULL
      AND p.seq = (SELECT f.seq FROM seqline.parked_events f WHERE f.consumer = p_name AND f.key = k.key ORDER BY f.seq LIMIT 1)
$$;

-- Ends the round of a parked event that was handled, if everything is as it was when the cursor was locked. Says what it did, or why not.
CREATE FUNCTION seqline.unpark_event(p_name text, p_seq bigint, p_xid text, p_may_append boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_refusal text := seqline.round_refusal(p_xid, p_may_append);
    v_key text;
BEGIN
    IF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    DELETE FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq = p_seq RETURNING p.key INTO v_key;
    IF NOT FOUND THEN
        RETURN 'cursor_moved';
    END IF;
    PERFORM seqline.release_parked(p_name, ARRAY[v_key]);
    RETURN 'advanced';
END
$$;

-- Waits until a consumer has handled the event with this number, and says whether it has: for whoever has appended the event and wants to read what
-- comes of it. It looks again and again, so it holds its session and a snapshot, and the transaction has to be one in which others can
-- be seen.
CREATE OR REPLACE FUNCTION seqline.wait_for(consumer text, seq bigint, timeout interval DEFAULT interval '10 seconds') RETURNS boolean
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
        ELSIF v_position >= seq
              AND NOT EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = wait_for.consumer AND p.seq = wait_for.seq)
        THEN
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
    seqline.round_mark(text, integer), seqline.mark_round(text, integer, bigint, bigint, bigint, integer, interval, text),
    seqline.note_attempt(text, integer, bigint, text), seqline.mark_parked(text, bigint, integer, interval, text),
    seqline.require_parking(text, bigint), seqline.park_event(text, bigint, integer, text),
    seqline.park_behind(text, bigint[]), seqline.release_parked(text, text[]),
    seqline.unpark_event(text, bigint, text, boolean)
FROM PUBLIC;
GRANT SELECT ON seqline.round_marks TO seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.round_mark(text, integer), seqline.mark_round(text, integer, bigint, bigint, bigint, integer, interval, text),
    seqline.note_attempt(text, integer, bigint, text), seqline.mark_parked(text, bigint, integer, interval, text),
    seqline.park_event(text, bigint, integer, text), seqline.park_behind(text, bigint[]),
    seqline.unpark_event(text, bigint, text, boolean)
TO seqline_app;
