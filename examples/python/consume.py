#!/usr/bin/env python3
"""Keeps a table of what each customer has paid, from the events of the log.

    export SEQLINE_DATABASE_URL=postgres://...
    python3 consume.py          # follow the log until Ctrl-C
    python3 consume.py --once   # handle what is there, then end

A round is one transaction: it polls, writes, and commits. The events and what was made of them are committed
together, so each counts exactly once, with any number of these programs, whenever one of them is killed.

Needs psycopg 3.2 or newer, and a login with the role seqline_consumer that may create a table.
"""

import argparse
import os
import random
import signal
import sys
import time

import psycopg

CONSUMER = "customer_totals"
MAX_EVENTS = 500
POLL_INTERVAL = 2.0  # seconds; how long an event can wait when its notification gets lost
PAUSE_MIN, PAUSE_MAX = 0.2, 30.0  # seconds between attempts after a failure

TABLE = """
    CREATE TABLE IF NOT EXISTS customer_totals (
        customer text PRIMARY KEY,
        orders bigint NOT NULL,
        amount bigint NOT NULL
    )
"""

ADD = """
    INSERT INTO customer_totals AS t (customer, orders, amount) VALUES (%s, 1, %s)
    ON CONFLICT (customer) DO UPDATE SET orders = t.orders + 1, amount = t.amount + excluded.amount
"""


def one_round(connection):
    """Handles the next events and returns how many there were."""
    with connection.transaction():
        events = connection.execute(
            "SELECT type, payload FROM seqline.poll(%s, %s)", (CONSUMER, MAX_EVENTS)
        ).fetchall()
        for event_type, payload in events:
            if event_type == "order.paid":
                connection.execute(ADD, (payload["customer"], payload["amount"]))
    return len(events)


def prepare(connection):
    """Makes the table and the consumer. Where they are, nothing changes."""
    connection.execute(TABLE)
    connection.execute("SELECT seqline.register_consumer(%s, 'oldest')", (CONSUMER,))


def work(connection, once):
    """Rounds for as long as the connection lasts, or until there is nothing new."""
    # Before the first round, so that no commit falls in between. It needs a connection to the server itself: behind a
    # pooler nothing is heard, and events wait for the poll interval.
    connection.execute("LISTEN event_log")
    while True:
        handled = one_round(connection)
        if handled > 0:
            yield handled
        elif once:
            return
        else:
            # Ends with the first notification, or when the time is up.
            for _ in connection.notifies(timeout=POLL_INTERVAL, stop_after=1):
                pass


def message(error):
    """What happened, without values, which can be those of an event."""
    if isinstance(error, (psycopg.DataError, psycopg.IntegrityError)):
        return f"{type(error).__name__} (SQLSTATE {error.sqlstate})"
    return error.diag.message_primary or str(error).strip()


def run(url, once):
    prepared, pause = False, PAUSE_MIN
    while True:
        try:
            # Autocommit, so that a transaction begins where one_round says it and nowhere else.
            with psycopg.connect(url, autocommit=True, application_name=CONSUMER) as connection:
                if not prepared:
                    prepare(connection)
                    prepared = True
                for handled in work(connection, once):
                    print(f"handled {handled} events", flush=True)
                    pause = PAUSE_MIN
                return
        except psycopg.OperationalError as error:
            # A connection that broke, a conflict with another transaction (40001, 40P01), a server that restarts: the
            # round was rolled back or its commit is unknown, and either way the next one goes on where the cursor is.
            # All other errors end the program: somebody has to look.
            if not prepared:
                raise
            print(f"{message(error)} (again in {pause:.1f} s)", file=sys.stderr, flush=True)
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, PAUSE_MAX)


def main():
    parser = argparse.ArgumentParser(description="Keeps a table of what each customer has paid.")
    parser.add_argument("--once", action="store_true", help="handle what is there, then end")
    once = parser.parse_args().once
    url = os.environ.get("SEQLINE_DATABASE_URL")
    if not url:
        parser.error("set SEQLINE_DATABASE_URL")
    # What a supervisor sends is treated like Ctrl-C: a round that runs is rolled back and comes again.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(url, once)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    except psycopg.Error as error:
        sys.exit(f"error: {message(error)}")


if __name__ == "__main__":
    main()
