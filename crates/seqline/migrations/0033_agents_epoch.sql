-- A new epoch after a restore is told to agents too.

ALTER TABLE seqline.agent_consumer_cursors
    DROP CONSTRAINT agent_consumer_cursors_lost_reason_check,
    ADD CONSTRAINT agent_consumer_cursors_lost_reason_check CHECK (lost_reason IN ('retention', 'cursor_ahead', 'epoch_changed'));

-- Whether the log is in this epoch; an error that says to come again if not. For a condition behind a row that a new epoch changes: whoever waited for
-- that row asks with what was committed meanwhile, hence VOLATILE.
CREATE FUNCTION seqline.require_epoch(p_epoch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM seqline.log_identity i WHERE i.epoch = p_epoch) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'serialization_failure',
        MESSAGE = 'the log is in another epoch',
        HINT = 'Find out in which one, and begin anew in it.';
END
$$;

-- Starts a new epoch on this server after a restore, and sets every cursor: with p_consumers = 'keep' where it is, with 'head' to the head,
-- or to its end for one that gets a piece of the log; never above the head. Without p_apply it only says what it would do. One transaction, in which no
-- round and no numbering is under way: it waits for those, and not for long.
--
-- What consumers know of numbers above the head goes: those will be other events. With 'head' what is parked is tried again only when
-- somebody asks for it. What waits for its number gets it in the new epoch.
--
-- Every consumer of an agent is told: its cursor came back with the database, and the agent did not. It goes on as the others do, nobody holds it, and
-- what it lost is in its row until an acknowledgement shows that the agent knows.
--
-- moves has an element for each lane, and for each consumer of an agent. Refused when nothing speaks for a restore, unless p_force.
CREATE OR REPLACE FUNCTION seqline.finalize_restore(
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
    v_agents bigint;
    v_agents_from bigint;
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
        PERFORM FROM seqline.agent_consumer_cursors a ORDER BY a.agent_id, a.consumer FOR NO KEY UPDATE;
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

    v_agents_from := CASE p_consumers WHEN 'head' THEN finalize_restore.head ELSE 0 END;
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
    moves := moves || coalesce((
        SELECT jsonb_agg(jsonb_build_object('consumer', a.agent_id || '/' || a.consumer, 'kind', 'agent', 'lane', 0, 'from', a.acked_seq,
            'to', least(greatest(a.acked_seq, v_agents_from), finalize_restore.head))
            ORDER BY a.agent_id, a.consumer)
        FROM seqline.agent_consumer_cursors a
    ), '[]');
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
    UPDATE seqline.agent_consumer_cursors a
    SET acked_seq = least(greatest(a.acked_seq, v_agents_from), finalize_restore.head), generation = a.generation + 1,
        holder_session_id = NULL, holder_kind = NULL, held_since = NULL, rest_window = NULL,
        -- What was lost before, and not acknowledged, is lost as well.
        lost_reason = 'epoch_changed', lost_after = coalesce(a.lost_after, a.acked_seq),
        lost_position = least(greatest(a.acked_seq, v_agents_from), finalize_restore.head), updated_at = now();
    GET DIAGNOSTICS v_agents = ROW_COUNT;
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
            'forgot_parked', v_parked, 'forgot_skipped', v_skipped, 'told_agents', v_agents), p_why);
    -- And for each consumer that goes on elsewhere, where people look when they look at it.
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    SELECT CASE m.kind WHEN 'agent' THEN 'agent.finalize' ELSE 'consumer.finalize' END, m.consumer, jsonb_build_object('last_seq', jsonb_agg(m."from" ORDER BY m.lane)),
           jsonb_build_object('last_seq', jsonb_agg(m."to" ORDER BY m.lane), 'epoch', new_epoch), p_why
    FROM jsonb_to_recordset(moves) AS m (consumer text, kind text, lane integer, "from" bigint, "to" bigint)
    GROUP BY m.kind, m.consumer HAVING bool_or(m."from" <> m."to")
    ORDER BY m.kind = 'agent', m.consumer;
    PERFORM set_config('lock_timeout', v_lock_timeout, true);
END
$$;

REVOKE ALL ON FUNCTION seqline.require_epoch(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.require_epoch(uuid) TO seqline_app;
