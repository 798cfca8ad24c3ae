-- Filters: a consumer gets only the events that it asked for. Its cursor still moves over all of them, and only over those that
-- were looked at.

ALTER TABLE seqline.event_consumers
    -- What the consumer asked for: NULL is everything, as in each list.
    ADD COLUMN types text[],
    -- Beginnings of types, such as "order.", beside the whole ones.
    ADD COLUMN type_prefixes text[],
    ADD COLUMN spaces text[],
    ADD COLUMN channels text[],
    ADD COLUMN resource_kinds text[],
    ADD CONSTRAINT event_consumers_types_check CHECK ((types IS NULL) = (type_prefixes IS NULL));

ALTER TABLE seqline.settings
    -- How many events a call looks at for those that it returns: what keeps its transaction short when few match.
    ADD COLUMN poll_max_scanned integer NOT NULL DEFAULT 100000 CHECK (poll_max_scanned BETWEEN 1 AND 1000000);

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

-- Whether an event is one that was asked for: the one place that knows, for workers and for seqline.poll. It is called for each event
-- that is looked at, so it has a body that planning puts in its place: no subquery and no setting, and names that were resolved
-- when it was made.
CREATE FUNCTION seqline.matches_filter(
    p_types text[], p_type_prefixes text[], p_spaces text[], p_channels text[], p_resource_kinds text[],
    p_type text, p_space_id text, p_channel_id text, p_resource_kind text
) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (p_types IS NULL OR p_type = ANY (p_types) OR p_type ^@ ANY (p_type_prefixes))
    AND (p_spaces IS NULL OR coalesce(p_space_id = ANY (p_spaces), false))
    AND (p_channels IS NULL OR coalesce(p_channel_id = ANY (p_channels), false))
    AND (p_resource_kinds IS NULL OR p_resource_kind = ANY (p_resource_kinds));

-- Looks at up to p_reach events above p_after, no further than to the one that is the p_limit'th to match: from where to where, how
-- many there are, and the numbers of those that match. One statement, so that all of that is one state of the log.
CREATE FUNCTION seqline.look_at_log(
    p_after bigint, p_reach bigint, p_limit bigint,
    p_types text[], p_type_prefixes text[], p_spaces text[], p_channels text[], p_resource_kinds text[],
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
             ORDER BY e.seq LIMIT %3$s
         )
         SELECT min(e.seq), max(e.seq), count(*), ARRAY(SELECT f.seq FROM found f ORDER BY f.seq)
         FROM seqline.event_log e
         WHERE e.seq > %1$s AND e.seq <= %2$s
           AND e.seq <= (SELECT CASE WHEN count(*) = %3$s THEN max(f.seq) ELSE %2$s END FROM found f)',
        p_after, p_after + least(p_reach, 9223372036854775807 - p_after), p_limit)
    INTO first_seq, last_seq, events, matching
    USING p_types, p_type_prefixes, p_spaces, p_channels, p_resource_kinds;
END
$$;

-- Whether a list of a filter is one that events can match.
CREATE FUNCTION seqline.check_filter_list(p_what text, p_values text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_values IS NULL THEN
        RETURN;
    ELSIF cardinality(p_values) = 0 THEN
        PERFORM seqline.refuse_consumer('consumer_filter',
            format('a filter by %s has no values: leave it out to get everything', p_what), 'Pass NULL or leave it out.');
    ELSIF cardinality(p_values) > 100 THEN
        PERFORM seqline.refuse_consumer('consumer_filter',
            format('a filter by %s has more than 100 values', p_what), 'Use beginnings of types, or filter what you get.');
    ELSIF EXISTS (SELECT FROM unnest(p_values) AS v (value)
                  WHERE v.value IS NULL OR v.value = '' OR length(v.value) > 128 OR v.value ~ E'[\\u0001-\\u001f\\u007f-\\u009f]')
    THEN
        PERFORM seqline.refuse_consumer('consumer_filter',
            format('a filter by %s has a value that is empty, too long or has a control character', p_what),
            'No event can have such a value.');
    END IF;
END
$$;

-- Sets what a consumer asks for, from its next round on. What was passed before does not come back.
CREATE FUNCTION seqline.set_consumer_filter(
    p_name text, p_types text[], p_spaces text[], p_channels text[], p_resource_kinds text[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_types text[];
    v_prefixes text[];
    v_before seqline.event_consumers;
BEGIN
    PERFORM seqline.check_filter_list('type', p_types);
    PERFORM seqline.check_filter_list('space', p_spaces);
    PERFORM seqline.check_filter_list('channel', p_channels);
    PERFORM seqline.check_filter_list('resource kind', p_resource_kinds);
    IF EXISTS (SELECT FROM unnest(p_types) AS t (pattern)
               WHERE t.pattern !~ '^[a-z][a-z_]*([.][a-z][a-z_]*)*([.][a-z][a-z_]*|[.][*])$') THEN
        PERFORM seqline.refuse_consumer('consumer_filter',
            'a filter by type takes types such as order.created, or beginnings of types such as order.*',
            'A type is two or more lowercase words joined by dots.');
    END IF;
    IF p_types IS NOT NULL THEN
        SELECT coalesce(array_agg(t.pattern) FILTER (WHERE right(t.pattern, 1) <> '*'), '{}'),
               coalesce(array_agg(left(t.pattern, -1)) FILTER (WHERE right(t.pattern, 1) = '*'), '{}')
        INTO v_types, v_prefixes FROM unnest(p_types) AS t (pattern);
    END IF;
    SELECT * INTO v_before FROM seqline.event_consumers c WHERE c.name = p_name;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'there is no consumer of this name', 'Register it first.');
    ELSIF (v_before.types, v_before.type_prefixes, v_before.spaces, v_before.channels, v_before.resource_kinds)
          IS NOT DISTINCT FROM (v_types, v_prefixes, p_spaces, p_channels, p_resource_kinds)
    THEN
        RETURN;
    END IF;
    UPDATE seqline.event_consumers c
    SET types = v_types, type_prefixes = v_prefixes, spaces = p_spaces, channels = p_channels, resource_kinds = p_resource_kinds
    WHERE c.name = p_name;
    -- That of a new consumer changes nothing for anybody.
    IF v_before.registered_at < now() THEN
        INSERT INTO seqline.audit_log (action, subject, before, after)
        VALUES ('consumer.filter', p_name,
            jsonb_build_object('types', v_before.types || v_before.type_prefixes, 'spaces', v_before.spaces,
                'channels', v_before.channels, 'resource_kinds', v_before.resource_kinds),
            jsonb_build_object('types', v_types || v_prefixes, 'spaces', p_spaces, 'channels', p_channels,
                'resource_kinds', p_resource_kinds));
    END IF;
END
$$;

-- Registers a consumer for seqline.poll and returns its cursor. start_at is head, oldest, or the number of the first
-- event that it shall get; it says nothing to a consumer that exists. What it asks for is set each time: NULL is everything.
DROP FUNCTION seqline.register_consumer(text, text);
CREATE FUNCTION seqline.register_consumer(
    name text, start_at text DEFAULT 'head',
    types text[] DEFAULT NULL, spaces text[] DEFAULT NULL, channels text[] DEFAULT NULL, resource_kinds text[] DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last_seq bigint;
BEGIN
    IF name IN ('push', 'webhooks') THEN
        PERFORM seqline.refuse_consumer('consumer_name', format('the name %s is reserved', name),
            'Use another name.');
    END IF;
    v_last_seq := seqline.ensure_consumer(name, 'poll', start_at);
    PERFORM seqline.set_consumer_filter(name, types, spaces, channels, resource_kinds);
    RETURN v_last_seq;
END
$$;

-- The next events of a consumer, in order, and its cursor behind them, in the caller's transaction: commit and they are
-- handled, roll back and they come again. No rows when there is nothing new, when another transaction has the
-- consumer in hand or it is paused, and when none of those that were looked at was asked for. An error, and no step, where going on would skip something.
--
-- What is returned and where the cursor goes come from one read. Two statements would see two states of the log. With a filter the
-- cursor goes behind what was looked at, which is more than what is returned, and can be something when nothing is.
CREATE OR REPLACE FUNCTION seqline.poll(consumer text, max_events integer) RETURNS SETOF seqline.event_log
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_settings seqline.settings := (SELECT s FROM seqline.settings s);
    v_consumer seqline.event_consumers;
    v_filtered boolean;
    v_state text;
    v_last_seq bigint;
    v_next bigint;
    v_event seqline.event_log;
    v_look record;
    v_returned bigint;
    v_head bigint;
    v_first bigint;
BEGIN
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND v_settings.poll_max_events THEN
        PERFORM seqline.refuse_consumer('poll_max_events',
            format('max_events is not between 1 and %s', v_settings.poll_max_events),
            'Ask for fewer events and call again in the same transaction.');
    END IF;
    SELECT * INTO v_consumer FROM seqline.event_consumers e WHERE e.name = consumer;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'there is no consumer of this name',
            'Register it once: SELECT seqline.register_consumer(name, start_at).');
    ELSIF v_consumer.kind <> 'poll' THEN
        PERFORM seqline.refuse_consumer('consumer_kind',
            format('consumer %s is of kind %s, not poll', consumer, v_consumer.kind),
            'Register one of your own: SELECT seqline.register_consumer(name, start_at).');
    END IF;
    v_filtered := num_nonnulls(v_consumer.types, v_consumer.spaces, v_consumer.channels, v_consumer.resource_kinds) > 0;
    SELECT l.state, l.last_seq INTO v_state, v_last_seq
    FROM seqline.lock_consumer(consumer, seqline.consumer_position(consumer)) l;
    IF v_state = 'missing' THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'the consumer has no cursor',
            'Somebody removed it. Register the consumer again: SELECT seqline.register_consumer(name, start_at).');
    ELSIF v_state <> 'held' THEN
        RETURN;
    END IF;

    v_next := v_last_seq + 1;
    -- Twice, when nothing was found and yet the head is further.
    FOR v_attempt IN 1..2 LOOP
        IF v_filtered THEN
            -- The filter and the log from one snapshot: one that is widened counts from the first event behind that.
            SELECT l.* INTO v_look FROM seqline.event_consumers e
            CROSS JOIN LATERAL seqline.look_at_log(v_next - 1, v_settings.poll_max_scanned, max_events,
                e.types, e.type_prefixes, e.spaces, e.channels, e.resource_kinds) l
            WHERE e.name = consumer;
            IF v_look.events > 0 THEN
                IF v_look.first_seq <> v_next AND v_look.first_seq <> seqline.min_retained() THEN
                    PERFORM seqline.refuse_gap(consumer, v_next, v_look.first_seq);
                ELSIF v_look.events <> v_look.last_seq - v_look.first_seq + 1 THEN
                    PERFORM seqline.refuse_gap(consumer, h.seq + 1, h.next)
                    FROM (SELECT e.seq, lead(e.seq) OVER (ORDER BY e.seq) AS next FROM seqline.event_log e
                          WHERE e.seq BETWEEN v_look.first_seq AND v_look.last_seq) h
                    WHERE h.next - h.seq <> 1 ORDER BY h.seq LIMIT 1;
                    -- It is there no more, and was not as it should be.
                    PERFORM seqline.refuse_gap(consumer, v_look.first_seq, v_look.last_seq);
                END IF;
                v_first := v_look.first_seq;
                v_next := v_look.last_seq + 1;
                RETURN QUERY EXECUTE format(
                    'SELECT * FROM seqline.event_log WHERE seq >= %s AND seq <= %s AND seq = ANY ($1) ORDER BY seq',
                    v_look.first_seq, v_look.last_seq) USING v_look.matching;
                GET DIAGNOSTICS v_returned = ROW_COUNT;
                IF v_returned <> cardinality(v_look.matching) THEN
                    RAISE EXCEPTION 'events of consumer % went away while they were read', consumer USING ERRCODE = 'data_corrupted';
                END IF;
            END IF;
        ELSE
            -- With literals, so that planning leaves out all partitions but one or two.
            FOR v_event IN EXECUTE format(
                'SELECT * FROM seqline.event_log WHERE seq >= %s AND seq < %s ORDER BY seq',
                v_next, v_next + max_events)
            LOOP
                IF v_event.seq <> v_next THEN
                    -- Retention explains a jump at the beginning and nothing else. The lock on the log that the read took
                    -- keeps it from going on meanwhile.
                    IF v_first IS NOT NULL OR v_event.seq <> seqline.min_retained() THEN
                        PERFORM seqline.refuse_gap(consumer, v_next, v_event.seq);
                    END IF;
                END IF;
                v_first := coalesce(v_first, v_event.seq);
                v_next := v_event.seq + 1;
                RETURN NEXT v_event;
            END LOOP;
        END IF;
        EXIT WHEN v_first IS NOT NULL;

        v_head := seqline.head();
        IF v_head = v_last_seq THEN
            RETURN;
        ELSIF v_head < v_last_seq THEN
            PERFORM seqline.refuse_consumer('consumer_ahead_of_head',
                format('consumer %s is at seq %s, above the head %s of the log', consumer, v_last_seq, v_head),
                'The database was taken back to an earlier state: its cursors have to be set anew.');
        END IF;
        -- Retention took more than was asked for, or the head has moved since.
        v_next := greatest(v_next, seqline.min_retained());
    END LOOP;
    IF v_first IS NULL THEN
        PERFORM seqline.refuse_gap(consumer, v_next,
            (SELECT e.seq FROM seqline.event_log e WHERE e.seq >= v_next ORDER BY e.seq LIMIT 1));
    END IF;

    IF v_first > v_last_seq + 1 THEN
        INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to)
        VALUES (poll.consumer, v_last_seq + 1, v_first - 1);
        RAISE WARNING 'consumer % lost events % to % to retention', consumer, v_last_seq + 1, v_first - 1;
    END IF;
    UPDATE seqline.event_consumer_cursors c SET last_seq = v_next - 1, updated_at = now()
    WHERE c.name = consumer AND c.last_seq = v_last_seq;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the cursor of consumer % was moved by somebody else', consumer;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.matches_filter(text[], text[], text[], text[], text[], text, text, text, text),
    seqline.look_at_log(bigint, bigint, bigint, text[], text[], text[], text[], text[]),
    seqline.check_filter_list(text, text[]),
    seqline.set_consumer_filter(text, text[], text[], text[], text[]),
    seqline.register_consumer(text, text, text[], text[], text[], text[])
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    seqline.matches_filter(text[], text[], text[], text[], text[], text, text, text, text),
    seqline.look_at_log(bigint, bigint, bigint, text[], text[], text[], text[], text[]),
    seqline.set_consumer_filter(text, text[], text[], text[], text[])
TO seqline_app;
GRANT SELECT ON seqline.audit_log TO seqline_app;
GRANT EXECUTE ON FUNCTION seqline.register_consumer(text, text, text[], text[], text[], text[]) TO seqline_consumer, seqline_app;
