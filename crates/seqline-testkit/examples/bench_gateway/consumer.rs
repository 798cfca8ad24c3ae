//! One consumer of an agent with a backlog, beside a client that reads the same events in pages over HTTP.

use anyhow::{Context, ensure};
use seqline::access::PrincipalKind;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::{TestDb, TestServer};
use serde_json::{Value, json};

use crate::measuring::now;
use crate::serving::Serving;
use crate::socket::Socket;
use crate::{backlog, cpu, pages, tokens};

const EVENTS: usize = 200_000;
/// Events that one acknowledgement covers.
const TOGETHER: usize = 100;
const REPEATS: usize = 3;

/// What one consumer may have and do, so that it is not its limits that are measured.
const SETTINGS: &[(&str, &str)] = &[
    ("SEQLINE_AGENT__MAX_INFLIGHT_EVENTS", "1000"),
    ("SEQLINE_AGENT__INFLIGHT_BYTES_MAX", "67108864"),
    ("SEQLINE_AGENT__ACKS_PER_SECOND", "1000000"),
    ("SEQLINE_AGENT__ACKS_BURST", "1000000"),
];

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    let serving = Serving::start(&db, SETTINGS).await?;
    let pid = serving.pid().context("the server has ended")?;
    let postmaster = server.postgres().postmaster_pid().context("PostgreSQL has ended")?.unsigned_abs();
    let token = tokens(&db, PrincipalKind::Agent, 1).await?.remove(0);
    let consumers: Vec<Value> =
        (0..REPEATS).map(|n| json!({ "token": token, "consumer": format!("consumer-{n}") })).collect();
    // They begin at the head, so before there is anything.
    for consumer in &consumers {
        Socket::ready(serving.address, consumer).await?.0.leave().await?;
    }
    backlog::fill(&db, EVENTS).await?;
    let (mut rates, mut of_pages) = (Samples::default(), Samples::default());
    let (mut of_server, mut of_database) = (Samples::default(), Samples::default());
    for consumer in &consumers {
        let start = now();
        let read = pages::read_all(&serving).await?;
        of_pages.push(EVENTS as f64 / start.elapsed().as_secs_f64());
        ensure!(read == EVENTS, "{read} events were read instead of {EVENTS}");

        let (mut socket, _) = Socket::ready(serving.address, consumer).await?;
        let before = (cpu::of(pid)?, cpu::of_server(postmaster)?);
        let start = now();
        consume(&mut socket).await?;
        let seconds = start.elapsed().as_secs_f64();
        rates.push(EVENTS as f64 / seconds);
        of_server.push((cpu::of(pid)? - before.0) / seconds);
        of_database.push((cpu::of_server(postmaster)? - before.1) / seconds);
        socket.leave().await?;
        // What was acknowledged is kept.
        let (socket, ready) = Socket::ready(serving.address, consumer).await?;
        let acked = ready["acked"].as_str().context("no acknowledgement")?;
        ensure!(acked.ends_with(&format!(":{EVENTS}")), "{acked} is acknowledged instead of {EVENTS}");
        socket.leave().await?;
    }
    serving.stop().await?;
    println!(
        "one consumer of an agent with a backlog of {EVENTS} events of 500 bytes, 1,000 in flight, an acknowledgement for {TOGETHER} \
         (medians of {REPEATS}, interleaved)"
    );
    println!("  events/s acknowledged     {:>8.0}", rates.median());
    println!("  pages over HTTP, events/s {:>8.0}", of_pages.median());
    println!("  ratio                     {:>8.2}", rates.to(&of_pages));
    println!("  processors of the server  {:>8.2}", of_server.median());
    println!("  processors of PostgreSQL  {:>8.2}\n", of_database.median());
    report.figure("one consumer", "events/s", &rates);
    report.figure("pages over HTTP", "events/s", &of_pages);
    report.figure("one consumer, the server", "processors", &of_server);
    report.figure("one consumer, PostgreSQL", "processors", &of_database);
    report.judge(keys::GATEWAY_CONSUMER_EVENTS, rates.median())
}

/// Takes everything, and returns when the last of it is acknowledged.
async fn consume(socket: &mut Socket) -> anyhow::Result<()> {
    for expected in 1..=EVENTS as i64 {
        let seq = socket.event().await?;
        ensure!(seq == expected, "seq {seq} came instead of {expected}");
        if seq % TOGETHER as i64 == 0 {
            socket.send("ack", &json!({ "seq": seq })).await?;
        }
    }
    // What was sent before is done when this is answered.
    socket.send("heartbeat", &json!({})).await?;
    socket.expect("heartbeat.ack").await.map(drop)
}
