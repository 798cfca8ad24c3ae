//! The tasks of one consumer: one for each lane, as many as the database says.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::definition::Consumer;
use super::shared::Shared;
use super::worker::Worker;
use crate::limits::LANES_MAX;

/// How the lanes of one consumer are woken, and how many there are.
#[derive(Debug)]
pub(super) struct Lanes {
    wakes: Vec<Arc<Notify>>,
    count: watch::Sender<u32>,
}

impl Lanes {
    pub(super) fn new(count: u32) -> Self {
        let wakes = (0..LANES_MAX).map(|_| Arc::default()).collect();
        Self { wakes, count: watch::Sender::new(count.clamp(1, LANES_MAX)) }
    }

    /// What the database says. More lanes get their tasks, and those of lanes that are gone sleep.
    pub(super) fn set_count(&self, count: u32) {
        self.count.send_if_modified(|known| std::mem::replace(known, count.clamp(1, LANES_MAX)) != *known);
    }

    pub(super) fn count(&self) -> u32 {
        *self.count.borrow()
    }

    /// Wakes a lane. Each remembers one wake-up.
    pub(super) fn wake(&self, lane: u32) {
        if let Some(wake) = self.wakes.get(lane as usize) {
            wake.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        (0..self.count()).for_each(|lane| self.wake(lane));
    }

    /// Runs a task for each lane until `stop`; ends before only if one of them does, which is a bug.
    pub(super) async fn run(
        self: Arc<Self>,
        shared: Arc<Shared>,
        consumer: Arc<Consumer>,
        stop: CancellationToken,
    ) {
        let mut tasks = JoinSet::new();
        let mut count = self.count.subscribe();
        loop {
            let wanted = *count.borrow_and_update() as usize;
            for lane in tasks.len()..wanted {
                tasks.spawn(
                    Worker {
                        shared: shared.clone(),
                        consumer: consumer.clone(),
                        lane: lane as u32,
                        lanes: self.clone(),
                        wake: self.wakes[lane].clone(),
                        stop: stop.clone(),
                    }
                    .run(),
                );
            }
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = count.changed() => {}
                Some(_) = tasks.join_next() => break,
            }
        }
        if stop.is_cancelled() {
            while tasks.join_next().await.is_some() {}
        }
    }
}
