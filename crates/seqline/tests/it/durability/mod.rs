//! What was acknowledged, and what was handed out, survives: a crash, and a synchronous standby that is away.

mod crash;
mod handed;
mod late;
mod queue;
mod standby;
