-- What people decide about consumers while workers run. Each function says what it does, or would do without p_apply, and writes to
-- the audit log what it did, who asked for it, and why.

-- A reason that the audit log can hold.
CREATE FUNCTION seqline.check_why(p_why text, p_required boolean) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(p_why) > 1000 THEN
        PERFORM seqline.refuse_consumer('audit_why', 'the reason has more than 1000 characters', 'Shorten it, or name a document that says more.');
    ELSIF p_required AND coalesce(p_why !~ '[^[:space:]]', true) THEN
        PERFORM seqline.refuse_consumer('audit_why', 'the reason is missing',
            'Say why, for those who find it in the audit log.');
    END IF;
END
$$;

-- A consumer, and with p_hold all its cursors, for the present transaction: no round of it that can still commit is under way then, and
-- none begins. It waits for those that are.
CREATE FUNCTION seqline.hold_consumer(p_name text, p_hold boolean) RETURNS seqline.event_consumers
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_consumer seqline.event_consumers;
BEGIN
    IF p_hold IS TRUE THEN
        -- The cursors first, like a transaction that polls and then registers, and in one order, so that two do not wait for each other.
        PERFORM FROM seqline.event_consumer_cursors c WHERE c.name = p_name ORDER BY c.lane, c.last_seq FOR UPDATE;
        PERFORM FROM seqline.event_consumers e WHERE e.name = p_name FOR NO KEY UPDATE;
        -- Those that there are by now. Changing the rows and not only locking them: a round that sees the log as it was before is
        -- refused then.
        UPDATE seqline.event_consumer_cursors c SET updated_at = c.updated_at WHERE c.name = p_name;
    END IF;
    SELECT * INTO v_consumer FROM seqline.event_consumers e WHERE e.name = p_name;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'there is no consumer of this name',
            'seqline consumers list shows those that there are.');
    END IF;
    RETURN v_consumer;
END
$$;

-- Pauses a consumer or lets it go on, and says whether that changed anything. It waits for rounds that are under way. One that was
-- retired goes on too.
CREATE OR REPLACE FUNCTION seqline.set_consumer_paused(p_name text, p_paused boolean, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.event_consumers;
    v_after seqline.event_consumers;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF p_paused IS NULL THEN
        PERFORM seqline.refuse_consumer('consumer_paused', 'paused is neither true nor false', 'Pass one of them.');
    END IF;
    v_before := seqline.hold_consumer(p_name, true);
    IF p_paused AND v_before.retired_at IS NOT NULL THEN
        PERFORM seqline.refuse_consumer('consumer_retired', format('consumer %s was retired', p_name),
            'No round of it begins as it is. seqline consumers resume brings it back.');
    ELSIF (num_nonnulls(v_before.paused_at, v_before.retired_at) > 0) = p_paused THEN
        RETURN false;
    END IF;
    UPDATE seqline.event_consumers e SET paused_at = CASE WHEN p_paused THEN now() END, retired_at = NULL WHERE e.name = p_name
    RETURNING * INTO v_after;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES (CASE WHEN p_paused THEN 'consumer.pause' ELSE 'consumer.resume' END, p_name,
        jsonb_strip_nulls(jsonb_build_object('paused_at', v_before.paused_at, 'retired_at', v_before.retired_at)),
        jsonb_strip_nulls(jsonb_build_object('paused_at', v_after.paused_at)), p_why);
    RETURN true;
END
$$;

-- The smallest number with a time at or after this one, NULL if there is none. Times are not in the order of the log, so events before
-- it can be later.
CREATE FUNCTION seqline.seq_at(p_time timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    v_name text;
    v_seq bigint;
BEGIN
    -- One partition after the other, oldest first: each has an index of ranges of times.
    FOR v_name IN SELECT p.name FROM seqline.event_log_partitions() p ORDER BY p.lower_bound LOOP
        -- Undone, so that the locks of one partition are held at a time. In two steps, or the index of the numbers would be walked
        -- through for the first one that matches.
        BEGIN
            EXECUTE format('SELECT min(seq) FROM (SELECT seq FROM seqline.%I WHERE occurred_at >= $1 OFFSET 0) e', v_name)
            INTO v_seq USING p_time;
            RAISE EXCEPTION USING ERRCODE = 'SQ001', MESSAGE = 'undone';
        EXCEPTION
            WHEN SQLSTATE 'SQ001' THEN NULL;
            -- Retention has dropped it meanwhile.
            WHEN undefined_table THEN NULL;
        END;
        EXIT WHEN v_seq IS NOT NULL;
    END LOOP;
    RETURN v_seq;
END
$$;

-- Where the lanes of a consumer stand, for the audit log.
CREATE FUNCTION seqline.lane_positions(p_name text) RETURNS bigint[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(seqline.lane_position(e.name, l.lane) ORDER BY l.lane)
    FROM seqline.event_consumers e CROSS JOIN LATERAL generate_series(0, e.lanes - 1) AS l (lane) WHERE e.name = p_name
$$;

-- Takes a consumer back, so that p_to is the next event of all lanes that are beyond it. None goes forward. What it has parked or left
-- out from there on comes again with the rest.
-- furthest is the last number that it has passed, events how many numbers come again.
CREATE FUNCTION seqline.rewind_consumer(
    p_name text, p_to bigint, p_apply boolean, p_why text,
    OUT furthest bigint, OUT events bigint, OUT parked bigint, OUT skipped bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_consumer seqline.event_consumers;
    v_before bigint[];
    v_head bigint;
    v_min_retained bigint;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    v_consumer := seqline.hold_consumer(p_name, p_apply);
    v_before := seqline.lane_positions(p_name);
    -- Read behind the cursors: retention, which looks at them, does not go on from here.
    v_head := seqline.head();
    v_min_retained := seqline.min_retained();
    IF (p_to BETWEEN v_min_retained AND v_head + 1) IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_rewind',
            format('seq %s is not in the log: ', p_to) || CASE WHEN v_min_retained <= v_head
                THEN format('it holds %s to %s', v_min_retained, v_head)
                ELSE format('it is empty, and the next event gets %s', v_head + 1) END,
            'Go back to one that it holds.');
    END IF;
    furthest := (SELECT max(b.seq) FROM unnest(v_before) AS b (seq));
    events := greatest(least(furthest, v_head) - p_to + 1, 0);
    IF p_to > furthest THEN
        PERFORM seqline.refuse_consumer('consumer_rewind',
            format('consumer %s has not come to seq %s: it is at %s', p_name, p_to, furthest),
            'A rewind goes back. To leave events out, skip them one by one.');
    END IF;
    parked := (SELECT count(*) FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq >= p_to);
    skipped := (SELECT count(*) FROM seqline.skipped_events s WHERE s.consumer = p_name AND s.seq >= p_to);
    IF p_apply IS NOT TRUE THEN
        RETURN;
    END IF;
    UPDATE seqline.event_consumer_cursors c SET last_seq = p_to - 1, updated_at = now()
    WHERE c.name = p_name AND c.last_seq >= p_to;
    DELETE FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq >= p_to;
    DELETE FROM seqline.skipped_events s WHERE s.consumer = p_name AND s.seq >= p_to;
    DELETE FROM seqline.round_marks m WHERE m.consumer = p_name;
    UPDATE seqline.event_consumers e SET barrier_seq = NULL, barrier_until = NULL WHERE e.name = p_name;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('consumer.rewind', p_name, jsonb_build_object('last_seq', to_jsonb(v_before)),
        jsonb_build_object('last_seq', to_jsonb(seqline.lane_positions(p_name)), 'parked_again', parked, 'skipped_again', skipped),
        p_why);
END
$$;

-- Lets a consumer leave out one event that it has not passed, in the log or missing from it.
-- in_log, type and resource say what it is.
CREATE FUNCTION seqline.skip_event(
    p_name text, p_seq bigint, p_apply boolean, p_why text,
    OUT in_log boolean, OUT type text, OUT resource text, OUT ahead bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_consumer seqline.event_consumers;
    v_position bigint;
    v_head bigint;
BEGIN
    PERFORM seqline.check_why(p_why, p_apply);
    v_consumer := seqline.hold_consumer(p_name, p_apply);
    EXECUTE format('SELECT true, e.type, e.resource_kind || coalesce(''/'' || e.resource_id, ''''),
                           seqline.lane_position($1, seqline.lane_of(seqline.key_of($2, e.resource_kind, e.resource_id,
                               e.channel_id, e.thread_id, e.space_id), $3))
                    FROM seqline.event_log e WHERE e.seq = %s', p_seq)
    INTO in_log, type, resource, v_position USING p_name, v_consumer.lane_key, v_consumer.lanes;
    in_log := coalesce(in_log, false);
    -- The lane of the event; of what is missing, the one that is furthest behind.
    v_position := coalesce(v_position, seqline.consumer_position(p_name));
    v_head := seqline.head();
    IF (p_seq > v_position) IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_skip',
            format('consumer %s has passed seq %s already: it is at %s', p_name, p_seq, v_position),
            CASE WHEN EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq = p_seq)
                THEN 'It is parked: seqline parked discard.' ELSE 'There is nothing to leave out.' END);
    ELSIF p_seq > v_head THEN
        PERFORM seqline.refuse_consumer('consumer_skip', format('seq %s is not in the log: it ends at %s', p_seq, v_head),
            'An event can be left out when it is there.');
    ELSIF EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq = p_seq) THEN
        PERFORM seqline.refuse_consumer('consumer_skip', format('consumer %s has parked seq %s', p_name, p_seq),
            'Give it up: seqline parked discard.');
    ELSIF EXISTS (SELECT FROM seqline.skipped_events s WHERE s.consumer = p_name AND s.seq = p_seq) THEN
        PERFORM seqline.refuse_consumer('consumer_skip', format('consumer %s leaves out seq %s already', p_name, p_seq),
            'It does so when it comes there.');
    END IF;
    ahead := p_seq - v_position - 1;
    IF p_apply IS NOT TRUE THEN
        RETURN;
    END IF;
    INSERT INTO seqline.skipped_events (consumer, seq, why) VALUES (p_name, p_seq, p_why);
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('consumer.skip', p_name, jsonb_build_object('last_seq', v_position),
        jsonb_strip_nulls(jsonb_build_object('skipped_seq', p_seq, 'in_log', in_log, 'type', type, 'resource', resource)), p_why);
END
$$;

-- Takes a consumer out of use: no round of it begins, and retention does not wait for it. Its cursors stay where they are.
CREATE FUNCTION seqline.retire_consumer(
    p_name text, p_apply boolean, p_why text, OUT last_seq bigint, OUT events bigint, OUT parked bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_consumer seqline.event_consumers;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    v_consumer := seqline.hold_consumer(p_name, p_apply);
    IF v_consumer.retired_at IS NOT NULL THEN
        PERFORM seqline.refuse_consumer('consumer_retired', format('consumer %s was retired', p_name),
            'seqline consumers resume brings it back.');
    END IF;
    last_seq := seqline.consumer_position(p_name);
    events := greatest(least(seqline.head(), v_consumer.until_seq) - last_seq, 0);
    parked := (SELECT count(*) FROM seqline.parked_events p WHERE p.consumer = p_name);
    IF p_apply IS NOT TRUE THEN
        RETURN;
    END IF;
    UPDATE seqline.event_consumers e SET retired_at = now() WHERE e.name = p_name;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('consumer.retire', p_name, jsonb_strip_nulls(jsonb_build_object('paused_at', v_consumer.paused_at)),
        jsonb_build_object('retired_at', now(), 'last_seq', last_seq, 'not_handled', events, 'parked', parked), p_why);
END
$$;

-- Lets no lane of a consumer go further than the one that is furthest, for so long, or takes that back with NULL: so that all come to
-- the same place.
CREATE FUNCTION seqline.gather_lanes(p_name text, p_for interval) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_consumer seqline.event_consumers;
    v_barrier bigint;
BEGIN
    IF p_for < interval '0' OR p_for > interval '10 minutes' THEN
        PERFORM seqline.refuse_consumer('consumer_lanes', 'lanes are gathered for 0 to 10 minutes',
            'Those that are in front wait for so long.');
    END IF;
    v_consumer := seqline.hold_consumer(p_name, true);
    v_barrier := (SELECT max(b.seq) FROM unnest(seqline.lane_positions(p_name)) AS b (seq));
    UPDATE seqline.event_consumers e
    SET barrier_seq = CASE WHEN p_for IS NOT NULL THEN v_barrier END, barrier_until = clock_timestamp() + p_for
    WHERE e.name = p_name;
    RETURN v_barrier;
END
$$;

-- Gives a consumer another number of lanes, or another key, when all lanes are at the same place: of each key one lane has the events until
-- there, and one has them from there on.
CREATE FUNCTION seqline.set_consumer_lanes(
    p_name text, p_lanes integer, p_lane_key text, p_apply boolean, p_why text,
    OUT lanes_before integer, OUT key_before text, OUT last_seq bigint, OUT behind integer
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_consumer seqline.event_consumers;
    v_positions bigint[];
    v_key text;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    v_consumer := seqline.hold_consumer(p_name, p_apply);
    v_key := coalesce(p_lane_key, v_consumer.lane_key);
    PERFORM seqline.check_lanes(p_lanes, v_key);
    lanes_before := v_consumer.lanes;
    key_before := v_consumer.lane_key;
    v_positions := seqline.lane_positions(p_name);
    last_seq := (SELECT max(b.seq) FROM unnest(v_positions) AS b (seq));
    behind := (SELECT count(*) FROM unnest(v_positions) AS b (seq) WHERE b.seq < last_seq);
    IF v_key <> v_consumer.lane_key AND EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = p_name) THEN
        PERFORM seqline.refuse_consumer('consumer_lanes',
            format('consumer %s has parked events, which wait by %s', p_name, v_consumer.lane_key),
            'Retry or discard them, and then take another key.');
    ELSIF p_apply IS NOT TRUE OR (p_lanes, v_key) = (v_consumer.lanes, v_consumer.lane_key) THEN
        RETURN;
    ELSIF behind > 0 THEN
        PERFORM seqline.refuse_consumer('consumer_lanes',
            format('lane %s of consumer %s is at seq %s, and another at %s', b.lane - 1, p_name, b.seq, last_seq),
            'All have to be at the same place. seqline consumers lanes gathers them first.')
        FROM unnest(v_positions) WITH ORDINALITY AS b (seq, lane) ORDER BY b.seq LIMIT 1;
    END IF;
    DELETE FROM seqline.event_consumer_cursors c WHERE c.name = p_name;
    INSERT INTO seqline.event_consumer_cursors (name, lane, last_seq)
    SELECT p_name, l.lane, set_consumer_lanes.last_seq FROM generate_series(0, p_lanes - 1) AS l (lane);
    DELETE FROM seqline.round_marks m WHERE m.consumer = p_name;
    UPDATE seqline.event_consumers e
    SET lanes = p_lanes, lane_key = v_key, barrier_seq = NULL, barrier_until = NULL WHERE e.name = p_name;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('consumer.lanes', p_name, jsonb_build_object('lanes', lanes_before, 'key', key_before),
        jsonb_build_object('lanes', p_lanes, 'key', v_key, 'last_seq', last_seq), p_why);
END
$$;

-- Makes a consumer that gets p_from to p_to again with what p_name asks for, which is not touched. A program has to handle them under
-- the new name.
CREATE FUNCTION seqline.replay_consumer(
    p_name text, p_into text, p_from bigint, p_to bigint, p_apply boolean, p_why text, OUT kind text, OUT events bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_consumer seqline.event_consumers;
    v_head bigint := seqline.head();
    v_min_retained bigint := seqline.min_retained();
BEGIN
    PERFORM seqline.check_why(p_why, false);
    v_consumer := seqline.hold_consumer(p_name, false);
    IF EXISTS (SELECT FROM seqline.event_consumers e WHERE e.name = p_into) THEN
        PERFORM seqline.refuse_consumer('consumer_replay', format('there is a consumer %s already', p_into),
            'Replay into a new one: nobody else then gets events that he did not ask for.');
    ELSIF (p_into ~ '^[a-z][a-z0-9_]{0,62}$' AND p_into NOT IN ('push', 'webhooks')) IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_name', 'the name of the new consumer is not valid or reserved',
            'Use 1 to 63 lowercase letters, digits and underscores, beginning with a letter.');
    ELSIF (p_from BETWEEN v_min_retained AND p_to AND p_to <= v_head) IS NOT TRUE THEN
        PERFORM seqline.refuse_consumer('consumer_replay',
            format('seq %s to %s is not a piece of the log: ', p_from, p_to) || CASE WHEN v_min_retained <= v_head
                THEN format('it holds %s to %s', v_min_retained, v_head) ELSE 'it is empty' END,
            'Choose a piece of what it holds.');
    END IF;
    kind := v_consumer.kind;
    events := p_to - p_from + 1;
    IF p_apply IS NOT TRUE THEN
        RETURN;
    END IF;
    INSERT INTO seqline.event_consumers
        (name, kind, lanes, lane_key, until_seq, types, type_prefixes, spaces, channels, resource_kinds)
    VALUES (p_into, v_consumer.kind, v_consumer.lanes, v_consumer.lane_key, p_to, v_consumer.types, v_consumer.type_prefixes,
        v_consumer.spaces, v_consumer.channels, v_consumer.resource_kinds)
    ON CONFLICT (name) DO NOTHING;
    -- Somebody was faster.
    IF NOT FOUND THEN
        PERFORM seqline.refuse_consumer('consumer_replay', format('there is a consumer %s already', p_into),
            'Replay into a new one: nobody else then gets events that he did not ask for.');
    END IF;
    INSERT INTO seqline.event_consumer_cursors (name, lane, last_seq)
    SELECT p_into, l.lane, p_from - 1 FROM generate_series(0, v_consumer.lanes - 1) AS l (lane);
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('consumer.replay', p_into, '{}', jsonb_build_object('like', p_name, 'from', p_from, 'to', p_to), p_why);
END
$$;

-- Says that somebody knows what a consumer has lost to retention.
CREATE FUNCTION seqline.acknowledge_losses(
    p_name text, p_apply boolean, p_why text, OUT ranges bigint, OUT events bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM seqline.check_why(p_why, false);
    PERFORM seqline.hold_consumer(p_name, false);
    -- Lanes can have lost the same numbers.
    SELECT count(*), coalesce(sum(upper(r.range) - lower(r.range)), 0) INTO ranges, events
    FROM unnest((SELECT range_agg(int8range(l.lost_from, l.lost_to, '[]')) FROM seqline.lost_ranges l
                 WHERE l.consumer = p_name AND l.acknowledged_at IS NULL)) AS r (range);
    IF p_apply IS NOT TRUE OR ranges = 0 THEN
        RETURN;
    END IF;
    WITH acknowledged AS (
        UPDATE seqline.lost_ranges l SET acknowledged_at = now()
        WHERE l.consumer = p_name AND l.acknowledged_at IS NULL RETURNING l.lost_from, l.lost_to
    )
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    SELECT 'consumer.acknowledge', p_name,
           jsonb_build_object('lost', jsonb_agg(jsonb_build_array(a.lost_from, a.lost_to) ORDER BY a.lost_from)),
           jsonb_build_object('acknowledged_at', now()), p_why
    FROM acknowledged a;
END
$$;

-- Has parked events tried again that nothing tries by itself, or that wait for their next attempt: that of p_seq, or all with NULL. Those
-- behind them follow when they are handled. Says how many are tried and how many wait behind.
CREATE FUNCTION seqline.retry_parked(
    p_name text, p_seq bigint, p_apply boolean, p_why text, OUT events bigint, OUT behind bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_tried bigint[];
    v_first bigint;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    PERFORM seqline.hold_consumer(p_name, false);
    PERFORM seqline.require_parked(p_name, p_seq);
    SELECT b.seq INTO v_first FROM seqline.parked_events p JOIN seqline.parked_events b
        ON b.consumer = p_name AND b.key = p.key AND b.seq < p.seq
    WHERE p.consumer = p_name AND p.seq = p_seq ORDER BY b.seq LIMIT 1;
    IF v_first IS NOT NULL THEN
        PERFORM seqline.refuse_consumer('parked_behind',
            format('parked event %s of consumer %s waits for %s of the same key', p_seq, p_name, v_first),
            'Retry or discard that one: the others follow in order.');
    END IF;
    SELECT array_agg(p.seq) INTO v_tried FROM seqline.parked_events p
    WHERE p.consumer = p_name AND (p_seq IS NULL OR p.seq = p_seq)
      AND NOT EXISTS (SELECT FROM seqline.parked_events b WHERE b.consumer = p_name AND b.key = p.key AND b.seq < p.seq);
    events := coalesce(cardinality(v_tried), 0);
    behind := (SELECT count(*) FROM seqline.parked_events b WHERE b.consumer = p_name AND b.seq <> ALL (v_tried)
               AND EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq = ANY (v_tried) AND p.key = b.key));
    IF p_apply IS NOT TRUE OR events = 0 THEN
        RETURN;
    END IF;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    SELECT 'parked.retry', p_name,
           jsonb_build_object('attempts', jsonb_object_agg(p.seq::text, p.attempts)),
           jsonb_build_object('events', events, 'behind', behind), p_why
    FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq = ANY (v_tried);
    UPDATE seqline.parked_events p SET attempts = 0, next_attempt_at = now()
    WHERE p.consumer = p_name AND p.seq = ANY (v_tried);
END
$$;

-- Refuses what is not parked.
CREATE FUNCTION seqline.require_parked(p_name text, p_seq bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_seq IS NOT NULL AND NOT EXISTS (SELECT FROM seqline.parked_events p WHERE p.consumer = p_name AND p.seq = p_seq) THEN
        PERFORM seqline.refuse_consumer('parked_unknown', format('consumer %s has no parked event %s', p_name, p_seq),
            'seqline parked list shows those that there are.');
    END IF;
END
$$;

-- Gives parked events up: that of p_seq, or all with NULL. Those behind it follow. It waits for rounds that are under way.
CREATE FUNCTION seqline.discard_parked(
    p_name text, p_seq bigint, p_apply boolean, p_why text, OUT events bigint, OUT behind bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_keys text[];
BEGIN
    PERFORM seqline.check_why(p_why, p_apply);
    PERFORM seqline.hold_consumer(p_name, p_apply);
    PERFORM seqline.require_parked(p_name, p_seq);
    events := (SELECT count(*) FROM seqline.parked_events p WHERE p.consumer = p_name AND (p_seq IS NULL OR p.seq = p_seq));
    behind := (SELECT count(*) FROM seqline.parked_events p JOIN seqline.parked_events b ON b.consumer = p_name AND b.key = p.key
               WHERE p.consumer = p_name AND p.seq = p_seq AND b.seq > p.seq);
    IF p_apply IS NOT TRUE OR events = 0 THEN
        RETURN;
    END IF;
    WITH discarded AS (
        DELETE FROM seqline.parked_events p WHERE p.consumer = p_name AND (p_seq IS NULL OR p.seq = p_seq) RETURNING p.*
    ), audited AS (
        INSERT INTO seqline.audit_log (action, subject, before, after, why)
        SELECT 'parked.discard', p_name,
               jsonb_build_object('parked', jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                   'seq', d.seq, 'key', d.key, 'attempts', d.attempts, 'error_type', d.error_type)) ORDER BY d.seq)),
               '{}', p_why
        FROM discarded d
    )
    SELECT array_agg(d.key) INTO v_keys FROM discarded d;
    PERFORM seqline.release_parked(p_name, v_keys);
END
$$;

REVOKE ALL ON FUNCTION
    seqline.check_why(text, boolean), seqline.hold_consumer(text, boolean), seqline.seq_at(timestamptz),
    seqline.lane_positions(text), seqline.rewind_consumer(text, bigint, boolean, text),
    seqline.skip_event(text, bigint, boolean, text), seqline.retire_consumer(text, boolean, text),
    seqline.gather_lanes(text, interval), seqline.set_consumer_lanes(text, integer, text, boolean, text),
    seqline.replay_consumer(text, text, bigint, bigint, boolean, text), seqline.acknowledge_losses(text, boolean, text),
    seqline.retry_parked(text, bigint, boolean, text), seqline.require_parked(text, bigint),
    seqline.discard_parked(text, bigint, boolean, text)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    seqline.seq_at(timestamptz), seqline.rewind_consumer(text, bigint, boolean, text),
    seqline.skip_event(text, bigint, boolean, text), seqline.retire_consumer(text, boolean, text),
    seqline.gather_lanes(text, interval), seqline.set_consumer_lanes(text, integer, text, boolean, text),
    seqline.replay_consumer(text, text, bigint, bigint, boolean, text), seqline.acknowledge_losses(text, boolean, text),
    seqline.retry_parked(text, bigint, boolean, text), seqline.discard_parked(text, bigint, boolean, text)
TO seqline_app;
