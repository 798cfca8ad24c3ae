//! The `seqline` command, tested as its user sees it: the real program, its exit code, its output and its messages.

mod support;
mod worker;

mod access;
mod agents;
mod api;
mod append;
mod config;
mod connection;
mod consumers;
mod doctor;
mod durable;
mod follow;
mod gateway;
mod help;
mod import;
mod jobs;
mod learn;
mod maintenance;
mod migrate;
mod ops;
mod parked;
mod reading;
mod readme;
mod redact;
mod relay;
mod restore;
mod sequencing;
mod serve;
mod settings;
mod status;
mod stream;
mod tail;
mod up;
