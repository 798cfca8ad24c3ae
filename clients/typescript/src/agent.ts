/**
 * An agent: its connection, what it was given, and what of that is done.
 *
 * Three loops do it. `#link` keeps a connection, or asks over HTTP where WebSockets do not get through, and puts events into the session.
 * `#work` hands them out, one after the other, and `#acknowledge` acknowledges. The server never gives more than its window, so the session is
 * bounded.
 */

import { WebSocket } from "ws";

import {
  AlreadyIdentified,
  ConsumerReplaced,
  FrameTooLarge,
  InvalidFrame,
  Refused,
  ResyncRequired,
  SeqlineError,
  SessionReplaced,
  Unauthenticated,
} from "./errors.js";
import { Backoff, type Clock, Latch, Lost, systemClock } from "./pace.js";
import { type Delivery, Rest } from "./rest.js";
import { type Event, later, number, type Resync, retryAfter, seqOf, Session, text, word } from "./session.js";

export type { Event } from "./session.js";

/** A payload has 16 MiB at most. */
const FRAME_BYTES_MAX = 32 * 1024 * 1024;
/** How long the other side may take to answer the end of a connection. */
const CLOSE_MS = 2_000;

/** What no new connection mends. Other codes, also those of newer servers, say in the reason what to do. */
const ENDS = new Map<number, new (message: string) => SeqlineError>([
  [1009, FrameTooLarge],
  [4002, InvalidFrame],
  [4005, AlreadyIdentified],
  [4012, Unauthenticated],
  [4015, ConsumerReplaced],
  [4017, SessionReplaced],
]);
const NOT_RESUMED = [4006, 4010, 4016, 4018];

const DEFAULTS = {
  /** The name of the consumer. */
  consumer: "default",
  /** Whether the consumer is taken from who has it. If not, the agent waits, and never asks over HTTP, which takes it. */
  takeOver: true,
  /** Acknowledge when so many are done; never more than half of the server's window. */
  ackEvents: 50,
  /** Or so long after one was done. */
  ackMs: 200,
  /** For connecting and being let in, together. */
  connectMs: 10_000,
  /** The first pause is at most that, each one after it at most twice as much. */
  backoffMs: 500,
  backoffMsMax: 30_000,
  /** A connection that held for so long makes pauses begin anew. */
  stableMs: 60_000,
  /** So many WebSockets that failed in a row, before it asks over HTTP. */
  fallbackAfter: 3,
  /** How often it tries a WebSocket then. */
  websocketMs: 60_000,
  /** How long a request over HTTP waits for events. In seconds, as the API has it. */
  pollSeconds: 20,
  /** Is told what happens to connections. */
  log: (_line: string): void => {},
  clock: systemClock as Clock,
};

export type AgentOptions = { url: string; token: string } & Partial<typeof DEFAULTS>;

type Frame = { op: string; d: Record<string, unknown> };

/** A consumer of the agent that the token belongs to. */
export class Agent {
  readonly #options: { url: string; token: string } & typeof DEFAULTS;
  #over = new AbortController();
  #rest!: Rest;
  #backoff!: Backoff;
  #session: Session | undefined;
  /** One that is ready. */
  #socket: WebSocket | undefined;
  /** Of the consumer: whoever takes it raises that. */
  #generation: number | undefined;
  #upSince: number | undefined;
  #asks = false;
  #failures = 0;
  #websocketAt = 0;
  #after = 0;
  #answered = true;
  #stopping = false;
  #wake = new Latch();
  #unacked = new Latch();
  #flushed: Promise<unknown> = Promise.resolve();

  constructor(options: AgentOptions) {
    if (!/^https?:\/\/[^/?#]/.test(options.url)) throw new TypeError("the URL of a server begins with http:// or https://");
    this.#options = { ...DEFAULTS, ...options, url: options.url.replace(/\/+$/, "") };
  }

  #begin(): void {
    const { url, token, consumer, clock } = this.#options;
    this.#over = new AbortController();
    this.#rest = new Rest(url, token, consumer, this.#over.signal);
    this.#backoff = new Backoff(this.#options, () => clock.random());
    this.#session = this.#generation = this.#upSince = undefined;
    [this.#failures, this.#websocketAt, this.#after, this.#stopping] = [0, 0, 0, false];
    [this.#wake, this.#unacked] = [new Latch(), new Latch()];
  }

  /** Lets `run` return when the event in hand is done. */
  stop(): void {
    this.#stopping = true;
    this.#wake.set();
  }

  /**
   * Hands out events until `stop`, or until nothing can be done about what is wrong.
   *
   * An event is acknowledged some time after what `handle` returned is fulfilled. If that is rejected, so is `run`, and the event comes again
   * the next time. `onResync` is told that events were lost, and loads what the agent needs anew.
   */
  async run(handle: (event: Event) => Promise<void>, onResync?: (lost: Resync) => Promise<void>): Promise<void> {
    this.#begin();
    const errors: unknown[] = [];
    let linked = true;
    const ended = (error: unknown): number => errors.push(error);
    const link = this.#link().catch((error) => ((linked = false), ended(error)));
    const work = this.#work(handle, onResync).catch(ended);
    const acknowledging = this.#acknowledge().catch(ended);
    await Promise.race([link, work, acknowledging]);
    this.stop();
    await work;
    if (linked) await this.#flush().catch(ended);
    this.#over.abort();
    this.#unacked.set();
    this.#session?.drained.set();
    await Promise.all([link, acknowledging]);
    if (errors.length > 0) throw errors[0];
  }

  async #work(handle: (event: Event) => Promise<void>, onResync?: (lost: Resync) => Promise<void>): Promise<void> {
    while (!this.#stopping) {
      const session = this.#session;
      const item = session?.waiting.shift();
      if (session === undefined || item === undefined) {
        this.#wake.clear();
        await this.#wake.wait();
        continue;
      }
      if (item.event !== undefined) await handle(item.event);
      else if (onResync === undefined) throw new ResyncRequired("events were lost for the consumer, and there is no onResync");
      else if (item.resync !== undefined) await onResync(item.resync);
      session.finish(item);
      const most = Math.min(this.#options.ackEvents, Math.ceil(session.eventsMax / 2));
      if (session.events >= most || 2 * session.bytes >= session.bytesMax) await this.#flush();
      else this.#unacked.set();
    }
  }

  async #acknowledge(): Promise<void> {
    while (!this.#over.signal.aborted) {
      await this.#unacked.wait();
      await this.#options.clock.sleep(this.#options.ackMs, this.#over.signal);
      if (!this.#over.signal.aborted) await this.#flush();
    }
  }

  /** Acknowledges what is done. What cannot be said now is said when there is a connection again. */
  #flush(): Promise<boolean> {
    // One after the other, so that nothing is said twice.
    const flushed = this.#flushed.then(() => this.#say());
    this.#flushed = flushed.catch(() => {});
    return flushed;
  }

  async #say(): Promise<boolean> {
    this.#unacked.clear();
    const session = this.#session;
    if (session === undefined || session.acked === session.done) return true;
    const position = session.done;
    session.events = session.bytes = 0;
    try {
      if (this.#socket !== undefined) this.#socket.send(frame("ack", { position }));
      else if (this.#asks) await this.#rest.acknowledge(position, this.#generation);
      else return false;
    } catch (error) {
      if (!(error instanceof Lost)) throw error;
      this.#after = error.after;
      return false;
    }
    session.acked = position;
    return true;
  }

  /** Keeps a connection, until there is an error that no new one mends. */
  async #link(): Promise<void> {
    const { clock, websocketMs, log } = this.#options;
    while (!this.#over.signal.aborted) {
      this.#asks = this.#fallsBack() && clock.now() < this.#websocketAt;
      try {
        await (this.#asks ? this.#poll() : this.#converse());
        continue;
      } catch (error) {
        if (!(error instanceof Lost)) throw error;
        if (this.#over.signal.aborted) return;
        const after = Math.max(error.after, this.#after);
        this.#after = 0;
        if (!this.#asks) {
          this.#websocketAt = clock.now() + websocketMs;
          if (this.#fallsBack()) {
            log(`no WebSocket (${error.message}): asking over HTTP`);
            continue;
          }
        }
        const held = this.#upSince === undefined ? 0 : clock.now() - this.#upSince;
        this.#upSince = undefined;
        const pause = this.#backoff.pause(held, after);
        log(`no connection (${error.message}): again in ${Math.round(pause)} ms`);
        await clock.sleep(pause, this.#over.signal);
      }
    }
  }

  #fallsBack(): boolean {
    return this.#options.takeOver && this.#failures >= this.#options.fallbackAfter;
  }

  /** One WebSocket, until it is lost. */
  #converse(): Promise<never> {
    this.#failures += 1; // until the server has said something
    const conversation = new AbortController();
    const socket = new WebSocket(`ws${this.#options.url.slice(4)}/v1/gateway`, {
      maxPayload: FRAME_BYTES_MAX,
      perMessageDeflate: false,
      followRedirects: false, // a token goes to whom it was given for, and nowhere else
    });
    const close = (code: number): void => {
      socket.close(code);
      setTimeout(() => socket.terminate(), CLOSE_MS).unref();
    };
    const release = (): void => close(1000);
    let late: NodeJS.Timeout | undefined;
    return new Promise<never>((_, reject) => {
      late = setTimeout(() => reject(new Lost("it takes too long")), this.#options.connectMs);
      this.#over.signal.addEventListener("abort", release);
      let step: (frame: Frame, size: number) => void = (hello) => {
        step = this.#introduce(socket, expected(hello, "hello"), (interval) => {
          clearTimeout(late);
          step = (next, size) => this.#take(next, size);
          void this.#beat(socket, interval, conversation.signal).then((silent) => silent && close(4009));
        });
      };
      socket.on("message", (data, isBinary) => {
        if (conversation.signal.aborted) return;
        const bytes = data as Buffer;
        try {
          if (isBinary) throw new TypeError("no text");
          const next = JSON.parse(bytes.toString()) as Frame;
          if (next.op === "error") this.#refused(next.d); // before `ready`, the close that follows says what to do
          else step(next, bytes.length);
        } catch (error) {
          const known = error instanceof Lost || error instanceof SeqlineError;
          reject(known ? error : new Lost("what came is no frame of the gateway"));
        }
      });
      socket.on("unexpected-response", (_request, response) => {
        reject(new Lost(`status ${response.statusCode}`, retryAfter(response.headers["retry-after"])));
        response.destroy();
      });
      socket.on("error", (error: NodeJS.ErrnoException) => {
        const tooLarge = error.code === "WS_ERR_UNSUPPORTED_MESSAGE_LENGTH";
        reject(tooLarge ? this.#end(1009, "") : new Lost(error.code ?? error.name));
      });
      socket.on("close", (code, reason) => reject(this.#end(code, reason.toString())));
    }).finally(() => {
      this.#socket = undefined;
      this.#over.signal.removeEventListener("abort", release);
      conversation.abort();
      clearTimeout(late);
      socket.terminate();
    });
  }

  /** After `hello`: says who it is, and returns what takes the answer. `ready` is told how many milliseconds lie between two heartbeats. */
  #introduce(socket: WebSocket, hello: Frame["d"], ready: (interval: number) => void): (answer: Frame) => void {
    this.#failures = 0;
    const { token, consumer, takeOver, clock, log } = this.#options;
    const before = this.#session?.id === undefined ? undefined : this.#session;
    if (before !== undefined) socket.send(frame("resume", { token, session_id: before.id }));
    else {
      this.#session = undefined;
      const generation = this.#generation; // whoever has come since keeps it
      socket.send(frame("identify", { token, consumer, take_over: takeOver, generation }));
    }
    return (answer) => {
      const d = expected(answer, before === undefined ? "ready" : "resumed");
      if (d["kind"] !== "agent") throw new Refused("the token is not one of an agent");
      const acked = text(d["acked"]);
      const window = [number(hello["inflight_events_max"]), number(hello["inflight_bytes_max"])] as const;
      const session = before ?? new Session(text(d["session_id"]), acked, ...window);
      session.acked = acked;
      session.done = later(session.done, acked);
      session.lose(d["resync"] as Resync | undefined);
      this.#session = session;
      this.#generation = number(d["generation"]);
      this.#socket = socket;
      this.#upSince = clock.now();
      this.#wake.set();
      this.#unacked.set();
      log(`connected: consumer ${consumer} goes on after ${acked}`);
      ready(number(hello["heartbeat_interval_ms"]));
    };
  }

  /** Heartbeats, until the connection ends, or nothing comes back: then it returns true. */
  async #beat(socket: WebSocket, interval: number, signal: AbortSignal): Promise<boolean> {
    const { clock } = this.#options;
    this.#answered = true;
    await clock.sleep(interval * clock.random(), signal);
    while (this.#answered && !signal.aborted) {
      this.#answered = false;
      socket.send(frame("heartbeat", {}));
      await clock.sleep(interval, signal);
    }
    return !signal.aborted;
  }

  #take({ op, d }: Frame, size: number): void {
    const session = this.#session;
    if (op === "event") {
      session?.add(d as unknown as Event, size);
      if (session?.acked !== session?.done) this.#unacked.set();
    } else if (op === "resync_required") session?.lose(d as unknown as Resync);
    else if (op === "heartbeat.ack") this.#answered = true;
    else if (op === "reconnect") this.#after = number(d["after_ms"]);
    // Others, also those of newer servers, ask for nothing.
    this.#wake.set();
  }

  #refused(d: Frame["d"]): void {
    this.#after = number(d["retry_after_ms"] ?? 0);
    this.#options.log(`the server refuses a frame: ${word(d["code"])}`);
  }

  /** What the end of a connection means: no code, and one that says nothing, to come again and resume. */
  #end(code: number, reason: string): Error {
    let hint: Record<string, unknown> = {};
    try {
      hint = Object(JSON.parse(reason));
    } catch {
      // It says nothing.
    }
    const why = `closed with ${code} ${word(hint["reason"])}`.trimEnd();
    const Ends = ENDS.get(code);
    if (Ends !== undefined) return new Ends(why);
    if (hint["reconnect"] === false) return new Refused(why);
    if (!(hint["resume"] ?? !NOT_RESUMED.includes(code))) this.#session = undefined;
    return new Lost(why, Number(hint["after_ms"] ?? 0) || 0);
  }

  /** One request over HTTP, and what it gave done and acknowledged. */
  async #poll(): Promise<void> {
    if (!(await this.#flush())) throw new Lost("what is done could not be acknowledged");
    const { clock } = this.#options;
    if (this.#stopping) return clock.sleep(1_000, this.#over.signal); // `run` is about to end, and wants nothing more
    const before = this.#session;
    // The first one after a connection takes the consumer from it, and so raises the generation.
    const begins = this.#generation !== undefined && (before === undefined || before.id !== undefined);
    let answer: Delivery | undefined;
    try {
      answer = await this.#rest.events(this.#options.pollSeconds, this.#generation);
    } catch (error) {
      // Maybe a connection that this client never got.
      if (begins && error instanceof ConsumerReplaced) throw new Lost("somebody else has the consumer");
      if (begins && error instanceof Lost) this.#generation = undefined; // the answer would have brought another one
      throw error;
    }
    if (answer === undefined) return;
    let session: Session;
    try {
      const { events, next } = answer;
      this.#generation = number(answer.generation);
      session = new Session(undefined, text(answer.acked), 2 * events.length, FRAME_BYTES_MAX);
      const [first] = events;
      if (first !== undefined && seqOf(next) < number(first.seq)) return; // an answer before was lost: its events come again, then these
      session.lose(answer.resync);
      for (const event of events) session.add(event, 0);
      seqOf(next);
    } catch {
      throw new Lost("what came is no answer of the API");
    }
    this.#upSince ??= clock.now();
    this.#session = session;
    if (session.waiting.length > 0) {
      this.#wake.set();
      await session.drained.wait();
      if (this.#over.signal.aborted) return;
    }
    session.done = later(session.done, answer.next);
    await this.#flush();
  }
}

function frame(op: string, d: object): string {
  return JSON.stringify({ op, d });
}

/** What a frame says, if it is the one that has to come now. */
function expected({ op, d }: Frame, name: string): Frame["d"] {
  if (op !== name) throw new TypeError("another frame was to come");
  return d;
}
