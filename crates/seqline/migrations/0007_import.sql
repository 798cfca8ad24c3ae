-- How far an import of a file has come. A range of lines is recorded in the transaction that appends its
-- events, so an import that was interrupted at any moment goes on without losing or repeating a line.
CREATE TABLE seqline.imports (
    name text PRIMARY KEY CHECK (name <> '' AND length(name) <= 512),
    -- The beginning of the input, to notice another file under the same name. It grows with the input, up to a limit.
    head_bytes integer NOT NULL,
    head_sha256 text NOT NULL,
    -- The run that may go on. Each run takes over with an id of its own, and waits for the transactions of the one before.
    run_id uuid NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE seqline.import_ranges (
    name text NOT NULL REFERENCES seqline.imports ON DELETE CASCADE,
    first_line bigint NOT NULL,
    last_line bigint NOT NULL CHECK (last_line >= first_line),
    imported bigint NOT NULL,
    rejected bigint NOT NULL,
    PRIMARY KEY (name, first_line)
);

GRANT SELECT, INSERT, DELETE ON seqline.imports, seqline.import_ranges TO seqline_app;
GRANT UPDATE (run_id, head_bytes, head_sha256) ON seqline.imports TO seqline_app;
