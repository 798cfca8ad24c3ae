-- The epoch: whether this is the server and the history that the numbers of the log belong to, and a new epoch after a restore.

ALTER TABLE seqline.log_identity
    -- Since when the numbers belong to this history.
    ADD COLUMN epoch_since timestamptz NOT NULL DEFAULT now(),
    -- Since when it is known that history went back, and how that was seen; until somebody starts a new epoch.
    ADD COLUMN broken_at timestamptz,
    ADD COLUMN broken_reason text
        CONSTRAINT log_identity_broken_reason_check CHECK (broken_reason IN ('head_went_back', 'cursor_above_head')),
    ADD CONSTRAINT log_identity_broken_check CHECK ((broken_at IS NULL) = (broken_reason IS NULL));
UPDATE seqline.log_identity SET epoch_since = created_at;

-- Raises a refusal about the epoch that programs can read.
CREATE FUNCTION seqline.refuse_epoch(rule text, message text, hint text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = message,
        HINT = hint,
        SCHEMA = 'seqline',
        TABLE = 'log_identity',
        CONSTRAINT = 'seqline_' || rule;
END
$$;

-- What the server says of itself. The timeline is that of what it writes now: the one of its last checkpoint is older for a while after
-- a promotion. A server in recovery writes nothing, and has none.
CREATE FUNCTION seqline.server_identity(OUT system_identifier bigint, OUT timeline integer, OUT database_oid oid)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT s.system_identifier,
           CASE WHEN NOT pg_is_in_recovery()
               THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END,
           d.oid
    FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
$$;

-- The lanes of consumers that are above the head. Those of all that have a cursor, also paused and retired ones.
CREATE FUNCTION seqline.lanes_above(p_head bigint)
RETURNS TABLE (consumer text, lane integer, last_seq bigint)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
    SELECT e.name, l.lane, c.last_seq
    FROM seqline.event_consumers e
    CROSS JOIN LATERAL generate_series(0, e.lanes - 1) AS l (lane)
    CROSS JOIN LATERAL (SELECT seqline.lane_position(e.name, l.lane)) AS c (last_seq)
    WHERE c.last_seq > p_head
    ORDER BY e.name, l.lane
$$;

-- What is recorded of the log's identity, what the server says, and what speaks against one history: all of one snapshot, so that a
-- cursor is above the head only if it is.
CREATE FUNCTION seqline.check_identity(
    OUT log_id uuid, OUT epoch uuid,
    OUT recorded_system bigint, OUT recorded_timeline integer, OUT recorded_database oid,
    OUT server_system bigint, OUT server_timeline integer, OUT server_database oid,
    OUT broken_reason text, OUT broken_at timestamptz,
    OUT head bigint, OUT above_consumers text[], OUT above_lanes integer[], OUT above_seqs bigint[]
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT i.log_id, i.epoch, i.system_identifier, i.timeline, i.database_oid,
           s.system_identifier, s.timeline, s.database_oid, i.broken_reason, i.broken_at, h.head, a.consumers, a.lanes, a.seqs
    FROM seqline.log_identity i
    CROSS JOIN seqline.server_identity() s
    CROSS JOIN (SELECT seqline.head() AS head) h
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(l.consumer), '{}') AS consumers, coalesce(array_agg(l.lane), '{}') AS lanes,
               coalesce(array_agg(l.last_seq), '{}') AS seqs
        FROM seqline.lanes_above(h.head) l
    ) a
$$;

-- The identity, for whoever is about to change it. What it says is compared with what was committed before, hence the isolation level.
CREATE FUNCTION seqline.hold_identity() RETURNS seqline.log_identity
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_identity seqline.log_identity;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = format('the epoch is changed in isolation level read committed, this transaction is %s',
                current_setting('transaction_isolation')),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
    SELECT * INTO STRICT v_identity FROM seqline.log_identity FOR UPDATE;
    RETURN v_identity;
END
$$;

-- Records that history went back, so that a process that starts later knows, and says whether that was news. Whoever calls it has seen
-- more than there is: p_seen_head events of this epoch that were durable. That nothing of the kind is so is found out here.
CREATE FUNCTION seqline.record_broken_history(p_epoch uuid, p_reason text, p_seen_head bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    v_identity seqline.log_identity := seqline.hold_identity();
    v_head bigint;
    v_highest bigint;
BEGIN
    v_head := seqline.head();
    IF p_reason IS NULL OR p_reason NOT IN ('head_went_back', 'cursor_above_head') THEN
        PERFORM seqline.refuse_epoch('broken_reason', 'the reason is not head_went_back or cursor_above_head',
            'Say which of them was seen.');
    ELSIF p_epoch IS DISTINCT FROM v_identity.epoch THEN
        PERFORM seqline.refuse_epoch('broken_epoch', 'what was seen belongs to another epoch',
            'A new one was started meanwhile. Look again.');
    ELSIF p_reason = 'head_went_back' AND (p_seen_head > v_head) IS NOT TRUE THEN
        PERFORM seqline.refuse_epoch('broken_head', format('the head of the log is %s, which is not below %s', v_head, p_seen_head),
            'Nothing went back.');
    ELSIF p_reason = 'cursor_above_head' THEN
        v_highest := (SELECT max(l.last_seq) FROM seqline.lanes_above(v_head) l);
        IF v_highest IS NULL THEN
            PERFORM seqline.refuse_epoch('broken_cursor', format('no cursor is above the head %s of the log', v_head),
                'Nothing went back.');
        END IF;
    END IF;
    IF v_identity.broken_at IS NOT NULL THEN
        RETURN false;
    END IF;
    UPDATE seqline.log_identity SET broken_at = now(), broken_reason = p_reason;
    INSERT INTO seqline.audit_log (action, subject, before, after)
    VALUES ('log.broken', 'log', jsonb_build_object('epoch', v_identity.epoch, 'seen', coalesce(v_highest, p_seen_head)),
        jsonb_build_object('reason', p_reason, 'head', v_head));
    RETURN true;
END
$$;

-- Records that this server goes on with the same history: after a failover in which nothing was lost. p_seen_head is what the caller has
-- seen of this epoch, NULL when it has seen nothing. A history that is known to have gone back is not accepted, nor a copy in the same
-- cluster, and another cluster only by somebody who has seen no more of the log than it has.
CREATE FUNCTION seqline.accept_identity(p_epoch uuid, p_seen_head bigint, p_why text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    v_identity seqline.log_identity;
    v_server record;
    v_head bigint;
    v_after seqline.log_identity;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    v_identity := seqline.hold_identity();
    SELECT * INTO v_server FROM seqline.server_identity();
    v_head := seqline.head();
    IF p_epoch IS DISTINCT FROM v_identity.epoch THEN
        PERFORM seqline.refuse_epoch('accept_epoch', 'the log is in another epoch by now', 'Look again.');
    ELSIF v_identity.broken_at IS NOT NULL THEN
        PERFORM seqline.refuse_epoch('accept_broken', 'history went back: ' || v_identity.broken_reason,
            'Start a new epoch: seqline restore finalize.');
    ELSIF p_seen_head > v_head THEN
        PERFORM seqline.refuse_epoch('accept_head', format('the head of the log is %s, and was %s', v_head, p_seen_head),
            'Start a new epoch: seqline restore finalize.');
    ELSIF EXISTS (SELECT FROM seqline.lanes_above(v_head)) THEN
        PERFORM seqline.refuse_epoch('accept_cursor', format('a cursor is above the head %s of the log', v_head),
            'Start a new epoch: seqline restore finalize.');
    ELSIF v_server.system_identifier = v_identity.system_identifier AND v_server.database_oid <> v_identity.database_oid THEN
        PERFORM seqline.refuse_epoch('accept_copy', 'the database is a copy in the same cluster',
            'The log that it was copied from may go on. Start a new epoch: seqline restore finalize.');
    ELSIF v_server.system_identifier <> v_identity.system_identifier AND p_seen_head IS NULL THEN
        PERFORM seqline.refuse_epoch('accept_server', 'the database is in another cluster, and nobody knows whether all of the log is there',
            'Start a new epoch: seqline restore finalize.');
    END IF;
    UPDATE seqline.log_identity
    SET system_identifier = v_server.system_identifier, timeline = v_server.timeline, database_oid = v_server.database_oid
    WHERE (system_identifier, timeline, database_oid)
        IS DISTINCT FROM (v_server.system_identifier, v_server.timeline, v_server.database_oid)
    RETURNING * INTO v_after;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('log.accept', 'log', seqline.identity_facts(v_identity),
        seqline.identity_facts(v_after) || jsonb_build_object('head', v_head), p_why);
    RETURN true;
END
$$;

-- What the audit log holds of an identity. The system identifier is a number that JSON readers would round.
CREATE FUNCTION seqline.identity_facts(p_identity seqline.log_identity) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('epoch', p_identity.epoch, 'system_identifier', p_identity.system_identifier::text,
        'timeline', p_identity.timeline, 'database_oid', p_identity.database_oid::bigint, 'broken', p_identity.broken_reason))
$$;

-- Starts a new epoch on this server after a restore, and sets every cursor: with p_consumers = 'keep' where it is, with 'head' to the head,
-- or to its end for one that gets a piece of the log; never above the head. Without p_apply it only says what it would do. One transaction, in which no
-- round and no numbering is under way: it waits for those, and not for long.
--
-- What consumers know of numbers above the head goes: those will be other events. With 'head' what is parked is tried again only when
-- somebody asks for it. What waits for its number gets it in the new epoch.
--
-- moves has an element for each lane. Refused when nothing speaks for a restore, unless p_force.
CREATE FUNCTION seqline.finalize_restore(
    p_consumers text, p_force boolean, p_apply boolean, p_why text,
    OUT old_epoch uuid, OUT new_epoch uuid, OUT head bigint, OUT staged bigint, OUT forgotten bigint, OUT moves jsonb
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_lock_timeout text := current_setting('lock_timeout');
    v_identity seqline.log_identity;
    v_after seqline.log_identity;
    v_server record;
    v_lane record;
    v_parked bigint;
    v_skipped bigint;
BEGIN
    PERFORM seqline.check_why(p_why, p_apply);
    IF p_consumers IS NULL OR p_consumers NOT IN ('keep', 'head') THEN
        PERFORM seqline.refuse_epoch('restore_consumers', 'consumers are kept or set to the head: keep or head',
            'With keep they handle again what they did after the backup, with head they go on with new events only.');
    END IF;
    -- For people, so not with locks in hand.
    SELECT count(*) INTO staged FROM seqline.staged_transactions;
    IF p_apply IS TRUE THEN
        -- As the session says, and for no lock longer than this.
        IF v_lock_timeout::interval NOT BETWEEN interval '1 ms' AND interval '10 s' THEN
            PERFORM set_config('lock_timeout', '10s', true);
        END IF;
        v_identity := seqline.hold_identity();
        -- The cursors first and then the right to number, like a round that appends. All in one order, and changed and not only locked, so
        -- that a round that sees the log as it was before is refused then.
        PERFORM FROM seqline.event_consumer_cursors c ORDER BY c.name, c.lane, c.last_seq FOR UPDATE;
        PERFORM FROM seqline.event_consumers e ORDER BY e.name FOR NO KEY UPDATE;
        UPDATE seqline.event_consumer_cursors c SET updated_at = c.updated_at;
        PERFORM seqline.lock_numbering((SELECT s.numbering_lock_timeout_ms FROM seqline.settings s));
    ELSE
        SELECT * INTO STRICT v_identity FROM seqline.log_identity;
    END IF;
    SELECT * INTO v_server FROM seqline.server_identity();
    finalize_restore.head := seqline.head();
    old_epoch := v_identity.epoch;
    IF p_force IS NOT TRUE AND v_identity.broken_at IS NULL
       AND (v_identity.system_identifier, v_identity.timeline, v_identity.database_oid)
           IS NOT DISTINCT FROM (v_server.system_identifier, v_server.timeline, v_server.database_oid)
       AND NOT EXISTS (SELECT FROM seqline.lanes_above(finalize_restore.head))
    THEN
        PERFORM seqline.refuse_epoch('restore_not_needed', 'nothing in this database says that it was restored',
            'A backup that was restored in place on the same server cannot be told from inside. If this is one, or you want a new epoch all the same: --force.');
    END IF;
    SELECT count(*) INTO v_parked FROM seqline.parked_events p WHERE p.seq > finalize_restore.head;
    SELECT count(*) INTO v_skipped FROM seqline.skipped_events s WHERE s.seq > finalize_restore.head;
    forgotten := v_parked + v_skipped;

    moves := '[]';
    FOR v_lane IN
        SELECT e.name, e.kind, l.lane, c.last_seq AS at,
               CASE p_consumers
                   WHEN 'keep' THEN least(c.last_seq, finalize_restore.head)
                   ELSE least(greatest(c.last_seq, least(finalize_restore.head, e.until_seq)), finalize_restore.head)
               END AS target
        FROM seqline.event_consumers e
        CROSS JOIN LATERAL generate_series(0, e.lanes - 1) AS l (lane)
        CROSS JOIN LATERAL (SELECT seqline.lane_position(e.name, l.lane)) AS c (last_seq)
        WHERE c.last_seq IS NOT NULL
        ORDER BY e.name, l.lane
    LOOP
        moves := moves || jsonb_build_array(jsonb_build_object(
            'consumer', v_lane.name, 'kind', v_lane.kind, 'lane', v_lane.lane, 'from', v_lane.at, 'to', v_lane.target));
        IF p_apply IS TRUE AND v_lane.target <> v_lane.at THEN
            UPDATE seqline.event_consumer_cursors c SET last_seq = v_lane.target, updated_at = now()
            WHERE c.name = v_lane.name AND c.lane = v_lane.lane AND c.last_seq = v_lane.at;
            DELETE FROM seqline.round_marks m WHERE m.consumer = v_lane.name AND m.lane = v_lane.lane;
        END IF;
    END LOOP;
    IF p_apply IS NOT TRUE THEN
        RETURN;
    END IF;

    -- Of numbers that will be those of other events nothing is known.
    DELETE FROM seqline.round_marks m
    WHERE greatest(m.last_seq, m.until_seq, m.tried_seq) > finalize_restore.head;
    DELETE FROM seqline.parked_events p WHERE p.seq > finalize_restore.head;
    DELETE FROM seqline.skipped_events s WHERE s.seq > finalize_restore.head;
    UPDATE seqline.event_consumers e
    SET barrier_seq = NULL, barrier_until = NULL, until_seq = least(e.until_seq, finalize_restore.head)
    WHERE num_nonnulls(e.barrier_seq, e.barrier_until) > 0 OR e.until_seq > finalize_restore.head;
    IF p_consumers = 'head' THEN
        UPDATE seqline.parked_events p SET next_attempt_at = NULL WHERE p.next_attempt_at IS NOT NULL;
    END IF;

    UPDATE seqline.log_identity
    SET epoch = gen_random_uuid(), epoch_since = now(), broken_at = NULL, broken_reason = NULL,
        system_identifier = v_server.system_identifier, timeline = v_server.timeline, database_oid = v_server.database_oid
    RETURNING * INTO v_after;
    new_epoch := v_after.epoch;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('restore.finalize', 'log', seqline.identity_facts(v_identity),
        seqline.identity_facts(v_after) || jsonb_build_object('head', finalize_restore.head, 'consumers', p_consumers,
            'forgot_parked', v_parked, 'forgot_skipped', v_skipped), p_why);
    -- And for each consumer that goes on elsewhere, where people look when they look at it.
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    SELECT 'consumer.finalize', m.consumer, jsonb_build_object('last_seq', jsonb_agg(m."from" ORDER BY m.lane)),
           jsonb_build_object('last_seq', jsonb_agg(m."to" ORDER BY m.lane), 'epoch', new_epoch), p_why
    FROM jsonb_to_recordset(moves) AS m (consumer text, lane integer, "from" bigint, "to" bigint)
    GROUP BY m.consumer HAVING bool_or(m."from" <> m."to")
    ORDER BY m.consumer;
    PERFORM set_config('lock_timeout', v_lock_timeout, true);
END
$$;

REVOKE ALL ON FUNCTION
    seqline.refuse_epoch(text, text, text), seqline.server_identity(), seqline.lanes_above(bigint), seqline.check_identity(),
    seqline.hold_identity(), seqline.record_broken_history(uuid, text, bigint), seqline.accept_identity(uuid, bigint, text),
    seqline.identity_facts(seqline.log_identity), seqline.finalize_restore(text, boolean, boolean, text)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.check_identity() TO seqline_reader, seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.record_broken_history(uuid, text, bigint), seqline.accept_identity(uuid, bigint, text),
    seqline.finalize_restore(text, boolean, boolean, text)
TO seqline_app;
