//! Live delivery in one epoch: the tail with what follows it, and the API, which is fed by it.

use seqline::Clock;
use seqline::tail::{Sink, Tail};
use sqlx::PgPool;
use uuid::Uuid;

use crate::api::{Api, Door, Hub};
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
        // Permissions first and the hub last: what a batch changes is known before anybody gets it.
        let sinks: Vec<Box<dyn Sink>> = vec![Box::new(api.permissions.clone()), Box::new(lag), Box::new(hub)];
        lifecycle.start("event_tail", Phase::Delivery, |stop| async move {
            tail.run(sinks, stop).await.map_err(|error| error.to_string())
        });
        let (door, answering) = (self.door.clone(), api.clone());
        lifecycle.start("api", Phase::Delivery, |stop| async move {
            door.open(answering, stop).await;
            Ok(())
        });
        api
    }
}
