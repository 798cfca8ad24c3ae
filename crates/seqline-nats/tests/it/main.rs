//! The relay and the consumers of the stream, against real brokers and a real PostgreSQL.

mod broker;
mod consumer;
mod logged;
mod older;
mod operate;
mod relay;
mod service;
mod stream;
mod words;
