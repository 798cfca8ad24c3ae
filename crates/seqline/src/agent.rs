//! The durable readers of agents: up to where each has acknowledged, and who holds it.
//!
//! An *agent consumer* is a named reader of one agent. Its cursor is a row with the *acknowledgement*, a number up to which the agent has
//! everything, and the *holder*: the session of a connection, or a window over REST. There is one holder at a time. Whoever comes [takes](take)
//! the row, whether somebody has it or not, and raises its *generation*; the one before finds out with its next [`save`], which changes
//! nothing then. So a holder that was stopped for an hour and goes on cannot take an acknowledgement of its successor back, whatever it believes.
//!
//! What is in flight belongs to the holder. That of a connection is in the memory of its process; that of a window over REST is in the row, as
//! whoever runs windows has written it, so that the next request can go to any process: see [`lock`].
//!
//! None of this begins a transaction, appends an event or touches more than the rows that are named.

mod cursor;
mod name;
mod operate;

pub use cursor::{
    Cursor, Holder, HolderKind, Locked, Lost, LostReason, Save, Saved, Take, Taking, acknowledge, cursor,
    lock, lose, release, release_all, save, save_all, store_window, take,
};
pub use name::{AgentConsumer, InvalidName};
pub use operate::{delete, list, release_holder, reset};
