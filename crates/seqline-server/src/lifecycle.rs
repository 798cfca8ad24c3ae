//! The parts of a process: started one after the other, watched, and stopped in phases within one budget.
//!
//! Nothing runs longer than the process wants it to. When the process is asked to stop, the phases are stopped in their
//! order, each with what the others have left of the whole budget. What still runs when it is used up is dropped; in the
//! database that is a rollback. A component that ends although nobody asked for it ends the process.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_all;
use seqline::Clock;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::limits::DROP_TIMEOUT;

/// When a component is stopped: the phases are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Live delivery: its clients go to another process.
    Delivery,
    /// Those that handle events.
    Consumers,
    /// The server's own jobs, which those before may want done.
    Jobs,
    /// What numbers the events of all others.
    Sequencer,
    /// What tells operators how it goes, to the last.
    Ops,
}

/// All components, in the order in which they were started.
pub(crate) struct Lifecycle {
    clock: Clock,
    components: Vec<Component>,
}

struct Component {
    name: &'static str,
    phase: Phase,
    stop: CancellationToken,
    task: JoinHandle<Result<(), String>>,
}

/// A component ended although nobody had asked for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedEnd {
    pub(crate) component: &'static str,
    pub(crate) reason: String,
}

impl UnexpectedEnd {
    /// Logs it, once, as the failure of the whole process.
    pub(crate) fn logged(self) -> Failure {
        tracing::error!(component = self.component, error = self.reason, "component ended on its own");
        Failure::Logged(1)
    }
}

impl Lifecycle {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, components: Vec::new() }
    }

    /// The clock by which it is stopped.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Starts a component. It ends soon after its token is cancelled, and not before.
    pub(crate) fn start<F>(
        &mut self,
        name: &'static str,
        phase: Phase,
        component: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(component(stop.clone()));
        self.components.push(Component { name, phase, stop, task });
    }

    /// Waits until one of them ends on its own. Cancel safe.
    pub(crate) async fn unexpected_end(&mut self) -> UnexpectedEnd {
        if self.components.is_empty() {
            std::future::pending::<()>().await;
        }
        let tasks = self.components.iter_mut().map(|component| &mut component.task);
        let (ended, index, _) = select_all(tasks).await;
        let component = self.components.remove(index);
        let reason = reason(ended).unwrap_or_else(|| "it ended without an error".to_owned());
        UnexpectedEnd { component: component.name, reason }
    }

    /// Stops all of them, in at most `total_timeout`.
    pub(crate) async fn stop(mut self, total_timeout: Duration) {
        let clock = self.clock.clone();
        let used_up = async move { clock.sleep(total_timeout).await }.boxed().shared();
        self.components.sort_by_key(|component| component.phase);
        for phase in self.components.chunk_by_mut(|a, b| a.phase == b.phase) {
            phase.iter().for_each(|component| component.stop.cancel());
            for component in phase {
                let name = component.name;
                tokio::select! {
                    biased;
                    ended = &mut component.task => match reason(ended) {
                        None => tracing::info!(component = name, "component stopped"),
                        Some(reason) => tracing::error!(component = name, error = reason, "component stopped with an error"),
                    },
                    () = used_up.clone() => {
                        component.task.abort();
                        // Soon, so that nothing is said or done after this. Unless it does not yield.
                        let _ = self.clock.timeout(DROP_TIMEOUT, &mut component.task).await;
                        tracing::warn!(component = name, "component did not stop in time and was dropped");
                    }
                }
            }
        }
    }
}

/// Why a task did not end well. What a panic says is not repeated: it can hold anything.
fn reason(ended: Result<Result<(), String>, JoinError>) -> Option<String> {
    match ended {
        Ok(result) => result.err(),
        Err(error) if error.is_panic() => Some("it panicked".to_owned()),
        Err(_) => Some("it was dropped".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::poll;
    use time::OffsetDateTime;

    use super::*;

    /// Time of the test's own clock stands still, so what should have ended and has not would be waited for without end.
    async fn soon<T>(future: impl Future<Output = T>) -> T {
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, future).await.expect("it ends although time stands still")
    }

    /// What happened, in order.
    #[derive(Clone, Default)]
    struct Diary(Arc<Mutex<Vec<&'static str>>>);

    impl Diary {
        fn note(&self, what: &'static str) {
            self.0.lock().unwrap().push(what);
        }

        fn notes(&self) -> Vec<&'static str> {
            self.0.lock().unwrap().clone()
        }
    }

    /// Notes when it is dropped, however that comes.
    struct NotesEnd(Diary, &'static str);

    impl Drop for NotesEnd {
        fn drop(&mut self) {
            self.0.note(self.1);
        }
    }

    /// Stops at once when asked to.
    fn obedient(
        diary: &Diary,
        name: &'static str,
    ) -> impl FnOnce(CancellationToken) -> futures_util::future::BoxFuture<'static, Result<(), String>> {
        let end = NotesEnd(diary.clone(), name);
        |stop| {
            Box::pin(async move {
                let _end = end;
                stop.cancelled().await;
                Ok(())
            })
        }
    }

    /// Never stops.
    fn deaf(
        diary: &Diary,
        name: &'static str,
    ) -> impl FnOnce(CancellationToken) -> futures_util::future::BoxFuture<'static, Result<(), String>> {
        let end = NotesEnd(diary.clone(), name);
        |_| {
            Box::pin(async move {
                let _end = end;
                std::future::pending().await
            })
        }
    }

    fn lifecycle() -> (Lifecycle, seqline::clock::ClockHand) {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        (Lifecycle::new(clock), hand)
    }

    #[tokio::test]
    async fn phases_stop_in_their_order_whatever_was_started_first() {
        let (mut lifecycle, _hand) = lifecycle();
        let diary = Diary::default();
        lifecycle.start("b", Phase::Jobs, obedient(&diary, "jobs"));
        lifecycle.start("a", Phase::Consumers, obedient(&diary, "consumers"));
        soon(lifecycle.stop(Duration::from_secs(1))).await;
        assert_eq!(diary.notes(), ["consumers", "jobs"]);
    }

    #[tokio::test]
    async fn a_phase_waits_for_the_one_before_until_the_budget_is_used_up() {
        let (mut lifecycle, hand) = lifecycle();
        let diary = Diary::default();
        lifecycle.start("a", Phase::Consumers, deaf(&diary, "consumers"));
        lifecycle.start("b", Phase::Jobs, obedient(&diary, "jobs"));
        let mut stopping = std::pin::pin!(lifecycle.stop(Duration::from_secs(10)));
        assert!(poll!(&mut stopping).is_pending());
        hand.advance(Duration::from_millis(9_999));
        assert!(poll!(&mut stopping).is_pending());
        tokio::task::yield_now().await;
        assert_eq!(diary.notes(), [""; 0]);
        hand.advance(Duration::from_millis(1));
        soon(stopping).await;
        assert_eq!(diary.notes(), ["consumers", "jobs"]);
    }

    #[tokio::test]
    async fn the_budget_is_one_for_all_phases() {
        let (mut lifecycle, hand) = lifecycle();
        let diary = Diary::default();
        lifecycle.start("a", Phase::Consumers, deaf(&diary, "consumers"));
        lifecycle.start("b", Phase::Jobs, deaf(&diary, "jobs"));
        let mut stopping = std::pin::pin!(lifecycle.stop(Duration::from_secs(10)));
        assert!(poll!(&mut stopping).is_pending());
        hand.advance(Duration::from_secs(10));
        // Time stands still, so a second budget would never end.
        soon(stopping).await;
    }

    #[tokio::test]
    async fn an_end_that_nobody_asked_for_is_told_with_its_component() {
        let (mut lifecycle, _hand) = lifecycle();
        let diary = Diary::default();
        lifecycle.start("runs", Phase::Consumers, obedient(&diary, "consumers"));
        assert!(poll!(std::pin::pin!(lifecycle.unexpected_end())).is_pending());
        lifecycle.start("fails", Phase::Jobs, |_| async { Err("why".to_owned()) });
        let end = soon(lifecycle.unexpected_end()).await;
        assert_eq!(end, UnexpectedEnd { component: "fails", reason: "why".to_owned() });
        lifecycle.start("panics", Phase::Jobs, |_| async { panic!("a payload") });
        let end = soon(lifecycle.unexpected_end()).await;
        assert_eq!(end, UnexpectedEnd { component: "panics", reason: "it panicked".to_owned() });
        // The others can still be stopped.
        soon(lifecycle.stop(Duration::from_secs(1))).await;
        assert_eq!(diary.notes(), ["consumers"]);
    }
}
