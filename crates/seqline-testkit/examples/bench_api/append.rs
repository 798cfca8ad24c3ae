//! Appending over HTTP beside the library: one event in a request, against one in a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use seqline::Clock;
use seqline_testkit::bench::thresholds::keys;
use seqline_testkit::bench::{Report, Samples};
use seqline_testkit::{Role, TestDb, TestServer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::event::{event, payload};
use crate::measuring::now;
use crate::serving::Serving;

const CONNECTIONS: usize = 32;
const REPEATS: usize = 3;
const WARM_UP: Duration = Duration::from_secs(1);

pub(crate) async fn measure(
    server: &TestServer,
    duration: Duration,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (of_library, of_api) = (TestDb::on(server).await, TestDb::on(server).await);
    let serving = Serving::start(&of_api, &[]).await?;
    let (mut library, mut api) = (Samples::default(), Samples::default());
    for _ in 0..REPEATS {
        library.push(rate(with_library(&of_library), duration).await?);
        api.push(rate(over_http(&serving).await?, duration).await?);
    }
    serving.stop().await?;
    println!(
        "one event at a time from {CONNECTIONS} connections, events/s (medians of {REPEATS}, interleaved)"
    );
    println!("  library, a transaction each  {:>8.0}", library.median());
    println!("  HTTP, a request each         {:>8.0}", api.median());
    println!("  ratio                        {:>8.2}\n", api.to(&library));
    report.figure(format!("library, {CONNECTIONS} connections"), "events/s", &library);
    report.figure(format!("HTTP, {CONNECTIONS} connections"), "events/s", &api);
    report.judge(keys::API_APPEND_TO_LIBRARY, api.to(&library))
}

/// Those who append, and what they have appended.
#[derive(Default)]
struct Appending {
    done: Arc<AtomicU64>,
    stop: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

async fn rate(mut appending: Appending, duration: Duration) -> anyhow::Result<f64> {
    let clock = Clock::system();
    clock.sleep(WARM_UP).await;
    let (before, start) = (appending.done.load(Ordering::Relaxed), now());
    clock.sleep(duration).await;
    let rate = (appending.done.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
    appending.stop.cancel();
    while let Some(ended) = appending.tasks.join_next().await {
        ended??;
    }
    Ok(rate)
}

fn with_library(db: &TestDb) -> Appending {
    let mut appending = Appending::default();
    for _ in 0..CONNECTIONS {
        let (pool, done, stop) = (db.pool(Role::App, 1), appending.done.clone(), appending.stop.clone());
        appending.tasks.spawn(async move {
            let event = event()?;
            while !stop.is_cancelled() {
                let mut tx = seqline::begin(&pool).await?;
                seqline::append(&mut tx, std::slice::from_ref(&event)).await?;
                seqline::commit(tx).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    appending
}

async fn over_http(serving: &Serving) -> anyhow::Result<Appending> {
    let mut appending = Appending::default();
    let body = format!(
        r#"{{"type": "order.created", "resource_kind": "order", "resource_id": "17", "receive_action": "any", "payload": {}}}"#,
        payload()
    );
    for _ in 0..CONNECTIONS {
        let mut client = Client::connect(serving.address, &serving.token).await?;
        let (body, done, stop) = (body.clone(), appending.done.clone(), appending.stop.clone());
        appending.tasks.spawn(async move {
            while !stop.is_cancelled() {
                let (status, _) = client.post("/v1/events", &body).await?;
                ensure!(status == 201, "the server answers {status}");
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    Ok(appending)
}
