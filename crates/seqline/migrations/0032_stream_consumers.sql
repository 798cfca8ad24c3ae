-- Consumers of a stream into which the log is copied: what each has handled, what it has to try again, and what was given up.
--
-- The broker delivers at least once and forgets. What happened to an event is here, written in the transaction of its effect.

CREATE TABLE seqline.stream_consumers (
    name text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
    stream text NOT NULL CHECK (length(stream) BETWEEN 1 AND 255),
    -- What it asks for; NULL is everything. A type that ends with .* stands for all that begin so.
    types text[],
    spaces text[],
    -- Nothing up to here is expected of it.
    start_position bigint NOT NULL CHECK (start_position >= 0),
    -- The log up to here was compared with what it has handled.
    reconciled_to bigint NOT NULL CHECK (reconciled_to >= 0),
    -- How many events comparing has found so far that the broker had dropped.
    dropped bigint NOT NULL DEFAULT 0 CHECK (dropped >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- How many events retention took before they were compared.
    lost bigint NOT NULL DEFAULT 0 CHECK (lost >= 0)
);

-- The ledger. A row is an event whose effect is committed: the primary key is what makes a second time impossible. No foreign key and nothing of
-- the event, so that it can be kept for longer than the event.
CREATE TABLE seqline.consumed_events (
    consumer text NOT NULL,
    event_id uuid NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT consumed_events_consumer_event_id_pk PRIMARY KEY (consumer, event_id)
);
-- For pruning, oldest first. A summary of ranges of pages would be smaller, but is of no use once rows have taken the place of those that were
-- pruned: each range then holds old and new ones. This costs about 20 bytes and one more write at the right end of the index for each event.
CREATE INDEX consumed_events_handled_at ON seqline.consumed_events (handled_at);

-- Events that failed, or that the broker dropped, and that are tried again from the log. The broker has forgotten them: what waits here holds up
-- nothing there.
CREATE TABLE seqline.stream_retries (
    consumer text NOT NULL REFERENCES seqline.stream_consumers ON DELETE CASCADE,
    event_id uuid NOT NULL,
    -- Its number in the log, in the epoch in which it was met.
    position bigint NOT NULL,
    -- Where in the stream it was met; NULL where it was missed there.
    stream_seq bigint,
    attempts integer NOT NULL CHECK (attempts >= 0),
    next_attempt_at timestamptz NOT NULL,
    cause text NOT NULL CHECK (cause IN ('failed', 'dropped', 'replayed')),
    -- The kind of the last failure, and never what it says.
    error_type text CHECK (length(error_type) <= 200),
    first_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
) WITH (fillfactor = 50);
CREATE INDEX stream_retries_due ON seqline.stream_retries (consumer, next_attempt_at);

-- What was given up: references, so that what is taken out of the log is nowhere else.
CREATE TABLE seqline.dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text NOT NULL REFERENCES seqline.stream_consumers ON DELETE CASCADE,
    reason text NOT NULL CHECK (reason IN ('attempts_exhausted', 'unreadable', 'future_version', 'other_history', 'gone')),
    -- NULL where the message does not say.
    event_id uuid,
    position bigint,
    stream text NOT NULL,
    -- When the stream was made, in nanoseconds since 1970, and where in it the message is; NULL where it did not come from there.
    stream_created bigint,
    stream_seq bigint,
    subject text CHECK (length(subject) <= 1024),
    size bigint CHECK (size >= 0),
    attempts integer NOT NULL CHECK (attempts >= 0),
    error_type text CHECK (length(error_type) <= 200),
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(event_id, stream_seq) > 0)
);
-- The same message is one row, however often it comes before the broker hears that it is done with.
CREATE UNIQUE INDEX dead_letters_message ON seqline.dead_letters (consumer, stream_created, stream_seq) WHERE stream_seq IS NOT NULL;
CREATE INDEX dead_letters_event ON seqline.dead_letters (consumer, event_id) WHERE event_id IS NOT NULL;

GRANT SELECT, INSERT, UPDATE, DELETE
    ON seqline.stream_consumers, seqline.consumed_events, seqline.stream_retries, seqline.dead_letters
    TO seqline_app, seqline_consumer;

-- A new epoch ends what a restore began: the numbers above the head will be those of other events. None of them was compared, and all are expected. In
-- the transaction that starts the epoch, in which nobody else numbers events: later nobody knows where the head was.
CREATE FUNCTION seqline.forget_what_was_compared() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head bigint := seqline.head();
BEGIN
    UPDATE seqline.stream_consumers c
    SET start_position = least(c.start_position, v_head), reconciled_to = least(c.reconciled_to, v_head), updated_at = now()
    WHERE greatest(c.start_position, c.reconciled_to) > v_head;
    RETURN NULL;
END
$$;

CREATE TRIGGER stream_consumers_new_epoch AFTER UPDATE OF epoch ON seqline.log_identity
FOR EACH ROW WHEN (OLD.epoch <> NEW.epoch) EXECUTE FUNCTION seqline.forget_what_was_compared();
ALTER TABLE seqline.log_identity ENABLE ALWAYS TRIGGER stream_consumers_new_epoch;
REVOKE ALL ON FUNCTION seqline.forget_what_was_compared() FROM PUBLIC;

CREATE FUNCTION seqline.refuse_dead_letter(rule text, message text, hint text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = message,
        HINT = hint,
        SCHEMA = 'seqline',
        TABLE = 'dead_letters',
        CONSTRAINT = 'seqline_' || rule;
END
$$;

-- Has the consumer try again what was given up, as if it had never failed; or forgets it, with p_discard. Of these ids, or all of the consumer's
-- that are of an event where p_ids is NULL, at most 1,000 at once: who means all asks again while it is so many. What cannot be tried again,
-- because nobody knows which event it is, stays. How many; without p_apply how many there are.
CREATE FUNCTION seqline.settle_dead_letters(p_consumer text, p_ids bigint[], p_discard boolean, p_apply boolean, p_why text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_letters seqline.dead_letters[];
    v_count bigint;
BEGIN
    PERFORM seqline.check_why(p_why, p_apply AND p_discard);
    IF NOT EXISTS (SELECT FROM seqline.stream_consumers c WHERE c.name = p_consumer) THEN
        PERFORM seqline.refuse_dead_letter('stream_consumer_unknown', 'there is no stream consumer of this name',
            'seqline dead-letters list shows those that there are.');
    END IF;
    IF p_ids IS NULL AND p_apply IS NOT TRUE THEN
        RETURN (SELECT count(*) FROM seqline.dead_letters d
            WHERE d.consumer = p_consumer AND (p_discard OR d.event_id IS NOT NULL AND d.position IS NOT NULL));
    END IF;
    SELECT coalesce(array_agg(l), '{}') INTO v_letters
    FROM (
        SELECT d.* FROM seqline.dead_letters d
        WHERE d.consumer = p_consumer AND (p_ids IS NULL OR d.id = ANY (p_ids)) AND (p_discard OR d.event_id IS NOT NULL AND d.position IS NOT NULL)
        ORDER BY d.id LIMIT CASE WHEN p_ids IS NULL THEN 1000 END FOR UPDATE
    ) l;
    v_count := cardinality(v_letters);
    IF v_count < cardinality(ARRAY(SELECT DISTINCT unnest(p_ids))) THEN
        PERFORM seqline.refuse_dead_letter('dead_letter_unknown', 'not all of these are dead letters of this consumer that can be settled so',
            'seqline dead-letters list shows them. One that is of no event that is known can only be discarded.');
    END IF;
    IF p_apply IS NOT TRUE OR v_count = 0 THEN
        RETURN v_count;
    END IF;
    IF NOT p_discard THEN
        INSERT INTO seqline.stream_retries AS r (consumer, event_id, position, stream_seq, attempts, next_attempt_at, cause)
        SELECT DISTINCT ON (l.event_id) l.consumer, l.event_id, l.position, l.stream_seq, 0, clock_timestamp(), 'replayed'
        FROM unnest(v_letters) l ORDER BY l.event_id, l.id DESC
        ON CONFLICT (consumer, event_id) DO UPDATE
        SET attempts = 0, next_attempt_at = excluded.next_attempt_at, cause = excluded.cause, updated_at = now();
    ELSE
        -- The consumer is done with it: whoever compares the log with what was handled would miss it otherwise, and have it tried.
        INSERT INTO seqline.consumed_events (consumer, event_id)
        SELECT DISTINCT l.consumer, l.event_id FROM unnest(v_letters) l WHERE l.event_id IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
    DELETE FROM seqline.dead_letters d USING unnest(v_letters) l WHERE d.id = l.id;
    INSERT INTO seqline.audit_log (action, subject, before, after, why)
    VALUES (CASE WHEN p_discard THEN 'deadletters.discard' ELSE 'deadletters.replay' END, p_consumer,
        jsonb_build_object('count', v_count, 'ids', (SELECT jsonb_agg(i.id) FROM (SELECT l.id FROM unnest(v_letters) l ORDER BY l.id LIMIT 100) i)),
        '{}', p_why);
    RETURN v_count;
END
$$;

-- Forgets a consumer that is out of use, with what it has to try again and what it gave up. What it has handled stays known for as long as it is
-- kept anyway, so that one of the same name handles nothing twice; with p_handled that is forgotten too, in one statement. How much there is of it.
CREATE FUNCTION seqline.forget_stream_consumer(p_name text, p_handled boolean, p_apply boolean, p_why text)
RETURNS TABLE (stream text, retries bigint, dead_letters bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM seqline.check_why(p_why, p_apply);
    SELECT c.stream INTO stream FROM seqline.stream_consumers c WHERE c.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM seqline.refuse_dead_letter('stream_consumer_unknown', 'there is no stream consumer of this name',
            'One is there once it has reached its broker.');
    END IF;
    retries := (SELECT count(*) FROM seqline.stream_retries r WHERE r.consumer = p_name);
    dead_letters := (SELECT count(*) FROM seqline.dead_letters d WHERE d.consumer = p_name);
    IF p_apply IS TRUE THEN
        DELETE FROM seqline.stream_consumers c WHERE c.name = p_name;
        IF p_handled THEN
            DELETE FROM seqline.consumed_events e WHERE e.consumer = p_name;
        END IF;
        INSERT INTO seqline.audit_log (action, subject, before, after, why)
        VALUES ('streamconsumers.forget', p_name,
            jsonb_build_object('stream', stream, 'retries', retries, 'dead_letters', dead_letters), '{}', p_why);
    END IF;
    RETURN NEXT;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.refuse_dead_letter(text, text, text), seqline.settle_dead_letters(text, bigint[], boolean, boolean, text),
    seqline.forget_stream_consumer(text, boolean, boolean, text)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    seqline.settle_dead_letters(text, bigint[], boolean, boolean, text), seqline.forget_stream_consumer(text, boolean, boolean, text)
TO seqline_app;
