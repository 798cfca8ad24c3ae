-- What seqline.poll gives out is durable: a program may tell others of an event before its transaction commits.

-- The head of the log, once it is durable. Others flush all the time, so as a rule it is at once or within a millisecond. After five of
-- them this makes sure of it, where the server can flush inside a transaction: from PostgreSQL 17 on. Before that it is waited for 50
-- milliseconds and no longer. It says nothing of synchronous standbys: only a commit waits for them.
CREATE FUNCTION seqline.durable_head() RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- First the head and then the position: what was seen was written before it.
    v_head bigint := seqline.head();
    v_written pg_lsn;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN v_head;
    END IF;
    v_written := pg_current_wal_insert_lsn();
    FOR v_look IN 1..50 LOOP
        EXIT WHEN pg_current_wal_flush_lsn() >= v_written;
        IF v_look = 5 AND current_setting('server_version_num')::integer >= 170000 THEN
            EXECUTE 'SELECT pg_logical_emit_message(false, $1, $1, true)' USING 'seqline'::text;
        ELSE
            PERFORM pg_sleep(0.001);
        END IF;
    END LOOP;
    RETURN v_head;
END
$$;
REVOKE ALL ON FUNCTION seqline.durable_head() FROM PUBLIC;

-- As before, up to the durable head.
CREATE OR REPLACE FUNCTION seqline.poll(consumer text, max_events integer, lane integer DEFAULT NULL) RETURNS SETOF seqline.event_log
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_settings seqline.settings := (SELECT s FROM seqline.settings s);
    v_consumer seqline.event_consumers;
    v_looks boolean;
    v_lane record;
    v_lock record;
    v_missing boolean := true;
    v_looked bigint := 0;
    v_returned bigint := 0;
    v_from bigint;
    v_stop bigint;
    v_next bigint;
    v_event seqline.event_log;
    v_look record;
    v_head bigint;
    v_first bigint;
    v_durable bigint;
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
    ELSIF v_consumer.retired_at IS NOT NULL THEN
        PERFORM seqline.refuse_consumer('consumer_retired', format('consumer %s was retired', consumer),
            'seqline consumers resume brings it back.');
    ELSIF lane NOT BETWEEN 0 AND v_consumer.lanes - 1 THEN
        PERFORM seqline.refuse_consumer('consumer_lane',
            format('consumer %s has lanes 0 to %s', consumer, v_consumer.lanes - 1),
            'Leave lane out to get the events of one that is free.');
    ELSIF v_consumer.paused_at IS NOT NULL THEN
        RETURN;
    END IF;
    -- Before anything is written here, which is not flushed before this transaction commits.
    IF seqline.head() > seqline.consumer_position(consumer) THEN
        v_durable := seqline.durable_head();
    END IF;
    FOR v_lane IN
        SELECT l.lane, p.last_seq
        FROM generate_series(0, v_consumer.lanes - 1) AS l (lane)
        CROSS JOIN LATERAL (SELECT seqline.lane_position(consumer, l.lane)) AS p (last_seq)
        WHERE poll.lane IS NULL OR l.lane = poll.lane
        ORDER BY random()
    LOOP
        SELECT * INTO v_lock FROM seqline.lock_consumer(consumer, v_lane.lane, v_lane.last_seq);
        v_missing := v_missing AND v_lock.state = 'missing';
        CONTINUE WHEN v_lock.state <> 'held';
        v_looks := v_lock.lanes > 1
            OR num_nonnulls(v_consumer.types, v_consumer.spaces, v_consumer.channels, v_consumer.resource_kinds) > 0;
        v_from := v_lock.from_seq;
        v_stop := coalesce(v_lock.stop_seq, 9223372036854775807);
        IF v_durable >= v_from THEN
            v_stop := least(v_stop, v_durable);
        ELSIF seqline.head() >= v_from THEN
            -- What came since is for the next call, which waits until it is durable.
            v_stop := least(v_stop, v_from);
        END IF;
        v_next := v_from + 1;
        v_first := NULL;
        -- Twice, when nothing was found and yet the head is further.
        FOR v_attempt IN 1..2 LOOP
            EXIT WHEN v_next > v_stop;
            IF v_looks THEN
                -- The filter and the log from one snapshot: one that is widened counts from the first event behind that.
                SELECT l.* INTO v_look FROM seqline.event_consumers e
                CROSS JOIN LATERAL seqline.look_at_log(v_next - 1,
                    least(v_settings.poll_max_scanned - v_looked, v_stop - v_next + 1), max_events,
                    e.types, e.type_prefixes, e.spaces, e.channels, e.resource_kinds,
                    v_lane.lane, v_lock.lanes, v_lock.lane_key) l
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
                    v_looked := v_looked + v_look.events;
                    RETURN QUERY EXECUTE format(
                        'SELECT * FROM seqline.event_log WHERE seq >= %s AND seq <= %s AND seq = ANY ($1) ORDER BY seq',
                        v_look.first_seq, v_look.last_seq) USING v_look.matching;
                    GET DIAGNOSTICS v_returned = ROW_COUNT;
                    IF v_returned <> cardinality(v_look.matching) THEN
                        RAISE EXCEPTION 'events of consumer % went away while they were read', consumer
                            USING ERRCODE = 'data_corrupted';
                    END IF;
                END IF;
            ELSE
                -- With literals, so that planning leaves out all partitions but one or two.
                FOR v_event IN EXECUTE format(
                    'SELECT * FROM seqline.event_log WHERE seq >= %s AND seq <= %s ORDER BY seq',
                    v_next, least(v_next + max_events - 1, v_stop))
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
                    v_returned := v_returned + 1;
                    RETURN NEXT v_event;
                END LOOP;
            END IF;
            EXIT WHEN v_first IS NOT NULL;

            v_head := seqline.head();
            EXIT WHEN v_head = v_from;
            IF v_head < v_from THEN
                PERFORM seqline.refuse_consumer('consumer_ahead_of_head',
                    format('consumer %s is at seq %s, above the head %s of the log', consumer, v_from, v_head),
                    'The database was taken back to an earlier state: its cursors have to be set anew.');
            END IF;
            -- Retention took more than was asked for, or the head has moved since.
            v_next := greatest(v_next, seqline.min_retained());
        END LOOP;
        IF v_first IS NULL AND v_next > v_stop THEN
            -- Retention took all that was left to the end.
            v_next := greatest(v_from, v_stop) + 1;
            v_first := v_next;
        ELSIF v_first IS NULL AND v_head <> v_from THEN
            PERFORM seqline.refuse_gap(consumer, v_next,
                (SELECT e.seq FROM seqline.event_log e WHERE e.seq >= v_next ORDER BY e.seq LIMIT 1));
        END IF;

        IF v_first > v_from + 1 THEN
            PERFORM seqline.record_loss(consumer, v_from + 1, v_first - 1);
            RAISE WARNING 'consumer % lost events % to % to retention', consumer, v_from + 1, v_first - 1;
        END IF;
        IF v_next - 1 > v_lock.last_seq THEN
            UPDATE seqline.event_consumer_cursors c SET last_seq = v_next - 1, updated_at = now()
            WHERE c.name = consumer AND c.lane = v_lane.lane AND c.last_seq = v_lock.last_seq;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'the cursor of consumer % was moved by somebody else', consumer;
            END IF;
        END IF;
        EXIT WHEN v_returned > 0 OR v_looked >= v_settings.poll_max_scanned;
    END LOOP;
    IF v_missing AND seqline.consumer_position(consumer) IS NULL THEN
        PERFORM seqline.refuse_consumer('consumer_unknown', 'the consumer has no cursor',
            'Somebody removed it. Register the consumer again: SELECT seqline.register_consumer(name, start_at).');
    END IF;
END
$$;
