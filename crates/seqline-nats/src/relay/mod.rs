//! The log into the stream.

pub mod operate;
