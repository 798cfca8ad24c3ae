//! Catching up: a log that was written before, page by page, over one connection.

use anyhow::{Context, ensure};
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::{TestDb, TestServer};

use crate::measuring::now;
use crate::serving::Serving;
use crate::{backlog, cpu, pages};

const EVENTS: usize = 200_000;
const REPEATS: usize = 3;

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    backlog::fill(&db, EVENTS).await?;
    let serving = Serving::start(&db, &[]).await?;
    let pid = serving.pid().context("the server has ended")?;
    let postmaster = server.postgres().postmaster_pid().context("PostgreSQL has ended")?.unsigned_abs();
    let (mut rates, mut of_server, mut of_database) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..REPEATS {
        let before = (cpu::of(pid)?, cpu::of_server(postmaster)?);
        let start = now();
        let read = pages::read_all(&serving).await?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(read == EVENTS, "{read} events were read instead of {EVENTS}");
        rates.push(EVENTS as f64 / seconds);
        of_server.push((cpu::of(pid)? - before.0) / seconds);
        of_database.push((cpu::of_server(postmaster)? - before.1) / seconds);
    }
    serving.stop().await?;
    println!(
        "catching up with {EVENTS} events of 500 bytes in pages of 1,000, one client (medians of {REPEATS})"
    );
    println!("  events/s                  {:>8.0}", rates.median());
    println!("  processors of the server  {:>8.2}", of_server.median());
    println!("  processors of PostgreSQL  {:>8.2}\n", of_database.median());
    report.figure("catching up, one client", "events/s", &rates);
    report.figure("catching up, the server", "processors", &of_server);
    report.figure("catching up, PostgreSQL", "processors", &of_database);
    report.judge(keys::API_CATCH_UP_EVENTS, rates.median())
}
