-- Requests that append over HTTP and can be repeated: a key that the client chose, kept in the transaction that appends its events. So
-- whoever lost the answer asks again and gets it, and nothing is appended twice.

CREATE TABLE seqline.idempotency_keys (
    -- Whose key it is. No reference: a row of the principal would be locked by each request.
    principal_id text NOT NULL CHECK (length(principal_id) BETWEEN 1 AND 128),
    key text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    -- SHA-256 of the request, by which another one with the same key is told from the same one.
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    -- What was appended, in the order of the request.
    event_ids uuid[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (principal_id, key)
);
CREATE INDEX idempotency_keys_created_at_idx ON seqline.idempotency_keys (created_at);

GRANT SELECT, INSERT, UPDATE, DELETE ON seqline.idempotency_keys TO seqline_app;
