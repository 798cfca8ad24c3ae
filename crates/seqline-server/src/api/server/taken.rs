//! Answers that nobody takes.
//!
//! With HTTP/2 a client says for each answer how much of it may be sent. What may not be sent waits here and writes nothing, so the bound of
//! the writes does not notice it. What can be seen from here: a body is asked for its next piece as soon as there is room for one. One that
//! has a piece and is not asked for it is not taken.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use seqline::Clock;

use crate::limits::API_PIECE_BYTES;

/// The answers of one connection.
#[derive(Debug)]
pub(super) struct Answers {
    clock: Clock,
    next: AtomicU64,
    /// Since when each has a piece that nobody takes. Those that have none are there without a time.
    waiting: Mutex<HashMap<u64, Option<Duration>>>,
}

impl Answers {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { clock, next: AtomicU64::new(0), waiting: Mutex::default() })
    }

    /// Returns when an answer has had a piece for so long that nobody took.
    pub(super) async fn untaken(&self, limit: Duration) {
        loop {
            let longest = self.with(|waiting| waiting.values().flatten().min().copied());
            // One that begins to wait while this sleeps is seen in time: its limit ends later.
            let pause = longest.map_or(limit, |since| (since + limit).saturating_sub(self.clock.elapsed()));
            if pause.is_zero() {
                return;
            }
            self.clock.sleep(pause).await;
        }
    }

    fn set(&self, answer: u64, since: Option<Duration>) {
        self.with(|waiting| {
            // One that has ended waits for nothing any more, whoever still wakes it.
            if let Some(known) = waiting.get_mut(&answer) {
                *known = since;
            }
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<u64, Option<Duration>>) -> T) -> T {
        change(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A body in pieces, so that little of it is taken at a time, which says how that goes.
pub(super) struct Taken {
    body: Body,
    /// Of a piece that was too large.
    rest: Bytes,
    answer: u64,
    answers: Arc<Answers>,
    /// Whoever asked last, and what wakes it.
    waking: Option<(Waker, Waker)>,
}

impl Taken {
    pub(super) fn new(body: Body, answers: &Arc<Answers>) -> Self {
        let answer = answers.next.fetch_add(1, Ordering::Relaxed);
        let now = answers.clock.elapsed();
        answers.with(|waiting| waiting.insert(answer, Some(now)));
        Self { body, rest: Bytes::new(), answer, answers: answers.clone(), waking: None }
    }

    /// Wakes whoever asks, and notes that there is something for it.
    fn waking(&mut self, asking: &Waker) -> Waker {
        match &self.waking {
            Some((known, waking)) if known.will_wake(asking) => waking.clone(),
            _ => {
                let (answer, answers, asking) = (self.answer, self.answers.clone(), asking.clone());
                let waking = Waker::from(Arc::new(Noted { answer, answers, asking: asking.clone() }));
                self.waking = Some((asking, waking.clone()));
                waking
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.answers.with(|waiting| waiting.remove(&self.answer));
    }
}

impl HttpBody for Taken {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Before it is looked whether there is one: it may come at any moment, and says so itself then.
        self.answers.set(self.answer, None);
        if self.rest.is_empty() {
            let waking = self.waking(context.waker());
            let polled = Pin::new(&mut self.body).poll_frame(&mut Context::from_waker(&waking));
            match polled {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return other,
            }
        }
        let length = self.rest.len().min(API_PIECE_BYTES);
        let piece = self.rest.split_to(length);
        let now = self.answers.clock.elapsed();
        self.answers.set(self.answer, Some(now));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_body, rest) = (self.body.size_hint(), u64::try_from(self.rest.len()).unwrap_or(u64::MAX));
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// Somebody who waits for the next piece of an answer.
struct Noted {
    answer: u64,
    answers: Arc<Answers>,
    asking: Waker,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        let now = self.answers.clock.elapsed();
        self.answers.set(self.answer, Some(now));
        self.asking.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt, stream};
    use http_body_util::BodyExt;
    use time::OffsetDateTime;
    use tokio::sync::mpsc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A body of what is sent, and who watches it.
    fn of_channel() -> (mpsc::Sender<Bytes>, Taken, Arc<Answers>, seqline::clock::ClockHand) {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        let answers = Answers::new(clock);
        let (sender, receiver) = mpsc::channel::<Bytes>(4);
        let pieces = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
        let body = Body::from_stream(pieces.map(Ok::<_, std::convert::Infallible>));
        (sender, Taken::new(body, &answers), answers, hand)
    }

    #[tokio::test]
    async fn an_answer_that_has_something_nobody_takes_is_noticed() {
        let (sender, mut body, answers, hand) = of_channel();
        let mut untaken = std::pin::pin!(answers.untaken(LIMIT));
        let mut late = || untaken.as_mut().now_or_never().is_some();
        // Whoever asks and gets nothing waits for as long as it wants.
        assert!(body.frame().now_or_never().is_none());
        for _ in 0..3 {
            hand.advance(LIMIT);
            assert!(!late());
        }
        // There is a large piece now, of which a part is taken.
        sender.send(Bytes::from(vec![b'x'; 2 * API_PIECE_BYTES])).await.unwrap();
        hand.advance(LIMIT - Duration::from_millis(1));
        assert!(!late());
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece.len(), API_PIECE_BYTES);
        hand.advance(LIMIT - Duration::from_millis(1));
        assert!(!late());
        hand.advance(Duration::from_millis(1));
        assert!(late());
    }

    #[tokio::test]
    async fn what_has_come_is_noticed_without_anybody_asking_and_not_after_the_end() {
        let (sender, mut body, answers, hand) = of_channel();
        assert!(body.frame().now_or_never().is_none());
        sender.send(Bytes::from_static(b"x")).await.unwrap();
        hand.advance(LIMIT);
        assert!(answers.untaken(LIMIT).now_or_never().is_some());
        drop(body);
        assert!(answers.untaken(LIMIT).now_or_never().is_none());
    }
}
