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
async fn is_away_for_long(stage: &Stage) {
    let statement = format!(
        "SELECT coalesce(stalled_since < now() - interval '{AWAY}', false) FROM seqline.relay_cursors"
    );
    eventually(LONG, "it is away for long", async || {
        sqlx::query_scalar(sqlx::AssertSqlSafe(statement.clone())).fetch_one(&stage.pool).await.unwrap()
    })
    .await;
    eventually(LONG, "much has come in", async || stage.head().await - stage.position().await > 500).await;
    assert_eq!(stage.stalled_by().await.as_deref(), Some("broker_unreachable"));
}

async fn goes_on(stage: &Stage, load: Load, running: Running) {
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
    is_away_for_long(&stage).await;
    server.restart().await;
    goes_on(&stage, load, running).await;
}

/// Its connections stay. What it was sent before it stood still it stores when it goes on, and that is found.
#[tokio::test]
async fn a_broker_that_stands_still_for_long_under_load_gets_everything_afterwards() {
    let mut server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let (load, running) = under_load(&stage).await;
    server.pause();
    is_away_for_long(&stage).await;
    server.resume();
    goes_on(&stage, load, running).await;
}

/// Nor when the relay crashes before it has saved, and what follows its cursor is among what was dropped.
#[tokio::test]
async fn a_full_stream_drops_its_oldest_messages_and_nothing_is_published_twice() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.stream_with(|config| config.duplicate_window = Duration::from_millis(100)).await;
    let mut appended = 0;
    for _ in 0..3 {
        stage.append(1500).await;
        let running = stage.run_with(|config| config.stream.max_bytes = 300_000);
        stage.until_published().await;
        running.crash().await;
        if appended > 0 {
            let first = stage.info().await.state.first_sequence;
            assert!(first > appended + 2, "the stream holds what follows the cursor");
            let at = appended.cast_signed();
            stage.set_cursor(at, at, at).await;
            stage.until_forgotten().await;
        }
        appended += 1500;
    }
    stage.append(10).await;
    appended += 10;
    let running = stage.run();
    stage.until_published().await;
    running.stop().await;
    let state = stage.info().await.state;
    assert_eq!(state.last_sequence, appended, "something was published twice");
    let left: Vec<i64> = (state.first_sequence..=appended).map(u64::cast_signed).collect();
    assert_eq!(stage.positions().await, left);
    assert!(stage.incidents().await.is_empty(), "{:?}", stage.incidents().await);
}
