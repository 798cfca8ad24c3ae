-- The roles. They belong to the whole server, so they may exist already for another database.
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['seqline_owner', 'seqline_app', 'seqline_producer', 'seqline_reader', 'seqline_consumer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
        END IF;
    END LOOP;
    -- Whoever migrates acts as the owner. From PostgreSQL 16 on, membership alone does not allow that, and
    -- who creates a role is a member without it.
    IF NOT pg_has_role(current_user, 'seqline_owner',
        CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END)
    THEN
        -- Without inheriting it: acting as the owner is then a step that nobody takes by accident.
        EXECUTE format('GRANT seqline_owner TO %I', current_user)
            || CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN ' WITH INHERIT FALSE, SET TRUE' ELSE '' END;
    END IF;
END
$$;
