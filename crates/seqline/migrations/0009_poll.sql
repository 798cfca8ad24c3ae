-- The same round for every language: the caller's transaction is the round.

ALTER TABLE seqline.settings
    -- One call is held in memory as a whole, by the server and as a rule by the caller.
    ADD COLUMN poll_max_events integer NOT NULL DEFAULT 10000 CHECK (poll_max_events BETWEEN 1 AND 100000);

-- Numbers are missing that retention does not explain. It cannot happen, so nobody goes on by himself.
-- Not "found": that is a variable of PL/pgSQL itself.
CREATE FUNCTION seqline.refuse_gap(consumer text, expected bigint, found_seq bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'data_corrupted',
        MESSAGE = format('consumer %s found a gap in the log: expected seq %s, found %s', consumer, expected, found_seq),
        HINT = 'The consumer stays where it is. Find out what removed events from the log.',
        SCHEMA = 'seqline',
        TABLE = 'event_log',
        CONSTRAINT = 'seqline_gap';
END
$$;

-- The next events of a consumer, in order, and its cursor behind them, in the caller's transaction: commit and they are
-- handled, roll back and they come again. No rows when there is nothing new, and no rows when another transaction has the
-- consumer in hand. An error, and no step, where going on would skip something.
--
-- What is returned and where the cursor goes come from one read. Two statements would see two states of the log.
CREATE FUNCTION seqline.poll(consumer text, max_events integer) RETURNS SETOF seqline.event_log
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_max_events integer := (SELECT s.poll_max_events FROM seqline.settings s);
    v_kind text;
    v_state text;
    v_last_seq bigint;
    v_next bigint;
    v_event seqline.event_log;
    v_head bigint;
    v_first bigint;
BEGIN
    IF max_events IS NULL OR max_events NOT BETWEEN 1 AND v_max_events THEN
        PERFORM seqline.refuse_consumer('poll_max_events',
            format('max_events is not between 1 and %s', v_max_events),
            'Ask for fewer events and call again in the same transaction.');
    END IF;
    SELECT e.kind INTO v_kind FROM seqline.event_consumers e WHERE e.name = consumer;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'there is no consumer of this name',
            'Register it once: SELECT seqline.register_consumer(name, start_at).');
    ELSIF v_kind <> 'poll' THEN
        PERFORM seqline.refuse_consumer('consumer_kind',
            format('consumer %s is of kind %s, not poll', consumer, v_kind),
            'Register one of your own: SELECT seqline.register_consumer(name, start_at).');
    END IF;
    SELECT l.state, l.last_seq INTO v_state, v_last_seq
    FROM seqline.lock_consumer(consumer, seqline.consumer_position(consumer)) l;
    IF v_state = 'missing' THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'the consumer has no cursor',
            'Somebody removed it. Register the consumer again: SELECT seqline.register_consumer(name, start_at).');
    ELSIF v_state = 'locked' THEN
        RETURN;
    END IF;

    v_next := v_last_seq + 1;
    -- Twice, when nothing was found and yet the head is further.
    FOR v_attempt IN 1..2 LOOP
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

REVOKE ALL ON FUNCTION seqline.refuse_gap(text, bigint, bigint), seqline.poll(text, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.poll(text, integer) TO seqline_consumer, seqline_app;
