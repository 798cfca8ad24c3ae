//! Reading a log that was written before, page by page, over one connection.

use anyhow::{Context, ensure};
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::{Role, TestDb, TestServer};

use crate::client::Client;
use crate::measuring::now;
use crate::serving::Serving;
use crate::{cpu, event};

const EVENTS: usize = 200_000;
const PAGE: usize = 1_000;
const REPEATS: usize = 3;

pub(crate) async fn measure(server: &TestServer, report: &mut Report) -> anyhow::Result<()> {
    let db = TestDb::on(server).await;
    fill(&db).await?;
    let serving = Serving::start(&db).await?;
    let pid = serving.pid().context("the server has ended")?;
    let postmaster = server.postgres().postmaster_pid().context("PostgreSQL has ended")?.unsigned_abs();
    let (mut rates, mut of_server, mut of_database) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..REPEATS {
        let before = (cpu::of(pid)?, cpu::of_server(postmaster)?);
        let start = now();
        let read = read_all(&serving).await?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(read == EVENTS, "{read} events were read instead of {EVENTS}");
        rates.push(EVENTS as f64 / seconds);
        of_server.push((cpu::of(pid)? - before.0) / seconds);
        of_database.push((cpu::of_server(postmaster)? - before.1) / seconds);
    }
    serving.stop().await?;
    println!(
        "catching up with {EVENTS} events of 500 bytes in pages of {PAGE}, one client (medians of {REPEATS})"
    );
    println!("  events/s                  {:>8.0}", rates.median());
    println!("  processors of the server  {:>8.2}", of_server.median());
    println!("  processors of PostgreSQL  {:>8.2}\n", of_database.median());
    report.figure("catching up, one client", "events/s", &rates);
    report.figure("catching up, the server", "processors", &of_server);
    report.figure("catching up, PostgreSQL", "processors", &of_database);
    report.judge(keys::API_CATCH_UP_EVENTS, rates.median())
}

async fn fill(db: &TestDb) -> anyhow::Result<()> {
    let pool = db.app_pool(1);
    let batch = vec![event()?; 1_000];
    for _ in 0..EVENTS / batch.len() {
        let mut tx = seqline::begin(&pool).await?;
        seqline::append(&mut tx, &batch).await?;
        seqline::commit(tx).await?;
    }
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut admin).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut admin).await?;
    Ok(())
}

/// How many events all pages had.
async fn read_all(serving: &Serving) -> anyhow::Result<usize> {
    let mut client = Client::connect(serving.address, &serving.token).await?;
    let (mut after, mut read) = ("oldest".to_owned(), 0);
    loop {
        let (status, body) = client.get(&format!("/v1/events?after={after}&limit={PAGE}")).await?;
        ensure!(status == 200, "the server answers {status}");
        // A client that is in no hurry would parse it whole.
        let events = count(body, br#""schema_version":"#);
        if events == 0 {
            return Ok(read);
        }
        read += events;
        after = next(body)?;
    }
}

fn count(text: &[u8], pattern: &[u8]) -> usize {
    let mut count = 0;
    let mut rest = text;
    while let Some(at) = find(rest, pattern) {
        count += 1;
        rest = &rest[at + pattern.len()..];
    }
    count
}

fn find(text: &[u8], pattern: &[u8]) -> Option<usize> {
    let first = pattern[0];
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| *byte == first) {
        if text[from + at..].starts_with(pattern) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn next(body: &[u8]) -> anyhow::Result<String> {
    // Behind the events.
    let end = &body[body.len().saturating_sub(400)..];
    let end = String::from_utf8_lossy(end);
    let (_, next) = end.split_once(r#""next":""#).context("a page without the next position")?;
    Ok(next.split('"').next().unwrap_or_default().to_owned())
}
