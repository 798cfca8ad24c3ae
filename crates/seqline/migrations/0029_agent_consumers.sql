-- The durable readers of agents: up to where each has acknowledged, and who holds it.
--
-- A holder is a session of a connection, or a window over REST. It saves acknowledgements only while it is the holder, by a condition in the
-- statement itself, so one that was replaced without noticing can change nothing. Each replacement raises the generation.

CREATE TABLE seqline.agent_consumer_cursors (
    agent_id text NOT NULL REFERENCES seqline.principals ON DELETE CASCADE,
    consumer text NOT NULL CHECK (length(consumer) <= 64 AND consumer ~ '^[a-z0-9][a-z0-9_-]*$'),
    -- Everything up to here is acknowledged.
    acked_seq bigint NOT NULL CHECK (acked_seq >= 0),
    -- Rises with each holder.
    generation bigint NOT NULL DEFAULT 1 CHECK (generation >= 1),
    holder_session_id uuid,
    holder_kind text CHECK (holder_kind IN ('gateway', 'rest')),
    held_since timestamptz,
    -- When the holder was last heard of. It says so now and then, so that one whose process ended is told from one that lives.
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What a holder over REST was given and has not acknowledged, so that its next request can go to any process.
    rest_window text CHECK (length(rest_window) <= 1048576),
    -- What the agent lost and has not been seen to know: why, the last acknowledgement before that, and where it goes on.
    lost_reason text CHECK (lost_reason IN ('retention', 'cursor_ahead')),
    lost_after bigint,
    lost_position bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent_id, consumer),
    CHECK (num_nulls(holder_session_id, holder_kind, held_since) IN (0, 3)),
    CHECK (rest_window IS NULL OR holder_kind IS NOT DISTINCT FROM 'rest'),
    CHECK (num_nulls(lost_reason, lost_after, lost_position) IN (0, 3))
    -- No index has a member that changes, and half of a page is free: a save is a new version in the same page.
) WITH (fillfactor = 50);

GRANT SELECT, INSERT, UPDATE, DELETE ON seqline.agent_consumer_cursors TO seqline_app;

CREATE FUNCTION seqline.agent_consumer_facts(p_cursor seqline.agent_consumer_cursors) RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object('acked_seq', p_cursor.acked_seq, 'generation', p_cursor.generation,
        'holder_kind', p_cursor.holder_kind))
$$;

-- Takes a consumer from whoever holds it, and with p_acked sets its acknowledgement, for people. Without p_apply it only says what there is.
CREATE FUNCTION seqline.free_agent_consumer(p_agent text, p_consumer text, p_acked bigint, p_apply boolean, p_why text)
RETURNS seqline.agent_consumer_cursors
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.agent_consumer_cursors;
    v_after seqline.agent_consumer_cursors;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    SELECT * INTO v_before FROM seqline.agent_consumer_cursors c WHERE c.agent_id = p_agent AND c.consumer = p_consumer FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_access('agent_consumer_unknown', 'this agent has no consumer of this name',
            'seqline agents consumers list shows those that there are.');
    ELSIF p_acked NOT BETWEEN 0 AND seqline.head() THEN
        PERFORM seqline.refuse_access('agent_consumer_position', format('the log has no position %s', p_acked),
            'Give a number from 0 to the head of the log.');
    END IF;
    IF p_apply IS NOT TRUE OR p_acked IS NULL AND v_before.holder_session_id IS NULL THEN
        RETURN v_before;
    END IF;
    UPDATE seqline.agent_consumer_cursors c
    SET acked_seq = coalesce(p_acked, c.acked_seq), generation = c.generation + 1,
        holder_session_id = NULL, holder_kind = NULL, held_since = NULL, rest_window = NULL,
        lost_reason = CASE WHEN p_acked IS NULL THEN c.lost_reason END,
        lost_after = CASE WHEN p_acked IS NULL THEN c.lost_after END,
        lost_position = CASE WHEN p_acked IS NULL THEN c.lost_position END,
        updated_at = now()
    WHERE c.agent_id = p_agent AND c.consumer = p_consumer
    RETURNING * INTO v_after;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES (CASE WHEN p_acked IS NULL THEN 'agent.release' ELSE 'agent.reset' END, p_agent || '/' || p_consumer,
        seqline.agent_consumer_facts(v_before), seqline.agent_consumer_facts(v_after), p_why);
    RETURN v_before;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.agent_consumer_facts(seqline.agent_consumer_cursors),
    seqline.free_agent_consumer(text, text, bigint, boolean, text)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.free_agent_consumer(text, text, bigint, boolean, text) TO seqline_app;
