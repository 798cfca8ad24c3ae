-- Who may do what. Nobody but the owner writes the log, and nobody has DDL rights.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA seqline FROM PUBLIC;

GRANT USAGE ON SCHEMA seqline TO seqline_app, seqline_producer, seqline_reader, seqline_consumer;

-- A producer may append and nothing else.
GRANT EXECUTE ON FUNCTION
    seqline.append(text, jsonb, text, text, text, bigint, text, text, text, text, text, text, integer, text, uuid,
        boolean, text),
    seqline.append_batch(jsonb),
    seqline.without_nulls(jsonb)
TO seqline_producer, seqline_app;

-- A reader may read the log and nothing else.
GRANT SELECT ON seqline.event_log, seqline.log_identity TO seqline_reader, seqline_app;
GRANT EXECUTE ON FUNCTION seqline.head(), seqline.min_retained(), seqline.seq_of(uuid)
TO seqline_reader, seqline_app;

-- The server also maintains partitions and reports on the log.
GRANT SELECT ON seqline.settings, seqline.log_bounds, seqline.schema_version TO seqline_app;
GRANT EXECUTE ON FUNCTION
    seqline.event_log_partitions(),
    seqline.sync_event_log_ensure_partitions(bigint, integer, bigint),
    seqline.sync_event_log_close_partition(timestamptz, interval),
    seqline.sync_event_log_drop_expired(timestamptz, bigint, interval)
TO seqline_app;
