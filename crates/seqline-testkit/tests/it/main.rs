//! The kit against real PostgreSQL servers: `SEQLINE_PG_BIN` chooses which.

mod backup;
mod databases;
mod deaf;
mod network;
mod servers;
mod standby;
mod supervisor;
