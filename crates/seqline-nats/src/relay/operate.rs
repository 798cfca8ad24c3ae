//! What people look at and decide about a relay.
