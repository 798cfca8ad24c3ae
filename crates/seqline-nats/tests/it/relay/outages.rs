//! A broker that is away for long while events come in, and one that is full.

use std::time::Duration;

use seqline_testkit::eventually;
use seqline_testkit::nats::NatsServer;

use super::support::{LONG, Load, Running, Stage};

/// Longer than everything that the relay waits for.
const AWAY: &str = "12 seconds";

/// Events come in all the time, at a rate at which the stream can be read again in little time.
async fn under_load(stage: &Stage) -> (Load, Running) {
    let load = Load::start(&stage.pool, 10, Duration::from_millis(20));
    let running = stage.run();
    eventually(LONG, "it publishes", async || running.tally.published() > 50).await;
    (load, running)
}

/// Waits until the row has said for long that the relay cannot go on, and a while for the backlog.
async fn is_away_for_long(stage: &Stage) -> i64 {
    let statement = format!(
        "SELECT coalesce(stalled_since < now() - interval '{AWAY}', false) FROM seqline.relay_cursors"
    );
    eventually(LONG, "it is away for long", async || {
        sqlx::query_scalar(sqlx::AssertSqlSafe(statement.clone())).fetch_one(&stage.pool).await.unwrap()
    })
    .await;
    assert_eq!(stage.stalled_by().await.as_deref(), Some("broker_unreachable"));
    stage.head().await - stage.position().await
}

async fn goes_on(stage: &Stage, load: Load, running: Running, backlog: i64) {
    assert!(backlog > 500, "{backlog} events came in meanwhile");
    eventually(LONG, "it goes on", async || stage.stalled_by().await.is_none()).await;
    load.stop().await;
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty(), "{:?}", stage.incidents().await);
}

#[tokio::test]
async fn a_broker_that_is_stopped_for_long_under_load_gets_everything_afterwards() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let (load, running) = under_load(&stage).await;
    server.stop().await;
    let backlog = is_away_for_long(&stage).await;
    server.restart().await;
    goes_on(&stage, load, running, backlog).await;
}

/// Its connections stay. What it was sent before it stood still it stores when it goes on, and that is found.
#[tokio::test]
async fn a_broker_that_stands_still_for_long_under_load_gets_everything_afterwards() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let (load, running) = under_load(&stage).await;
    server.pause();
    let backlog = is_away_for_long(&stage).await;
    server.resume();
    goes_on(&stage, load, running, backlog).await;
}

/// Not even those that look for their place in it: the first one crashes.
#[tokio::test]
async fn a_full_stream_drops_its_oldest_messages_and_nothing_is_published_twice() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let small = |stage: &Stage| {
        stage.run_with(|config| {
            config.stream.max_bytes = 300_000;
            // It is behind what it has published when it crashes.
            config.save_interval = Duration::from_millis(400);
        })
    };
    let mut appended = 0;
    for _ in 0..4 {
        let running = small(&stage);
        stage.append(1500).await;
        appended += 1500;
        eventually(LONG, "much is published", async || {
            stage.info().await.state.last_sequence + 700 > appended
        })
        .await;
        running.crash().await;
    }
    let running = small(&stage);
    stage.until_published().await;
    running.stop().await;
    let state = stage.info().await.state;
    assert!(state.first_sequence > 1500, "the stream holds most of it");
    assert_eq!(state.last_sequence, appended, "something was published twice");
    let left: Vec<i64> = (state.first_sequence..=appended).map(u64::cast_signed).collect();
    assert_eq!(stage.positions().await, left);
    assert!(stage.incidents().await.is_empty(), "{:?}", stage.incidents().await);
}
