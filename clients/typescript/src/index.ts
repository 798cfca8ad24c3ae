/** Events of Seqline for an agent: every one, in order, at least once. */

export { Agent, type AgentOptions, type Event } from "./agent.js";
export { Backoff, type Clock } from "./pace.js";
export * from "./errors.js";
export type { Resync } from "./session.js";
