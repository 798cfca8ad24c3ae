//! Consumers of the stream.
