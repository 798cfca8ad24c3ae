//! Consumers of the stream.

mod cluster;
mod counting;
mod crashes;
mod delivery;
mod failures;
mod forked;
mod histories;
mod keeping;
mod leaving;
mod logs;
mod losing;
mod odd;
mod outages;
mod reconciling;
mod relogin;
mod rolling;
mod spoiling;
mod stopping;
mod support;
