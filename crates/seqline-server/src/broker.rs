//! Reaching the broker that the user means, with a sentence of its own for each way in which that fails.

use seqline_nats::broker::{Broker, BrokerError, DEFAULT_URL};
use seqline_nats::stream::StreamError;

use crate::config::Config;
use crate::failure::Failure;

/// The URL that was given, if one was. An empty one is none.
pub(crate) fn given(url: Option<&str>) -> Option<&str> {
    url.map(str::trim).filter(|url| !url.is_empty())
}

/// The broker at a URL, or on this machine.
pub(crate) fn at(url: Option<&str>, config: &Config) -> Broker {
    Broker::new(config.broker(given(url).unwrap_or(DEFAULT_URL)))
}

/// The same, for what runs on its own: a URL that is none is told now.
pub(crate) fn checked(url: Option<&str>, config: &Config) -> Result<Broker, Failure> {
    let broker = config.broker(given(url).unwrap_or(DEFAULT_URL));
    broker.check()?;
    Ok(Broker::new(broker))
}

impl From<BrokerError> for Failure {
    fn from(error: BrokerError) -> Self {
        let message = error.to_string();
        match error {
            BrokerError::Url => Self::Usage(message),
            BrokerError::LoginRefused { .. } | BrokerError::File { .. } => Self::Refused(message),
            _ => Self::Unavailable(message),
        }
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Broker(error) => error.into(),
            error @ StreamError::Silent(_) => Self::Unavailable(error.to_string()),
            error => Self::Refused(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_is_empty_is_none() {
        assert_eq!([None, Some(""), Some("  ")].map(given), [None, None, None]);
        assert_eq!(given(Some(" nats://broker.example.com ")), Some("nats://broker.example.com"));
        assert_eq!(at(Some(""), &Config::default()).place(), "localhost:4222");
    }
}
