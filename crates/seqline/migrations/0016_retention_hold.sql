-- Retention waits for consumers: a partition that has expired stays while one of them has not passed it, and not for ever.

-- Which consumers keep which of these ranges of numbers, from lower to before upper, those furthest behind first: those with a lane
-- that has not passed all of it, paused ones too, and those with a parked event in it. Not one that was retired, and one that is to
-- get a piece of the log only as far as that goes.
CREATE FUNCTION seqline.holders_of(p_lowers bigint[], p_uppers bigint[])
RETURNS TABLE (lower_bound bigint, consumer text, last_seq bigint, parked bigint)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    WITH standing AS MATERIALIZED (
        SELECT e.name, e.until_seq, seqline.consumer_position(e.name) AS last_seq
        FROM seqline.event_consumers e WHERE e.retired_at IS NULL
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

-- Detaches and drops the oldest partition when all of it is below the head and older than p_cutoff. One that a consumer keeps stays
-- until all of it is also older than p_held_cutoff; the same time as p_cutoff means that nobody keeps anything. One at a time and
-- oldest first, so that nothing is ever missing from the middle; the caller goes on while the outcome is dropped.
--
-- outcome is dropped, held, or nothing when nothing has expired. For the first two name is the partition, last_event_at the time of
-- its last event, and holders are those who keep it or would have, those furthest behind first. What they had parked in a partition
-- that was dropped is recorded as lost here; what a lane had not come to it records itself when it does.
--
-- LOCK and DETACH wait for every transaction that read the log, and everybody else queues behind them: p_lock_timeout is how long
-- appends may have to wait for it. Those who give a consumer events of the partition read the log first, so there are none from the
-- lock on: each has committed, and is seen by the second look, or waits and finds the log as it is then. Each look has to see what
-- was committed before it, hence the isolation level.
DROP FUNCTION seqline.sync_event_log_drop_expired(timestamptz, bigint, interval);
CREATE FUNCTION seqline.sync_event_log_drop_expired(
    p_cutoff timestamptz, p_held_cutoff timestamptz, p_head bigint, p_lock_timeout interval,
    OUT outcome text, OUT name text, OUT last_event_at timestamptz, OUT holders text[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    v_part record;
    v_recent boolean;
    v_may_be_held boolean;
BEGIN
    IF p_cutoff IS NULL OR p_cutoff > clock_timestamp() THEN
        RAISE EXCEPTION 'cutoff is missing or in the future' USING ERRCODE = 'invalid_parameter_value';
    ELSIF p_held_cutoff IS NULL OR p_held_cutoff > p_cutoff THEN
        RAISE EXCEPTION 'held cutoff is missing or after the cutoff' USING ERRCODE = 'invalid_parameter_value';
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = format('retention needs isolation level read committed, this transaction is %s',
                current_setting('transaction_isolation')),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
    PERFORM set_config('lock_timeout', seqline.checked_timeout(p_lock_timeout), true);
    PERFORM FROM seqline.log_bounds FOR UPDATE;
    outcome := 'nothing';
    SELECT * INTO v_part FROM seqline.event_log_partitions() p ORDER BY p.lower_bound LIMIT 1;
    IF NOT FOUND OR v_part.upper_bound > least(p_head, seqline.head()) THEN
        RETURN;
    END IF;
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM seqline.%1$I WHERE occurred_at >= $1),
                EXISTS (SELECT FROM seqline.%1$I WHERE occurred_at >= $2),
                (SELECT occurred_at FROM seqline.%1$I WHERE seq = %2$s)', v_part.name, v_part.upper_bound - 1)
    INTO v_recent, v_may_be_held, last_event_at USING p_cutoff, p_held_cutoff;
    IF v_recent THEN
        last_event_at := NULL;
        RETURN;
    END IF;
    name := v_part.name;
    -- Before the lock, so that nobody waits for it while a consumer is behind for days.
    holders := seqline.holders_between(v_part.lower_bound, v_part.upper_bound);
    IF v_may_be_held AND holders <> '{}' THEN
        outcome := 'held';
        RETURN;
    END IF;
    BEGIN
        LOCK TABLE ONLY seqline.event_log IN ACCESS EXCLUSIVE MODE;
        holders := seqline.holders_between(v_part.lower_bound, v_part.upper_bound);
        IF v_may_be_held AND holders <> '{}' THEN
            RAISE EXCEPTION USING ERRCODE = 'SQ001', MESSAGE = 'undone';
        END IF;
        PERFORM seqline.lose_parked(v_part.lower_bound, v_part.upper_bound);
        EXECUTE format('ALTER TABLE seqline.event_log DETACH PARTITION seqline.%I', v_part.name);
        EXECUTE format('DROP TABLE seqline.%I', v_part.name);
        PERFORM seqline.refresh_log_bounds();
        outcome := 'dropped';
    EXCEPTION WHEN SQLSTATE 'SQ001' THEN
        -- The lock is given back with it, also when the caller's transaction goes on.
        outcome := 'held';
    END;
END
$$;

-- The names of those who keep a range.
CREATE FUNCTION seqline.holders_between(p_lower bigint, p_upper bigint) RETURNS text[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(h.consumer ORDER BY h.last_seq, h.consumer), '{}')
    FROM seqline.holders_of(ARRAY[p_lower], ARRAY[p_upper]) h
$$;

-- Records the parked events of a range as lost, of all consumers, and removes them: their events are about to be dropped. What waited
-- behind them follows. No cursors are held for that: a round that could park something behind them has read the log, which the caller has
-- locked.
CREATE FUNCTION seqline.lose_parked(p_lower bigint, p_upper bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_gone jsonb;
BEGIN
    WITH gone AS (
        DELETE FROM seqline.parked_events p WHERE p.seq >= p_lower AND p.seq < p_upper RETURNING p.consumer, p.seq, p.key
    ), numbered AS (
        -- Numbers that follow each other differ from their rank by the same.
        SELECT g.consumer, g.seq, g.seq - row_number() OVER (PARTITION BY g.consumer ORDER BY g.seq) AS run FROM gone g
    ), lost AS (
        INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to)
        SELECT n.consumer, min(n.seq), max(n.seq) FROM numbered n GROUP BY n.consumer, n.run ORDER BY 1, 2
    )
    SELECT jsonb_object_agg(g.consumer, g.keys) INTO v_gone
    FROM (SELECT g.consumer, jsonb_agg(DISTINCT g.key) AS keys FROM gone g WHERE g.key IS NOT NULL GROUP BY g.consumer) g;
    PERFORM seqline.release_parked(g.key, ARRAY(SELECT jsonb_array_elements_text(g.value))) FROM jsonb_each(v_gone) g;
END
$$;

-- Which consumers keep which partitions before the one that holds the head, oldest first, for people. last_event_at is the time of the
-- partition's last event, NULL when it was dropped meanwhile.
CREATE FUNCTION seqline.event_log_holders()
RETURNS TABLE (name text, lower_bound bigint, last_event_at timestamptz, consumer text, last_seq bigint, parked bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_head bigint := seqline.head();
    v_lower bigint;
    v_at timestamptz;
    v_row record;
BEGIN
    FOR v_row IN
        WITH parts AS MATERIALIZED (
            SELECT p.name, p.lower_bound, p.upper_bound FROM seqline.event_log_partitions() p WHERE p.upper_bound <= v_head
        ), ranges AS (
            SELECT array_agg(p.lower_bound ORDER BY p.lower_bound) AS lowers,
                   array_agg(p.upper_bound ORDER BY p.lower_bound) AS uppers
            FROM parts p
        )
        SELECT p.name, p.lower_bound, p.upper_bound, h.consumer, h.last_seq, h.parked
        FROM ranges r CROSS JOIN LATERAL seqline.holders_of(r.lowers, r.uppers) h
        JOIN parts p ON p.lower_bound = h.lower_bound
        ORDER BY p.lower_bound, h.last_seq, h.consumer
    LOOP
        IF v_lower IS DISTINCT FROM v_row.lower_bound THEN
            v_lower := v_row.lower_bound;
            -- By number, with a literal, and undone, as in find_ids: locks of one partition at a time.
            BEGIN
                EXECUTE format('SELECT e.occurred_at FROM seqline.event_log e WHERE e.seq = %s', v_row.upper_bound - 1) INTO v_at;
                RAISE EXCEPTION USING ERRCODE = 'SQ001', MESSAGE = 'undone';
            EXCEPTION WHEN SQLSTATE 'SQ001' THEN
                NULL;
            END;
        END IF;
        RETURN QUERY SELECT v_row.name, v_row.lower_bound, v_at, v_row.consumer, v_row.last_seq, v_row.parked;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.holders_of(bigint[], bigint[]), seqline.holders_between(bigint, bigint), seqline.lose_parked(bigint, bigint),
    seqline.sync_event_log_drop_expired(timestamptz, timestamptz, bigint, interval), seqline.event_log_holders()
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    seqline.sync_event_log_drop_expired(timestamptz, timestamptz, bigint, interval), seqline.event_log_holders()
TO seqline_app;
