"""Events over HTTP, for agents whose WebSockets do not get through."""

import asyncio
import http.client
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from .errors import ConsumerReplaced, Lost, Refused, Unauthenticated

ANSWER_BYTES_MAX = 96 * 1024 * 1024  # a window of the largest size that a server can have, and one event
SLACK = 10.0  # seconds that an answer may take beyond those that it was asked to wait


class Rest:
    """One consumer of the agent that the token belongs to."""

    def __init__(self, url: str, token: str, consumer: str):
        self._url, self._token, self._consumer = url, token, consumer
        self._path: str | None = None

    async def events(self, wait: int, generation: int | None) -> dict[str, Any] | None:
        """What comes next, for which the server waits so many seconds. None if it found out that events were lost: the next answer says so."""
        known = "" if generation is None else f"&generation={generation}"
        answer = await self._request("GET", await self._consumer_path() + f"/events?wait={wait}{known}", None, wait)
        return None if answer.get("code") == "resync_required" else answer

    async def acknowledge(self, position: str, generation: int | None) -> None:
        """What the server will not have is forgotten, and what is to come comes again: a position of a history that a restore has ended, or
        of before an operator took the consumer from whoever had it."""
        known = {} if generation is None else {"generation": generation}
        await self._request("POST", await self._consumer_path() + "/ack", {"position": position, **known}, 0)

    async def _consumer_path(self) -> str:
        if self._path is None:
            principal = (await self._request("GET", "/v1/me", None, 0)).get("principal")
            self._path = f"/v1/agents/{principal}/consumers/{self._consumer}"
        return self._path

    async def _request(self, method: str, path: str, body: dict[str, Any] | None, wait: int) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            status, after, text = await _in_thread(lambda: _exchange(request, wait + SLACK))
            answer = dict(json.loads(text))
        except urllib.error.URLError as error:
            raise Lost(type(error.reason).__name__) from None
        except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
            raise Lost(type(error).__name__) from None
        # What has no code is not of the server, but of somebody in between.
        code = word(answer.get("code")) if status >= 300 else ""
        released = code == "consumer_replaced" and "holder" not in answer
        if status < 300 or code == "resync_required" or (method == "POST" and (code == "conflict" or released)):
            return answer
        if code == "unauthenticated":
            raise Unauthenticated("the token is not good")
        if code == "consumer_replaced":
            raise ConsumerReplaced("somebody else has taken the consumer")
        if code and 400 <= status < 500 and status not in (408, 429):
            raise Refused(f"the server answers with {status} {code}")
        raise Lost(f"status {status}", seconds(after))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """A token goes to whom it was given for, and nowhere else."""


_opener = urllib.request.build_opener(_NoRedirect)


def _exchange(request: urllib.request.Request, timeout: float) -> tuple[int, str | None, bytes]:
    try:
        answer = _opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers.get("Retry-After"), answer.read(ANSWER_BYTES_MAX)


async def _in_thread(work: Callable[[], Any]) -> Any:
    """In a thread that nobody waits for: who wants to stop is not held up by a request that waits for events."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if not done.done():
            done.set_result(result) if error is None else done.set_exception(error)

    def thread() -> None:
        try:
            outcome = work(), None
        except Exception as error:
            outcome = None, error
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            pass  # the loop has ended meanwhile

    threading.Thread(target=thread, name="seqline-agent", daemon=True).start()
    return await done


def word(text: object) -> str:
    """A code of the server, and nothing that could be anything else: it goes into errors and logs."""
    return text if isinstance(text, str) and re.fullmatch(r"[a-z_]{1,40}", text) else ""


def seconds(header: str | None) -> float:
    return float(header) if header and re.fullmatch(r"[0-9]{1,6}", header) else 0.0
