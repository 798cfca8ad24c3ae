#!/usr/bin/env python3
"""Hands a job to River for each order that is paid: the example jobs.rs, for those who do not write Rust.

    export SEQLINE_DATABASE_URL=postgres://...
    python3 jobs.py                  # until Ctrl-C
    python3 jobs.py --once           # the orders that are there, then end
    python3 jobs.py --schema queue   # River's tables are in the schema queue and not in public

River has no client in Python, and needs none to be given a job: that is a row. It is written in the transaction that
polls the event, so each event gets its job exactly once, whenever one of these programs is killed. Any client of River
then works it, such as `cargo run -p seqline --example jobs -- work`, which also brings up River's tables.

Needs psycopg 3.2 or newer, and a login with the role seqline_consumer that may insert jobs:

    GRANT USAGE ON SCHEMA public TO shop;
    GRANT SELECT, INSERT ON river_job TO shop;
    GRANT USAGE ON SEQUENCE river_job_id_seq TO shop;
"""

import argparse
import os
import signal
import sys

import psycopg
from psycopg import sql

CONSUMER = "invoice_mails"
QUEUE = "mail"
MAX_EVENTS = 500
POLL_INTERVAL = 2.0  # seconds; how long an event can wait when its notification gets lost

# All rows of a round at once, as River's clients write them (since version 6 of its schema). The columns that are left
# out have the right defaults: a job is available at once, with priority 1. The metadata is what Seqline's own sink
# writes: the event can be found from the job, and its id tells a job that runs twice. Arguments are ids, not data.
HAND_OVER = """
    WITH events AS (
        SELECT * FROM seqline.poll(%(consumer)s, %(max_events)s)
    ), jobs AS (
        INSERT INTO {schema}.river_job (kind, queue, args, metadata, max_attempts)
        SELECT 'invoice.send', %(queue)s, jsonb_build_object('order_id', resource_id),
            jsonb_strip_nulls(jsonb_build_object(
                'seqline:seq', seq, 'seqline:event_id', id, 'seqline:correlation_id', correlation_id)), 25
        FROM events WHERE type = 'order.paid' AND resource_id IS NOT NULL ORDER BY seq
        RETURNING id
    )
    SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM jobs)
"""


def one_round(connection, schema):
    """Hands over the jobs of the next events, and returns how many events and jobs there were."""
    parameters = {"consumer": CONSUMER, "max_events": MAX_EVENTS, "queue": QUEUE}
    with connection.transaction():
        statement = sql.SQL(HAND_OVER).format(schema=sql.Identifier(schema))
        events, jobs = connection.execute(statement, parameters).fetchone()
        if jobs > 0:
            # Sent with the commit. A worker that waits begins at once and not when it looks the next time.
            announcement = (f"{schema}.river_insert", f'{{"queue": "{QUEUE}"}}')
            connection.execute("SELECT pg_notify(%s, %s)", announcement)
    return events, jobs


def run(url, schema, once):
    # Autocommit, so that a transaction begins where one_round says it and nowhere else.
    with psycopg.connect(url, autocommit=True, application_name=CONSUMER) as connection:
        connection.execute("SELECT seqline.register_consumer(%s, 'oldest')", (CONSUMER,))
        # Before the first round, so that no commit falls in between.
        connection.execute("LISTEN event_log")
        while True:
            events, jobs = one_round(connection, schema)
            if jobs > 0:
                print(f"handed over {jobs} jobs", flush=True)
            if events == 0:
                if once:
                    return
                # Ends with the first notification, or when the time is up.
                for _ in connection.notifies(timeout=POLL_INTERVAL, stop_after=1):
                    pass


def message(error):
    """What happened, without values, which can be those of an event."""
    if isinstance(error, (psycopg.DataError, psycopg.IntegrityError)):
        return f"{type(error).__name__} (SQLSTATE {error.sqlstate})"
    return error.diag.message_primary or str(error).strip()


def main():
    parser = argparse.ArgumentParser(description="Hands a job to River for each order that is paid.")
    parser.add_argument("--once", action="store_true", help="hand over what is there, then end")
    parser.add_argument("--schema", default="public", help="where River's tables are")
    arguments = parser.parse_args()
    url = os.environ.get("SEQLINE_DATABASE_URL")
    if not url:
        parser.error("set SEQLINE_DATABASE_URL")
    # What a supervisor sends is treated like Ctrl-C: a round that runs is rolled back and comes again.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(url, arguments.schema, arguments.once)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    except psycopg.Error as error:
        # Whatever it was, a supervisor may start this program again: it goes on where the cursor is. consume.py shows how a
        # program goes on by itself after a lost connection.
        sys.exit(f"error: {message(error)}")


if __name__ == "__main__":
    main()
