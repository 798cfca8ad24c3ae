/** Events over HTTP, for agents whose WebSockets do not get through. */

import { ConsumerReplaced, Refused, Unauthenticated } from "./errors.js";
import { Lost } from "./pace.js";
import { type Event, type Resync, retryAfter, word } from "./session.js";

/** Of an answer: a window of the largest size that a server can have, and one event. */
const ANSWER_BYTES_MAX = 96 * 1024 * 1024;
/** How long an answer may take beyond what it was asked to wait. */
const SLACK_MS = 10_000;

export interface Delivery {
  events: Event[];
  next: string;
  acked: string;
  generation: number;
  resync?: Resync;
}

/** One consumer of the agent that the token belongs to. */
export class Rest {
  #path: string | undefined;

  constructor(
    private readonly url: string,
    private readonly token: string,
    private readonly consumer: string,
    private readonly signal: AbortSignal,
  ) {}

  /** What comes next, for which the server waits. None if it found out that events were lost: the next answer says so. */
  async events(waitSeconds: number, generation: number | undefined): Promise<Delivery | undefined> {
    const known = generation === undefined ? "" : `&generation=${generation}`;
    const path = `${await this.#consumerPath()}/events?wait=${waitSeconds}${known}`;
    const answer = await this.#request("GET", path, undefined, waitSeconds * 1000);
    return answer["code"] === "resync_required" ? undefined : (answer as unknown as Delivery);
  }

  /**
   * What the server will not have is forgotten, and what is to come comes again: a position of a history that a restore has ended, or of
   * before an operator took the consumer from whoever had it.
   */
  async acknowledge(position: string, generation: number | undefined): Promise<void> {
    await this.#request("POST", `${await this.#consumerPath()}/ack`, { position, generation }, 0);
  }

  async #consumerPath(): Promise<string> {
    if (this.#path === undefined) {
      const { principal } = await this.#request("GET", "/v1/me", undefined, 0);
      this.#path = `/v1/agents/${String(principal)}/consumers/${this.consumer}`;
    }
    return this.#path;
  }

  async #request(method: string, path: string, body: object | undefined, wait: number): Promise<Record<string, unknown>> {
    let response: Response;
    let answer: Record<string, unknown>;
    try {
      response = await fetch(this.url + path, {
        method,
        headers: { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json" },
        body: body === undefined ? null : JSON.stringify(body),
        redirect: "manual", // a token goes to whom it was given for, and nowhere else
        signal: AbortSignal.any([this.signal, AbortSignal.timeout(wait + SLACK_MS)]),
      });
      answer = Object(JSON.parse(await content(response)));
    } catch (error) {
      const { name, cause } = error as Error & { cause?: NodeJS.ErrnoException };
      throw new Lost(cause?.code ?? name);
    }
    const { status } = response;
    // What has no code is not of the server, but of somebody in between.
    const code = status >= 300 ? word(answer["code"]) : "";
    const released = code === "consumer_replaced" && answer["holder"] === undefined;
    if (status < 300 || code === "resync_required") return answer;
    if (method === "POST" && (code === "conflict" || released)) return answer;
    if (code === "unauthenticated") throw new Unauthenticated("the token is not good");
    if (code === "consumer_replaced") throw new ConsumerReplaced("somebody else has taken the consumer");
    if (code !== "" && status >= 400 && status < 500 && status !== 408 && status !== 429) {
      throw new Refused(`the server answers with ${status} ${code}`);
    }
    throw new Lost(`status ${status}`, retryAfter(response.headers.get("Retry-After")));
  }
}

async function content(response: Response): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for await (const piece of response.body ?? []) {
    size += piece.length;
    if (size > ANSWER_BYTES_MAX) throw new RangeError("too large");
    text += decoder.decode(piece, { stream: true });
  }
  return text + decoder.decode();
}
