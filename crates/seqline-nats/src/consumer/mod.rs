//! The stream into a handler.
