-- The two ends of the log, and an event's number by its id.

-- The highest number, 0 when the log is empty. STABLE: within one statement it agrees with what that
-- statement sees of the log.
--
-- It looks from a number that is known to be at or below the head, in ranges, as far as they are full. The
-- log is dense, so the first range that is not full holds the head. Bounds are literals, so that planning
-- leaves out all other partitions and locks none of them, below and above: with hundreds of partitions that
-- is nearly all of the cost.
CREATE FUNCTION seqline.head() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_floor bigint := (SELECT head_floor FROM seqline.log_bounds);
    v_from bigint := v_floor;
    v_length bigint := (SELECT event_log_partition_size FROM seqline.settings);
    v_seq bigint;
BEGIN
    LOOP
        EXECUTE format(
            'SELECT seq FROM seqline.event_log WHERE seq >= %s AND seq < %s ORDER BY seq DESC LIMIT 1',
            v_from, v_from + v_length
        ) INTO v_seq;
        EXIT WHEN v_seq IS DISTINCT FROM v_from + v_length - 1;
        v_from := v_from + v_length;
        v_length := v_length * 2;
    END LOOP;
    IF v_seq IS NULL AND v_from > v_floor THEN
        RETURN v_from - 1;
    ELSIF v_seq IS NULL THEN
        SELECT seq INTO v_seq FROM seqline.event_log ORDER BY seq DESC LIMIT 1;
    END IF;
    RETURN coalesce(v_seq, 0);
END
$$;

-- The lowest number that retention has left, head + 1 when the log is empty: so "the cursor is behind
-- retention" is `cursor + 1 < min_retained()` without a special case.
CREATE FUNCTION seqline.min_retained() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_seq bigint;
BEGIN
    EXECUTE (
        SELECT format(
            'SELECT seq FROM seqline.event_log WHERE seq >= %s AND seq < %s ORDER BY seq LIMIT 1',
            retained_floor, retained_ceiling
        )
        FROM seqline.log_bounds
    ) INTO v_seq;
    IF v_seq IS NULL THEN
        SELECT seq INTO v_seq FROM seqline.event_log ORDER BY seq LIMIT 1;
    END IF;
    RETURN coalesce(v_seq, seqline.head() + 1);
END
$$;

-- Looks for the first of some ids in the log, newest partitions first. An id says nothing about where its
-- event is, so every partition has to be asked. One at a time, and each look is undone: that gives its locks
-- back, of which hundreds of partitions would otherwise need thousands until the caller's transaction ends.
-- By the index on id and nothing else: as a rule none is there, and any other plan would read everything.
CREATE FUNCTION seqline.find_ids(ids uuid[], OUT found_id uuid, OUT found_seq bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_name name;
BEGIN
    FOR v_name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'seqline.event_log'::regclass
        ORDER BY c.relname DESC
    LOOP
        BEGIN
            EXECUTE format('SELECT id, seq FROM seqline.%I WHERE id = ANY ($1) LIMIT 1', v_name)
            INTO found_id, found_seq USING ids;
            RAISE EXCEPTION USING ERRCODE = 'SQ001';
        EXCEPTION
            WHEN SQLSTATE 'SQ001' THEN NULL;
            WHEN undefined_table THEN NULL;  -- retention was faster
        END;
        EXIT WHEN found_id IS NOT NULL;
    END LOOP;
END
$$;

-- The number of an event, NULL while its transaction has not committed or when retention has dropped it.
CREATE FUNCTION seqline.seq_of(id uuid) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.found_seq FROM seqline.find_ids(ARRAY[seq_of.id]) f
$$;
