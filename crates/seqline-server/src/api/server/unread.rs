//! A connection whose client takes nothing is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use seqline::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Fails a write that is not taken within a limit. What lies in the buffers of the two systems counts as taken.
pub(super) struct Unread<S> {
    stream: S,
    limit: Duration,
    clock: Clock,
    /// Runs while something waits to be taken.
    late: Option<BoxFuture<'static, ()>>,
}

impl<S> Unread<S> {
    pub(super) fn new(stream: S, limit: Duration, clock: Clock) -> Self {
        Self { stream, limit, clock, late: None }
    }

    /// What came of a write, if that was not too long in coming.
    fn in_time<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.late = None;
            return written;
        }
        let (clock, limit) = (&self.clock, self.limit);
        let late = self.late.get_or_insert_with(|| {
            let clock = clock.clone();
            async move { clock.sleep(limit).await }.boxed()
        });
        late.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unread<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unread<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_client_that_takes_nothing_loses_its_connection() {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        let (server, mut client) = tokio::io::duplex(4);
        let mut server = Unread::new(server, Duration::from_secs(30), clock);
        server.write_all(b"1234").await.unwrap();
        let mut write = std::pin::pin!(server.write_all(b"5678"));
        assert!(futures_util::poll!(&mut write).is_pending());
        hand.advance(Duration::from_millis(29_999));
        assert!(futures_util::poll!(&mut write).is_pending());
        // It takes some, and has as long again.
        let mut taken = [0; 2];
        client.read_exact(&mut taken).await.unwrap();
        assert!(futures_util::poll!(&mut write).is_pending());
        hand.advance(Duration::from_millis(29_999));
        assert!(futures_util::poll!(&mut write).is_pending());
        hand.advance(Duration::from_millis(1));
        assert_eq!(write.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
