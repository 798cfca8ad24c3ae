-- Lanes: several cursors of one consumer, which share its events by a key. And what lets people change a consumer while workers run.

ALTER TABLE seqline.event_consumers
    -- How many rounds of it can be under way at the same time. All look at the whole log; of each key one gets the events.
    ADD COLUMN lanes integer NOT NULL DEFAULT 1 CONSTRAINT event_consumers_lanes_check CHECK (lanes BETWEEN 1 AND 64),
    -- What the events that have to stay in order have in common.
    ADD COLUMN lane_key text NOT NULL DEFAULT 'resource'
        CONSTRAINT event_consumers_lane_key_check CHECK (lane_key IN ('resource', 'channel', 'thread', 'space')),
    -- No lane goes further than to here, so that all come to the same place and their number can be changed. Only for so long:
    -- whoever asked for it may have died.
    ADD COLUMN barrier_seq bigint,
    ADD COLUMN barrier_until timestamptz,
    -- The last event that it gets, for one that handles a piece of the log again.
    ADD COLUMN until_seq bigint,
    -- Since when it is out of use: no round of it begins, and nothing waits for it.
    ADD COLUMN retired_at timestamptz;

ALTER TABLE seqline.event_consumer_cursors
    ADD COLUMN lane integer NOT NULL DEFAULT 0 CONSTRAINT event_consumer_cursors_lane_check CHECK (lane >= 0),
    DROP CONSTRAINT event_consumer_cursors_pkey,
    ADD CONSTRAINT event_consumer_cursors_pkey PRIMARY KEY (name, lane, last_seq);

ALTER TABLE seqline.lost_ranges
    -- Since when somebody knows.
    ADD COLUMN acknowledged_at timestamptz;

-- Lanes fail on their own.
ALTER TABLE seqline.event_consumer_failures
    ADD COLUMN lane integer NOT NULL DEFAULT 0,
    DROP CONSTRAINT event_consumer_failures_pkey,
    ADD CONSTRAINT event_consumer_failures_pkey PRIMARY KEY (name, lane);

-- Events that a consumer is to leave out, because somebody said so: rounds end before them and step over them. They may be
-- missing from the log.
CREATE TABLE seqline.skipped_events (
    consumer text NOT NULL REFERENCES seqline.event_consumers,
    seq bigint NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT now(),
    why text NOT NULL,
    PRIMARY KEY (consumer, seq)
);

-- Events that a consumer has put aside, to be handled later or never. References: the events are in the log, and stay there
-- for as long.
CREATE TABLE seqline.parked_events (
    consumer text NOT NULL REFERENCES seqline.event_consumers,
    seq bigint NOT NULL,
    -- What the events that have to stay in order have in common: later ones of it are parked too. NULL stands alone.
    key text,
    -- How often it was tried since it was parked, or since somebody asked for it.
    attempts integer NOT NULL DEFAULT 0,
    -- When it is tried; NULL until somebody asks for it, or until those of its key before it are gone. Never set for one that is not
    -- the first of its key.
    next_attempt_at timestamptz,
    -- With what it failed last; NULL for one that only waits for those before it, or did.
    error_type text CHECK (error_type ~ '^[a-z][a-z_]{0,62}$'),
    parked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, seq)
);
CREATE INDEX parked_events_key_idx ON seqline.parked_events (consumer, key, seq);
-- Each look at a consumer asks for these, so they are not searched for among those that wait.
CREATE INDEX parked_events_due_idx ON seqline.parked_events (consumer, next_attempt_at, seq) WHERE next_attempt_at IS NOT NULL;

ALTER TABLE seqline.settings
    -- Each holds its event in the log, and each event of a parked key is compared with them. At that many the consumer stalls.
    ADD COLUMN parked_max_events integer NOT NULL DEFAULT 10000 CHECK (parked_max_events BETWEEN 1 AND 1000000);

-- What an event has in common with those that it has to stay in order with; NULL when it stands alone.
CREATE FUNCTION seqline.key_of(
    p_lane_key text, p_resource_kind text, p_resource_id text, p_channel_id text, p_thread_id text, p_space_id text
) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_lane_key
    WHEN 'resource' THEN p_resource_kind || '/' || p_resource_id
    WHEN 'channel' THEN p_channel_id
    WHEN 'thread' THEN p_thread_id
    WHEN 'space' THEN p_space_id
END;

-- The lane of a key: the first 32 bits of the SHA-256 of its UTF-8 bytes, as a number without sign, modulo the number of lanes.
-- Not PostgreSQL's own hash, which may be another one in its next version.
CREATE FUNCTION seqline.lane_of(p_key text, p_lanes integer) RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN p_key IS NULL THEN 0
    ELSE (('x' || encode(substr(sha256(convert_to(p_key, 'UTF8')), 1, 4), 'hex'))::bit(32)::bigint % p_lanes)::integer
END;

-- Looks at up to p_reach events above p_after, no further than to the one that is the p_limit'th to match: from where to where, how
-- many there are, and the numbers of those that match. One statement, so that all of that is one state of the log.
DROP FUNCTION seqline.look_at_log(bigint, bigint, bigint, text[], text[], text[], text[], text[]);
CREATE FUNCTION seqline.look_at_log(
    p_after bigint, p_reach bigint, p_limit bigint,
    p_types text[], p_type_prefixes text[], p_spaces text[], p_channels text[], p_resource_kinds text[],
    p_lane integer, p_lanes integer, p_lane_key text,
    OUT first_seq bigint, OUT last_seq bigint, OUT events bigint, OUT matching bigint[]
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    -- With literals, so that planning leaves out all partitions but one or two. That they reach so far relies on the log being
    -- dense, which the caller checks.
    EXECUTE format(
        'WITH found AS MATERIALIZED (
             SELECT e.seq FROM seqline.event_log e
             WHERE e.seq > %1$s AND e.seq <= %2$s
               AND seqline.matches_filter($1, $2, $3, $4, $5, e.type, e.space_id, e.channel_id, e.resource_kind)
               AND ($7 = 1 OR seqline.lane_of(seqline.key_of($8, e.resource_kind, e.resource_id, e.channel_id, e.thread_id,
                                                             e.space_id), $7) = $6)
             ORDER BY e.seq LIMIT %3$s
         )
         SELECT min(e.seq), max(e.seq), count(*), ARRAY(SELECT f.seq FROM found f ORDER BY f.seq)
         FROM seqline.event_log e
         WHERE e.seq > %1$s AND e.seq <= %2$s
           AND e.seq <= (SELECT CASE WHEN count(*) = %3$s THEN max(f.seq) ELSE %2$s END FROM found f)',
        p_after, p_after + least(p_reach, 9223372036854775807 - p_after), p_limit)
    INTO first_seq, last_seq, events, matching
    USING p_types, p_type_prefixes, p_spaces, p_channels, p_resource_kinds, p_lane, p_lanes, p_lane_key;
END
$$;

-- Where a lane stands, NULL without a cursor.
CREATE FUNCTION seqline.lane_position(p_name text, p_lane integer) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
-- By the key: versions that are dead by now can be many, and the plan may be from when there were few.
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT c.last_seq FROM seqline.event_consumer_cursors c
    WHERE c.name = p_name AND c.lane = p_lane ORDER BY c.last_seq DESC LIMIT 1
$$;

-- Where a consumer stands: where the lane is that is furthest behind. NULL without a cursor.
CREATE OR REPLACE FUNCTION seqline.consumer_position(p_name text) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT min(c.last_seq)
    FROM seqline.event_consumers e
    CROSS JOIN LATERAL generate_series(0, e.lanes - 1) AS l (lane)
    CROSS JOIN LATERAL (
        SELECT k.last_seq FROM seqline.event_consumer_cursors k
        WHERE k.name = e.name AND k.lane = l.lane ORDER BY k.last_seq DESC LIMIT 1
    ) c
    WHERE e.name = p_name
$$;

-- Makes sure that a consumer exists and returns its cursor. One that exists stays where it is and keeps its lanes, so calling this
-- at every start is right.
DROP FUNCTION seqline.ensure_consumer(text, text, text);
CREATE FUNCTION seqline.ensure_consumer(
    p_name text, p_kind text, p_start_at text, p_lanes integer DEFAULT 1, p_lane_key text DEFAULT 'resource'
) RETURNS bigint
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
    PERFORM seqline.check_lanes(p_lanes, p_lane_key);
    SELECT e.kind INTO v_kind FROM seqline.event_consumers e WHERE e.name = p_name;
    IF NOT FOUND THEN
        INSERT INTO seqline.event_consumers (name, kind, lanes, lane_key)
        VALUES (p_name, p_kind, p_lanes, p_lane_key) ON CONFLICT (name) DO NOTHING;
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
        -- One at a time, so that there is one cursor for each lane. Changing the row and not only locking it: who sees the log as it
        -- was before somebody else has made the cursors is refused then.
        UPDATE seqline.event_consumers e SET kind = e.kind WHERE e.name = p_name;
        v_last_seq := seqline.consumer_position(p_name);
        IF v_last_seq IS NULL THEN
            v_last_seq := seqline.consumer_start(p_start_at);
            -- Of one whose cursors somebody removed: it is a new one, and may come to these events again.
            DELETE FROM seqline.parked_events p WHERE p.consumer = p_name;
            DELETE FROM seqline.skipped_events s WHERE s.consumer = p_name;
            DELETE FROM seqline.round_marks m WHERE m.consumer = p_name;
            INSERT INTO seqline.event_consumer_cursors (name, lane, last_seq)
            SELECT e.name, l.lane, v_last_seq FROM seqline.event_consumers e, generate_series(0, e.lanes - 1) AS l (lane)
            WHERE e.name = p_name;
        END IF;
    END IF;
    RETURN v_last_seq;
END
$$;

-- Whether that can be the lanes of a consumer.
CREATE FUNCTION seqline.check_lanes(p_lanes integer, p_lane_key text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (p_lanes BETWEEN 1 AND 64) IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_lanes', 'the number of lanes is not between 1 and 64',
            'Each lane looks at the whole log.');
    ELSIF (p_lane_key IN ('resource', 'channel', 'thread', 'space')) IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_lanes', 'the key of the lanes is not resource, channel, thread or space',
            'Take the one by which events have to stay in order.');
    END IF;
END
$$;

-- The parked event of a lane that is to be tried now, if there is one.
CREATE FUNCTION seqline.first_due_parked(p_name text, p_lane integer, p_lanes integer) RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT p.seq FROM seqline.parked_events p
    -- In a subquery, so that the index is asked for it.
    WHERE p.consumer = p_name AND p.next_attempt_at <= (SELECT clock_timestamp()) AND seqline.lane_of(p.key, p_lanes) = p_lane
    ORDER BY p.next_attempt_at, p.seq LIMIT 1
$$;

-- Where the lanes of consumers stand, and how far they have to go, without any lock. Those without a cursor are left out.
-- state is active, paused or retired; due says that a parked event is to be tried.
DROP FUNCTION seqline.consumer_positions(text[]);
CREATE FUNCTION seqline.consumer_positions(p_names text[])
RETURNS TABLE (name text, lane integer, lanes integer, last_seq bigint, goal bigint, head bigint, state text, due boolean)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT e.name, l.lane, e.lanes, c.last_seq,
           least(h.head, e.until_seq, CASE WHEN e.barrier_until > clock_timestamp() THEN e.barrier_seq END), h.head,
           CASE WHEN e.retired_at IS NOT NULL THEN 'retired' WHEN e.paused_at IS NOT NULL THEN 'paused' ELSE 'active' END,
           seqline.first_due_parked(e.name, l.lane, e.lanes) IS NOT NULL
    FROM (SELECT seqline.head() AS head) h
    CROSS JOIN unnest(p_names) AS n (name)
    JOIN seqline.event_consumers e ON e.name = n.name
    CROSS JOIN LATERAL generate_series(0, e.lanes - 1) AS l (lane)
    CROSS JOIN LATERAL (
        SELECT k.last_seq FROM seqline.event_consumer_cursors k
        WHERE k.name = e.name AND k.lane = l.lane ORDER BY k.last_seq DESC LIMIT 1
    ) c
$$;

-- Takes the cursor of a lane for the present transaction, without waiting: held, locked by another, or missing. One that is
-- paused or retired counts as locked: somebody has it in hand.
-- p_known is where it stood a moment ago. It never goes back by itself, and without that bound a cursor that is locked would be
-- searched for among all dead versions.
-- What is read behind the lock stays so until the end: whoever changes it changes all cursors of the consumer first.
-- from_seq is where reading begins, behind events that are to be left out; stop_seq is the last that the round may pass, NULL for any.
-- due_seq is a parked event that is to be tried now.
DROP FUNCTION seqline.lock_consumer(text, bigint);
DROP FUNCTION seqline.is_paused(text);
CREATE FUNCTION seqline.lock_consumer(
    p_name text, p_lane integer, p_known bigint,
    OUT state text, OUT last_seq bigint, OUT from_seq bigint, OUT stop_seq bigint,
    OUT lanes integer, OUT lane_key text, OUT has_parked boolean, OUT due_seq bigint, OUT xid text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_consumer seqline.event_consumers;
    v_skip bigint;
BEGIN
    SELECT c.last_seq INTO lock_consumer.last_seq FROM seqline.event_consumer_cursors c
    WHERE c.name = p_name AND c.lane = p_lane AND c.last_seq >= p_known
    ORDER BY c.last_seq DESC LIMIT 1
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        state := CASE WHEN seqline.lane_position(p_name, p_lane) IS NULL THEN 'missing' ELSE 'locked' END;
        RETURN;
    END IF;
    SELECT * INTO v_consumer FROM seqline.event_consumers e WHERE e.name = p_name;
    IF v_consumer.paused_at IS NOT NULL OR v_consumer.retired_at IS NOT NULL THEN
        state := 'locked';
        RETURN;
    END IF;
    state := 'held';
    lanes := v_consumer.lanes;
    lane_key := v_consumer.lane_key;
    stop_seq := v_consumer.until_seq;
    IF v_consumer.barrier_until > clock_timestamp() THEN
        stop_seq := least(stop_seq, v_consumer.barrier_seq);
    END IF;
    from_seq := last_seq;
    LOOP
        SELECT min(s.seq) INTO v_skip FROM seqline.skipped_events s WHERE s.consumer = p_name AND s.seq > from_seq;
        EXIT WHEN v_skip IS DISTINCT FROM from_seq + 1 OR from_seq >= stop_seq;
        from_seq := v_skip;
    END LOOP;
    stop_seq := least(stop_seq, v_skip - 1);
    has_parked := EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = p_name);
    IF has_parked THEN
        due_seq := seqline.first_due_parked(p_name, p_lane, lanes);
    END IF;
    xid := pg_current_xact_id()::text;
END
$$;

-- Whether the present transaction is still the one that locked the cursor, and may end the round: NULL, or why not.
CREATE FUNCTION seqline.round_refusal(p_xid text, p_may_append boolean) RETURNS text
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN pg_current_xact_id() <> p_xid::xid8 THEN 'transaction_ended'
                WHEN NOT p_may_append AND seqline.has_appended() THEN 'appended' END
$$;

-- Moves a cursor if everything is as it was when it was locked: the same transaction, the same number, and nothing appended
-- unless that is allowed. Says what it did, or why not.
DROP FUNCTION seqline.advance_consumer(text, bigint, bigint, text, boolean);
CREATE FUNCTION seqline.advance_consumer(
    p_name text, p_lane integer, p_last_seq bigint, p_new_last_seq bigint, p_xid text, p_may_append boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_refusal text := seqline.round_refusal(p_xid, p_may_append);
BEGIN
    IF p_new_last_seq <= p_last_seq THEN
        RAISE EXCEPTION 'a cursor moves forward only' USING ERRCODE = 'invalid_parameter_value';
    ELSIF v_refusal IS NOT NULL THEN
        RETURN v_refusal;
    END IF;
    UPDATE seqline.event_consumer_cursors c SET last_seq = p_new_last_seq, updated_at = now()
    WHERE c.name = p_name AND c.lane = p_lane AND c.last_seq = p_last_seq;
    RETURN CASE WHEN FOUND THEN 'advanced' ELSE 'cursor_moved' END;
END
$$;

-- Writes down what a consumer has lost to retention. Of what another lane has lost too somebody may know already.
CREATE FUNCTION seqline.record_loss(p_name text, p_from bigint, p_to bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to, acknowledged_at)
    SELECT p_name, p_from, p_to, (
        SELECT max(l.acknowledged_at) FROM seqline.lost_ranges l
        WHERE l.consumer = p_name AND l.lost_from <= p_from AND l.lost_to >= p_to
          AND (SELECT e.lanes > 1 FROM seqline.event_consumers e WHERE e.name = p_name))
$$;

REVOKE ALL ON FUNCTION
    seqline.key_of(text, text, text, text, text, text), seqline.lane_of(text, integer),
    seqline.look_at_log(bigint, bigint, bigint, text[], text[], text[], text[], text[], integer, integer, text),
    seqline.lane_position(text, integer), seqline.check_lanes(integer, text),
    seqline.ensure_consumer(text, text, text, integer, text),
    seqline.consumer_positions(text[]), seqline.first_due_parked(text, integer, integer),
    seqline.lock_consumer(text, integer, bigint), seqline.round_refusal(text, boolean),
    seqline.advance_consumer(text, integer, bigint, bigint, text, boolean), seqline.record_loss(text, bigint, bigint)
FROM PUBLIC;
GRANT SELECT ON seqline.skipped_events, seqline.parked_events TO seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.key_of(text, text, text, text, text, text), seqline.lane_of(text, integer),
    seqline.look_at_log(bigint, bigint, bigint, text[], text[], text[], text[], text[], integer, integer, text),
    seqline.ensure_consumer(text, text, text, integer, text), seqline.consumer_positions(text[]),
    seqline.lock_consumer(text, integer, bigint),
    seqline.advance_consumer(text, integer, bigint, bigint, text, boolean), seqline.record_loss(text, bigint, bigint)
TO seqline_app;
GRANT EXECUTE ON FUNCTION seqline.lane_of(text, integer) TO seqline_consumer;
