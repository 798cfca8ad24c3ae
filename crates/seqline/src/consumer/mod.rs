//! Handle every event exactly once, in your own database.
//!
//! A consumer has a name, a cursor in the log and a [`Handler`]. It works in rounds: a transaction that locks the cursor, reads
//! the next events, hands each to the handler and moves the cursor. What the handler writes in that transaction and the step
//! of the cursor are committed together, so each event has its effects exactly once: with any number of workers, and after
//! a crash of any of them at any moment.
//!
//! ```no_run
//! use seqline::consumer::{Consumer, ConsumerConfig, ConsumerName, Consumers};
//! # use seqline::{Clock, StoredEvent};
//! # use seqline::consumer::{Handler, HandlerError, Round};
//! # struct Invoices;
//! # impl Handler for Invoices {
//! #     async fn handle(&self, _: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> { Ok(()) }
//! # }
//! # async fn example(pool: sqlx::PgPool, listen: sqlx::postgres::PgConnectOptions) -> Result<(), Box<dyn std::error::Error>> {
//! let stop = tokio_util::sync::CancellationToken::new();
//! let mut consumers = Consumers::new(pool, listen, ConsumerConfig::default(), Clock::system());
//! consumers.register(Consumer::new(ConsumerName::new("invoices")?, Invoices))?;
//! consumers.run(stop).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - A new consumer starts at the head: it gets what is committed after it was first run. See [`StartAt`].
//! - A consumer that fails stalls, visibly, and never skips an event by itself. The others go on. One that is declared so parks the event
//!   instead: see [`FailurePolicy`].
//! - One consumer can be divided into lanes that work at the same time: see [`Consumer::lanes`].
//! - Several processes may run the same consumers; one of them works on each at a time. More of them need no configuration.
//! - A worker needs the rights of `seqline_app`.
//! - From other languages, call `seqline.poll(consumer, max_events)` in a transaction of your own.
//!
//! These consumers run beside the database and have nothing to do with those of agents, which are readers over a network.
//!
//! # Modules
//!
//! `plan` decides what a round may do with what it has read, and `policy` what becomes of an event that failed, and nothing else;
//! `round` is the transaction; `worker` decides when the next round of a lane is due; `lanes` and `runner` hold them together; `tally` counts
//! rounds.

mod config;
mod definition;
mod details;
mod error;
mod filter;
mod handler;
mod jobs;
mod lane;
mod lanes;
mod marks;
mod name;
mod operate;
mod parked;
mod plan;
mod policy;
mod round;
mod runner;
mod shared;
mod state;
mod tally;
mod worker;

pub use config::ConsumerConfig;
pub use definition::{Consumer, StartAt};
pub use details::{ConsumerDetails, LaneState, Loss, Trying, details};
pub use error::{ConsumersError, EnsureError, RegistrationError, RoundError};
pub use filter::{Filter, InvalidFilter};
pub use handler::{Handler, HandlerError, Round};
pub use jobs::RoundJobs;
pub use lane::LaneKey;
pub use name::{ConsumerName, InvalidConsumerName};
pub use operate::{
    Acknowledged, Division, LaneBehind, Mode, OperateError, ParkedChange, Replay, Retirement, Rewind, Skip,
    Target, acknowledge, discard_parked, divide, gather_lanes, lane_behind, pause, release_lanes, replay,
    resume, retire, retry_parked, rewind, skip, wait_for,
};
pub use parked::{ParkedEvent, ParkedEvents, parked, parked_after, parked_event};
pub use plan::{LostRange, PlanError, RoundPlan, Scan, plan_round};
pub use policy::FailurePolicy;
pub(crate) use policy::Mark;
pub use round::{Outcome, RoundResult};
pub use runner::{CONSUMER_WAKE_APPLICATION_NAME, Consumers};
pub use state::{ConsumerState, Failure, states};
pub use tally::RoundTally;
