/** What an agent does with what a gateway says, on a clock that only the tests move. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";

import * as seqline from "../src/index.js";
import { Agent, type AgentOptions, Backoff, type Event, type Resync } from "../src/index.js";
import { Api, at, event, FakeClock, Gateway, HELLO, Queue, type Request, TOKEN } from "./site.js";

const EVENTS = "GET /v1/agents/billing/consumers/default/events?wait=20";
const ACK = "POST /v1/agents/billing/consumers/default/ack";
/** Half of the first pause at most; see the clock. */
const PAUSE = 250;
const ACK_MS = 200;
const LOST = { reason: "retention", after: at(1), position: at(50) };

let clock: FakeClock;
let gateway: Gateway;
let api: Api;
let agent: Agent;
let running: Promise<void>;
let handled: number[];
let lost: Resync[];
let came: Queue<unknown>;
let gates: Map<unknown, Promise<void>>;
let logged: string[];

beforeEach(async () => {
  clock = new FakeClock();
  gateway = await Gateway.start();
  api = await Api.start();
  [handled, lost, came, gates, logged] = [[], [], new Queue(), new Map(), []];
});

afterEach(() => {
  gateway.stop();
  api.stop();
  for (const line of logged) assert.doesNotMatch(line, /planted|secret/);
});

function gate(what: unknown): () => void {
  let open = (): void => {};
  gates.set(what, new Promise((resolve) => (open = resolve)));
  return open;
}

async function handle({ seq }: Event): Promise<void> {
  came.put(seq);
  await gates.get(seq);
  handled.push(seq);
}

async function onResync(what: Resync): Promise<void> {
  came.put(what.position);
  await gates.get(what.position);
  lost.push(what);
}

async function comes(...all: unknown[]): Promise<void> {
  for (const it of all) assert.equal(await came.get(), it);
}

function start(options: Partial<AgentOptions> = {}, run = (it: Agent): Promise<void> => it.run(handle, onResync)): void {
  agent = new Agent({ url: gateway.url, token: TOKEN, clock, log: (line) => logged.push(line), ...options });
  running = run(agent);
  running.catch(() => {}); // looked at later
}

async function stops(): Promise<void> {
  agent.stop();
  await running;
}

/** Waits until `run` ends with this error, which says nothing that is secret. */
async function ends(name: keyof typeof seqline): Promise<Error> {
  const error: unknown = await running.then(
    () => assert.fail("it ended without an error"),
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof (seqline[name] as typeof seqline.SeqlineError), String(error));
  assert.equal(error.name, name);
  assert.doesNotMatch(String(error.stack), /planted|secret/);
  return error;
}

const bounded = { timeout: 20_000 };

describe("delivering", bounded, () => {
  test("events are handed out in order and acknowledged together", async () => {
    start({ ackEvents: 3 });
    const there = await gateway.accepts();
    assert.deepEqual(await there.admits(4), { token: TOKEN, consumer: "default", take_over: true });
    there.events([5, 6, 8, 9]);
    await comes(5, 6, 8, 9);
    assert.deepEqual(await there.receives("ack"), { position: at(8) }, "three are done");
    await clock.passes(ACK_MS);
    assert.deepEqual(await there.receives("ack"), { position: at(9) }, "and one that waited for others");
    await stops();
    assert.deepEqual(handled, [5, 6, 8, 9]);
  });

  test("half of the window is acknowledged at once", async () => {
    start({ ackEvents: 1000 });
    const there = await gateway.accepts();
    await there.admits(0);
    there.events([1, 2, 3, 4, 5]);
    assert.deepEqual(await there.receives("ack"), { position: at(5) });
    there.send("event", event(6, { payload: "x".repeat(60_000) }));
    assert.deepEqual(await there.receives("ack"), { position: at(6) }, "by its size");
    await stops();
  });

  test("a stop finishes the event in hand, acknowledges and closes", async () => {
    const open = gate(2);
    start();
    const there = await gateway.accepts();
    await there.admits(0);
    there.events([1, 2, 3]);
    await comes(1, 2);
    agent.stop();
    open();
    await running;
    assert.deepEqual(await there.receives("ack"), { position: at(2) });
    assert.equal(await there.closed, 1000);
    assert.deepEqual(handled, [1, 2]);
  });

  test("an event in hand is finished also when the consumer was taken", async () => {
    const open = gate(1);
    start();
    const there = await gateway.accepts();
    await there.admits(0);
    there.events([1, 2]);
    await comes(1);
    there.closes(4015);
    assert.equal(await there.closed, 4015);
    let isOver = false;
    running.catch(() => (isOver = true));
    for (let turn = 0; turn < 20; turn += 1) await new Promise(setImmediate);
    assert.equal(isOver, false);
    open();
    await ends("ConsumerReplaced");
    assert.deepEqual(handled, [1]);
  });

  test("a frame that is too large ends it", async () => {
    start();
    const there = await gateway.accepts();
    await there.admits(0);
    there.send("event", event(1, { payload: "x".repeat(33 * 1024 * 1024) }));
    await ends("FrameTooLarge");
  });

  test("a handler that fails ends it, and its event is not acknowledged", async () => {
    start({}, (it) =>
      it.run(async ({ seq }) => {
        if (seq === 2) throw new RangeError("of the handler");
      }),
    );
    const there = await gateway.accepts();
    await there.admits(0);
    there.events([1, 2, 3]);
    await assert.rejects(running, RangeError);
    assert.deepEqual(await there.receives("ack"), { position: at(1) });
    assert.equal(await there.closed, 1000);
  });

  test("more than the window is not taken", async () => {
    const open = gate(1);
    start();
    const there = await gateway.accepts();
    await there.admits(0);
    there.events(Array.from({ length: 40 }, (_, index) => index + 1));
    await clock.passes(PAUSE);
    open();
    await (await gateway.accepts()).resumes(0);
    await stops();
  });
});

describe("reconnecting", bounded, () => {
  test("a connection that breaks is resumed, and nothing comes twice", async () => {
    const open = gate(2);
    start();
    let there = await gateway.accepts();
    await there.admits(0);
    there.events([1, 2, 3]);
    await comes(1, 2);
    there.breaks();
    await clock.passes(PAUSE);
    there = await gateway.accepts();
    await there.resumes(0);
    there.events([1, 2, 3, 4], { redelivered: true });
    open();
    await comes(3, 4);
    await stops();
    assert.deepEqual(await there.receives("ack"), { position: at(4) });
    assert.deepEqual(handled, [1, 2, 3, 4]);
  });

  test("an acknowledgement that was lost is said again", async () => {
    start({ ackEvents: 1 });
    let there = await gateway.accepts();
    await there.admits(0);
    there.events([1]);
    await there.receives("ack");
    there.breaks();
    await clock.passes(PAUSE);
    there = await gateway.accepts();
    await there.resumes(0);
    await clock.passes(ACK_MS);
    assert.deepEqual(await there.receives("ack"), { position: at(1) });
    await stops();
  });

  test("an acknowledgement that was refused is said again when its events come again", async () => {
    start({ ackEvents: 1 });
    const there = await gateway.accepts();
    await there.admits(0);
    await clock.passes(ACK_MS);
    there.events([1, 2]);
    await there.receives("ack");
    await there.receives("ack");
    there.send("error", { code: "rate_limited", detail: "", retry_after_ms: 1000 });
    there.events([1, 2], { redelivered: true });
    await clock.passes(ACK_MS);
    assert.deepEqual(await there.receives("ack"), { position: at(2) });
    await stops();
    assert.deepEqual(handled, [1, 2]);
  });

  test("with 4006 the session and its position are forgotten", async () => {
    const open = gate(2);
    start();
    let there = await gateway.accepts();
    await there.admits(0);
    there.events([1, 2, 3]);
    await comes(1, 2);
    there.breaks();
    await clock.passes(PAUSE);
    there = await gateway.accepts();
    there.send("hello", HELLO);
    await there.receives("resume");
    there.closes(4006, { reason: "session_invalid", reconnect: true, resume: false });
    await clock.passes(500);
    there = await gateway.accepts();
    const identify = { token: TOKEN, consumer: "default", take_over: true, generation: 7 };
    assert.deepEqual(await there.admits(0, "s2"), identify, "whoever has come since keeps it");
    open();
    await clock.passes(ACK_MS);
    there.events([1, 2], { redelivered: true });
    await comes(1, 2);
    await stops();
    assert.deepEqual(await there.receives("ack"), { position: at(2) }, "what the session before gave is not acknowledged");
    assert.deepEqual(handled, [1, 2, 1, 2]);
  });

  for (const [code, name] of [
    [4002, "InvalidFrame"],
    [4005, "AlreadyIdentified"],
    [4012, "Unauthenticated"],
    [4015, "ConsumerReplaced"],
    [4017, "SessionReplaced"],
    [1009, "FrameTooLarge"],
  ] as const) {
    test(`${code} ends it as ${name}`, async () => {
      start();
      const there = await gateway.accepts();
      await there.admits(0);
      there.closes(code);
      assert.match((await ends(name)).message, new RegExp(String(code)));
      assert.ok(gateway.isIdle);
    });
  }

  test("a code that is not known is acted on by its reason", async () => {
    start();
    const first = await gateway.accepts();
    await first.admits(0);
    first.closes(4900, { reason: "new", reconnect: true, resume: false, after_ms: 7000 });
    await clock.passes(7000);
    const second = await gateway.accepts();
    await second.admits(0, "s2");
    second.closes(4901);
    await clock.passes(500);
    const third = await gateway.accepts();
    await third.resumes(0, "s2");
    third.closes(4902, { reason: "gone", reconnect: false, resume: false });
    assert.equal((await ends("Refused")).message, "closed with 4902 gone");
  });

  test("a server that stops says when to come again", async () => {
    start();
    const there = await gateway.accepts();
    await there.admits(0);
    there.send("reconnect", { after_ms: 1840 });
    there.closes(4013);
    await clock.passes(1840);
    await (await gateway.accepts()).resumes(0);
    await stops();
  });

  test("pauses double until a connection has held for a while", async () => {
    start();
    for (const pause of [250, 500]) {
      (await gateway.accepts()).breaks();
      await clock.passes(pause);
    }
    let there = await gateway.accepts();
    await there.admits(0);
    there.breaks();
    await clock.passes(1000);
    there = await gateway.accepts();
    await there.resumes(0);
    await clock.passes(20_000);
    await there.receives("heartbeat");
    there.send("heartbeat.ack", { head: at(0) });
    there.events([1]);
    await comes(1);
    await clock.passes(40_000);
    there.breaks();
    await clock.passes(PAUSE);
    await (await gateway.accepts()).resumes(0);
    await stops();
  });

  test("a consumer that is held is waited for", async () => {
    start({ takeOver: false });
    const there = await gateway.accepts();
    there.send("hello", HELLO);
    assert.equal((await there.receives("identify"))["take_over"], false);
    there.closes(4016);
    await clock.passes(PAUSE);
    await (await gateway.accepts()).admits(0);
    await stops();
  });

  test("what the server refuses is decided by how it closes", async () => {
    start();
    for (const [code, refused, pause] of [
      [4000, { code: "unavailable", retry_after_ms: 3000 }, 3000],
      [4012, { code: "unauthenticated" }, 0],
    ] as const) {
      const there = await gateway.accepts();
      there.send("hello", HELLO);
      await there.receives("identify");
      there.send("error", { detail: `planted ${TOKEN}`, ...refused });
      there.closes(code);
      if (pause > 0) await clock.passes(pause);
    }
    await ends("Unauthenticated");
  });

  test("a token of somebody else than an agent ends it", async () => {
    start();
    const there = await gateway.accepts();
    there.send("hello", HELLO);
    await there.receives("identify");
    there.send("ready", { session_id: "s1", principal: "alex", kind: "user", head: at(0), position: at(0) });
    await ends("Refused");
  });

  test("a server that does not answer heartbeats is left with a session to resume", async () => {
    start();
    const there = await gateway.accepts();
    await there.admits(0);
    await clock.passes(20_000);
    assert.deepEqual(await there.receives("heartbeat"), {});
    there.send("heartbeat.ack", { head: at(0) });
    there.events([1]);
    await comes(1);
    await clock.passes(ACK_MS);
    await there.receives("ack");
    await clock.passes(40_000);
    await there.receives("heartbeat");
    await clock.passes(40_000);
    assert.equal(await there.closed, 4009);
    await clock.passes(PAUSE);
    await (await gateway.accepts()).resumes(1);
    await stops();
  });
});

describe("losing", bounded, () => {
  test("what was lost is acknowledged when the callback is done", async () => {
    const open = gate(at(50));
    start({ ackEvents: 1 });
    const there = await gateway.accepts();
    await there.admits(0);
    there.events([1]);
    there.send("resync_required", { head: at(50), ...LOST });
    there.events([51]);
    assert.deepEqual(await there.receives("ack"), { position: at(1) });
    await comes(1, at(50));
    open();
    assert.deepEqual(await there.receives("ack"), { position: at(50) });
    assert.deepEqual(await there.receives("ack"), { position: at(51) });
    await stops();
    assert.deepEqual(lost.map(({ after }) => after), [at(1)]);
  });

  test("who comes is told what was lost before", async () => {
    start({ ackEvents: 1 });
    const there = await gateway.accepts();
    const open = gate(at(50));
    await there.admits(50, "s1", { resync: LOST });
    await clock.passes(ACK_MS);
    there.events([51]);
    await comes(at(50));
    open();
    assert.deepEqual(await there.receives("ack"), { position: at(50) });
    assert.deepEqual(await there.receives("ack"), { position: at(51) });
    await stops();
    assert.deepEqual([lost, handled], [[LOST], [51]]);
  });

  test("that the agent knows is said again, and it is not told again", async () => {
    start({ ackEvents: 1 });
    let there = await gateway.accepts();
    await there.admits(50, "s1", { resync: LOST });
    await there.receives("ack");
    there.breaks();
    await clock.passes(PAUSE);
    there = await gateway.accepts();
    await there.resumes(50, "s1", { resync: LOST });
    await clock.passes(ACK_MS);
    assert.deepEqual(await there.receives("ack"), { position: at(50) });
    await stops();
    assert.deepEqual(lost, [LOST]);
  });

  test("numbers may be lower after that", async () => {
    start({ ackEvents: 1 });
    const there = await gateway.accepts();
    await there.admits(80);
    there.events([81]);
    there.send("resync_required", { head: at(50), ...LOST, reason: "cursor_ahead" });
    there.events([51]);
    for (const seq of [81, 50, 51]) assert.deepEqual(await there.receives("ack"), { position: at(seq) });
    await stops();
  });

  test("without a callback it ends", async () => {
    start({}, (it) => it.run(handle));
    const there = await gateway.accepts();
    await there.admits(0);
    there.send("resync_required", { head: at(50), ...LOST });
    await ends("ResyncRequired");
    assert.equal(await there.closed, 1000);
  });
});

describe("asking, where WebSockets do not get through", bounded, () => {
  function answer(seqs: number[], { after = 0, reached = seqs.at(-1) ?? after, ...more }: Record<string, any> = {}): object {
    const told = { acked: at(after), next: at(reached), head: at(99), generation: 3, in_flight: seqs.length };
    return { events: seqs.map((seq) => event(seq)), ...told, caught_up: true, ...more };
  }

  /** The first request, after WebSockets that failed. */
  async function fallsBack(): Promise<Request> {
    start({ url: api.url });
    await clock.passes(250);
    await clock.passes(500);
    const first = await api.asked(EVENTS);
    assert.equal(api.refused, 3);
    return first;
  }

  test("it asks over HTTP, and acknowledges with the generation", async () => {
    (await fallsBack()).isAnswered(200, answer([5, 6], { after: 4, reached: 9 }));
    await comes(5, 6);
    // That of the last event may be covered by the other.
    for (let position: unknown; position !== at(9); ) {
      const ack = await api.asked(ACK);
      ack.isAnswered(200, {});
      position = ack.body?.["position"];
      assert.deepEqual(ack.body, { position: position === at(9) ? at(9) : at(6), generation: 3 });
    }
    (await api.asked(`${EVENTS}&generation=3`)).isAnswered(200, answer([], { after: 9 }));
    await api.asked(`${EVENTS}&generation=3`);
    await stops();
  });

  test("a token goes nowhere else", async () => {
    api.location = `${gateway.url}/v1/gateway`;
    await fallsBack();
    assert.ok(gateway.isIdle);
    await stops();
  });

  test("it tries a WebSocket again after a while", async () => {
    const first = await fallsBack();
    clock.time += 60_000;
    first.isAnswered(200, answer([]));
    await api.asked(`${EVENTS}&generation=3`);
    assert.equal(api.refused, 4);
    await stops();
  });

  test("an acknowledgement that does not arrive is said again before it asks", async () => {
    (await fallsBack()).isAnswered(200, answer([1]));
    for (const _ of "abc") (await api.asked(ACK)).isAnswered(503, { code: "unavailable" }, { "Retry-After": "7" });
    await clock.passes(7000);
    (await api.asked(ACK)).isAnswered(200, {});
    await api.asked(`${EVENTS}&generation=3`);
    await stops();
    assert.deepEqual(handled, [1]);
  });

  test("events behind an answer that was lost are left until they come in order", async () => {
    (await fallsBack()).isAnswered(200, answer([4, 5], { reached: 0 }));
    (await api.asked(`${EVENTS}&generation=3`)).isAnswered(200, answer([1, 2, 4, 5]));
    await comes(1, 2, 4, 5);
    const ack = await api.asked(ACK);
    assert.equal(ack.body?.["position"], at(5));
    ack.isAnswered(200, {});
    await stops();
  });

  test("what was lost is told and acknowledged", async () => {
    (await fallsBack()).isAnswered(410, { code: "resync_required", status: 410 });
    (await api.asked(EVENTS)).isAnswered(200, answer([], { after: 50, resync: LOST }));
    await comes(at(50));
    const ack = await api.asked(ACK);
    assert.deepEqual(ack.body, { position: at(50), generation: 3 });
    ack.isAnswered(200, {});
    await api.asked(`${EVENTS}&generation=3`);
    await stops();
  });

  for (const [status, code, name] of [
    [401, "unauthenticated", "Unauthenticated"],
    [409, "consumer_replaced", "ConsumerReplaced"],
    [422, "validation_failed", "Refused"],
    [404, "not_found", "Refused"],
  ] as const) {
    test(`${code} ends it as ${name}`, async () => {
      (await fallsBack()).isAnswered(status, { code, detail: "planted" });
      await ends(name);
    });
  }

  test("what an operator took comes again", async () => {
    (await fallsBack()).isAnswered(200, answer([1]));
    (await api.asked(ACK)).isAnswered(409, { code: "consumer_replaced" });
    (await api.asked(`${EVENTS}&generation=3`)).isAnswered(200, answer([1]));
    await comes(1, 1);
    (await api.asked(ACK)).isAnswered(200, {});
    await api.asked(`${EVENTS}&generation=3`);
    await stops();
  });

  test("what somebody in between says is waited out", async () => {
    (await fallsBack()).isAnswered(401, { error: "planted" });
    await clock.passes(1000);
    (await api.asked(EVENTS)).isAnswered(302, {}, { Location: "/elsewhere" });
    await clock.passes(2000);
    await api.asked(EVENTS);
    await stops();
  });

  test("a stop does not wait for a request that waits", async () => {
    await fallsBack();
    await stops();
  });

  test("who takes nothing over does not ask", async () => {
    start({ url: api.url, takeOver: false });
    for (const pause of [250, 500, 1000, 2000]) await clock.passes(pause);
    assert.ok(api.requests.isEmpty);
    await stops();
  });
});

describe("pausing", () => {
  const options = { backoffMs: 500, backoffMsMax: 30_000, stableMs: 60_000 };

  test("a pause is a random part of a time that doubles up to a bound", () => {
    const drawn = [1, 0, 0.5, 1, 1, 1, 1, 1];
    const backoff = new Backoff(options, () => drawn.shift() ?? 1);
    const pauses = Array.from({ length: 8 }, () => backoff.pause(0, 0));
    assert.deepEqual(pauses, [500, 0, 1000, 4000, 8000, 16_000, 30_000, 30_000]);
  });

  test("it begins anew after a connection that held", () => {
    const backoff = new Backoff(options, () => 1);
    assert.deepEqual([0, 59_900, 60_000, 0].map((held) => backoff.pause(held, 0)), [500, 1000, 500, 1000]);
  });

  test("it is never shorter than the server wants, and bounded", () => {
    const backoff = new Backoff(options, () => 1);
    assert.deepEqual([200, 1840, 1e12].map((after) => backoff.pause(0, after)), [500, 1840, 300_000]);
  });

  test("only URLs of servers are taken", () => {
    for (const url of ["events.example.com", "ftp://events.example.com", "ws://events.example.com", "http://"]) {
      assert.throws(() => new Agent({ url, token: TOKEN }), TypeError);
    }
  });
});
