//! The log into a stream of a broker, and the built-in consumer of that stream.
//!
//! A broker that is away keeps neither a process from starting or stopping nor an event from being appended: what needs it waits.

mod waiting;

use std::sync::Arc;

use seqline::Clock;
use seqline_nats::broker::Broker;
use seqline_nats::consumer::{ConsumerTally, Recorder, Runtime, StreamConsumer};
use seqline_nats::relay::{Relay, RelayTally};
use sqlx::PgPool;

use self::waiting::Asking;
pub(crate) use self::waiting::{Waiting, Waits};
use crate::api::Database;
use crate::broker;
use crate::cli::ServeRole;
use crate::config::Config;
use crate::failure::Failure;
use crate::lifecycle::{Lifecycle, Phase};
use crate::limits::BROKER_END_TIMEOUT;

/// What of it a process runs.
#[derive(Debug)]
pub(crate) struct Streaming {
    broker: Broker,
    relay: bool,
    recorder: bool,
}

/// What of it is shown: by name what each part has done.
#[derive(Debug, Default)]
pub(crate) struct StreamTallies {
    pub(crate) relay: Option<RelayFigures>,
    pub(crate) consumers: Vec<(String, Arc<ConsumerTally>)>,
    /// What waits for consumers, wherever they run.
    pub(crate) waiting: Waiting,
}

/// A relay that is shown.
#[derive(Debug)]
pub(crate) struct RelayFigures {
    pub(crate) name: String,
    pub(crate) stream: String,
    pub(crate) tally: Arc<RelayTally>,
    pub(crate) clock: Clock,
}

impl Streaming {
    /// What a role runs, as it is set; `None` for nothing. Nothing is connected.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] for a URL that is none, and for a role that would have nothing to do.
    pub(crate) fn of(role: ServeRole, url: Option<&str>, config: &Config) -> Result<Option<Self>, Failure> {
        let is_given = broker::given(url).is_some();
        let relay = role.runs(config.relay.mode, is_given);
        let recorder = role.runs(config.stream_consumer.recorder, is_given);
        match (relay, recorder) {
            (false, false) if role == ServeRole::Relay => Err(Failure::Usage(
                "relay.mode and stream_consumer.recorder are off: the role relay has nothing else to do"
                    .to_owned(),
            )),
            (false, false) => Ok(None),
            _ => Ok(Some(Self { broker: broker::checked(url, config)?, relay, recorder })),
        }
    }

    /// The relay alone, where the URL of a broker was given; `None` where none was, or the relay is off.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] for a URL that is none.
    pub(crate) fn relay_where_given(url: Option<&str>, config: &Config) -> Result<Option<Self>, Failure> {
        if broker::given(url).is_none() || !config.relay.mode.is_on(true) {
            return Ok(None);
        }
        Ok(Some(Self { broker: broker::checked(url, config)?, relay: true, recorder: false }))
    }

    /// Where the broker is, for people.
    pub(crate) fn place(&self) -> String {
        self.broker.place()
    }

    /// The names of what runs, for the log.
    pub(crate) fn names<'a>(&self, config: &'a Config) -> (Option<&'a str>, Option<&'static str>) {
        (self.relay.then_some(config.relay.name.as_str()), self.recorder.then_some(Recorder::NAME))
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// [`Failure::Unexpected`].
    pub(crate) fn start(
        &self,
        lifecycle: &mut Lifecycle,
        pool: &PgPool,
        config: &Config,
        clock: &Clock,
    ) -> Result<StreamTallies, Failure> {
        let mut tallies = StreamTallies::default();
        if self.relay {
            let mut relay = Relay::new(pool.clone(), self.broker.clone(), config.relay(), clock.clone());
            let asking = Asking {
                database: Database::new(pool.clone(), clock.clone(), config.database.statement_timeout),
                broker: self.broker.clone(),
                stream: config.stream.name.clone(),
                relay: relay.tally(),
                clock: clock.clone(),
            };
            let waiting = tallies.waiting.clone();
            tallies.relay = Some(RelayFigures {
                name: config.relay.name.clone(),
                stream: config.stream.name.clone(),
                tally: relay.tally(),
                clock: clock.clone(),
            });
            lifecycle.start("relay", Phase::Consumers, |stop| async move {
                relay.run(stop).await;
                Ok(())
            });
            lifecycle.start("stream_figures", Phase::Consumers, |stop| async move {
                asking.run(waiting, stop).await;
                Ok(())
            });
        }
        if self.recorder {
            let unexpected = |error: &dyn std::error::Error| Failure::Unexpected(error.to_string());
            let consumer =
                StreamConsumer::new(Recorder::NAME, Recorder).map_err(|error| unexpected(&error))?;
            let name = consumer.name().to_owned();
            let runtime = Runtime::new(
                pool.clone(),
                self.broker.clone(),
                config.stream(),
                consumer,
                config.stream_consumers(),
                clock.clone(),
            );
            tallies.consumers.push((name, runtime.tally()));
            lifecycle.start("stream_recorder", Phase::Consumers, |stop| async move {
                runtime.run(stop).await;
                Ok(())
            });
        }
        Ok(tallies)
    }

    /// Ends the connection, when nothing needs it any more.
    pub(crate) async fn end(&self, clock: &Clock) {
        // What is not said by then is found out by whoever comes next.
        let _ = clock.timeout(BROKER_END_TIMEOUT, self.broker.close()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Runs;

    fn of(role: ServeRole, url: Option<&str>, relay: Runs, recorder: Runs) -> Option<(bool, bool)> {
        let mut config = Config::default();
        config.relay.mode = relay;
        config.stream_consumer.recorder = recorder;
        let streaming = Streaming::of(role, url, &config).unwrap();
        streaming.map(|streaming| (streaming.relay, streaming.recorder))
    }

    #[test]
    fn each_part_has_a_switch_of_its_own() {
        let url = Some("nats://broker.example.com");
        let all = ServeRole::All;
        assert_eq!(of(all, None, Runs::Auto, Runs::Auto), None);
        assert_eq!(of(all, Some(""), Runs::Auto, Runs::Auto), None);
        assert_eq!(of(all, url, Runs::Auto, Runs::Auto), Some((true, true)));
        assert_eq!(of(all, url, Runs::Off, Runs::Auto), Some((false, true)));
        assert_eq!(of(all, url, Runs::Auto, Runs::Off), Some((true, false)));
        assert_eq!(of(all, url, Runs::Off, Runs::Off), None);
        assert_eq!(of(ServeRole::Api, url, Runs::On, Runs::On), None);
        assert_eq!(of(ServeRole::Relay, None, Runs::Auto, Runs::Off), Some((true, false)));
    }

    #[test]
    fn a_relay_that_nobody_asked_for_needs_a_url() {
        let mut config = Config::default();
        let runs = |url, config: &Config| {
            let streaming = Streaming::relay_where_given(url, config).unwrap();
            streaming.map(|streaming| (streaming.relay, streaming.recorder))
        };
        let url = Some("nats://broker.example.com");
        assert_eq!([runs(None, &config), runs(url, &config)], [None, Some((true, false))]);
        config.relay.mode = Runs::On;
        assert_eq!(runs(None, &config), None);
        config.relay.mode = Runs::Off;
        assert_eq!(runs(url, &config), None);
    }

    #[test]
    fn a_role_without_anything_to_do_and_a_url_that_is_none_are_refused() {
        let mut config = Config::default();
        let refused = |role, url, config: &Config| match Streaming::of(role, url, config) {
            Err(Failure::Usage(message)) => message,
            other => panic!("refused: {other:?}"),
        };
        let message = refused(ServeRole::All, Some("http s://hunter2"), &config);
        assert!(
            message.starts_with("the URL of the broker is none") && !message.contains("hunter2"),
            "{message}"
        );
        config.relay.mode = Runs::Off;
        config.stream_consumer.recorder = Runs::Off;
        assert!(refused(ServeRole::Relay, None, &config).contains("nothing else to do"));
    }
}
