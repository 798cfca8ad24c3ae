-- The relay copies the log into a stream of a broker. A row is how far one relay is, who runs it, and what it met on the way.
--
-- The lease only saves work: two relays at once are kept apart by the stream itself, which takes each message at one place alone.

CREATE TABLE seqline.relay_cursors (
    name text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
    stream text NOT NULL CHECK (length(stream) BETWEEN 1 AND 255),
    -- The history that the position belongs to.
    epoch uuid NOT NULL,
    -- Every event up to here is in the stream.
    position bigint NOT NULL CHECK (position >= 0),
    -- When the stream was made, in nanoseconds since 1970: another one of the same name has another time.
    stream_created bigint NOT NULL,
    -- The stream up to here is known, and what lies there: the position of the event, NULL where it is none of the log's.
    stream_seq bigint NOT NULL CHECK (stream_seq >= 0),
    position_at_seq bigint,
    -- Where this relay began in this stream, or was last rewound to: what lies before is none of its business.
    base_stream_seq bigint NOT NULL CHECK (base_stream_seq >= 0),
    base_position bigint NOT NULL CHECK (base_position >= 0),
    -- How often it was rewound. Part of the ids of messages, or a broker that remembers them would drop them.
    rewinds integer NOT NULL DEFAULT 0 CHECK (rewinds >= 0),
    -- Where an operator wants it to go on. The relay does it, because it has to look at the stream.
    rewind_to bigint CHECK (rewind_to >= 0),
    paused_at timestamptz,
    -- Who runs it.
    holder uuid,
    generation bigint NOT NULL DEFAULT 0 CHECK (generation >= 0),
    leased_until timestamptz,
    -- What keeps it from going on, by name; NULL while it goes on.
    stalled_by text CHECK (length(stalled_by) <= 63),
    stalled_since timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nulls(holder, leased_until) IN (0, 2)),
    CHECK (num_nulls(stalled_by, stalled_since) IN (0, 2))
) WITH (fillfactor = 50);

-- What a relay met that somebody should know about. One row for each kind until somebody has acknowledged it, however often it happens.
CREATE TABLE seqline.relay_incidents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relay text NOT NULL REFERENCES seqline.relay_cursors ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN (
        'behind_retention', 'stream_recreated', 'stream_lost_messages', 'foreign_messages', 'orphaned_messages',
        'hole_filled_late', 'published_again', 'payload_left_out', 'histories_differ'
    )),
    -- How many events or messages.
    count bigint NOT NULL CHECK (count >= 1),
    -- The positions of the log between which they lie, where they have some.
    first_position bigint,
    last_position bigint,
    -- Where in the stream the last of them was met.
    stream_seq bigint,
    first_at timestamptz NOT NULL DEFAULT now(),
    last_at timestamptz NOT NULL DEFAULT now(),
    acknowledged_at timestamptz
);
CREATE UNIQUE INDEX relay_incidents_open ON seqline.relay_incidents (relay, kind) WHERE acknowledged_at IS NULL;

GRANT SELECT, INSERT, UPDATE, DELETE ON seqline.relay_cursors TO seqline_app;
GRANT SELECT, INSERT, UPDATE ON seqline.relay_incidents TO seqline_app;
-- A consumer of the stream has to know how far that is filled.
GRANT SELECT ON seqline.relay_cursors TO seqline_consumer;

-- Raises a refusal that programs can read.
CREATE FUNCTION seqline.refuse_relay(rule text, message text, hint text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = message,
        HINT = hint,
        SCHEMA = 'seqline',
        TABLE = 'relay_cursors',
        CONSTRAINT = 'seqline_' || rule;
END
$$;

CREATE FUNCTION seqline.hold_relay(p_name text) RETURNS seqline.relay_cursors
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_relay seqline.relay_cursors;
BEGIN
    SELECT * INTO v_relay FROM seqline.relay_cursors r WHERE r.name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_relay('relay_unknown', 'there is no relay of this name',
            'seqline relay status shows those that there are. One is there once it has reached its broker.');
    END IF;
    RETURN v_relay;
END
$$;

-- Lets a relay stand still, or go on. Whether that was news.
CREATE FUNCTION seqline.set_relay_paused(p_name text, p_paused boolean, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.relay_cursors;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    v_before := seqline.hold_relay(p_name);
    IF (v_before.paused_at IS NOT NULL) = p_paused THEN
        RETURN false;
    END IF;
    UPDATE seqline.relay_cursors r SET paused_at = CASE WHEN p_paused THEN now() END, updated_at = now() WHERE r.name = p_name;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES (CASE WHEN p_paused THEN 'relay.pause' ELSE 'relay.resume' END, p_name,
        jsonb_build_object('paused', NOT p_paused), jsonb_build_object('paused', p_paused), p_why);
    RETURN true;
END
$$;

-- Has a relay publish again what comes after a position, at the end of the stream. Without p_apply it only says what there is.
CREATE FUNCTION seqline.rewind_relay(p_name text, p_position bigint, p_apply boolean, p_why text) RETURNS seqline.relay_cursors
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.relay_cursors;
BEGIN
    PERFORM seqline.check_why(p_why, p_apply);
    v_before := seqline.hold_relay(p_name);
    IF p_position IS NULL OR p_position NOT BETWEEN seqline.min_retained() - 1 AND seqline.head() THEN
        PERFORM seqline.refuse_relay('relay_position', format('the log has no position %s to go on from', p_position),
            format('It has those from %s to %s.', seqline.min_retained() - 1, seqline.head()));
    END IF;
    IF p_apply IS NOT TRUE THEN
        RETURN v_before;
    END IF;
    UPDATE seqline.relay_cursors r SET rewind_to = p_position, updated_at = now() WHERE r.name = p_name;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('relay.rewind', p_name, jsonb_build_object('position', v_before.position), jsonb_build_object('position', p_position), p_why);
    RETURN v_before;
END
$$;

-- Forgets a relay that is out of use, which keeps no events of the log from then on. Refused while a process runs it.
CREATE FUNCTION seqline.delete_relay(p_name text, p_apply boolean, p_why text) RETURNS seqline.relay_cursors
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.relay_cursors;
BEGIN
    PERFORM seqline.check_why(p_why, p_apply);
    v_before := seqline.hold_relay(p_name);
    IF v_before.leased_until > clock_timestamp() THEN
        PERFORM seqline.refuse_relay('relay_runs', 'a process runs this relay', 'Stop it first, or set relay.mode to off.');
    END IF;
    IF p_apply IS NOT TRUE THEN
        RETURN v_before;
    END IF;
    DELETE FROM seqline.relay_cursors r WHERE r.name = p_name;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('relay.delete', p_name, jsonb_build_object('position', v_before.position, 'stream_seq', v_before.stream_seq), '{}', p_why);
    RETURN v_before;
END
$$;

-- Somebody knows of what a relay met. How many kinds of it there were.
CREATE FUNCTION seqline.acknowledge_relay_incidents(p_name text, p_apply boolean, p_why text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_open jsonb;
    v_count bigint;
BEGIN
    PERFORM seqline.check_why(p_why, p_apply);
    PERFORM seqline.hold_relay(p_name);
    SELECT count(*), coalesce(jsonb_object_agg(i.kind, i.count), '{}') INTO v_count, v_open
    FROM seqline.relay_incidents i WHERE i.relay = p_name AND i.acknowledged_at IS NULL;
    IF p_apply IS NOT TRUE OR v_count = 0 THEN
        RETURN v_count;
    END IF;
    UPDATE seqline.relay_incidents i SET acknowledged_at = now() WHERE i.relay = p_name AND i.acknowledged_at IS NULL;
    INSERT INTO seqline.audit_log (action, subject, before, after, why) VALUES ('relay.acknowledge', p_name, v_open, '{}', p_why);
    RETURN v_count;
END
$$;

-- Retention waits for a relay as it waits for consumers: what it has not copied would never reach the stream. Shown as relay/NAME, which no
-- consumer can be called.
CREATE OR REPLACE FUNCTION seqline.holders_of(p_lowers bigint[], p_uppers bigint[])
RETURNS TABLE (lower_bound bigint, consumer text, last_seq bigint, parked bigint)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    WITH standing AS MATERIALIZED (
        SELECT e.name, e.until_seq, seqline.consumer_position(e.name) AS last_seq
        FROM seqline.event_consumers e WHERE e.retired_at IS NULL
        UNION ALL
        SELECT 'relay/' || c.name, NULL, c.position FROM seqline.relay_cursors c
    )
    SELECT r.lower_bound, s.name, s.last_seq, k.parked
    FROM unnest(p_lowers, p_uppers) AS r (lower_bound, upper_bound)
    CROSS JOIN standing s
    CROSS JOIN LATERAL (
        SELECT count(*) AS parked FROM seqline.parked_events p
        WHERE p.consumer = s.name AND p.seq >= r.lower_bound AND p.seq < r.upper_bound
    ) k
    WHERE k.parked > 0
       OR s.last_seq < least(r.upper_bound - 1, s.until_seq) AND (s.until_seq IS NULL OR s.until_seq >= r.lower_bound)
    ORDER BY r.lower_bound, s.last_seq, s.name
$$;

REVOKE ALL ON FUNCTION
    seqline.refuse_relay(text, text, text), seqline.hold_relay(text), seqline.set_relay_paused(text, boolean, text),
    seqline.rewind_relay(text, bigint, boolean, text), seqline.delete_relay(text, boolean, text),
    seqline.acknowledge_relay_incidents(text, boolean, text)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    seqline.set_relay_paused(text, boolean, text), seqline.rewind_relay(text, bigint, boolean, text),
    seqline.delete_relay(text, boolean, text), seqline.acknowledge_relay_incidents(text, boolean, text)
TO seqline_app;
