//! Consumers whose LISTEN succeeds and hears nothing, as behind a pooler.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seqline::consumer::{Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round};
use seqline::{Clock, NewEvent, StoredEvent};
use seqline_testkit::{FaultProxy, Role, TestDb, TestServer, eventually};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::instrument::WithSubscriber;

const SOON: Duration = Duration::from_secs(20);

/// What was logged, without colours.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn with(&self, text: &str) -> usize {
        let lines = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        lines.lines().filter(|line| line.contains(text)).count()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Passing(mpsc::UnboundedSender<i64>);

impl Handler for Passing {
    async fn handle(&self, event: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        Ok(self.0.send(event.seq)?)
    }
}

#[tokio::test]
async fn a_worker_that_hears_nothing_says_so_once_and_polls_until_it_hears() {
    let db = TestDb::new().await;
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, TestServer::shared().await.postgres().port()));
    let proxy = FaultProxy::start(target).await.unwrap();
    proxy.drop_notifications();
    let config = ConsumerConfig {
        poll_interval: Duration::from_millis(50),
        listen_reconnect_backoff_cap: Duration::from_millis(50),
        listen_heartbeat_timeout: Duration::from_secs(1),
        ..ConsumerConfig::default()
    };
    // Rounds go to the server itself, so what the proxy counts are attempts to listen.
    let listen = db.options(Role::App).port(proxy.addr().port());
    let mut consumers = Consumers::new(db.app_pool(2), listen, config, Clock::system());
    let (sender, mut handled) = mpsc::unbounded_channel();
    consumers.register(Consumer::new(ConsumerName::new("deaf").unwrap(), Passing(sender))).unwrap();
    consumers.ensure().await.unwrap();
    let mut listening = consumers.listening();
    let stop = CancellationToken::new();
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer({
        let lines = lines.clone();
        move || lines.clone()
    });
    let running = tokio::spawn(consumers.run(stop.clone()).with_subscriber(subscriber.finish()));

    let pool = db.app_pool(1);
    let event = NewEvent::builder("order.created", "order", "any").build().unwrap();
    let mut append = async |seq: i64| {
        let mut tx = seqline::begin(&pool).await.unwrap();
        seqline::append(&mut tx, std::slice::from_ref(&event)).await.unwrap();
        seqline::commit(tx).await.unwrap();
        let handled = tokio::time::timeout(SOON, handled.recv()).await;
        assert_eq!(handled.expect("the event is found by polling"), Some(seq));
    };
    append(1).await;
    // Each sends one LISTEN and no more.
    eventually(SOON, "a third attempt to listen", async || proxy.requests() >= 3).await;
    append(2).await;
    assert!(!*listening.borrow());
    assert_eq!(lines.with("event log listener hears nothing, polling goes on"), 1);

    proxy.heal();
    tokio::time::timeout(SOON, listening.wait_for(|listening| *listening)).await.unwrap().unwrap();
    append(3).await;
    assert_eq!(lines.with("event log listener recovered"), 1);
    stop.cancel();
    running.await.unwrap().unwrap();
}
