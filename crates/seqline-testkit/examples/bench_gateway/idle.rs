//! Ten thousand connections that say nothing but that they live.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use seqline::access::PrincipalKind;
use seqline_testkit::bench::Report;
use seqline_testkit::bench::machine::wait;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::{TestDb, TestServer};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::measuring::now;
use crate::serving::Serving;
use crate::socket::{Socket, is};
use crate::{cpu, memory, tokens};

/// Of each kind, with so many connections each.
const PRINCIPALS: usize = 500;
const EACH: usize = 10;
const CONNECTIONS: usize = 2 * PRINCIPALS * EACH;
/// Connections that begin at the same time.
const AT_ONCE: usize = 32;
/// Over how many heartbeats of each they are watched.
const HEARTBEATS: u32 = 2;
const SETTLING: Duration = Duration::from_secs(5);

const SETTINGS: &[(&str, &str)] = &[("SEQLINE_API__CONNECTIONS_MAX", "20000")];

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let serving = Serving::start(&db, SETTINGS).await?;
    let pid = serving.pid().context("the server has ended")?;
    let postmaster = server.postgres().postmaster_pid().context("PostgreSQL has ended")?.unsigned_abs();
    let mut crowd = Crowd::default();

    let of = |token: &String| (0..EACH).map(|_| json!({ "token": token })).collect::<Vec<_>>();
    let apps: Vec<Value> = tokens(&db, PrincipalKind::App, PRINCIPALS).await?.iter().flat_map(of).collect();
    let of = |token: &String| {
        (0..EACH).map(|n| json!({ "token": token, "consumer": format!("consumer-{n}") })).collect::<Vec<_>>()
    };
    let agents: Vec<Value> =
        tokens(&db, PrincipalKind::Agent, PRINCIPALS).await?.iter().flat_map(of).collect();
    let empty = memory::resident(pid)?;
    let begun = now();
    crowd.comes(serving.address, apps).await?;
    let with_apps = memory::resident(pid)?;
    crowd.comes(serving.address, agents).await?;
    let with_all = memory::resident(pid)?;
    let connected = CONNECTIONS as f64 / begun.elapsed().as_secs_f64();
    wait(SETTLING).await;

    let watched = crowd.heartbeat_interval * HEARTBEATS;
    let before = (cpu::of(pid)?, cpu::of_server(postmaster)?, crowd.answered.load(Ordering::Relaxed));
    let start = now();
    crowd.lives(watched).await?;
    let seconds = start.elapsed().as_secs_f64();
    let of_server = (cpu::of(pid)? - before.0) / seconds * 100.0;
    let of_database = (cpu::of_server(postmaster)? - before.1) / seconds * 100.0;
    let heartbeats = crowd.answered.load(Ordering::Relaxed) - before.2;
    let at_the_end = memory::resident(pid)?;
    let due = CONNECTIONS as u64 * u64::from(HEARTBEATS);
    ensure!(heartbeats * 100 >= due * 99, "{heartbeats} heartbeats were answered instead of {due}");
    serving.stop().await?;

    let half = (CONNECTIONS / 2) as f64;
    // The larger one: what heartbeats take counts as well.
    let each = (at_the_end.max(with_all) - empty) / CONNECTIONS as f64;
    println!(
        "{CONNECTIONS} idle connections of {PRINCIPALS} apps and {PRINCIPALS} agents, {EACH} each; \
         a heartbeat every {} s, watched for {seconds:.0} s",
        crowd.heartbeat_interval.as_secs()
    );
    println!("  connections made a second              {connected:>8.0}");
    println!("  resident, KiB without any              {empty:>8.0}");
    println!("  resident, KiB with all                 {at_the_end:>8.0}");
    println!("  KiB for each of an app                 {:>8.1}", (with_apps - empty) / half);
    println!("  KiB for each of an agent               {:>8.1}", (with_all - with_apps) / half);
    println!("  KiB for each, with its heartbeats      {each:>8.1}");
    println!("  heartbeats answered                    {heartbeats:>8}");
    println!("  percent of a core, the server          {of_server:>8.1}");
    println!("  percent of a core, PostgreSQL          {of_database:>8.1}\n");
    report.single("idle, each of an app", "KiB", (with_apps - empty) / half);
    report.single("idle, each of an agent", "KiB", (with_all - with_apps) / half);
    report.single("idle, PostgreSQL", "percent of a core", of_database);
    report.single("identified", "connections/s", connected);
    report.judge(keys::GATEWAY_IDLE_MEMORY, each)?;
    report.judge(keys::GATEWAY_IDLE_PROCESSOR, of_server)
}

/// The clients.
#[derive(Default)]
struct Crowd {
    clients: JoinSet<anyhow::Result<()>>,
    heartbeat_interval: Duration,
    answered: Arc<AtomicU64>,
}

impl Crowd {
    /// One more for each of these, all of them identified when this returns.
    async fn comes(&mut self, address: SocketAddr, identify: Vec<Value>) -> anyhow::Result<()> {
        let coming = stream::iter(identify)
            .map(async |identify| Socket::ready(address, &identify).await)
            .buffer_unordered(AT_ONCE);
        let mut coming = std::pin::pin!(coming);
        while let Some((socket, _)) = coming.try_next().await? {
            self.heartbeat_interval = socket.heartbeat_interval;
            self.clients.spawn(live(socket, self.answered.clone()));
        }
        Ok(())
    }

    /// Lets time pass, in which none may end.
    async fn lives(&mut self, duration: Duration) -> anyhow::Result<()> {
        tokio::select! {
            ended = self.clients.join_next() => {
                ended.context("there are none")??.context("a client ended")?;
                bail!("a client ended");
            }
            () = wait(duration) => Ok(()),
        }
    }
}

/// Says that it lives as the server wants it to, the first time after a random part of the interval.
async fn live(mut socket: Socket, answered: Arc<AtomicU64>) -> anyhow::Result<()> {
    let interval = socket.heartbeat_interval;
    let mut due = now() + interval.mul_f64(fastrand::f64());
    let mut waits_for_answer = false;
    loop {
        tokio::select! {
            frame = socket.next() => {
                let frame = frame?;
                if is(&frame, "heartbeat.ack") {
                    answered.fetch_add(1, Ordering::Relaxed);
                    waits_for_answer = false;
                } else {
                    ensure!(is(&frame, "catchup.complete"), "the server sends {frame}");
                }
            }
            () = wait(due.saturating_duration_since(now())) => {
                ensure!(!waits_for_answer, "a heartbeat was not answered");
                socket.send("heartbeat", &json!({})).await?;
                waits_for_answer = true;
                due += interval;
            }
        }
    }
}
