//! Every bound that is not a setting, with its reason.

use std::time::Duration;

/// How long a connection may take. A broker on the same continent answers within a second; a firewall that drops packets never does.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the broker may take to answer a request of its API. A cluster that elects a leader is silent for a few seconds, and is asked again.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How many consumers of a stream are reported. Each has tables in the database, and nobody reads a longer list.
pub(crate) const CONSUMERS_REPORTED_MAX: usize = 1000;
