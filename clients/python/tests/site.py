"""A gateway and an API that do what a test says, and a clock that goes when a test says."""

import asyncio
import concurrent.futures
import http.server
import json
import logging
import threading

from websockets.asyncio.server import serve

silent = logging.Logger("the gateway of a test", logging.CRITICAL)

TOKEN = "sql_this_is_a_secret"
EPOCH = "0198c8f2-7a4b-7000-8000-00000000abcd"
HELLO = {
    "protocol": 1,
    "epoch": EPOCH,
    "heartbeat_interval_ms": 40_000,
    "identify_timeout_ms": 10_000,
    "frame_bytes_max": 65_536,
    "inflight_events_max": 10,
    "inflight_bytes_max": 100_000,
    "close_codes": [],
}


def at(seq):
    return f"{EPOCH}:{seq}"


def event(seq, **more):
    return {"id": str(seq), "seq": seq, "type": "order.created", "payload": {"secret": "planted"}, **more}


class Clock:
    """Chance is always half."""

    def __init__(self):
        self.time, self.sleepers, self.changed = 0.0, [], asyncio.Event()

    def now(self):
        return self.time

    def random(self):
        return 0.5

    async def sleep(self, seconds):
        sleeper = (seconds, self.time + seconds, asyncio.get_running_loop().create_future())
        self.sleepers.append(sleeper)
        self.changed.set()
        try:
            await sleeper[2]
        finally:
            self.sleepers.remove(sleeper)

    async def passes(self, seconds):
        """Waits until somebody sleeps for exactly so long, and lets that time pass."""
        while not (found := [until for length, until, _ in self.sleepers if abs(length - seconds) < 1e-9]):
            self.changed.clear()
            await self.changed.wait()
        self.time = max(self.time, found[0])
        for _, until, done in self.sleepers:
            if until <= self.time and not done.done():
                done.set_result(None)


class Connection:
    """One WebSocket of the client, as the gateway has it."""

    def __init__(self, socket):
        self.socket = socket

    async def send(self, op, **d):
        await self.socket.send(json.dumps({"op": op, "d": d}))

    async def events(self, *seqs, **more):
        for seq in seqs:
            await self.send("event", **event(seq, **more))

    async def receives(self, op):
        frame = json.loads(await self.socket.recv())
        assert frame["op"] == op, (op, frame)
        return frame["d"]

    async def closes(self, code, **hint):
        await self.socket.close(code, json.dumps(hint) if hint else "")

    async def breaks(self):
        self.socket.transport.abort()

    async def closed(self):
        await self.socket.wait_closed()
        return self.socket.close_code

    async def admits(self, acked, session="s1", hello=HELLO, **more):
        """Says hello, and lets in who identifies."""
        await self.send("hello", **hello)
        identify = await self.receives("identify")
        ready = {"session_id": session, "principal": "billing", "kind": "agent", "head": at(acked)}
        await self.send("ready", **ready, consumer="default", generation=7, acked=at(acked), **more)
        return identify

    async def resumes(self, acked, session="s1", **more):
        """Says hello, and lets in who resumes."""
        await self.send("hello", **HELLO)
        resume = await self.receives("resume")
        assert resume == {"token": TOKEN, "session_id": session}, resume
        await self.send("resumed", session_id=session, kind="agent", acked=at(acked), head=at(acked), generation=7, **more)


class Gateway:
    async def __aenter__(self):
        self.connections = asyncio.Queue()
        self.server = await serve(self._serve, "127.0.0.1", 0, compression=None, logger=silent)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, socket):
        assert socket.request.path == "/v1/gateway", socket.request.path
        self.connections.put_nowait(Connection(socket))
        await socket.wait_closed()

    async def accepts(self):
        return await self.connections.get()


class Request:
    """One request over HTTP, which waits for its answer."""

    def __init__(self, line, authorization, body, answer):
        self.line, self.authorization, self.body, self._answer = line, authorization, body, answer

    def is_answered(self, status, body, headers=()):
        self._answer.set_result((status, body, headers))


class Api:
    """An API behind something that lets no WebSocket through. What asks for one is refused, and counted."""

    async def __aenter__(self):
        self.location = "http://127.0.0.1:1/"
        self.requests, self.refused, self.loop = asyncio.Queue(), 0, asyncio.get_running_loop()
        self.left = []
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                line = f"{self.command} {self.path}"
                asked = asyncio.run_coroutine_threadsafe(api._ask(line, self.headers, body), api.loop)
                try:
                    status, answer, headers = asked.result()
                except concurrent.futures.CancelledError:
                    return  # the test is over
                text = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in [("Content-Length", str(len(text))), *headers]:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads, self.server.block_on_close = True, False
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self

    async def __aexit__(self, *_):
        for answer in self.left:
            if not answer.done():
                answer.set_result((503, {}, ()))
        await asyncio.to_thread(self.server.shutdown)
        self.server.server_close()

    async def _ask(self, line, headers, body):
        if line == "GET /v1/gateway":
            self.refused += 1
            return 302, {}, [("Location", self.location)]
        if line == "GET /v1/me":
            return 200, {"principal": "billing", "kind": "agent", "rights": []}, ()
        answer = self.loop.create_future()
        self.left.append(answer)
        self.requests.put_nowait(Request(line, headers["Authorization"], body, answer))
        return await answer

    async def asked(self, line):
        request = await self.requests.get()
        assert request.line == line, (line, request.line)
        assert request.authorization == f"Bearer {TOKEN}"
        return request
