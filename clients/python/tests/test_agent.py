"""What an agent does with what a gateway says, on a clock that only the tests move."""

import asyncio
import logging
import unittest

import seqline_agent
from seqline_agent import Agent, Backoff, Options

from .site import HELLO, TOKEN, Api, Clock, Gateway, at, event

EVENTS = "GET /v1/agents/billing/consumers/default/events?wait=20"
ACK = "POST /v1/agents/billing/consumers/default/ack"
PAUSE, ACK_SECONDS = 0.25, 0.2  # half of the first pause at most; see Clock


class Case(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.clock, self.handled, self.came, self.gates, self.lost = Clock(), [], asyncio.Queue(), {}, []
        self.logged = []
        handler = logging.Handler()
        handler.emit = lambda record: self.logged.append(record.getMessage())
        root = logging.getLogger()
        root.handlers, root.level = [handler], logging.DEBUG
        deadline = asyncio.timeout(20)
        await self.enterAsyncContext(deadline)
        self.addCleanup(self.nothing_secret_was_said)

    def nothing_secret_was_said(self):
        for line in self.logged:
            self.assertNotIn(TOKEN, line)
            self.assertNotIn("planted", line)

    async def handle(self, event):
        self.came.put_nowait(event["seq"])
        if (gate := self.gates.get(event["seq"])) is not None:
            await gate.wait()
        self.handled.append(event["seq"])

    async def on_resync(self, lost):
        self.came.put_nowait(lost["position"])
        if (gate := self.gates.get(lost["position"])) is not None:
            await gate.wait()
        self.lost.append(lost)

    async def comes(self, *what):
        for it in what:
            self.assertEqual(await self.came.get(), it)

    def runs(self, site, *, handle=None, on_resync=True, take_over=True, **options):
        self.agent = Agent(site.url, TOKEN, take_over=take_over, options=Options(**options), clock=self.clock)
        running = self.agent.run(handle or self.handle, self.on_resync if on_resync else None)
        self.running = asyncio.create_task(running)
        return self.running

    async def stops(self):
        self.agent.stop()
        await self.running

    async def ends(self, name):
        """Waits until `run` ends with this error, which says nothing that is secret."""
        with self.assertRaises(getattr(seqline_agent, name)) as raised:
            await self.running
        self.assertNotIn(TOKEN, repr(raised.exception))
        return raised.exception

    async def is_waiting(self):
        """Lets everything go on that can."""
        for _ in range(20):
            await asyncio.sleep(0)


class Delivering(Case):
    async def test_events_are_handed_out_in_order_and_acknowledged_together(self):
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=3)
            there = await gateway.accepts()
            identify = await there.admits(4)
            self.assertEqual(identify, {"token": TOKEN, "consumer": "default", "take_over": True})
            await there.events(5, 6, 8, 9)
            await self.comes(5, 6, 8, 9)
            self.assertEqual(await there.receives("ack"), {"position": at(8)}, "three are done")
            await self.clock.passes(ACK_SECONDS)
            self.assertEqual(await there.receives("ack"), {"position": at(9)}, "and one that waited for others")
            await self.stops()
        self.assertEqual(self.handled, [5, 6, 8, 9])

    async def test_half_of_the_window_is_acknowledged_at_once(self):
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=1000)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1, 2, 3, 4, 5)
            self.assertEqual(await there.receives("ack"), {"position": at(5)})
            await there.send("event", **event(6, payload="x" * 60_000))
            self.assertEqual(await there.receives("ack"), {"position": at(6)}, "by its size")
            await self.stops()

    async def test_a_stop_finishes_the_event_in_hand_acknowledges_and_closes(self):
        self.gates[2] = asyncio.Event()
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1, 2, 3)
            await self.comes(1, 2)
            self.agent.stop()
            await self.is_waiting()
            self.assertFalse(self.running.done())
            self.gates[2].set()
            await self.running
            self.assertEqual(await there.receives("ack"), {"position": at(2)})
            self.assertEqual(await there.closed(), 1000)
        self.assertEqual(self.handled, [1, 2])

    async def test_an_event_in_hand_is_finished_also_when_the_consumer_was_taken(self):
        self.gates[1] = asyncio.Event()
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1, 2)
            await self.comes(1)
            await there.closes(4015)
            await self.is_waiting()
            self.assertFalse(self.running.done())
            self.gates[1].set()
            await self.ends("ConsumerReplaced")
        self.assertEqual(self.handled, [1])

    async def test_a_frame_that_is_too_large_ends_it(self):
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.admits(0)
            await there.send("event", **event(1, payload="x" * 33 * 1024 * 1024))
            await self.ends("FrameTooLarge")

    async def test_a_handler_that_fails_ends_it_and_its_event_is_not_acknowledged(self):
        async def fails(event):
            if event["seq"] == 2:
                raise ZeroDivisionError

        async with Gateway() as gateway:
            running = self.runs(gateway, handle=fails)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1, 2, 3)
            with self.assertRaises(ZeroDivisionError):
                await running
            self.assertEqual(await there.receives("ack"), {"position": at(1)})
            self.assertEqual(await there.closed(), 1000)

    async def test_more_than_the_window_is_not_taken(self):
        self.gates[1] = asyncio.Event()
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(*range(1, 40))
            await self.clock.passes(PAUSE)
            self.gates[1].set()
            await (await gateway.accepts()).resumes(0)
            await self.stops()


class Reconnecting(Case):
    async def test_a_connection_that_breaks_is_resumed_and_nothing_comes_twice(self):
        self.gates[2] = asyncio.Event()
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1, 2, 3)
            await self.comes(1, 2)
            await there.breaks()
            await self.clock.passes(PAUSE)
            there = await gateway.accepts()
            await there.resumes(0)
            await there.events(1, 2, 3, 4, redelivered=True)
            self.gates[2].set()
            await self.comes(3, 4)
            await self.stops()
            self.assertEqual(await there.receives("ack"), {"position": at(4)})
        self.assertEqual(self.handled, [1, 2, 3, 4])

    async def test_an_acknowledgement_that_was_lost_is_said_again(self):
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=1)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1)
            await there.receives("ack")
            await there.breaks()
            await self.clock.passes(PAUSE)
            there = await gateway.accepts()
            await there.resumes(0)
            await self.clock.passes(ACK_SECONDS)
            self.assertEqual(await there.receives("ack"), {"position": at(1)})
            await self.stops()

    async def test_an_acknowledgement_that_was_refused_is_said_again_when_its_events_come_again(self):
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=1)
            there = await gateway.accepts()
            await there.admits(0)
            await self.clock.passes(ACK_SECONDS)
            await there.events(1, 2)
            await there.receives("ack")
            await there.receives("ack")
            await there.send("error", code="rate_limited", detail="", retry_after_ms=1000)
            await there.events(1, 2, redelivered=True)
            await self.clock.passes(ACK_SECONDS)
            self.assertEqual(await there.receives("ack"), {"position": at(2)})
            await self.stops()
        self.assertEqual(self.handled, [1, 2])

    async def test_with_4006_the_session_and_its_position_are_forgotten(self):
        self.gates[2] = asyncio.Event()
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1, 2, 3)
            await self.comes(1, 2)
            await there.breaks()
            await self.clock.passes(PAUSE)
            there = await gateway.accepts()
            await there.send("hello", **HELLO)
            await there.receives("resume")
            await there.closes(4006, reason="session_invalid", reconnect=True, resume=False)
            await self.clock.passes(0.5)
            there = await gateway.accepts()
            identify = await there.admits(0, session="s2")
            self.assertEqual(identify["generation"], 7, "whoever has come since keeps it")
            self.gates[2].set()
            await self.clock.passes(ACK_SECONDS)
            await there.events(1, 2, redelivered=True)
            await self.comes(1, 2)
            await self.stops()
            acks = await there.receives("ack")
            self.assertEqual(acks, {"position": at(2)}, "what the session before gave is not acknowledged")
        self.assertEqual(self.handled, [1, 2, 1, 2])

    async def test_some_codes_end_it_with_an_error_of_their_name(self):
        for code, name in [
            (4002, "InvalidFrame"),
            (4005, "AlreadyIdentified"),
            (4012, "Unauthenticated"),
            (4015, "ConsumerReplaced"),
            (4017, "SessionReplaced"),
            (1009, "FrameTooLarge"),
        ]:
            with self.subTest(code=code):
                async with Gateway() as gateway:
                    self.runs(gateway)
                    there = await gateway.accepts()
                    await there.admits(0)
                    await there.closes(code)
                    self.assertIn(str(code), str(await self.ends(name)))
                    self.assertTrue(gateway.connections.empty())

    async def test_a_code_that_is_not_known_is_acted_on_by_its_reason(self):
        async with Gateway() as gateway:
            self.runs(gateway)
            await (first := await gateway.accepts()).admits(0)
            await first.closes(4900, reason="new", reconnect=True, resume=False, after_ms=7000)
            await self.clock.passes(7.0)
            await (second := await gateway.accepts()).admits(0, session="s2")
            await second.closes(4901)
            await self.clock.passes(0.5)
            await (third := await gateway.accepts()).resumes(0, session="s2")
            await third.closes(4902, reason="gone", reconnect=False, resume=False)
            self.assertEqual(str(await self.ends("Refused")), "closed with 4902 gone")

    async def test_a_server_that_stops_says_when_to_come_again(self):
        async with Gateway() as gateway:
            self.runs(gateway)
            await (there := await gateway.accepts()).admits(0)
            await there.send("reconnect", after_ms=1840)
            await there.closes(4013)
            await self.clock.passes(1.84)
            await (await gateway.accepts()).resumes(0)
            await self.stops()

    async def test_pauses_double_until_a_connection_has_held_for_a_while(self):
        async with Gateway() as gateway:
            self.runs(gateway)
            for pause in [0.25, 0.5]:
                await (await gateway.accepts()).breaks()
                await self.clock.passes(pause)
            await (there := await gateway.accepts()).admits(0)
            await there.breaks()
            await self.clock.passes(1.0)
            await (there := await gateway.accepts()).resumes(0)
            await self.clock.passes(20)
            await there.receives("heartbeat")
            await there.send("heartbeat.ack", head=at(0))
            await there.events(1)
            await self.comes(1)
            await self.clock.passes(40)
            await there.breaks()
            await self.clock.passes(PAUSE)
            await (await gateway.accepts()).resumes(0)
            await self.stops()

    async def test_a_consumer_that_is_held_is_waited_for(self):
        async with Gateway() as gateway:
            self.runs(gateway, take_over=False)
            there = await gateway.accepts()
            await there.send("hello", **HELLO)
            self.assertIs((await there.receives("identify"))["take_over"], False)
            await there.closes(4016)
            await self.clock.passes(PAUSE)
            await (await gateway.accepts()).admits(0)
            await self.stops()

    async def test_what_the_server_refuses_is_decided_by_how_it_closes(self):
        async with Gateway() as gateway:
            self.runs(gateway)
            for code, refused, pause in [(4000, {"code": "unavailable", "retry_after_ms": 3000}, 3.0), (4012, {"code": "unauthenticated"}, 0)]:
                there = await gateway.accepts()
                await there.send("hello", **HELLO)
                await there.receives("identify")
                await there.send("error", detail="planted " + TOKEN, **refused)
                await there.closes(code)
                if pause:
                    await self.clock.passes(pause)
            await self.ends("Unauthenticated")

    async def test_a_token_of_somebody_else_than_an_agent_ends_it(self):
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.send("hello", **HELLO)
            await there.receives("identify")
            await there.send("ready", session_id="s1", principal="alex", kind="user", head=at(0), position=at(0))
            await self.ends("Refused")

    async def test_a_server_that_does_not_answer_heartbeats_is_left_with_a_session_to_resume(self):
        async with Gateway() as gateway:
            self.runs(gateway)
            there = await gateway.accepts()
            await there.admits(0)
            await self.clock.passes(20)
            self.assertEqual(await there.receives("heartbeat"), {})
            await there.send("heartbeat.ack", head=at(0))
            await there.events(1)
            await self.comes(1)
            await self.clock.passes(ACK_SECONDS)
            await there.receives("ack")
            await self.clock.passes(40)
            await there.receives("heartbeat")
            await self.clock.passes(40)
            self.assertEqual(await there.closed(), 4009)
            await self.clock.passes(PAUSE)
            await (await gateway.accepts()).resumes(1)
            await self.stops()


class Losing(Case):
    LOST = {"reason": "retention", "after": at(1), "position": at(50)}

    async def test_what_was_lost_is_acknowledged_when_the_callback_has_returned(self):
        self.gates[at(50)] = asyncio.Event()
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=1)
            there = await gateway.accepts()
            await there.admits(0)
            await there.events(1)
            await there.send("resync_required", head=at(50), **self.LOST)
            await there.events(51)
            self.assertEqual(await there.receives("ack"), {"position": at(1)})
            await self.comes(1, at(50))
            self.gates[at(50)].set()
            self.assertEqual(await there.receives("ack"), {"position": at(50)})
            self.assertEqual(await there.receives("ack"), {"position": at(51)})
            await self.stops()
        self.assertEqual([lost["after"] for lost in self.lost], [at(1)])

    async def test_who_comes_is_told_what_was_lost_before(self):
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=1)
            there = await gateway.accepts()
            self.gates[at(50)] = asyncio.Event()
            await there.admits(50, resync=self.LOST)
            await self.clock.passes(ACK_SECONDS)
            await there.events(51)
            await self.comes(at(50))
            self.gates[at(50)].set()
            self.assertEqual(await there.receives("ack"), {"position": at(50)})
            self.assertEqual(await there.receives("ack"), {"position": at(51)})
            await self.stops()
        self.assertEqual((self.lost, self.handled), ([self.LOST], [51]))

    async def test_that_the_agent_knows_is_said_again_and_it_is_not_told_again(self):
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=1)
            there = await gateway.accepts()
            await there.admits(50, resync=self.LOST)
            await there.receives("ack")
            await there.breaks()
            await self.clock.passes(PAUSE)
            there = await gateway.accepts()
            await there.resumes(50, resync=self.LOST)
            await self.clock.passes(ACK_SECONDS)
            self.assertEqual(await there.receives("ack"), {"position": at(50)})
            await self.stops()
        self.assertEqual(self.lost, [self.LOST])

    async def test_numbers_may_be_lower_after_that(self):
        async with Gateway() as gateway:
            self.runs(gateway, ack_events=1)
            there = await gateway.accepts()
            await there.admits(80)
            await there.events(81)
            await there.send("resync_required", head=at(50), **{**self.LOST, "reason": "cursor_ahead"})
            await there.events(51)
            for seq in [81, 50, 51]:
                self.assertEqual(await there.receives("ack"), {"position": at(seq)})
            await self.stops()

    async def test_without_a_callback_it_ends(self):
        async with Gateway() as gateway:
            self.runs(gateway, on_resync=False)
            there = await gateway.accepts()
            await there.admits(0)
            await there.send("resync_required", head=at(50), **self.LOST)
            await self.ends("ResyncRequired")
            self.assertEqual(await there.closed(), 1000)


class Asking(Case):
    """Where WebSockets do not get through."""

    def answer(self, *seqs, after=0, reached=None, **more):
        reached = max(seqs, default=after) if reached is None else reached
        told = {"acked": at(after), "next": at(reached), "head": at(99), "generation": 3, "in_flight": len(seqs)}
        return {"events": [event(seq) for seq in seqs], **told, "caught_up": True, **more}

    async def falls_back(self, api, generation=None, **options):
        """The first request, after WebSockets that failed."""
        self.runs(api, **options)
        await self.clock.passes(0.25)
        self.agent._generation = generation  # as if a connection had told it
        await self.clock.passes(0.5)
        first = await api.asked(EVENTS if generation is None else EVENTS + f"&generation={generation}")
        self.assertEqual(api.refused, 3)
        return first

    async def test_it_asks_over_http_and_acknowledges_with_the_generation(self):
        async with Api() as api:
            (await self.falls_back(api)).is_answered(200, self.answer(5, 6, after=4, reached=9))
            await self.comes(5, 6)
            for position in [6, 9]:
                ack = await api.asked(ACK)
                self.assertEqual(ack.body, {"position": at(position), "generation": 3})
                ack.is_answered(200, {})
            (await api.asked(EVENTS + "&generation=3")).is_answered(200, self.answer(after=9))
            await api.asked(EVENTS + "&generation=3")
            await self.stops()

    async def test_a_token_goes_nowhere_else(self):
        async with Gateway() as elsewhere, Api() as api:
            api.location = elsewhere.url + "/v1/gateway"
            await self.falls_back(api)
            self.assertTrue(elsewhere.connections.empty())
            await self.stops()

    async def test_it_tries_a_websocket_again_after_a_while(self):
        async with Api() as api:
            first = await self.falls_back(api)
            self.clock.time += 60
            first.is_answered(200, self.answer())
            await api.asked(EVENTS + "&generation=3")
            self.assertEqual(api.refused, 4)
            await self.stops()

    async def test_an_acknowledgement_that_does_not_arrive_is_said_again_before_it_asks(self):
        async with Api() as api:
            (await self.falls_back(api)).is_answered(200, self.answer(1))
            (await api.asked(ACK)).is_answered(503, {"code": "unavailable"}, [("Retry-After", "7")])
            (await api.asked(ACK)).is_answered(503, {"code": "unavailable"}, [("Retry-After", "7")])
            (await api.asked(ACK)).is_answered(503, {"code": "unavailable"}, [("Retry-After", "7")])
            await self.clock.passes(7.0)
            (await api.asked(ACK)).is_answered(200, {})
            await api.asked(EVENTS + "&generation=3")
            await self.stops()
        self.assertEqual(self.handled, [1])

    async def test_events_behind_an_answer_that_was_lost_are_left_until_they_come_in_order(self):
        async with Api() as api:
            (await self.falls_back(api)).is_answered(200, self.answer(4, 5, reached=0))
            (await api.asked(EVENTS + "&generation=3")).is_answered(200, self.answer(1, 2, 4, 5))
            await self.comes(1, 2, 4, 5)
            self.assertEqual((await api.asked(ACK)).body["position"], at(5))
            self.agent.stop()
        self.running.cancel()

    async def test_what_was_lost_is_told_and_acknowledged(self):
        async with Api() as api:
            problem = {"code": "resync_required", "status": 410}
            (await self.falls_back(api)).is_answered(410, problem)
            (await api.asked(EVENTS)).is_answered(200, self.answer(after=50, resync=Losing.LOST))
            await self.comes(at(50))
            ack = await api.asked(ACK)
            self.assertEqual(ack.body, {"position": at(50), "generation": 3})
            ack.is_answered(200, {})
            await api.asked(EVENTS + "&generation=3")
            await self.stops()

    async def test_an_answer_that_it_cannot_go_on_with_ends_it(self):
        for status, code, name in [
            (401, "unauthenticated", "Unauthenticated"),
            (409, "consumer_replaced", "ConsumerReplaced"),
            (422, "validation_failed", "Refused"),
            (404, "not_found", "Refused"),
        ]:
            with self.subTest(code=code):
                async with Api() as api:
                    self.clock = Clock()
                    first = await self.falls_back(api)
                    first.is_answered(status, {"code": code, "detail": "planted"})
                    self.assertNotIn("planted", str(await self.ends(name)))

    async def test_the_first_answer_may_be_lost(self):
        async with Api() as api:
            (await self.falls_back(api, generation=7)).is_answered(502, {})
            await self.clock.passes(1.0)
            (await api.asked(EVENTS)).is_answered(200, self.answer())  # which took it from the connection, or from the answer
            await api.asked(EVENTS + "&generation=3")
            await self.stops()

    async def test_who_may_be_itself_is_waited_for(self):
        held = {"code": "consumer_replaced", "holder": {"over": "gateway", "since": "2026-01-31T12:00:00Z"}}
        async with Api() as api:
            (await self.falls_back(api, generation=7)).is_answered(409, held)
            await self.clock.passes(1.0)
            (await api.asked(EVENTS + "&generation=7")).is_answered(200, self.answer())
            (await api.asked(EVENTS + "&generation=3")).is_answered(409, held)
            await self.ends("ConsumerReplaced")

    async def test_what_an_operator_took_comes_again(self):
        async with Api() as api:
            (await self.falls_back(api)).is_answered(200, self.answer(1))
            (await api.asked(ACK)).is_answered(409, {"code": "consumer_replaced"})
            (await api.asked(EVENTS + "&generation=3")).is_answered(200, self.answer(1))
            await self.comes(1, 1)
            (await api.asked(ACK)).is_answered(200, {})
            await api.asked(EVENTS + "&generation=3")
            await self.stops()

    async def test_what_somebody_in_between_says_is_waited_out(self):
        async with Api() as api:
            (await self.falls_back(api)).is_answered(401, {"error": "planted"})
            await self.clock.passes(1.0)
            (await api.asked(EVENTS)).is_answered(302, {}, [("Location", "/elsewhere")])
            await self.clock.passes(2.0)
            await api.asked(EVENTS)
            await self.stops()

    async def test_a_stop_does_not_wait_for_a_request_that_waits(self):
        async with Api() as api:
            await self.falls_back(api)
            await self.stops()

    async def test_who_takes_nothing_over_does_not_ask(self):
        async with Api() as api:
            self.runs(api, take_over=False)
            for pause in [0.25, 0.5, 1.0, 2.0]:
                await self.clock.passes(pause)
            self.assertTrue(api.requests.empty())
            await self.stops()


class Pausing(unittest.TestCase):
    def test_a_pause_is_a_random_part_of_a_time_that_doubles_up_to_a_bound(self):
        drawn = iter([1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0])
        backoff = Backoff(Options(), lambda: next(drawn))
        pauses = [backoff.pause(0, 0) for _ in range(8)]
        self.assertEqual(pauses, [0.5, 0.0, 1.0, 4.0, 8.0, 16.0, 30.0, 30.0])

    def test_it_begins_anew_after_a_connection_that_held(self):
        backoff = Backoff(Options(stable_seconds=60), lambda: 1.0)
        self.assertEqual([backoff.pause(held, 0) for held in [0, 59.9, 60, 0]], [0.5, 1.0, 0.5, 1.0])

    def test_it_is_never_shorter_than_the_server_wants_and_bounded(self):
        backoff = Backoff(Options(), lambda: 1.0)
        self.assertEqual([backoff.pause(0, after) for after in [0.2, 1.84, 1e9]], [0.5, 1.84, 300.0])

    def test_only_urls_of_servers_are_taken(self):
        for url in ["events.example.com", "ftp://events.example.com", "ws://events.example.com", "http://"]:
            with self.assertRaises(ValueError):
                Agent(url, TOKEN)
