-- For whom a login acts. A server that serves many principals is one login, and says in each transaction for which of them it acts: see the
-- setting seqline.principal. It is what the login says, so the login stays beside it.

ALTER TABLE seqline.audit_log ADD COLUMN principal text CHECK (length(principal) BETWEEN 1 AND 128);
-- Of its own statement, so that rows that are there keep none.
ALTER TABLE seqline.audit_log ALTER COLUMN principal SET DEFAULT nullif(current_setting('seqline.principal', true), '');

-- Writes to the audit log what somebody did to one of the server's own jobs, in the transaction that does it. The jobs are in a schema
-- that is not the log's, so nothing here sees them.
CREATE FUNCTION seqline.note_job(p_action text, p_job bigint, p_before jsonb, p_after jsonb, p_why text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM seqline.check_why(p_why, false);
    IF (p_action IN ('job.retry', 'job.discard')) IS NOT TRUE OR p_job IS NULL THEN
        RAISE EXCEPTION 'nothing that is done to a job' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES (p_action, p_job::text, p_before, p_after, p_why);
END
$$;

REVOKE ALL ON FUNCTION seqline.note_job(text, bigint, jsonb, jsonb, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.note_job(text, bigint, jsonb, jsonb, text) TO seqline_app;
