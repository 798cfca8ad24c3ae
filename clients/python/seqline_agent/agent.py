"""An agent: its connection, what it was given, and what of that is done.

Three tasks do it. `_link` keeps a connection, or asks over HTTP where WebSockets do not get through, and puts events into the session. `_work`
hands them out, one after the other, and `_acknowledge` acknowledges. The server never gives more than its window, so the session is bounded.
"""

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from .errors import (
    AlreadyIdentified,
    ConsumerReplaced,
    FrameTooLarge,
    InvalidFrame,
    Lost,
    Refused,
    ResyncRequired,
    SeqlineError,
    SessionReplaced,
    Unauthenticated,
)
from .rest import Rest, seconds, word
from .session import Session, seq_of

log = logging.getLogger("seqline_agent")
# The library would log every frame, the one with the token too.
websocket_log = logging.getLogger("seqline_agent.websocket")
websocket_log.setLevel(logging.WARNING)

FRAME_BYTES_MAX = 32 * 1024 * 1024  # a payload has 16 MiB at most
AFTER_MAX = 300.0  # seconds; a server that says to come again later than that is asked earlier

# What no new connection mends. Other codes, also those of newer servers, say in the reason what to do.
ENDS: dict[int, type[SeqlineError]] = {
    1009: FrameTooLarge,
    4002: InvalidFrame,
    4005: AlreadyIdentified,
    4012: Unauthenticated,
    4015: ConsumerReplaced,
    4017: SessionReplaced,
}
NOT_RESUMED = (4006, 4010, 4016, 4018)
NO_FRAME = (LookupError, ValueError, TypeError, AttributeError)  # what reading something else than a frame comes to


@dataclass(frozen=True)
class Options:
    ack_events: int = 50  # acknowledge when so many are done; never more than half of the server's window
    ack_seconds: float = 0.2  # or so long after one was done
    connect_seconds: float = 10.0  # for connecting and being let in, together
    backoff_seconds: float = 0.5  # the first pause is at most that, each one after it at most twice as much
    backoff_seconds_max: float = 30.0
    stable_seconds: float = 60.0  # a connection that held for so long makes pauses begin anew
    fallback_after: int = 3  # so many WebSockets that failed in a row, before it asks over HTTP
    websocket_seconds: float = 60.0  # how often it tries a WebSocket then
    poll_seconds: int = 20  # how long a request over HTTP waits for events


class Clock:
    """Time and chance, which tests set."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)
    random = staticmethod(random.random)


class Backoff:
    """How long to wait before coming again: a random part of a time that doubles."""

    def __init__(self, options: Options, chance: Callable[[], float]):
        self._options, self._chance, self._failures = options, chance, 0

    def pause(self, held: float, after: float) -> float:
        """After a connection that held for so many seconds, and a server that said not to come before so many."""
        if held >= self._options.stable_seconds:
            self._failures = 0
        most = min(self._options.backoff_seconds * 2**self._failures, self._options.backoff_seconds_max)
        self._failures = min(self._failures + 1, 30)
        return max(self._chance() * most, min(after, AFTER_MAX))


class Agent:
    """A consumer of the agent that the token belongs to.

    With `take_over=False` it waits while somebody else has the consumer, and never asks over HTTP, which takes it.
    """

    def __init__(
        self,
        url: str,
        token: str,
        consumer: str = "default",
        *,
        take_over: bool = True,
        options: Options = Options(),
        clock: type[Clock] | Clock = Clock,
    ):
        if not re.match(r"https?://[^/?#]", url):
            raise ValueError("the URL of a server begins with http:// or https://")
        self._url, self._token, self._consumer, self._take_over = url.rstrip("/"), token, consumer, take_over
        self._options, self._clock = options, clock
        self._begin()

    def _begin(self) -> None:
        self._backoff = Backoff(self._options, self._clock.random)
        self._rest = Rest(self._url, self._token, self._consumer)
        self._session: Session | None = None
        self._socket: ClientConnection | None = None
        self._generation: int | None = None  # of the consumer: whoever takes it raises that
        self._up_since: float | None = None
        self._asks = False  # over HTTP
        self._failures, self._websocket_at = 0, 0.0
        self._after, self._answered, self._stopping = 0.0, True, False
        self._wake, self._unacked, self._flushing = asyncio.Event(), asyncio.Event(), asyncio.Lock()

    def stop(self) -> None:
        """Lets `run` return when the event in hand is done. To be called in the thread of its loop."""
        self._stopping = True
        self._wake.set()

    async def run(
        self,
        handle: Callable[[dict[str, Any]], Awaitable[None]],
        on_resync: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        """Hands out events until `stop`, or until nothing can be done about what is wrong.

        An event is acknowledged some time after `handle` has returned for it. If that raises, `run` raises the same, and the event comes again
        the next time. `on_resync` is told that events were lost (`reason`, `after`, `position`), and loads what the agent needs anew.
        """
        self._begin()
        link, work = asyncio.create_task(self._link()), asyncio.create_task(self._work(handle, on_resync))
        tasks = [link, asyncio.create_task(self._acknowledge()), work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            await asyncio.wait([work])
            ended = [task for task in tasks if task.done()]
            if link not in ended:
                await self._flush()
                if self._socket is not None:
                    await self._socket.close(1000)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()

    async def _work(self, handle: Any, on_resync: Any) -> None:
        while not self._stopping:
            session = self._session
            if session is None or not session.waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            item = session.waiting.popleft()
            if item.event is not None:
                await handle(item.event)
            elif on_resync is not None:
                await on_resync(item.resync)
            else:
                raise ResyncRequired("events were lost for the consumer, and there is no on_resync")
            session.finish(item)
            most = min(self._options.ack_events, (session.events_max + 1) // 2)
            if session.events >= most or 2 * session.bytes >= session.bytes_max:
                await self._flush()
            else:
                self._unacked.set()

    async def _acknowledge(self) -> None:
        while True:
            await self._unacked.wait()
            await self._clock.sleep(self._options.ack_seconds)
            await self._flush()

    async def _flush(self) -> bool:
        """Acknowledges what is done. What cannot be said now is said when there is a connection again."""
        async with self._flushing:
            self._unacked.clear()
            session, socket = self._session, self._socket
            if session is None or session.acked == session.done:
                return True
            position, session.events, session.bytes = session.done, 0, 0
            try:
                if socket is not None:
                    await socket.send(_frame("ack", position=position))
                elif self._asks:
                    await self._rest.acknowledge(position, self._generation)
                else:
                    return False
            except Lost as lost:
                self._after = lost.after
                return False
            except ConnectionClosed:
                return False  # the link finds out as well
            session.acked = position
            return True

    async def _link(self) -> None:
        """Keeps a connection, until there is an error that no new one mends."""
        while True:
            self._asks = self._falls_back() and self._clock.now() < self._websocket_at
            try:
                await (self._poll() if self._asks else self._converse())
                continue
            except Lost as lost:
                why, after, self._after = str(lost), max(lost.after, self._after), 0.0
            if not self._asks:
                self._websocket_at = self._clock.now() + self._options.websocket_seconds
                if self._falls_back():
                    log.warning("no WebSocket (%s): asking over HTTP", why)
                    continue
            held = 0.0 if self._up_since is None else self._clock.now() - self._up_since
            self._up_since = None
            pause = self._backoff.pause(held, after)
            log.warning("no connection (%s): again in %.1f s", why, pause)
            await self._clock.sleep(pause)

    def _falls_back(self) -> bool:
        return self._take_over and self._failures >= self._options.fallback_after

    async def _converse(self) -> None:
        """One WebSocket, until it is lost."""
        socket, beating = None, None
        self._failures += 1  # until the server has said something
        try:
            async with asyncio.timeout(self._options.connect_seconds):
                socket = await _Connect(
                    "ws" + self._url[4:] + "/v1/gateway",
                    max_size=FRAME_BYTES_MAX,
                    compression=None,
                    logger=websocket_log,
                    open_timeout=None,
                    ping_interval=None,
                    close_timeout=2,
                )
                interval = await self._introduce(socket)
            beating = asyncio.create_task(self._beat(socket, interval))
            async for text in socket:
                self._take(text)
            raise self._end(socket.close_code, socket.close_reason)
        except ConnectionClosed as closed:
            code = 1009 if closed.sent and closed.sent.code == 1009 else closed.rcvd and closed.rcvd.code
            raise self._end(code, closed.rcvd and closed.rcvd.reason) from None
        except InvalidStatus as error:
            status, headers = error.response.status_code, error.response.headers
            raise Lost(f"status {status}", seconds(headers.get("Retry-After"))) from None
        except (OSError, InvalidHandshake) as error:
            raise Lost(type(error).__name__) from None
        except NO_FRAME:
            raise Lost("what came is no frame of the gateway") from None
        finally:
            self._socket = None
            if beating is not None:
                beating.cancel()
            if socket is not None:
                socket.transport.abort()

    async def _introduce(self, socket: ClientConnection) -> float:
        """From `hello` to `ready`. Returns how many seconds lie between two heartbeats."""
        hello = await self._expect(socket, "hello")
        self._failures = 0
        session = self._session
        if session is not None and session.id is not None:
            await socket.send(_frame("resume", token=self._token, session_id=session.id))
            ready = await self._expect(socket, "resumed")
            session.acked, session.done = ready["acked"], max(session.done, ready["acked"], key=seq_of)
        else:
            self._session = None
            who = {"token": self._token, "consumer": self._consumer, "take_over": self._take_over}
            if self._generation is not None:
                who["generation"] = self._generation  # whoever has come since keeps it
            await socket.send(_frame("identify", **who))
            ready = await self._expect(socket, "ready")
            if ready["kind"] != "agent":
                raise Refused("the token is not one of an agent")
            window = hello["inflight_events_max"], hello["inflight_bytes_max"]
            session = Session(ready["session_id"], ready["acked"], *window)
        session.lose(ready.get("resync"))
        self._session, self._generation = session, ready["generation"]
        self._socket, self._up_since = socket, self._clock.now()
        self._wake.set()
        self._unacked.set()
        log.info("connected: consumer %s goes on after %s", self._consumer, ready["acked"])
        return hello["heartbeat_interval_ms"] / 1000

    async def _expect(self, socket: ClientConnection, op: str) -> dict[str, Any]:
        while (frame := json.loads(await socket.recv()))["op"] == "error":
            self._refused(frame["d"])  # the close that follows says what to do
        if frame["op"] != op:
            raise ValueError("another frame was to come")
        return frame["d"]

    def _refused(self, d: dict[str, Any]) -> None:
        self._after = d.get("retry_after_ms", 0) / 1000
        log.warning("the server refuses a frame: %s", word(d["code"]))

    async def _beat(self, socket: ClientConnection, interval: float) -> None:
        """Heartbeats, and the end of a connection over which nothing comes back."""
        self._answered = True
        await self._clock.sleep(interval * self._clock.random())
        try:
            while self._answered:
                self._answered = False
                async with asyncio.timeout(interval):
                    await socket.send(_frame("heartbeat"))
                await self._clock.sleep(interval)
        except TimeoutError:
            pass
        except ConnectionClosed:
            return
        # With 1000 or 1001 the session would end.
        await socket.close(4009, "heartbeat_timeout")

    def _take(self, text: str | bytes) -> None:
        frame = json.loads(text)
        op, d, session = frame["op"], frame["d"], self._session
        assert session is not None, "there is one since the connection is ready"
        if op == "event":
            session.add(d, len(text))
            if session.acked != session.done:
                self._unacked.set()
        elif op == "resync_required":
            session.lose(d)
        elif op == "heartbeat.ack":
            self._answered = True
        elif op == "reconnect":
            self._after = d["after_ms"] / 1000
        elif op == "error":
            self._refused(d)
        # Others, also those of newer servers, ask for nothing.
        self._wake.set()

    def _end(self, code: int | None, reason: str | None) -> Exception:
        """What the end of a connection means: no code, and one that says nothing, to come again and resume."""
        try:
            hint = dict(json.loads(reason or "{}"))
            after = float(hint.get("after_ms", 0)) / 1000
        except (ValueError, TypeError):
            hint, after = {}, 0.0
        why = f"closed with {code or 'no code'} {word(hint.get('reason'))}".rstrip()
        if code in ENDS:
            return ENDS[code](why)
        if hint.get("reconnect") is False:
            return Refused(why)
        if not hint.get("resume", code not in NOT_RESUMED):
            self._session = None
        return Lost(why, after)

    async def _poll(self) -> None:
        """One request over HTTP, and what it gave done and acknowledged."""
        if not await self._flush():
            raise Lost("what is done could not be acknowledged")
        if self._stopping:
            return await self._clock.sleep(1)  # `run` is about to end, and wants nothing more
        session = self._session
        # The first one after a connection takes the consumer from it, and so raises the generation.
        begins = self._generation is not None and (session is None or session.id is not None)
        try:
            answer = await self._rest.events(self._options.poll_seconds, self._generation)
        except ConsumerReplaced:
            if not begins:
                raise
            raise Lost("somebody else has the consumer") from None  # maybe a connection that this client never got
        except Lost:
            if begins:
                self._generation = None  # the answer would have brought another one
            raise
        if answer is None:
            return
        try:
            events, reached, self._generation = answer["events"], answer["next"], answer["generation"]
            session = Session(None, answer["acked"], 2 * len(events), FRAME_BYTES_MAX)
            if events and seq_of(reached) < events[0]["seq"]:
                return  # an answer before was lost on its way: its events come again, and then these
            session.lose(answer.get("resync"))
            for event in events:
                session.add(event, 0)
        except NO_FRAME:
            raise Lost("what came is no answer of the API") from None
        self._up_since = self._clock.now() if self._up_since is None else self._up_since
        self._session = session
        if session.waiting:
            self._wake.set()
            await session.drained.wait()
        session.done = max(session.done, reached, key=seq_of)
        await self._flush()


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception:
        return exc  # a token goes to whom it was given for, and nowhere else


def _frame(op: str, **d: Any) -> str:
    return json.dumps({"op": op, "d": d})
