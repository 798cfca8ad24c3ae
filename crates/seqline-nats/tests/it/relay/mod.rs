//! The relay.

mod flow;
mod support;
