"""What a session gave to an agent, and what of it is done."""

import asyncio
from collections import deque
from typing import Any, NamedTuple


class Item(NamedTuple):
    position: str  # acknowledged when it is done
    event: dict[str, Any] | None
    resync: dict[str, Any] | None
    size: int


class Session:
    """What was given and what of it is done. It is forgotten as a whole: what one session gave is never acknowledged in another."""

    def __init__(self, id: str | None, acked: str, events_max: int, bytes_max: int):
        self.id, self.acked, self.done = id, acked, acked
        self.epoch, self.received = acked.split(":")[0], seq_of(acked)
        self.events_max, self.bytes_max = max(events_max, 1), max(bytes_max, 1)
        self.waiting: deque[Item] = deque()
        self.lost: str | None = None  # where it went on after the last loss that it was told of
        self.knows: str | None = None  # the same, when `on_resync` has returned
        self.events = self.bytes = 0  # done since something was acknowledged
        self.drained = asyncio.Event()

    def add(self, event: dict[str, Any], size: int) -> None:
        seq = event["seq"]
        if seq > self.received:
            self.received = seq
            self._append(Item(f"{self.epoch}:{seq}", event, None, size))
        elif seq <= seq_of(self.done):
            self.acked = ""  # it is done, and came again: the acknowledgement was lost

    def lose(self, resync: dict[str, Any] | None) -> None:
        if resync is None:
            return
        position = resync["position"]
        if position != self.lost:
            self.lost, self.received = position, seq_of(position)
            self._append(Item(position, None, resync, 0))
        elif position == self.knows:
            self.acked = ""

    def _append(self, item: Item) -> None:
        # What is waiting is in flight, which is one window, or was before events were lost.
        if len(self.waiting) > 2 * self.events_max:
            raise ValueError("more than the server's window")
        self.waiting.append(item)

    def finish(self, item: Item) -> None:
        self.done = item.position
        if item.resync is not None:
            self.knows = item.position
            self.acked = ""  # the server may be there already, and waits to hear that the agent knows
        self.events, self.bytes = self.events + 1, self.bytes + item.size
        if not self.waiting:
            self.drained.set()


def seq_of(position: str) -> int:
    return int(position.split(":")[1])
