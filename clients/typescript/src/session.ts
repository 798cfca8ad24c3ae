/** What a session gave to an agent, and what of it is done. */

import { Latch } from "./pace.js";

/** An event, as the page about the envelope describes it. */
export interface Event {
  id: string;
  type: string;
  seq: number;
  payload: Record<string, unknown>;
  /** You may have had it before. */
  redelivered?: boolean;
  [member: string]: unknown;
}

/** Events were lost between two positions. */
export interface Resync {
  reason: string;
  after: string;
  position: string;
}

export interface Item {
  /** Acknowledged when it is done. */
  position: string;
  event?: Event;
  resync?: Resync;
  size: number;
}

/** It is forgotten as a whole: what one session gave is never acknowledged in another. */
export class Session {
  readonly waiting: Item[] = [];
  readonly drained = new Latch();
  done: string;
  /** Done since something was acknowledged. */
  events = 0;
  bytes = 0;
  readonly #epoch: string;
  #received: number;
  /** Where it went on after the last loss that it was told of, and the same when `onResync` is done. */
  #lost: string | undefined;
  #knows: string | undefined;

  constructor(
    /** None over HTTP. */
    readonly id: string | undefined,
    public acked: string,
    readonly eventsMax: number,
    readonly bytesMax: number,
  ) {
    this.done = acked;
    this.#epoch = text(acked.split(":")[0]);
    this.#received = seqOf(acked);
  }

  add(event: Event, size: number): void {
    const seq = number(event.seq);
    if (seq > this.#received) {
      this.#received = seq;
      this.#append({ position: `${this.#epoch}:${seq}`, event, size });
    } else if (seq <= seqOf(this.done)) this.acked = ""; // it is done, and came again: the acknowledgement was lost
  }

  lose(resync: Resync | undefined): void {
    if (resync === undefined) return;
    const { position } = resync;
    if (position !== this.#lost) {
      this.#received = seqOf(position);
      this.#lost = position;
      this.#append({ position, resync, size: 0 });
    } else if (position === this.#knows) this.acked = "";
  }

  finish(item: Item): void {
    this.done = item.position;
    if (item.resync !== undefined) {
      this.#knows = item.position;
      this.acked = ""; // the server may be there already, and waits to hear that the agent knows
    }
    this.events += 1;
    this.bytes += item.size;
    if (this.waiting.length === 0) this.drained.set();
  }

  #append(item: Item): void {
    // What is waiting is in flight, which is one window, or was before events were lost.
    if (this.waiting.length > 2 * this.eventsMax) throw new TypeError("more than the server's window");
    this.waiting.push(item);
  }
}

export function seqOf(position: unknown): number {
  return number(Number(String(position).split(":")[1]));
}

/** The later one of the same history. */
export function later(one: string, other: string): string {
  return seqOf(one) > seqOf(other) ? one : other;
}

export function number(value: unknown): number {
  if (typeof value !== "number" || !Number.isFinite(value)) throw new TypeError("no number");
  return value;
}

export function text(value: unknown): string {
  if (typeof value !== "string") throw new TypeError("no text");
  return value;
}

/** A code of the server, and nothing that could be anything else: it goes into errors and logs. */
export function word(value: unknown): string {
  return typeof value === "string" && /^[a-z_]{1,40}$/.test(value) ? value : "";
}

/** `Retry-After`, in milliseconds. */
export function retryAfter(header: string | null | undefined): number {
  return header != null && /^[0-9]{1,6}$/.test(header) ? Number(header) * 1000 : 0;
}
