//! What a database, a server or a network that is not as usual does to the log and its consumers.

mod clocks;
mod disk_full;
mod failover;
mod poll_only;
mod pooled;
mod read_only;
