-- Takes away the row of a consumer of an agent that is out of use, for people, whoever holds it. Without p_apply it only says what there is.
-- Whoever comes under this name later begins anew.
CREATE FUNCTION seqline.delete_agent_consumer(p_agent text, p_consumer text, p_apply boolean, p_why text)
RETURNS seqline.agent_consumer_cursors
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_before seqline.agent_consumer_cursors;
BEGIN
    PERFORM seqline.check_why(p_why, false);
    -- Locked as the DELETE locks it: what is said to be there is what it takes away.
    SELECT * INTO v_before FROM seqline.agent_consumer_cursors c WHERE c.agent_id = p_agent AND c.consumer = p_consumer FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_access('agent_consumer_unknown', 'this agent has no consumer of this name',
            'seqline agents consumers list shows those that there are.');
    END IF;
    IF p_apply IS NOT TRUE THEN
        RETURN v_before;
    END IF;
    DELETE FROM seqline.agent_consumer_cursors c WHERE c.agent_id = p_agent AND c.consumer = p_consumer;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES ('agent.delete', p_agent || '/' || p_consumer, seqline.agent_consumer_facts(v_before), '{}', p_why);
    RETURN v_before;
END
$$;

REVOKE ALL ON FUNCTION seqline.delete_agent_consumer(text, text, boolean, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.delete_agent_consumer(text, text, boolean, text) TO seqline_app;
