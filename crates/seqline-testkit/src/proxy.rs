//! A TCP proxy that breaks the network on request: late, silent, cut, refusing, without notifications.
//!
//! Put between a program and its database it shows what the program does when the other side is slow, has
//! vanished without a word, or resets connections. Everything it does takes effect at once, for the
//! connections there are and for new ones.
//!
//! It passes anything on. Connections to PostgreSQL it also reads, unless they are encrypted: so it counts what is asked,
//! and can swallow what LISTEN would hear.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::wire::{ClientSide, Phase, ServerSide};

mod wire;

/// How much is passed on at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// What the network does now.
#[derive(Debug, Clone, Default)]
struct Weather {
    mode: Mode,
    delay: Duration,
    /// Raised by every cut: a connection older than that is reset.
    cuts: u64,
    notifications_dropped: bool,
    answers_held: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Passing,
    Silent,
    Refusing,
}

/// A proxy on 127.0.0.1 in front of one address. Dropping it closes all connections.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    target: watch::Sender<SocketAddr>,
    weather: watch::Sender<Weather>,
    requests: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy that passes everything on. It lives on the runtime of the caller.
    ///
    /// # Errors
    ///
    /// If no port can be had.
    pub async fn start(target: SocketAddr) -> io::Result<FaultProxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let (weather, forecast) = watch::channel(Weather::default());
        let requests = Arc::default();
        let (target, leads_to) = watch::channel(target);
        let accepting = tokio::spawn(accept(listener, leads_to, forecast, Arc::clone(&requests)));
        Ok(FaultProxy { addr, target, weather, requests, accepting })
    }

    /// Where to connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Delivers everything this much later, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.weather.send_modify(|weather| weather.delay = delay);
    }

    /// Connections stay open, but nothing gets through, not even an end: as when the other host has lost power.
    /// New connections are accepted and not answered. What is sent meanwhile arrives after [`heal`](Self::heal).
    pub fn black_hole(&self) {
        self.set_mode(Mode::Silent);
    }

    /// What the other side is sent gets through at once, and nothing of what it answers, until [`heal`](Self::heal).
    pub fn hold_answers(&self) {
        self.weather.send_modify(|weather| weather.answers_held = true);
    }

    /// Resets all connections there are. What is held back for them is lost, also when all is healed right after it. New ones are not touched.
    pub fn cut(&self) {
        self.weather.send_modify(|weather| weather.cuts += 1);
    }

    /// Closes new connections at once. Those that exist are not touched.
    pub fn refuse(&self) {
        self.set_mode(Mode::Refusing);
    }

    /// Notifications of PostgreSQL vanish; all else gets through. That is what a pooler that hands out server connections
    /// for one transaction looks like to LISTEN: it succeeds, and nothing is ever heard.
    pub fn drop_notifications(&self) {
        self.weather.send_modify(|weather| weather.notifications_dropped = true);
    }

    /// New connections lead to another address, as the name of a database does after a failover. Those that exist stay where they are.
    pub fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Back to a network without faults. Notifications that were dropped do not come again.
    pub fn heal(&self) {
        self.weather.send_modify(|weather| {
            weather.mode = Mode::Passing;
            weather.delay = Duration::ZERO;
            weather.notifications_dropped = false;
            weather.answers_held = false;
        });
    }

    /// How many requests PostgreSQL was sent through this proxy: simple queries, extended ones and pings by their Sync, and
    /// function calls. A client waits for the answer to each, unless it pipelines, so these are its round trips to the
    /// database. Logging in is not counted.
    ///
    /// ```no_run
    /// # use seqline_testkit::FaultProxy;
    /// # async fn example(proxy: &FaultProxy, work: impl Future<Output = ()>) {
    /// let before = proxy.requests();
    /// work.await;
    /// println!("{} round trips", proxy.requests() - before);
    /// # }
    /// ```
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn set_mode(&self, mode: Mode) {
        self.weather.send_modify(|weather| weather.mode = mode);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    target: watch::Receiver<SocketAddr>,
    weather: watch::Receiver<Weather>,
    requests: Arc<AtomicU64>,
) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let (mode, cuts) = {
            let now = weather.borrow();
            (now.mode, now.cuts)
        };
        if mode == Mode::Refusing {
            reset(&client);
            continue;
        }
        let target = *target.borrow();
        connections.spawn(serve(client, target, weather.clone(), cuts, Arc::clone(&requests)));
    }
}

async fn serve(
    client: TcpStream,
    target: SocketAddr,
    weather: watch::Receiver<Weather>,
    cuts: u64,
    requests: Arc<AtomicU64>,
) {
    let mut cut = weather.clone();
    tokio::select! {
        () = until_cut(&mut cut, cuts) => reset(&client),
        server = reach(target, weather.clone()) => match server {
            Ok(server) => connect(client, server, weather, cuts, &requests).await,
            Err(_) => reset(&client),
        }
    }
}

/// Connects to the target, but not while the network is silent.
async fn reach(target: SocketAddr, mut weather: watch::Receiver<Weather>) -> io::Result<TcpStream> {
    until_heard(&mut weather).await;
    TcpStream::connect(target).await
}

async fn connect(
    mut client: TcpStream,
    mut server: TcpStream,
    mut weather: watch::Receiver<Weather>,
    cuts: u64,
    requests: &AtomicU64,
) {
    // Delays are ours to make.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let ended_well = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let phase = Mutex::new(Phase::START);
        let phase = || phase.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut client_side, mut server_side) = (ClientSide::default(), ServerSide::default());
        let there = pump(
            from_client,
            to_server,
            weather.clone(),
            |now| now.cuts > cuts,
            |_| false,
            |bytes, _, out| {
                requests.fetch_add(client_side.read(bytes, &mut phase()), Ordering::Relaxed);
                out.extend_from_slice(bytes);
            },
        );
        let back = pump(
            from_server,
            to_client,
            weather.clone(),
            |now| now.cuts > cuts,
            |now| now.answers_held,
            |bytes, now, out| {
                server_side.filter(bytes, &mut phase(), now.notifications_dropped, out);
            },
        );
        tokio::select! {
            both = async { tokio::try_join!(there, back) } => both.is_ok(),
            () = until_cut(&mut weather, cuts) => false,
        }
    };
    if !ended_well {
        reset(&client);
        reset(&server);
    }
}

/// Passes on what one side sends, and in the end its end, but not while it is held. `read` gets each piece and says what goes on.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut weather: watch::Receiver<Weather>,
    is_cut: impl Fn(&Weather) -> bool,
    is_held: fn(&Weather) -> bool,
    mut read: impl FnMut(&[u8], &Weather, &mut Vec<u8>),
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut passed = Vec::with_capacity(CHUNK_BYTES);
    loop {
        let length = from.read(&mut chunk).await?;
        let delay = weather.borrow().delay;
        if !delay.is_zero() {
            pause(delay).await;
        }
        until_heard(&mut weather).await;
        // An error means that the proxy is gone, and this task with it. Whoever heals the network after a cut does not bring back what was held.
        if weather.wait_for(|now| !is_held(now)).await.is_ok_and(|now| is_cut(&now)) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if length == 0 {
            return to.shutdown().await;
        }
        passed.clear();
        read(&chunk[..length], &weather.borrow(), &mut passed);
        to.write_all(&passed).await?;
    }
}

/// Waits for a cut after the first `cuts`.
async fn until_cut(weather: &mut watch::Receiver<Weather>, cuts: u64) {
    // An error means that the proxy is gone, and this task with it.
    let _ = weather.wait_for(|now| now.cuts > cuts).await;
}

async fn until_heard(weather: &mut watch::Receiver<Weather>) {
    // An error means that the proxy is gone, and this task with it.
    let _ = weather.wait_for(|now| now.mode != Mode::Silent).await;
}

/// Makes the end of this connection a reset. If the socket cannot do that, its end is an ordinary one.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

#[expect(clippy::disallowed_methods, reason = "the delay is what was asked for")]
async fn pause(delay: Duration) {
    tokio::time::sleep(delay).await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::time::timeout;

    use super::*;

    /// Long enough for an answer over the loopback interface to arrive, if there is one.
    const SHORT: Duration = Duration::from_millis(100);

    /// Answers every byte with itself.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        addr
    }

    async fn through() -> (FaultProxy, TcpStream) {
        let proxy = FaultProxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut stream, 1).await.unwrap(), 1);
        (proxy, stream)
    }

    async fn ask(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
        stream.write_u8(byte).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn an_end_is_passed_on() {
        let (_proxy, mut stream) = through().await;
        stream.write_all(b"last words").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"last words");
    }

    #[tokio::test]
    async fn a_black_hole_is_silent_and_what_was_sent_arrives_after_it() {
        let (proxy, mut stream) = through().await;
        proxy.black_hole();
        assert!(timeout(SHORT, ask(&mut stream, 2)).await.is_err());
        let mut newcomer = TcpStream::connect(proxy.addr()).await.unwrap();
        assert!(timeout(SHORT, ask(&mut newcomer, 3)).await.is_err());
        proxy.heal();
        assert_eq!(stream.read_u8().await.unwrap(), 2);
        assert_eq!(newcomer.read_u8().await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_black_hole_hides_the_end_of_the_other_side() {
        let (proxy, mut stream) = through().await;
        proxy.black_hole();
        stream.shutdown().await.unwrap();
        assert!(timeout(SHORT, stream.read_u8()).await.is_err());
        proxy.heal();
        assert_eq!(stream.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn answers_that_are_held_arrive_after_it_and_questions_do_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = FaultProxy::start(listener.local_addr().unwrap()).await.unwrap();
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        proxy.hold_answers();
        client.write_u8(1).await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), 1);
        server.write_u8(2).await.unwrap();
        assert!(timeout(SHORT, client.read_u8()).await.is_err());
        proxy.heal();
        assert_eq!(client.read_u8().await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_cut_resets_what_exists_and_nothing_else() {
        let (proxy, mut stream) = through().await;
        proxy.cut();
        assert_eq!(stream.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let mut newcomer = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut newcomer, 4).await.unwrap(), 4);
    }

    #[tokio::test]
    async fn a_cut_reaches_connections_in_a_black_hole() {
        let (proxy, mut stream) = through().await;
        proxy.black_hole();
        proxy.cut();
        assert_eq!(stream.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn answers_that_are_held_go_with_a_connection_that_is_cut() {
        // Which of the two ends of a connection is looked at first is left to chance.
        for _ in 0..20 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let proxy = FaultProxy::start(listener.local_addr().unwrap()).await.unwrap();
            let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            proxy.hold_answers();
            server.write_u8(1).await.unwrap();
            // It has the answer in hand.
            assert!(timeout(SHORT, client.read_u8()).await.is_err());
            proxy.cut();
            proxy.heal();
            assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test]
    async fn refusing_touches_new_connections_only() {
        let (proxy, mut stream) = through().await;
        proxy.refuse();
        let refused = match TcpStream::connect(proxy.addr()).await {
            Ok(mut newcomer) => ask(&mut newcomer, 5).await.is_err(),
            Err(_) => true,
        };
        assert!(refused);
        assert_eq!(ask(&mut stream, 6).await.unwrap(), 6);
        proxy.heal();
        let mut newcomer = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut newcomer, 7).await.unwrap(), 7);
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "measures a delay")]
    async fn a_delay_holds_in_both_directions() {
        let (proxy, mut stream) = through().await;
        proxy.delay(SHORT);
        let started = Instant::now();
        ask(&mut stream, 8).await.unwrap();
        assert!(started.elapsed() >= 2 * SHORT);
    }

    #[tokio::test]
    async fn new_connections_lead_elsewhere_and_old_ones_stay() {
        let (proxy, mut stream) = through().await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        proxy.lead_to(listener.local_addr().unwrap());
        let mut newcomer = TcpStream::connect(proxy.addr()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        other.write_u8(7).await.unwrap();
        assert_eq!(newcomer.read_u8().await.unwrap(), 7);
        assert_eq!(ask(&mut stream, 1).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn dropping_the_proxy_ends_its_connections() {
        let (proxy, mut stream) = through().await;
        drop(proxy);
        assert!(stream.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn a_target_that_is_away_resets_the_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let gone = listener.local_addr().unwrap();
        drop(listener);
        let proxy = FaultProxy::start(gone).await.unwrap();
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        assert!(stream.read_u8().await.is_err());
    }
}
