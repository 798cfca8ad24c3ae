//! Consumers of the stream.

mod counting;
mod crashes;
mod delivery;
mod failures;
mod forked;
mod histories;
mod leaving;
mod logs;
mod outages;
mod reconciling;
mod spoiling;
mod stopping;
mod support;
