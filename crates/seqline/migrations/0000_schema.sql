-- The schema and its version table. Nothing here touches the application's own migration tables.
CREATE SCHEMA seqline AUTHORIZATION seqline_owner;
SET LOCAL ROLE seqline_owner;
CREATE TABLE seqline.schema_version (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    applied_by text NOT NULL DEFAULT session_user
);
