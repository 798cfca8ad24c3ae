-- What has to be done once per interval, however many processes could do it. The time is the database's, so clocks of
-- the processes may differ.
CREATE TABLE seqline.periodic_tasks (
    name text PRIMARY KEY,
    started_at timestamptz NOT NULL,
    -- NULL while it runs, and for ever if whoever ran it died.
    finished_at timestamptz
);
GRANT SELECT, INSERT, UPDATE ON seqline.periodic_tasks TO seqline_app;
