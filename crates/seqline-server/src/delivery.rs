//! Live delivery in one epoch: the tail with what follows it, and the API, which is fed by it.

use seqline::Clock;
use seqline::tail::{Sink, Tail};
use sqlx::PgPool;
use uuid::Uuid;

use crate::api::{Api, Door, Hub, Permissions};
use crate::config::Config;
use crate::fanout::FanoutLag;
use crate::lifecycle::{Lifecycle, Phase};
use crate::metrics::{Metrics, catalogue};
use crate::ops::{FollowedTail, Health};

/// What it is made of.
pub(crate) struct Delivery<'a> {
    pub(crate) pool: PgPool,
    pub(crate) config: &'a Config,
    pub(crate) clock: &'a Clock,
    pub(crate) metrics: &'a Metrics,
    pub(crate) health: &'a Health,
    pub(crate) door: &'a Door,
}

impl Delivery<'_> {
    /// Starts it, and returns what answers from now on. The tail is in this epoch.
    pub(crate) fn start(self, lifecycle: &mut Lifecycle, tail: Tail, epoch: Uuid) -> Api {
        self.health.follows(Some(FollowedTail { epoch, position: tail.head() }));
        let lag = self.metrics.seconds(&catalogue::FANOUT_LAG);
        let lag = FanoutLag { clock: self.clock.clone(), lag };
        let hub = Hub::for_config(epoch, *tail.head().borrow(), self.config);
        let api = Api::new(self.pool, self.config, self.clock, &hub, self.health);
        let sinks = in_order(api.permissions.clone(), lag, hub);
        lifecycle.start("event_tail", Phase::Delivery, |stop| async move {
            tail.run(sinks, stop).await.map_err(|error| error.to_string())
        });
        let (door, answering) = (self.door.clone(), api.clone());
        lifecycle.start("api", Phase::Delivery, |stop| {
            // It answers when this returns, and not when the runtime comes to it.
            let open = door.open(answering, stop);
            async move {
                open.await;
                Ok(())
            }
        });
        api
    }
}

/// What follows the tail. Permissions first and the hub last: what a batch changes is known before anybody gets it.
fn in_order(permissions: Permissions, lag: impl Sink + 'static, hub: Hub) -> Vec<Box<dyn Sink>> {
    vec![Box::new(permissions), Box::new(lag), Box::new(hub)]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use futures_util::future::BoxFuture;
    use seqline::StoredEvent;
    use seqline::tail::SinkError;

    use super::*;
    use crate::api::test_support::{access, event, questions};
    use crate::api::{Credential, Hub};

    struct Nothing;

    impl Sink for Nothing {
        fn accept<'a>(&'a mut self, _: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    #[tokio::test]
    async fn whoever_can_get_an_event_is_judged_by_the_permissions_with_which_it_was_numbered() {
        let version = Arc::new(AtomicI64::new(3));
        let given = version.clone();
        let load = move |_| -> BoxFuture<'static, _> {
            let access = access(given.load(Ordering::SeqCst), &[]);
            Box::pin(std::future::ready(Ok(Some(access))))
        };
        let (clock, age) = (Clock::system(), Duration::from_secs(600));
        let permissions = Permissions::new(questions(load), age, age, clock);
        let hub = Hub::for_config(Uuid::from_u128(7), 0, &Config::default());
        let credential = Credential::Token([7; 32]);
        let of = async || permissions.of(&credential).await.unwrap().unwrap().permission_version;
        assert_eq!(of().await, 3);
        version.store(4, Ordering::SeqCst);
        for mut sink in in_order(permissions.clone(), Nothing, hub.clone()) {
            sink.accept(&[event(1, 4)]).await.unwrap();
            // After each of them, since readers do not wait for the last.
            if hub.position() >= 1 {
                assert_eq!(of().await, 4);
            }
        }
        assert_eq!(hub.position(), 1);
    }
}
