//! Worker consumers: rounds, and the workers that run them.

mod rounds;
