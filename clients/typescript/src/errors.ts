/** Why an agent cannot go on. */

/** Why `run` cannot go on. */
export class SeqlineError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The server does not want this client to come again, for another reason than those below. */
export class Refused extends SeqlineError {}

/** 4002: the server does not understand this client. One of both is too old. */
export class InvalidFrame extends SeqlineError {}

/** 4005: this client has identified twice. */
export class AlreadyIdentified extends SeqlineError {}

/** 4012: the token is not, or no longer, good. */
export class Unauthenticated extends SeqlineError {}

/** 4015: somebody else has taken the consumer. Do not come again at once, or the two take it from each other for ever. */
export class ConsumerReplaced extends SeqlineError {}

/** 4017: another connection has resumed this session. */
export class SessionReplaced extends SeqlineError {}

/** 1009: a frame is larger than the other side takes. */
export class FrameTooLarge extends SeqlineError {}

/** Events were lost, and there is no `onResync`. */
export class ResyncRequired extends SeqlineError {}
