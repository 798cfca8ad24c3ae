//! Finding out where the stream is takes long, or ends in the middle.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use seqline::Clock;
use seqline_nats::relay::Relay;
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{FaultProxy, eventually};

use super::support::{FOREIGN, LONG, Stage, broker, config, run};

/// More than is read at once, several times.
const MANY: usize = 3000;

/// Fills the stream with what no relay wrote.
async fn publish_many(stage: &Stage, count: usize) {
    let context = stage.context().await;
    for _ in 0..count / 100 {
        let publishing = (0..100).map(|_| context.publish(FOREIGN, "foreign".into()));
        let storing = join_all(publishing).await.into_iter().map(async |sent| sent.unwrap().await);
        assert!(join_all(storing).await.iter().all(Result::is_ok));
    }
}

/// Another stream of the same name.
async fn make_anew(stage: &Stage) {
    stage.context().await.delete_stream("EVENTS").await.unwrap();
    stage.stream_with(|_| {}).await;
}

/// A relay whose way to the broker can be made slow.
async fn slow_relay(stage: &Stage, server: &NatsServer, lease: Duration) -> (FaultProxy, Relay) {
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let to = broker(&format!("nats://{}", proxy.addr()));
    (proxy, Relay::new(stage.pool.clone(), to, config(|config| config.lease = lease), Clock::system()))
}

/// The row does not say that it is another stream before it is recorded that it was made anew.
#[tokio::test]
async fn a_crash_while_it_walks_over_another_stream_does_not_hide_that_it_is_another() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let (proxy, mut relay) = slow_relay(&stage, &server, Duration::from_millis(900)).await;
    stage.append(300).await;
    relay.drain_once().await.unwrap();
    make_anew(&stage).await;
    // Where the walk begins.
    stage.publish_as_relay(1).await;
    publish_many(&stage, MANY).await;
    let created = async || -> i64 {
        let created = sqlx::query_scalar("SELECT stream_created FROM seqline.relay_cursors");
        created.fetch_one(&stage.pool).await.unwrap()
    };
    let before = created().await;
    proxy.delay(Duration::from_millis(80));
    stage.append(10).await;
    let running = run(relay);
    eventually(LONG, "the row is of the other stream", async || created().await != before).await;
    running.crash().await;
    let running = stage.run();
    stage.until_published().await;
    running.stop().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("stream_recreated"), Some(&1), "{incidents:?}");
}

/// One that looks back for longer than its lease keeps it: otherwise two would take it from each other for ever.
#[tokio::test]
async fn one_that_looks_back_for_long_is_not_taken_over() {
    /// Much longer than it takes to read one chunk, and much shorter than it takes to read all.
    const LEASE: Duration = Duration::from_secs(8);
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let (proxy, mut relay) = slow_relay(&stage, &server, LEASE).await;
    stage.append(300).await;
    relay.drain_once().await.unwrap();
    make_anew(&stage).await;
    publish_many(&stage, MANY).await;
    stage.append(10).await;
    proxy.delay(Duration::from_millis(200));
    let (running, standing_by) = (run(relay), stage.run_with(|config| config.lease = LEASE));
    stage.until_published().await;
    let generation: i64 = sqlx::query_scalar("SELECT generation FROM seqline.relay_cursors")
        .fetch_one(&stage.pool)
        .await
        .unwrap();
    assert_eq!((generation, standing_by.tally.active(), standing_by.tally.published()), (1, false, 0));
    proxy.heal();
    running.stop().await;
    standing_by.stop().await;
    stage.assert_once_in_order().await;
}

/// What the next one tells that drains a stream in whose walk another one was stopped.
async fn stopped_while_it_walks(another_stream: bool) -> BTreeMap<String, i64> {
    /// More than is read at once, and walked over before the relay would be given up.
    const FEW: usize = 600;
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(10).await;
    stage.relay().drain_once().await.unwrap();
    stage.end_lease().await;
    if another_stream {
        make_anew(&stage).await;
    }
    publish_many(&stage, FEW).await;
    let (proxy, relay) = slow_relay(&stage, &server, LONG).await;
    proxy.delay(Duration::from_millis(20));
    let running = run(relay);
    eventually(LONG, "it has begun", async || running.tally.active()).await;
    running.stop().await;
    assert!(stage.incidents().await.is_empty(), "it walked to the end");
    assert_eq!(stage.position().await, 10);
    stage.append(5).await;
    stage.relay().drain_once().await.unwrap();
    stage.assert_once_in_order().await;
    stage.incidents().await
}

/// Neither is anything told twice for that, nor not at all.
#[tokio::test]
async fn a_stop_while_it_walks_leaves_all_to_the_next_one() {
    let told = stopped_while_it_walks(false).await;
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [("foreign_messages".to_owned(), 600)]);
}

#[tokio::test]
async fn a_stop_while_it_looks_back_leaves_all_to_the_next_one() {
    let told = stopped_while_it_walks(true).await;
    assert_eq!(told.get("stream_recreated"), Some(&1), "{told:?}");
}

/// Has the database take no incident until `DROP TRIGGER`.
const REFUSE: &str =
    "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
     CREATE TRIGGER refuse BEFORE INSERT ON seqline.relay_incidents FOR EACH ROW EXECUTE FUNCTION public.refuse();";

/// A relay that has met a foreign message and has filled the hole that it left, and could record neither.
async fn with_something_to_tell(stage: &Stage) -> Relay {
    stage.append(20).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    stage.sql(REFUSE).await;
    stage.publish_foreign().await;
    stage.append(10).await;
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "conflict");
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "database");
    relay
}

#[tokio::test]
async fn what_could_not_be_recorded_is_recorded_later() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let mut relay = with_something_to_tell(&stage).await;
    stage.sql("DROP TRIGGER refuse ON seqline.relay_incidents").await;
    relay.drain_once().await.unwrap();
    stage.assert_once().await;
    let incidents = stage.incidents().await;
    assert_eq!(incidents.get("foreign_messages"), Some(&1), "{incidents:?}");
    assert_eq!(incidents.get("hole_filled_late"), Some(&1), "{incidents:?}");
}

/// Of a relay that somebody has deleted meanwhile nothing can be recorded.
#[tokio::test]
async fn one_that_was_deleted_with_something_to_tell_begins_anew() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    let mut relay = with_something_to_tell(&stage).await;
    stage
        .sql(
            "DROP TRIGGER refuse ON seqline.relay_incidents;
             UPDATE seqline.relay_cursors SET leased_until = now();
             SELECT seqline.delete_relay('jetstream', true, 'out of use')",
        )
        .await;
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "replaced");
    relay.drain_once().await.unwrap();
    stage.assert_once().await;
    assert!(stage.incidents().await.is_empty(), "{:?}", stage.incidents().await);
}
