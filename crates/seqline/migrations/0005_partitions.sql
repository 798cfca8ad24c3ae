-- Partitions and retention. The runtime roles have no DDL rights: these functions are all of it.
--
-- Three operations, each in a transaction of its own, so that a busy reader that makes a drop fail cannot
-- take back the partitions that were just created: ensure, close, drop.

-- The partitions with their bounds, read from the catalog and not from names or settings.
CREATE FUNCTION seqline.event_log_partitions()
RETURNS TABLE (name text, lower_bound bigint, upper_bound bigint, total_bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT p.name, p.bounds[1]::bigint, p.bounds[2]::bigint, p.total_bytes
    FROM (
        SELECT c.relname::text AS name,
               regexp_match(pg_get_expr(c.relpartbound, c.oid),
                   'FROM [(]''?(-?[0-9]+)''?[)] TO [(]''?(-?[0-9]+)''?[)]') AS bounds,
               pg_total_relation_size(c.oid) AS total_bytes
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'seqline.event_log'::regclass
    ) p
    ORDER BY p.bounds[1]::bigint
$$;

-- Refuses an append for whose numbers there is no partition. The state of the catalog decides; the caller
-- has only looked at a hint.
CREATE FUNCTION seqline.require_partitions(p_first bigint, p_last bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_last >= coalesce((SELECT max(p.upper_bound) FROM seqline.event_log_partitions() p), 0) THEN
        -- The same SQLSTATE that PostgreSQL itself uses for a missing partition, and no constraint name.
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation',
            MESSAGE = format('no partition of the event log for seq %s to %s', p_first, p_last),
            HINT = 'Run seqline partitions ensure, then retry the transaction.',
            SCHEMA = 'seqline',
            TABLE = 'event_log';
    END IF;
END
$$;

-- Brings the hints in line with the catalog. The caller holds the row lock on log_bounds.
CREATE FUNCTION seqline.refresh_log_bounds() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head bigint := seqline.head();
    v_new seqline.log_bounds;
BEGIN
    SELECT true, min(p.lower_bound), min(p.upper_bound),
           coalesce(max(p.lower_bound) FILTER (WHERE p.lower_bound <= v_head), min(p.lower_bound)),
           max(p.upper_bound)
    INTO v_new
    FROM seqline.event_log_partitions() p;
    UPDATE seqline.log_bounds b
    SET retained_floor = v_new.retained_floor, retained_ceiling = v_new.retained_ceiling,
        head_floor = v_new.head_floor, upper_bound = v_new.upper_bound
    WHERE b IS DISTINCT FROM v_new AND v_new.upper_bound IS NOT NULL;
END
$$;

-- Creates one partition. A standalone table that is then attached takes SHARE UPDATE EXCLUSIVE on the log,
-- which appends and reads do not notice; CREATE TABLE ... PARTITION OF would stop both. The CHECK spares
-- ATTACH the scan.
CREATE FUNCTION seqline.create_partition(p_lower bigint, p_upper bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text := 'event_log_from_' || lpad(p_lower::text, 19, '0');
BEGIN
    EXECUTE format('CREATE TABLE seqline.%I (LIKE seqline.event_log INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
        WITH (vacuum_truncate = off)', v_name);
    PERFORM seqline.attach_partition(v_name, p_lower, p_upper);
END
$$;

CREATE FUNCTION seqline.attach_partition(p_name text, p_lower bigint, p_upper bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE seqline.%I ADD CONSTRAINT partition_bounds CHECK (seq >= %s AND seq < %s)',
        p_name, p_lower, p_upper);
    EXECUTE format('ALTER TABLE seqline.event_log ATTACH PARTITION seqline.%I FOR VALUES FROM (%s) TO (%s)',
        p_name, p_lower, p_upper);
    EXECUTE format('ALTER TABLE seqline.%I DROP CONSTRAINT partition_bounds', p_name);
END
$$;

-- Creates the partitions that are missing up to p_ahead partitions of p_size beyond the head and returns
-- how many. A changed size applies to new partitions only and leaves no hole.
CREATE FUNCTION seqline.sync_event_log_ensure_partitions(p_size bigint, p_ahead integer, p_head bigint)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head bigint;
    v_upper bigint;
    v_created integer := 0;
BEGIN
    IF p_size IS NULL OR p_size NOT BETWEEN 1 AND 1000000000000 THEN
        RAISE EXCEPTION 'partition size must be between 1 and 1000000000000' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- More in one transaction would take more locks than a server has by default.
    IF p_ahead IS NULL OR p_ahead NOT BETWEEN 1 AND 300 THEN
        RAISE EXCEPTION 'partitions ahead must be between 1 and 300' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM FROM seqline.log_bounds FOR UPDATE;
    v_head := greatest(least(p_head, seqline.head()), 0);
    SELECT coalesce(max(p.upper_bound), 1) INTO v_upper FROM seqline.event_log_partitions() p;
    WHILE v_upper <= v_head + p_ahead * p_size LOOP
        PERFORM seqline.create_partition(v_upper, v_upper + p_size);
        v_upper := v_upper + p_size;
        v_created := v_created + 1;
    END LOOP;
    PERFORM seqline.refresh_log_bounds();
    RETURN v_created;
END
$$;

-- A lock timeout as a setting. 0 is refused, because it would mean to wait for ever while everybody else
-- queues behind.
CREATE FUNCTION seqline.checked_timeout(p_timeout interval) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_timeout IS NULL OR p_timeout < interval '1 ms' OR p_timeout > interval '1 minute' THEN
        RAISE EXCEPTION 'lock timeout must be between 1 ms and 1 minute' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN (extract(epoch FROM p_timeout) * 1000)::bigint || 'ms';
END
$$;

-- Ends the partition that holds the head behind the head, when its first event is older than
-- p_opened_before, and opens a new one there: so that few events do not mean that nothing ever expires.
-- Appends wait while this runs, and ATTACH scans the partition. So it is for partitions that took long to
-- fill; one with more than 100,000 events will be full in time.
CREATE FUNCTION seqline.sync_event_log_close_partition(p_opened_before timestamptz, p_lock_timeout interval)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head bigint;
    v_part record;
    v_opened_long_ago boolean;
BEGIN
    IF p_opened_before IS NULL OR p_opened_before > clock_timestamp() THEN
        RAISE EXCEPTION 'opened before is missing or in the future' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM set_config('lock_timeout', seqline.checked_timeout(p_lock_timeout), true);
    PERFORM FROM seqline.log_bounds FOR UPDATE;
    v_head := seqline.head();
    -- Not one that is empty, and not one that its next event fills.
    SELECT * INTO v_part FROM seqline.event_log_partitions() p
    WHERE v_head >= p.lower_bound AND v_head < p.upper_bound - 1 AND v_head - p.lower_bound < 100000;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT occurred_at < $1 FROM seqline.%I WHERE seq = %s', v_part.name, v_part.lower_bound)
    INTO v_opened_long_ago USING p_opened_before;
    IF v_opened_long_ago IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- Appends take a lock on the log before they are numbered, so from here on nobody moves the head.
    LOCK TABLE ONLY seqline.event_log IN ACCESS EXCLUSIVE MODE;
    v_head := seqline.head();
    IF v_head >= v_part.upper_bound - 1 THEN
        RETURN false;
    END IF;
    EXECUTE format('ALTER TABLE seqline.event_log DETACH PARTITION seqline.%I', v_part.name);
    PERFORM seqline.attach_partition(v_part.name, v_part.lower_bound, v_head + 1);
    PERFORM seqline.create_partition(v_head + 1, v_part.upper_bound);
    PERFORM seqline.refresh_log_bounds();
    RETURN true;
END
$$;

-- Detaches and drops the oldest partition when all of it is below the head and older than p_cutoff, and
-- returns how many that were: 0 or 1. One at a time and oldest first, so that nothing is ever missing
-- from the middle; the caller goes on until 0.
--
-- Plain DETACH waits for every transaction that read the log, and everybody else queues behind it:
-- p_lock_timeout is how long appends may have to wait for it.
CREATE FUNCTION seqline.sync_event_log_drop_expired(p_cutoff timestamptz, p_head bigint, p_lock_timeout interval)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    v_part record;
    v_recent boolean;
BEGIN
    IF p_cutoff IS NULL OR p_cutoff > clock_timestamp() THEN
        RAISE EXCEPTION 'cutoff is missing or in the future' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM set_config('lock_timeout', seqline.checked_timeout(p_lock_timeout), true);
    PERFORM FROM seqline.log_bounds FOR UPDATE;
    SELECT * INTO v_part FROM seqline.event_log_partitions() p ORDER BY p.lower_bound LIMIT 1;
    IF NOT FOUND OR v_part.upper_bound > least(p_head, seqline.head()) THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM seqline.%I WHERE occurred_at >= $1)', v_part.name)
    INTO v_recent USING p_cutoff;
    IF v_recent THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE seqline.event_log DETACH PARTITION seqline.%I', v_part.name);
    EXECUTE format('DROP TABLE seqline.%I', v_part.name);
    PERFORM seqline.refresh_log_bounds();
    RETURN 1;
END
$$;
