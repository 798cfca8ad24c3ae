//! The kit against real servers of PostgreSQL and NATS: `SEQLINE_PG_BIN` and `SEQLINE_NATS_BIN` choose which.

mod backup;
mod databases;
mod deaf;
mod nats;
mod network;
mod servers;
mod standby;
mod supervisor;
