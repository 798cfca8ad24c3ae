-- Redaction: what an event said is taken out of the log, and all else about it stays.

-- What was redacted is a dead row until it is vacuumed, so that is not left until a fifth of a partition is dead. Nothing else makes
-- dead rows of the log, but transactions that fail while they are numbered. And no copy of it is made for planning.
CREATE OR REPLACE FUNCTION seqline.create_partition(p_lower bigint, p_upper bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_name text := 'event_log_from_' || lpad(p_lower::text, 19, '0');
BEGIN
    EXECUTE format('CREATE TABLE seqline.%I (LIKE seqline.event_log INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
        WITH (vacuum_truncate = off)', v_name);
    PERFORM seqline.vacuum_soon(v_name);
    PERFORM seqline.sample_no_payloads(v_name);
    PERFORM seqline.attach_partition(v_name, p_lower, p_upper);
END
$$;

-- Has a table vacuumed as soon as it has a dead row: then autovacuum comes with its next round.
CREATE FUNCTION seqline.vacuum_soon(p_table text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE seqline.%I SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 0,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 0, toast.vacuum_truncate = off)', p_table);
END
$$;

-- Keeps ANALYZE from copying payloads into the statistics, where no redaction comes. Nothing that is planned asks for them. LIKE does not copy it.
CREATE FUNCTION seqline.sample_no_payloads(p_table text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE seqline.%I ALTER COLUMN payload SET STATISTICS 0', p_table);
END
$$;

-- The tables in which events wait for their numbers hold them as dead rows afterwards. The bound was 10,000 of them, which a log with little to do
-- has after weeks; with much to do it is reached between two rounds of autovacuum anyway, so that they come no more often than before.
SELECT seqline.vacuum_soon(t.name), seqline.sample_no_payloads(t.name)
FROM unnest(ARRAY['pending_transactions', 'pending_events', 'staged_transactions', 'staged_events']) AS t (name);
SELECT seqline.vacuum_soon(p.name) FROM seqline.event_log_partitions() p;
-- Of the log, and with it of each partition.
SELECT seqline.sample_no_payloads('event_log');

-- The statistics that there are stay with that, so they are removed. Before PostgreSQL 18 only a change of the type does it: to the one that it
-- has, which rewrites nothing and reads no row.
DO $$
DECLARE
    v_table text;
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        EXECUTE 'SELECT pg_catalog.pg_clear_attribute_stats(s.schemaname::text, s.tablename::text, s.attname::text, s.inherited)
            FROM pg_catalog.pg_stats s WHERE s.schemaname = ''seqline'' AND s.attname = ''payload''';
        RETURN;
    END IF;
    FOR v_table IN
        SELECT DISTINCT CASE WHEN s.tablename IN (SELECT p.name FROM seqline.event_log_partitions() p) THEN 'event_log' ELSE s.tablename END
        FROM pg_catalog.pg_stats s WHERE s.schemaname = 'seqline' AND s.attname = 'payload'
    LOOP
        BEGIN
            EXECUTE format('ALTER TABLE seqline.%I ALTER COLUMN payload TYPE jsonb', v_table);
        EXCEPTION WHEN feature_not_supported THEN  -- for a view over payloads, for example
            RAISE WARNING USING
                MESSAGE = format('statistics of the payloads of seqline.%s are left, where no redaction comes: %s', v_table, SQLERRM),
                HINT = 'Remove them as a superuser, with the statement in the guide to redaction.';
        END;
    END LOOP;
END
$$;

-- Whether an event of type log.redacted says which events were redacted, and nothing else. Anybody who may append can append the like: that
-- need not be redacted either.
CREATE FUNCTION seqline.is_redaction_notice(p_payload jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN p_payload = '{}' THEN true
    WHEN p_payload - 'events' <> '{}' OR jsonb_typeof(p_payload -> 'events') <> 'array' THEN false
    ELSE NOT EXISTS (
        SELECT FROM jsonb_array_elements(p_payload -> 'events') AS e (event)
        WHERE CASE
            WHEN jsonb_typeof(e.event) <> 'object' THEN true
            ELSE e.event - '{id, seq}'::text[] <> '{}'
                OR coalesce(jsonb_typeof(e.event -> 'id') <> 'string' OR jsonb_typeof(e.event -> 'seq') <> 'number'
                    OR e.event ->> 'id' !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' OR e.event ->> 'seq' !~ '^[1-9][0-9]{0,18}$', true)
        END
    )
END;

-- Raises a refusal that programs can read.
CREATE FUNCTION seqline.refuse_redaction(rule text, message text, hint text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = message,
        HINT = hint,
        SCHEMA = 'seqline',
        TABLE = 'event_log',
        CONSTRAINT = 'seqline_' || rule;
END
$$;

-- Refuses what no redaction can be asked for with. An older snapshot would miss events that are in the log by now, and they would be taken for
-- redacted.
CREATE FUNCTION seqline.check_redaction(p_reason text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM seqline.check_why(p_reason, false);
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = format('redaction needs isolation level read committed, this transaction is %s',
                current_setting('transaction_isolation')),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.',
            SCHEMA = 'seqline',
            CONSTRAINT = 'seqline_isolation';
    END IF;
END
$$;

-- The events that wait for their numbers, of this id or resource. They are in no partition yet and are not touched: whoever changed one there
-- would hold up the sequencer, and with it everybody. Those of transactions that are open nobody can see.
CREATE FUNCTION seqline.staged_for(p_id uuid, p_kind text, p_resource_id text) RETURNS uuid[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(w.id), '{}')
    FROM seqline.waiting_transactions(NULL) t
    JOIN seqline.staged_transactions s ON s.n = t.n
    CROSS JOIN LATERAL (
        SELECT s.id, s.resource_kind, s.resource_id, s.type, s.payload
        UNION ALL
        SELECT e.id, e.resource_kind, e.resource_id, e.type, e.payload FROM seqline.staged_events e WHERE s.in_staged AND e.xid = s.xid
    ) w
    WHERE (w.id = p_id OR (w.resource_kind = p_kind AND w.resource_id = p_resource_id))
      AND (w.type <> 'log.redacted' OR NOT seqline.is_redaction_notice(w.payload))
$$;

-- Redacts the next events from p_lower to before p_upper, up to p_max of them, and returns them as they are then. In the order of their
-- numbers, so that two who redact the same do not wait for each other; the second finds them redacted.
--
-- p_few: that there are not many more. Then they are found by what they are and sorted. Planning would often take the order from the primary key
-- and read the whole partition, because it knows how frequent a kind is and an id, and not both together. Of many the order of the key is right.
CREATE FUNCTION seqline.redact_next(
    p_lower bigint, p_upper bigint, p_id uuid, p_kind text, p_resource_id text, p_max bigint, p_few boolean
) RETURNS seqline.event_log[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    v_events seqline.event_log[];
BEGIN
    -- With literals, so that planning leaves out all other partitions and locks none of them.
    EXECUTE format(
        'WITH chosen AS (
             SELECT e.seq FROM seqline.event_log e
             WHERE e.seq >= %1$s AND e.seq < %2$s AND e.redacted_at IS NULL AND %3$s
               AND (e.type <> ''log.redacted'' OR NOT seqline.is_redaction_notice(e.payload))
             ORDER BY e.seq %5$s LIMIT %4$s FOR NO KEY UPDATE
         ), redacted AS (
             UPDATE seqline.event_log e SET payload = ''{}'', redacted_at = now()
             FROM chosen c WHERE e.seq >= %1$s AND e.seq < %2$s AND e.seq = c.seq
             RETURNING e AS event
         )
         SELECT coalesce(array_agg(r.event ORDER BY (r.event).seq), ''{}'') FROM redacted r',
        p_lower, p_upper,
        CASE WHEN p_id IS NULL THEN 'e.resource_kind = $2 AND e.resource_id = $3' ELSE 'e.id = $1' END, p_max, CASE WHEN p_few THEN '+ 0' END)
    INTO v_events USING p_id, p_kind, p_resource_id;
    RETURN v_events;
END
$$;

-- Appends the notices of these events, and returns how many that are: of each scope, audience and receive action one for each 500, so whoever could
-- see an event learns that it was redacted, and nobody else does.
CREATE FUNCTION seqline.append_redaction_notices(p_events seqline.event_log[]) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- An entry has up to 76 bytes, and what is around them 14.
    v_entries integer := least(500, ((SELECT s.event_payload_max_bytes FROM seqline.settings s) - 14) / 76);
    v_notice record;
    v_notices bigint := 0;
BEGIN
    FOR v_notice IN
        SELECT n.resource_kind, n.resource_id, n.space_id, n.channel_id, n.thread_id, n.audience_principal_id, n.receive_action,
            CASE WHEN v_entries > 0
                THEN jsonb_build_object('events', jsonb_agg(jsonb_build_object('id', n.id, 'seq', n.seq) ORDER BY n.seq)) ELSE '{}' END AS payload
        FROM (
            SELECT e.*, (row_number() OVER (PARTITION BY e.resource_kind, e.resource_id, e.space_id, e.channel_id, e.thread_id,
                e.audience_principal_id, e.receive_action ORDER BY e.seq) - 1) / CASE WHEN v_entries > 0 THEN v_entries ELSE 500 END AS part
            FROM unnest(p_events) e
        ) n
        GROUP BY n.resource_kind, n.resource_id, n.space_id, n.channel_id, n.thread_id, n.audience_principal_id, n.receive_action, n.part
        ORDER BY min(n.seq)
    LOOP
        PERFORM seqline.append(
            type => 'log.redacted', payload => v_notice.payload, resource_kind => v_notice.resource_kind,
            receive_action => v_notice.receive_action, resource_id => v_notice.resource_id, space_id => v_notice.space_id,
            channel_id => v_notice.channel_id, thread_id => v_notice.thread_id, actor_kind => 'system',
            audience_principal_id => v_notice.audience_principal_id);
        v_notices := v_notices + 1;
    END LOOP;
    RETURN v_notices;
END
$$;

-- How many events of a partition there are to redact, and how many were redacted before. The look is undone, which gives its locks back: of
-- hundreds of partitions they would otherwise need thousands.
CREATE FUNCTION seqline.count_redactable(
    p_partition text, p_id uuid, p_kind text, p_resource_id text, OUT to_redact bigint, OUT redacted bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    to_redact := 0;
    redacted := 0;
    EXECUTE format(
        'SELECT count(*) FILTER (WHERE e.redacted_at IS NULL AND (e.type <> ''log.redacted'' OR NOT seqline.is_redaction_notice(e.payload))),
            count(*) FILTER (WHERE e.redacted_at IS NOT NULL)
         FROM seqline.%I e WHERE %s',
        p_partition, CASE WHEN p_id IS NULL THEN 'e.resource_kind = $2 AND e.resource_id = $3' ELSE 'e.id = $1' END)
    INTO to_redact, redacted USING p_id, p_kind, p_resource_id;
    RAISE EXCEPTION USING ERRCODE = 'SQ001', MESSAGE = 'undone';
EXCEPTION
    WHEN SQLSTATE 'SQ001' THEN NULL;
    WHEN undefined_table THEN NULL;  -- retention was faster, and has left nothing to redact
END
$$;

-- Redacts what is found between p_lower and p_upper, up to p_max events, in the transaction of the caller. One partition after the other, the
-- oldest first.
CREATE FUNCTION seqline.redact_found(
    p_subject text, p_lower bigint, p_upper bigint, p_id uuid, p_kind text, p_resource_id text, p_reason text, p_dry_run boolean,
    p_max bigint, OUT events bigint, OUT already bigint, OUT remaining bigint, OUT waiting bigint, OUT partitions text[]
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_waiting uuid[];
    v_part record;
    v_count record;
    v_here bigint;
    -- How many more it may be.
    v_room bigint := coalesce(p_max, 9223372036854775807);
    v_next seqline.event_log[];
    -- Those that no notice tells of yet.
    v_untold seqline.event_log[] := '{}';
    v_first bigint;
    v_last bigint;
    v_notices bigint := 0;
BEGIN
    events := 0;
    already := 0;
    remaining := 0;
    partitions := '{}';
    -- Before the log, so that what gets its number meanwhile is found there, or is counted here.
    v_waiting := seqline.staged_for(p_id, p_kind, p_resource_id);
    FOR v_part IN
        SELECT p.name, greatest(p.lower_bound, p_lower) AS lower_bound, least(p.upper_bound, p_upper) AS upper_bound
        FROM seqline.event_log_partitions() p
        WHERE coalesce(p.upper_bound > p_lower, true) AND coalesce(p.lower_bound < p_upper, true)
        ORDER BY p.lower_bound
    LOOP
        SELECT * INTO v_count FROM seqline.count_redactable(v_part.name, p_id, p_kind, p_resource_id);
        v_here := 0;
        WHILE v_count.to_redact > 0 AND v_room > 0 AND NOT p_dry_run LOOP
            v_next := seqline.redact_next(v_part.lower_bound, v_part.upper_bound, p_id, p_kind, p_resource_id, least(v_room, 10000),
                v_count.to_redact <= 10000);
            EXIT WHEN cardinality(v_next) = 0;
            v_here := v_here + cardinality(v_next);
            v_room := v_room - cardinality(v_next);
            v_first := coalesce(v_first, v_next[1].seq);
            v_last := v_next[cardinality(v_next)].seq;
            v_part.lower_bound := v_last + 1;
            IF v_waiting <> '{}' THEN
                v_waiting := ARRAY(SELECT w.id FROM unnest(v_waiting) AS w (id) EXCEPT SELECT n.id FROM unnest(v_next) n);
            END IF;
            v_untold := v_untold || v_next;
            IF cardinality(v_untold) >= 10000 THEN
                v_notices := v_notices + seqline.append_redaction_notices(v_untold);
                v_untold := '{}';
            END IF;
        END LOOP;
        IF p_dry_run THEN
            v_here := least(v_count.to_redact, v_room);
            v_room := v_room - v_here;
        ELSIF v_here < v_count.to_redact THEN
            -- There is no more room, or somebody else was faster.
            SELECT c.to_redact + v_here AS to_redact, c.redacted - v_here AS redacted INTO v_count
            FROM seqline.count_redactable(v_part.name, p_id, p_kind, p_resource_id) c;
        END IF;
        events := events + v_here;
        already := already + v_count.redacted;
        remaining := remaining + greatest(v_count.to_redact - v_here, 0);
        IF v_here > 0 THEN
            partitions := partitions || v_part.name;
        END IF;
    END LOOP;
    waiting := cardinality(v_waiting);
    IF events > 0 AND NOT p_dry_run THEN
        v_notices := v_notices + seqline.append_redaction_notices(v_untold);
        INSERT INTO seqline.audit_log (action, subject, before, after, why)
        VALUES ('log.redact', p_subject, '{}',
            jsonb_build_object('events', events, 'first_seq', v_first, 'last_seq', v_last, 'notices', v_notices), p_reason);
    END IF;
END
$$;

-- Takes the payload out of one event of the log, in the transaction of the caller, who learns how many that were: 1, or 0 when it was redacted
-- already, or is not there. All else about the event stays, and whoever could see it gets a notice. With dry_run nothing is done.
--
-- already: that it was redacted before. waiting: that it waits for its number, and has to be redacted when it has it. partitions: in whose
-- files what it said is left until they are vacuumed.
CREATE FUNCTION seqline.redact(
    event_id uuid, reason text DEFAULT NULL, dry_run boolean DEFAULT false,
    OUT events bigint, OUT already bigint, OUT waiting bigint, OUT partitions text[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_seq bigint;
    v_waiting uuid[];
    v_is_notice boolean;
BEGIN
    PERFORM seqline.check_redaction(reason);
    IF event_id IS NULL THEN
        PERFORM seqline.refuse_redaction('redact_event', 'the id of the event is missing', 'Say which event is meant.');
    END IF;
    -- Before the log, as in redact_found.
    v_waiting := seqline.staged_for(event_id, NULL, NULL);
    v_seq := (SELECT f.found_seq FROM seqline.find_ids(ARRAY[event_id]) f);
    IF v_seq IS NULL THEN
        events := 0;
        already := 0;
        waiting := cardinality(v_waiting);
        partitions := '{}';
        RETURN;
    END IF;
    EXECUTE format('SELECT e.redacted_at IS NULL AND e.type = ''log.redacted'' AND seqline.is_redaction_notice(e.payload)
        FROM seqline.event_log e WHERE e.seq = %s', v_seq)
    INTO v_is_notice;
    IF v_is_notice THEN
        PERFORM seqline.refuse_redaction('redact_notice', format('event %s says that others were redacted', event_id),
            'It holds ids and numbers only: there is nothing to redact.');
    END IF;
    SELECT r.events, r.already, r.waiting, r.partitions INTO events, already, waiting, partitions
    FROM seqline.redact_found(event_id::text, v_seq, v_seq + 1, event_id, NULL, NULL, reason, dry_run IS NOT FALSE, NULL) r;
END
$$;

-- The same for all events about a resource that are in the log now. Those that are appended later, also by transactions that are open, are not
-- touched: so whoever removes the resource itself redacts in the same transaction, or after it.
--
-- max_events is for whoever has not the time for all at once. remaining: how many are left to be redacted by the same call, once more.
CREATE FUNCTION seqline.redact_resource(
    resource_kind text, resource_id text, reason text DEFAULT NULL, dry_run boolean DEFAULT false, max_events bigint DEFAULT NULL,
    OUT events bigint, OUT already bigint, OUT remaining bigint, OUT waiting bigint, OUT partitions text[]
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM seqline.check_redaction(reason);
    IF coalesce(resource_kind, '') = '' OR coalesce(resource_id, '') = '' THEN
        PERFORM seqline.refuse_redaction('redact_resource', 'the kind or the id of the resource is missing',
            'Give both. Events without an id of a resource are redacted one by one.');
    ELSIF max_events < 1 THEN
        PERFORM seqline.refuse_redaction('redact_resource', 'max_events is less than 1', 'Leave it out to redact all.');
    END IF;
    SELECT r.events, r.already, r.remaining, r.waiting, r.partitions INTO events, already, remaining, waiting, partitions
    FROM seqline.redact_found(resource_kind || '/' || resource_id, NULL, NULL, NULL, resource_kind, resource_id, reason,
        dry_run IS NOT FALSE, max_events) r;
END
$$;

REVOKE ALL ON FUNCTION
    seqline.vacuum_soon(text), seqline.sample_no_payloads(text), seqline.is_redaction_notice(jsonb), seqline.refuse_redaction(text, text, text),
    seqline.check_redaction(text), seqline.staged_for(uuid, text, text),
    seqline.redact_next(bigint, bigint, uuid, text, text, bigint, boolean), seqline.append_redaction_notices(seqline.event_log[]),
    seqline.count_redactable(text, uuid, text, text),
    seqline.redact_found(text, bigint, bigint, uuid, text, text, text, boolean, bigint), seqline.redact(uuid, text, boolean),
    seqline.redact_resource(text, text, text, boolean, bigint)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION seqline.redact(uuid, text, boolean), seqline.redact_resource(text, text, text, boolean, bigint) TO seqline_app;
