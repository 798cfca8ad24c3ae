"""Events of Seqline for an agent: every one, in order, at least once.

    agent = Agent("https://events.example.com", token, consumer="invoices")
    await agent.run(handle, on_resync=load_everything_anew)
"""

from .agent import Agent, Backoff, Clock, Options
from .errors import (
    AlreadyIdentified,
    ConsumerReplaced,
    FrameTooLarge,
    InvalidFrame,
    Refused,
    ResyncRequired,
    SeqlineError,
    SessionReplaced,
    Unauthenticated,
)

__all__ = [
    "Agent",
    "AlreadyIdentified",
    "Backoff",
    "Clock",
    "ConsumerReplaced",
    "FrameTooLarge",
    "InvalidFrame",
    "Options",
    "Refused",
    "ResyncRequired",
    "SeqlineError",
    "SessionReplaced",
    "Unauthenticated",
]
