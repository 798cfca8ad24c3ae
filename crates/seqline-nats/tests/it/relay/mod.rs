//! The relay.

mod batches;
mod cluster;
mod deaths;
mod decisions;
mod faults;
mod flow;
mod foreign;
mod history;
mod limits;
mod logs;
mod loss;
mod outages;
mod recovery;
mod stalls;
mod support;
mod two;
