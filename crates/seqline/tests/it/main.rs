//! The log, tested from its user's side on a real PostgreSQL, as the roles that the product's migration makes.

mod support;

mod access;
mod agent;
mod append_rules;
mod audit;
mod committing;
mod consumers;
mod data_page;
mod deferred;
mod durability;
mod identity;
mod isolation;
mod jobs;
mod learn;
mod ledger;
mod migrations;
mod modes;
mod mutations;
mod numbering;
mod partitions;
mod poll;
mod privileges;
mod readme;
mod redaction;
mod retention;
mod scale;
mod sequencing;
mod tail;
mod tidy;
mod trace;
mod writers;
