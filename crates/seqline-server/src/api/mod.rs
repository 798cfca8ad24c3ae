//! The API: HTTP for applications and their users.
//!
//! Whoever asks says who it is with a token, gets what it may see and nothing else, and is told in one form, [`Problem`], what was not
//! done and why. Nothing here waits without a bound: connections, requests, bodies, answers and those who wait for events have each one.
//!
//! The address is open for as long as the process lives; [`Api`] is what answers in one epoch, behind the [`Door`]. While there is none,
//! because the database is away or nobody has said which history it has, every request is told so and when to come again.
//!
//! In reading order: `position` is how a number leaves the server, `problem` how a refusal does; `server` has the connections, `state`
//! what requests are answered with, `auth` who asks, `jwt` for whom an identity provider vouches, `limiter` how often somebody may,
//! `body` what they say, `database` where requests ask, `tally` what is counted of connections and agents; `append` lets
//! requests share transactions; `routes` has a file for each resource, and `openapi` makes
//! the document of all of them.
//!
//! Who reads: `query` is what a reader asks for, `hub` has the latest events and fills its pages, within what `permissions` says of it;
//! `events` are pages of them, `stream` is a stream.

mod agents;
mod append;
mod auth;
mod body;
mod database;
mod envelope;
mod events;
mod gateway;
mod hub;
mod jwt;
mod limiter;
mod openapi;
mod operate;
mod permissions;
mod position;
mod problem;
mod query;
mod routes;
mod server;
mod state;
mod stream;
mod tally;

pub(crate) use self::append::prune;
pub(crate) use self::auth::{Caller, Credential};
pub(crate) use self::body::{JsonBody, NamedParams, Params, PathParams};
pub(crate) use self::database::Database;
pub(crate) use self::hub::Hub;
pub(crate) use self::hub::waiting::Kind as Waiting;
pub(crate) use self::jwt::JwtVerifier;
pub(crate) use self::permissions::Permissions;
pub(crate) use self::position::Position;
pub(crate) use self::problem::{Code, Problem};
pub(crate) use self::server::ApiServer;
pub(crate) use self::state::{Api, Door};
pub(crate) use self::tally::{Counts, Tally};

#[cfg(test)]
pub(crate) use self::hub::reader::tests as test_support;
#[cfg(test)]
pub(crate) use self::hub::rendered::tests::stored as stored_event;
