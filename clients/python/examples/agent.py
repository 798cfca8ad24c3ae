#!/usr/bin/env python3
"""Prints the seq and the type of each event.

    export SEQLINE_URL=http://127.0.0.1:8090 SEQLINE_TOKEN=...
    python3 agent.py invoices    # the name of the consumer; without one: default

Ends in order at Ctrl-C or SIGTERM.
"""

import asyncio
import logging
import os
import signal
import sys

from seqline_agent import Agent, SeqlineError


async def handle(event):
    print(event["seq"], event["type"], flush=True)


async def reload(lost):
    print("lost", lost["reason"], lost["position"], flush=True)


async def main():
    agent = Agent(os.environ["SEQLINE_URL"], os.environ["SEQLINE_TOKEN"], *sys.argv[1:2])
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, agent.stop)
    await agent.run(handle, on_resync=reload)


logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
try:
    asyncio.run(main())
except SeqlineError as error:
    sys.exit(f"{type(error).__name__}: {error}")
