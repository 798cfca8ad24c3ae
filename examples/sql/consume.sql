-- Counts the events of each type, each event exactly once, in a table of your own.
--
--     psql "$SEQLINE_DATABASE_URL" -v ON_ERROR_STOP=1 -f examples/sql/consume.sql
--
-- It is one round: run it as often as you like, from as many places as you like. The login needs the right to make the
-- table and the role seqline_consumer.

CREATE TABLE IF NOT EXISTS event_counts (
    type text PRIMARY KEY,
    events bigint NOT NULL
);

-- From the oldest event that the log still has. A consumer that exists stays where it is.
SELECT seqline.register_consumer('event_counts', 'oldest');

BEGIN;
-- The call moves the cursor behind everything that it returns, so leave nothing out around it: no LIMIT, and no WHERE
-- for what you still want to have.
WITH events AS (
    SELECT * FROM seqline.poll('event_counts', 1000)
)
INSERT INTO event_counts AS c (type, events)
SELECT type, count(*) FROM events GROUP BY type
ON CONFLICT (type) DO UPDATE SET events = c.events + excluded.events;
COMMIT;
