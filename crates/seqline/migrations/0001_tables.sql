-- The tables of the log. Nobody but seqline_owner can write any of them: applications go through
-- seqline.append and seqline.append_batch, readers select from seqline.event_log.

-- What SQL itself enforces. One row. Limits of a process are in its own configuration, not here.
CREATE TABLE seqline.settings (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    -- An event is a fact, not a file: large bodies belong in the application's own storage.
    event_payload_max_bytes integer NOT NULL DEFAULT 65536
        CHECK (event_payload_max_bytes BETWEEN 2 AND 16777216),
    -- One call is held in memory as a whole.
    append_batch_max_events integer NOT NULL DEFAULT 10000
        CHECK (append_batch_max_events BETWEEN 1 AND 100000),
    event_log_partition_size bigint NOT NULL DEFAULT 1000000
        CHECK (event_log_partition_size BETWEEN 1 AND 1000000000000),
    -- Appends stop when no partition is left, so there is always more than one in hand.
    event_log_partitions_ahead integer NOT NULL DEFAULT 2
        CHECK (event_log_partitions_ahead BETWEEN 1 AND 300),
    -- statement_timeout does not apply inside COMMIT, lock_timeout does: this is the bound of the wait
    -- for the numbering lock.
    numbering_lock_timeout_ms integer NOT NULL DEFAULT 5000
        CHECK (numbering_lock_timeout_ms BETWEEN 1 AND 600000)
);
INSERT INTO seqline.settings DEFAULT VALUES;

-- Which history a number belongs to. A database that is copied or restored keeps its row and differs
-- in the facts about the server, which is how it is noticed.
CREATE TABLE seqline.log_identity (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    log_id uuid NOT NULL DEFAULT gen_random_uuid(),
    epoch uuid NOT NULL DEFAULT gen_random_uuid(),
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    database_oid oid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO seqline.log_identity (system_identifier, timeline, database_oid)
SELECT s.system_identifier, c.timeline_id, d.oid
FROM pg_control_system() s, pg_control_checkpoint() c, pg_database d
WHERE d.datname = current_database();

-- There is deliberately no row for the sequence number: a row that every append updates collects dead
-- versions while any snapshot is held, and appends slow down with it.
CREATE TABLE seqline.sequence_counters (
    name text PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO seqline.sequence_counters (name, value) VALUES ('permission_version', 0);

-- Locked, never filled: holding it in EXCLUSIVE mode is the right to hand out the next numbers. A table
-- of the owner and not an advisory lock, because any role can take an advisory lock.
CREATE TABLE seqline.numbering ();

-- Hints that keep reads of the two ends of the log from touching every partition. Maintenance writes
-- them; whoever reads them copes with stale ones.
CREATE TABLE seqline.log_bounds (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    retained_floor bigint NOT NULL DEFAULT 1,    -- lower bound of the oldest partition
    retained_ceiling bigint NOT NULL DEFAULT 1,  -- its upper bound
    head_floor bigint NOT NULL DEFAULT 1,        -- lower bound of the partition that held the head
    upper_bound bigint NOT NULL DEFAULT 1        -- upper bound of the newest partition
);
INSERT INTO seqline.log_bounds DEFAULT VALUES;

CREATE TABLE seqline.event_log (
    seq bigint NOT NULL,
    id uuid NOT NULL,
    type text NOT NULL,
    schema_version integer NOT NULL,
    -- The start of the appending transaction: not monotonic in seq, so never order or page by it.
    occurred_at timestamptz NOT NULL DEFAULT now(),
    permission_version bigint NOT NULL,
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
    truncated boolean NOT NULL DEFAULT false,
    client_msg_id text,
    correlation_id uuid,
    trace_context text,
    redacted_at timestamptz,
    CONSTRAINT event_log_pkey PRIMARY KEY (seq),
    -- A look-up index. It cannot make id unique on its own, because it has to contain the partition key.
    CONSTRAINT event_log_id_seq_key UNIQUE (id, seq),
    CONSTRAINT event_log_type_check CHECK (type ~ '^[a-z][a-z_]*([.][a-z][a-z_]*)+$'),
    CONSTRAINT event_log_schema_version_check CHECK (schema_version >= 1),
    CONSTRAINT event_log_resource_kind_check CHECK (resource_kind <> ''),
    CONSTRAINT event_log_receive_action_check CHECK (receive_action <> ''),
    CONSTRAINT event_log_payload_check CHECK (jsonb_typeof(payload) = 'object'),
    CONSTRAINT event_log_actor_kind_check CHECK (actor_kind IN ('user', 'agent', 'app', 'system')),
    -- COALESCE, because a check that yields NULL passes.
    CONSTRAINT event_log_actor_principal_check
        CHECK (coalesce(actor_kind IN ('user', 'agent', 'app'), false) = (actor_principal_id IS NOT NULL)),
    CONSTRAINT event_log_self_audience_check
        CHECK (receive_action <> 'self' OR audience_principal_id IS NOT NULL)
) PARTITION BY RANGE (seq);

CREATE INDEX event_log_channel_id_seq_idx ON seqline.event_log (channel_id, seq);
CREATE INDEX event_log_space_id_seq_idx ON seqline.event_log (space_id, seq);
CREATE INDEX event_log_audience_principal_id_seq_idx ON seqline.event_log (audience_principal_id, seq)
    WHERE audience_principal_id IS NOT NULL;
CREATE INDEX event_log_resource_idx ON seqline.event_log (resource_kind, resource_id);
CREATE INDEX event_log_occurred_at_idx ON seqline.event_log USING brin (occurred_at);

-- Events that were appended but have no number yet: they live exactly as long as their transaction.
-- UNLOGGED, because a crash ends every transaction whose rows could be in here.
CREATE UNLOGGED TABLE seqline.pending_events (
    xid xid8 NOT NULL,
    ord bigint GENERATED ALWAYS AS IDENTITY,
    id uuid NOT NULL,
    -- The head when a caller-supplied id was looked up in the log and not found; NULL for generated ids.
    id_checked_at bigint,
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
    CONSTRAINT pending_events_pkey PRIMARY KEY (xid, ord)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- One row for each transaction that appended. The deferred trigger on it does the numbering.
CREATE UNLOGGED TABLE seqline.pending_transactions (
    xid xid8 NOT NULL,
    -- Transaction ids repeat after a logical restore; with the start time a leftover row is recognised.
    started_at timestamptz NOT NULL DEFAULT now(),
    pass integer NOT NULL DEFAULT 0,
    CONSTRAINT pending_transactions_pkey PRIMARY KEY (xid)
) WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 10000);
