//! The API, as its clients see it.

mod client;

mod reference;

pub(crate) use client::{Answer, Client};
