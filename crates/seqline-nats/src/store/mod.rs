//! All SQL text of this crate. A function runs one statement on a connection that it is given, and never begins, commits, sleeps, retries or
//! logs.

pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod effects;
pub(crate) mod relay;
pub(crate) mod relay_operate;
pub(crate) mod retries;
