//! Consumers of the stream. What these tests were seen to catch is in `docs/internals`.

mod crashes;
mod delivery;
mod failures;
mod histories;
mod logs;
mod outages;
mod reconciling;
mod spoiling;
mod stopping;
mod support;
