/** When things are done: time, chance, pauses, and what waits for something. */

/** Time in milliseconds, and chance, which tests set. */
export interface Clock {
  now(): number;
  /** Ends early when the signal is aborted. */
  sleep(ms: number, signal: AbortSignal): Promise<void>;
  random(): number;
}

export const systemClock: Clock = {
  now: () => performance.now(),
  random: Math.random,
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal.aborted) return resolve();
      const done = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", done);
    }),
};

/** A server that says to come again later than that is asked earlier. */
const AFTER_MS_MAX = 300_000;

/** How long to wait before coming again: a random part of a time that doubles. */
export class Backoff {
  #failures = 0;

  constructor(
    private readonly options: { backoffMs: number; backoffMsMax: number; stableMs: number },
    private readonly random: () => number,
  ) {}

  /** After a connection that held for `held`, and a server that said not to come before `after`. */
  pause(held: number, after: number): number {
    if (held >= this.options.stableMs) this.#failures = 0;
    const most = Math.min(this.options.backoffMs * 2 ** this.#failures, this.options.backoffMsMax);
    this.#failures = Math.min(this.#failures + 1, 30);
    return Math.max(this.random() * most, Math.min(after, AFTER_MS_MAX));
  }
}

/** Nothing comes through, and may later: not before `after` milliseconds, if the server has said so. It never leaves `run`. */
export class Lost extends Error {
  constructor(
    why: string,
    readonly after = 0,
  ) {
    super(why);
  }
}

/** Something that is waited for. */
export class Latch {
  #isSet = false;
  #waiting: (() => void)[] = [];

  set(): void {
    this.#isSet = true;
    for (const go of this.#waiting.splice(0)) go();
  }

  clear(): void {
    this.#isSet = false;
  }

  wait(): Promise<void> {
    return this.#isSet ? Promise.resolve() : new Promise((go) => this.#waiting.push(go));
  }
}
