//! Consumers of the stream.

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
