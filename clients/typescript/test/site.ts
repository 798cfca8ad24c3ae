/** A gateway and an API that do what a test says, and a clock that goes when a test says. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

import { type WebSocket, WebSocketServer } from "ws";

import type { Clock } from "../src/index.js";

export const TOKEN = "sql_this_is_a_secret";
const EPOCH = "0198c8f2-7a4b-7000-8000-00000000abcd";
export const HELLO = {
  protocol: 1,
  epoch: EPOCH,
  heartbeat_interval_ms: 40_000,
  identify_timeout_ms: 10_000,
  frame_bytes_max: 65_536,
  inflight_events_max: 10,
  inflight_bytes_max: 100_000,
  close_codes: [],
};

export const at = (seq: number): string => `${EPOCH}:${seq}`;
export const event = (seq: number, more: object = {}): object => ({
  id: String(seq),
  seq,
  type: "order.created",
  payload: { secret: "planted" },
  ...more,
});

/** What comes, in order, to somebody who waits for it. */
export class Queue<T> {
  #items: T[] = [];
  #waiting: ((item: T) => void)[] = [];

  put(item: T): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#items.push(item);
    else next(item);
  }

  get(): Promise<T> {
    const item = this.#items.shift();
    return item === undefined ? new Promise((resolve) => this.#waiting.push(resolve)) : Promise.resolve(item);
  }

  get isEmpty(): boolean {
    return this.#items.length === 0;
  }
}

/** Chance is always half. */
export class FakeClock implements Clock {
  time = 0;
  #sleepers = new Set<{ ms: number; until: number; wake: () => void }>();
  #changed: () => void = () => {};

  now(): number {
    return this.time;
  }

  random(): number {
    return 0.5;
  }

  sleep(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        this.#sleepers.delete(sleeper);
        signal.removeEventListener("abort", wake);
        resolve();
      };
      const sleeper = { ms, until: this.time + ms, wake };
      if (signal.aborted) return resolve();
      signal.addEventListener("abort", wake);
      this.#sleepers.add(sleeper);
      this.#changed();
    });
  }

  /** Waits until somebody sleeps for exactly so long, and lets that time pass. */
  async passes(ms: number): Promise<void> {
    for (;;) {
      const found = [...this.#sleepers].find((sleeper) => sleeper.ms === ms);
      if (found !== undefined) {
        this.time = Math.max(this.time, found.until);
        for (const sleeper of this.#sleepers) if (sleeper.until <= this.time) sleeper.wake();
        return;
      }
      await new Promise<void>((resolve) => (this.#changed = resolve));
    }
  }
}

/** One WebSocket of the client, as the gateway has it. */
export class Connection {
  readonly closed: Promise<number>;
  #frames = new Queue<{ op: string; d: Record<string, unknown> }>();

  constructor(private readonly socket: WebSocket) {
    socket.on("message", (data) => this.#frames.put(JSON.parse(String(data))));
    this.closed = once(socket, "close").then(([code]) => code);
  }

  send(op: string, d: object = {}): void {
    this.socket.send(JSON.stringify({ op, d }));
  }

  events(seqs: number[], more: object = {}): void {
    for (const seq of seqs) this.send("event", event(seq, more));
  }

  async receives(op: string): Promise<Record<string, unknown>> {
    const frame = await this.#frames.get();
    assert.equal(frame.op, op);
    return frame.d;
  }

  closes(code: number, hint?: object): void {
    this.socket.close(code, hint === undefined ? "" : JSON.stringify(hint));
  }

  breaks(): void {
    this.socket.terminate();
  }

  /** Says hello, and lets in who identifies. */
  async admits(acked: number, session = "s1", more: object = {}): Promise<object> {
    this.send("hello", HELLO);
    const identify = await this.receives("identify");
    const ready = { session_id: session, principal: "billing", kind: "agent", head: at(acked), consumer: "default" };
    this.send("ready", { ...ready, generation: 7, acked: at(acked), ...more });
    return identify;
  }

  /** Says hello, and lets in who resumes. */
  async resumes(acked: number, session = "s1", more: object = {}): Promise<void> {
    this.send("hello", HELLO);
    assert.deepEqual(await this.receives("resume"), { token: TOKEN, session_id: session });
    this.send("resumed", { session_id: session, kind: "agent", acked: at(acked), head: at(acked), generation: 7, ...more });
  }
}

async function listen(server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

export class Gateway {
  url = "";
  #server = createServer();
  #connections = new Queue<Connection>();

  static async start(): Promise<Gateway> {
    const gateway = new Gateway();
    const sockets = new WebSocketServer({ server: gateway.#server, path: "/v1/gateway" });
    sockets.on("connection", (socket) => gateway.#connections.put(new Connection(socket)));
    gateway.url = await listen(gateway.#server);
    return gateway;
  }

  accepts(): Promise<Connection> {
    return this.#connections.get();
  }

  get isIdle(): boolean {
    return this.#connections.isEmpty;
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

/** One request over HTTP, which waits for its answer. */
export class Request {
  constructor(
    readonly line: string,
    readonly authorization: string | undefined,
    readonly body: Record<string, unknown> | undefined,
    private readonly response: ServerResponse,
  ) {}

  isAnswered(status: number, body: object, headers: Record<string, string> = {}): void {
    this.response.writeHead(status, headers).end(JSON.stringify(body));
  }
}

/** An API behind something that lets no WebSocket through. What asks for one is refused, and counted. */
export class Api {
  url = "";
  refused = 0;
  /** Where who asks for a WebSocket is sent. */
  location = "http://127.0.0.1:1/";
  readonly requests = new Queue<Request>();
  #server = createServer((request, response) => void this.#ask(request, response));

  static async start(): Promise<Api> {
    const api = new Api();
    // Without this, an upgrade is a request like others.
    api.#server.on("upgrade", (_request, socket) => {
      api.refused += 1;
      socket.end(`HTTP/1.1 302 Found\r\nLocation: ${api.location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`);
    });
    api.url = await listen(api.#server);
    return api;
  }

  async asked(line: string): Promise<Request> {
    const request = await this.requests.get();
    assert.equal(request.line, line);
    assert.equal(request.authorization, `Bearer ${TOKEN}`);
    return request;
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  async #ask(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let text = "";
    for await (const piece of request) text += String(piece);
    if (request.url === "/v1/me") {
      response.end(JSON.stringify({ principal: "billing", kind: "agent", rights: [] }));
      return;
    }
    const { authorization } = request.headers;
    const body = text === "" ? undefined : JSON.parse(text);
    this.requests.put(new Request(`${request.method} ${request.url}`, authorization, body, response));
  }
}
