-- Numbering after commit: events wait in a logged table, in the order in which their transactions came to their end, until a
-- sequencer gives them their numbers. And what both ways to number have in common from now on.

ALTER TABLE seqline.settings
    -- When events get their numbers: inside COMMIT, or soon after it by the sequencer.
    ADD COLUMN sequencing text NOT NULL DEFAULT 'at_commit' CHECK (sequencing IN ('at_commit', 'after_commit')),
    -- How often that was changed. A transaction that goes by an older value than it thinks is found out by it.
    ADD COLUMN sequencing_changes bigint NOT NULL DEFAULT 0,
    -- Whether events may wait for the sequencer: until a change to at_commit is complete they may, and whoever numbers inside COMMIT
    -- numbers them first.
    ADD COLUMN staging_open boolean NOT NULL DEFAULT false,
    -- What tells listeners that there are new events: the transaction that numbers them, whoever has committed, or nobody.
    ADD COLUMN notification text NOT NULL DEFAULT 'in_transaction'
        CHECK (notification IN ('in_transaction', 'after_commit', 'off')),
    -- Appends are refused when so many transactions wait for the sequencer: it has not run for long, and the disk is finite.
    ADD COLUMN staged_transactions_max bigint NOT NULL DEFAULT 1000000
        CHECK (staged_transactions_max BETWEEN 1 AND 1000000000);

-- An id that the caller chose is staged in seqline.staged_events, whose index lets only one transaction have it, so nothing
-- about it is left to find out under the numbering lock.
ALTER TABLE seqline.pending_events
    DROP COLUMN id_checked_at,
    ADD COLUMN occurred_at timestamptz NOT NULL DEFAULT now();

-- Events that have no number yet and outlive their transaction. Logged, because it has committed. The same columns in the same
-- order as pending_events, from which rows are moved, and to which.
CREATE TABLE seqline.staged_events (
    xid xid8 NOT NULL,
    ord bigint NOT NULL DEFAULT nextval('seqline.pending_events_ord_seq'),
    id uuid NOT NULL,
    type text NOT NULL,
    schema_version integer NOT NULL,
    actor_kind text,
    actor_principal_id text,
    space_id text,
    channel_id text,
    thread_id text,
    resource_kind text NOT NULL,
    resource_id text,
    resource_version bigint,
    audience_principal_id text,
    receive_action text NOT NULL,
    payload jsonb NOT NULL,
    truncated boolean NOT NULL,
    client_msg_id text,
    correlation_id uuid,
    trace_context text,
    occurred_at timestamptz NOT NULL DEFAULT now(),
    -- Whether the caller chose the id.
    id_is_callers boolean NOT NULL DEFAULT false,
    CONSTRAINT staged_events_pkey PRIMARY KEY (xid, ord)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX staged_events_callers_id_key ON seqline.staged_events (id) WHERE id_is_callers;

-- Numbers the transactions in the order in which they came to their last pass inside COMMIT. Whoever has read or waited for what
-- another has done comes there after it.
CREATE SEQUENCE seqline.commit_order AS bigint;

-- The transactions whose events wait. A row is in here from the COMMIT of its transaction until its events are numbered. Whoever adds
-- one holds a lock on the table until it has ended, prepared or not: so who gets that lock in EXCLUSIVE mode knows that none is under way.
CREATE TABLE seqline.staged_transactions (
    n bigint NOT NULL,
    xid xid8 NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Whether it has events in seqline.staged_events. When it has only the one that the marker carried, that is here.
    in_staged boolean NOT NULL DEFAULT false,
    ord bigint,
    id uuid,
    type text,
    schema_version integer,
    actor_kind text,
    actor_principal_id text,
    space_id text,
    channel_id text,
    thread_id text,
    resource_kind text,
    resource_id text,
    resource_version bigint,
    audience_principal_id text,
    receive_action text,
    payload jsonb,
    truncated boolean,
    client_msg_id text,
    correlation_id uuid,
    trace_context text,
    CONSTRAINT staged_transactions_pkey PRIMARY KEY (n),
    CONSTRAINT staged_transactions_xid_key UNIQUE (xid)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_cost_delay = 0);

-- The value of sequencing_changes at which staging was closed last. A sequence, because a transaction with an old snapshot has to
-- see it too.
CREATE SEQUENCE seqline.staging_closed_at AS bigint MINVALUE 0 START 0;

-- How far the sequencer has come, as it says now and then: all numbers of commit_order up to `high` are done with, except those that are
-- `missing`, which belong to transactions that have not come to their end. Not with every batch, so that few dead versions come of it.
CREATE TABLE seqline.sequencer_progress (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    high bigint NOT NULL DEFAULT 0,
    missing bigint[] NOT NULL DEFAULT '{}'
);
INSERT INTO seqline.sequencer_progress DEFAULT VALUES;
-- How many those are that are done with. A sequence, so that every append can look at it, also with an old snapshot.
CREATE SEQUENCE seqline.staging_done AS bigint MINVALUE 0 START 0;

-- Which process sequences. It keeps others from doing the same work; that nothing is numbered twice does not depend on it.
CREATE TABLE seqline.sequencer_lease (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    holder uuid,
    expires_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO seqline.sequencer_lease DEFAULT VALUES;

-- Tells what was before a crash from what is after it. Unlogged, so a crash empties it, also one after which the server goes on without
-- being started again; whoever finds it empty adds another value.
CREATE UNLOGGED TABLE seqline.incarnation (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO seqline.incarnation DEFAULT VALUES;

-- The marker of a transaction carries the first event that it appended, when that was one by itself: most transactions have no other, and
-- need no other row. And it says in which tables to look for more.
ALTER TABLE seqline.pending_transactions
    ADD COLUMN in_pending boolean NOT NULL DEFAULT false,
    ADD COLUMN in_staged boolean NOT NULL DEFAULT false,
    ADD COLUMN ord bigint,
    ADD COLUMN id uuid,
    ADD COLUMN type text,
    ADD COLUMN schema_version integer,
    ADD COLUMN actor_kind text,
    ADD COLUMN actor_principal_id text,
    ADD COLUMN space_id text,
    ADD COLUMN channel_id text,
    ADD COLUMN thread_id text,
    ADD COLUMN resource_kind text,
    ADD COLUMN resource_id text,
    ADD COLUMN resource_version bigint,
    ADD COLUMN audience_principal_id text,
    ADD COLUMN receive_action text,
    ADD COLUMN payload jsonb,
    ADD COLUMN truncated boolean,
    ADD COLUMN client_msg_id text,
    ADD COLUMN correlation_id uuid,
    ADD COLUMN trace_context text;

ALTER TABLE seqline.log_bounds
    ADD COLUMN head_ceiling bigint NOT NULL DEFAULT 1;  -- upper bound of the partition that held the head

-- By the server's own function where it has one, from PostgreSQL 18 on: one call in place of ten.
DO $do$
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        EXECUTE 'CREATE OR REPLACE FUNCTION seqline.uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE RETURN pg_catalog.uuidv7()';
    ELSE
        -- The random UUID is version 4; two more bits make it 7.
        EXECUTE $create$
            CREATE OR REPLACE FUNCTION seqline.uuid_v7() RETURNS uuid
            LANGUAGE plpgsql VOLATILE
            SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                RETURN encode(
                    set_bit(set_bit(
                        overlay(uuid_send(gen_random_uuid())
                            PLACING substr(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 3) FROM 1 FOR 6),
                        52, 1), 53, 1),
                    'hex')::uuid;
            END
            $$
        $create$;
    END IF;
END
$do$;

-- Two functions about the partition that held the head when that was looked at last. refresh_log_bounds writes their bodies anew for each
-- such partition, with its name and bounds: so each session plans them once. Planning is most of what it costs to look into a table whose name is
-- made up each time. Before there are partitions they find nothing.
--
-- The head, when it is in that partition and not at its end; NULL otherwise.
CREATE FUNCTION seqline.head_in_partition() RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN NULL;
END
$$;

-- Gives the next number to the event that a marker carries, and returns it; NULL and nothing done when the number belongs elsewhere, or events
-- that are staged may have to come first. Under the numbering lock. All in one statement, which begins when the lock is there.
CREATE FUNCTION seqline.number_in_partition(p_event seqline.pending_transactions, p_notify boolean) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION seqline.head() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_floor bigint;
    v_ceiling bigint;
    v_from bigint;
    v_length bigint;
    v_seq bigint;
BEGIN
    SELECT head_floor, head_ceiling INTO v_floor, v_ceiling FROM seqline.log_bounds;
    BEGIN
        v_seq := seqline.head_in_partition();
        -- The bounds are of this snapshot, the function need not be.
        IF v_seq < v_ceiling - 1 THEN
            RETURN v_seq;
        END IF;
    EXCEPTION WHEN undefined_table THEN
        NULL;  -- a retention that this snapshot does not see yet was faster
    END;
    v_from := v_floor;
    v_length := (SELECT event_log_partition_size FROM seqline.settings);
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

CREATE OR REPLACE FUNCTION seqline.refresh_log_bounds() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head bigint := seqline.head();
    v_new seqline.log_bounds;
    v_old seqline.log_bounds;
BEGIN
    SELECT true, min(p.lower_bound), min(p.upper_bound),
           coalesce(max(p.lower_bound) FILTER (WHERE p.lower_bound <= v_head), min(p.lower_bound)),
           max(p.upper_bound),
           coalesce(max(p.upper_bound) FILTER (WHERE p.lower_bound <= v_head), min(p.upper_bound))
    INTO v_new
    FROM seqline.event_log_partitions() p;
    SELECT * INTO v_old FROM seqline.log_bounds;
    UPDATE seqline.log_bounds b
    SET retained_floor = v_new.retained_floor, retained_ceiling = v_new.retained_ceiling,
        head_floor = v_new.head_floor, upper_bound = v_new.upper_bound, head_ceiling = v_new.head_ceiling
    WHERE b IS DISTINCT FROM v_new AND v_new.upper_bound IS NOT NULL;
    IF FOUND AND (v_old.head_floor, v_old.head_ceiling) IS DISTINCT FROM (v_new.head_floor, v_new.head_ceiling) THEN
        PERFORM seqline.write_partition_functions(
            'event_log_from_' || lpad(v_new.head_floor::text, 19, '0'), v_new.head_ceiling);
    END IF;
END
$$;

CREATE FUNCTION seqline.write_partition_functions(p_partition text, p_ceiling bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format($create$
        CREATE OR REPLACE FUNCTION seqline.head_in_partition() RETURNS bigint
        LANGUAGE plpgsql STABLE
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            v_seq bigint;
        BEGIN
            SELECT l.seq INTO v_seq FROM seqline.%1$I l ORDER BY l.seq DESC LIMIT 1;
            RETURN CASE WHEN v_seq < %2$s - 1 THEN v_seq END;
        END
        $body$;

        CREATE OR REPLACE FUNCTION seqline.number_in_partition(p_event seqline.pending_transactions, p_notify boolean) RETURNS bigint
        LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            v_seq bigint;
            v_told text;
        BEGIN
            IF to_regclass('seqline.%1$I') IS NULL THEN
                RETURN NULL;  -- somebody has dropped it by hand
            END IF;
            -- Into the log and not into the table by its name: that may be no partition any more.
            INSERT INTO seqline.event_log AS l (
                seq, permission_version, occurred_at, id, type, schema_version, actor_kind, actor_principal_id, space_id, channel_id, thread_id, resource_kind,
                resource_id, resource_version, audience_principal_id, receive_action, payload, truncated, client_msg_id, correlation_id, trace_context)
            SELECT
                h.seq + 1, c.value, p_event.started_at, p_event.id, p_event.type, p_event.schema_version, p_event.actor_kind, p_event.actor_principal_id,
                p_event.space_id, p_event.channel_id, p_event.thread_id, p_event.resource_kind, p_event.resource_id,
                p_event.resource_version, p_event.audience_principal_id, p_event.receive_action, p_event.payload,
                p_event.truncated, p_event.client_msg_id, p_event.correlation_id, p_event.trace_context
            FROM (SELECT l.seq FROM seqline.%1$I l ORDER BY l.seq DESC LIMIT 1) h, seqline.sequence_counters c, seqline.settings s
            WHERE h.seq < %2$s - 1 AND c.name = 'permission_version' AND NOT s.staging_open
            RETURNING l.seq, CASE WHEN p_notify THEN pg_notify('event_log', l.seq::text) END INTO v_seq, v_told;
            RETURN v_seq;
        END
        $body$
    $create$, p_partition, p_ceiling);
END
$$;
-- Written by the first that finds the bounds changed, which they are.
UPDATE seqline.log_bounds SET head_ceiling = 0;
SELECT seqline.refresh_log_bounds();

-- What every appended event has been checked for already, by the only functions that can write the log. Each check is parsed anew for each
-- statement that inserts, and numbering does that with the lock in hand. The rules that keep events from the wrong receivers stay.
ALTER TABLE seqline.event_log
    DROP CONSTRAINT event_log_type_check,
    DROP CONSTRAINT event_log_schema_version_check,
    DROP CONSTRAINT event_log_resource_kind_check,
    DROP CONSTRAINT event_log_receive_action_check,
    DROP CONSTRAINT event_log_payload_check;
