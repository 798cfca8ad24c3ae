//! A log that was restored.

use seqline::consumer::Mode;
use seqline::identity::{Need, RestoredConsumers, finalize};
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb, TestServer};

use super::support::Stage;

/// A backup of the log and of the relay's row, as if it was restored somewhere.
async fn restored(stage: &Stage) -> Stage {
    stage.pool.close().await;
    let copy = TestDb::copy_of(&stage.db, TestServer::shared().await).await;
    Stage::of(copy, &stage.url)
}

async fn new_epoch(stage: &Stage) {
    let mut admin = stage.db.connect(Role::Admin).await;
    let why = Mode::Apply { why: Some("restored from a backup") };
    finalize(&mut admin, RestoredConsumers::Keep, Need::Stated, why).await.unwrap();
}

/// The database says that it is where it was, as one does that was restored in place.
async fn in_place(stage: &Stage) {
    let statement = "UPDATE seqline.log_identity SET database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())";
    stage.sql(statement).await;
}

/// Published until 300, the backup knows the log until `backup` and the relay's row as of `saved`.
async fn restore(server: &NatsServer, saved: i64, backup: i64) -> Stage {
    let stage = Stage::new(server).await;
    stage.append(saved).await;
    stage.relay().drain_once().await.unwrap();
    stage.append(backup - saved).await;
    stage.end_lease().await;
    let copy = restored(&stage).await;
    // The one that is lost goes on for a while.
    let lost = Stage { pool: stage.db.pool(Role::App, 5), ..stage };
    lost.append(300 - backup).await;
    lost.relay().drain_once().await.unwrap();
    assert_eq!(lost.positions().await.len(), 300);
    copy
}

#[tokio::test]
async fn after_a_restore_orphans_stay_and_every_event_of_the_log_is_there_once() {
    for (saved, backup) in [(100, 200), (200, 200), (1, 299)] {
        let server = NatsServer::start().await;
        let copy = restore(&server, saved, backup).await;
        new_epoch(&copy).await;
        // As many as were lost, and more: the same positions are other events now.
        copy.append(150).await;
        copy.relay().drain_once().await.unwrap();
        let log = copy.log().await;
        let mut found = Vec::new();
        let mut orphans = 0;
        for message in copy.messages().await {
            let identity = message.identity.unwrap();
            match log.iter().any(|event| (event.0, event.1) == (identity.position, identity.event_id)) {
                true => found.push(identity.position),
                false => orphans += 1,
            }
        }
        assert_eq!(found, (1..=backup + 150).collect::<Vec<i64>>(), "saved {saved}, backup {backup}");
        assert_eq!(orphans, 300 - backup);
        let incidents = copy.incidents().await;
        assert_eq!(incidents.get("orphaned_messages"), Some(&orphans), "{incidents:?}");
        assert_eq!(incidents.len(), 1, "{incidents:?}");
    }
}

/// Without a new epoch nobody can tell the events of both apart by name: nothing is published until somebody decides.
#[tokio::test]
async fn two_histories_of_one_name_stop_the_relay_until_there_is_a_new_epoch() {
    let server = NatsServer::start().await;
    let copy = restore(&server, 100, 200).await;
    in_place(&copy).await;
    copy.append(150).await;
    let mut relay = copy.relay();
    let error = relay.drain_once().await.unwrap_err();
    assert_eq!(error.kind(), "histories_differ", "{error}");
    let error = relay.drain_once().await.unwrap_err();
    assert_eq!(error.kind(), "histories_differ", "{error}");
    assert_eq!(copy.messages().await.len(), 300);
    assert_eq!(copy.stalled_by().await.as_deref(), Some("histories_differ"));
    assert_eq!(copy.incidents().await.get("histories_differ"), Some(&1));
    new_epoch(&copy).await;
    relay.drain_once().await.unwrap();
    assert_eq!(copy.stalled_by().await, None);
    assert_eq!(copy.incidents().await.get("orphaned_messages"), Some(&100));
    assert_eq!(copy.positions().await[300..], (201..=350).collect::<Vec<i64>>());
}

/// The other way out: what somebody decides to publish again.
#[tokio::test]
async fn a_rewind_settles_two_histories_too() {
    let server = NatsServer::start().await;
    let copy = restore(&server, 100, 200).await;
    in_place(&copy).await;
    copy.append(10).await;
    let mut relay = copy.relay();
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "histories_differ");
    copy.sql("SELECT seqline.rewind_relay('jetstream', 200, true, 'the log is right')").await;
    relay.drain_once().await.unwrap();
    assert_eq!(copy.positions().await[300..], (201..=210).collect::<Vec<i64>>());
}

#[tokio::test]
async fn on_a_server_that_is_another_one_nothing_leaves_before_that_is_settled() {
    let server = NatsServer::start().await;
    let copy = restore(&server, 100, 200).await;
    copy.append(10).await;
    let mut relay = copy.relay();
    assert_eq!(relay.drain_once().await.unwrap_err().kind(), "history_unsettled");
    assert_eq!(copy.messages().await.len(), 300);
    assert_eq!(copy.stalled_by().await.as_deref(), Some("history_unsettled"));
}

/// A new epoch that somebody began for another reason changes nothing in the stream.
#[tokio::test]
async fn a_new_epoch_of_the_same_events_doubles_none_of_them() {
    let server = NatsServer::start().await;
    let stage = Stage::new(&server).await;
    stage.append(100).await;
    let mut relay = stage.relay();
    relay.drain_once().await.unwrap();
    new_epoch(&stage).await;
    stage.append(50).await;
    let running = super::support::run(relay);
    stage.until_published().await;
    running.stop().await;
    stage.assert_once_in_order().await;
    assert!(stage.incidents().await.is_empty());
    let epochs: std::collections::BTreeSet<_> =
        stage.messages().await.iter().map(|message| message.identity.unwrap().epoch).collect();
    assert_eq!(epochs.len(), 2);
}

/// A relay that begins there is as visible, and is helped in the same way, as one that was there before.
#[tokio::test]
async fn a_first_start_on_a_stream_of_another_history_can_be_seen_and_settled() {
    for settle in ["a new epoch", "a rewind"] {
        let server = NatsServer::start().await;
        let copy = restore(&server, 100, 200).await;
        in_place(&copy).await;
        copy.sql("DELETE FROM seqline.relay_cursors").await;
        copy.append(150).await;
        let mut relay = copy.relay();
        for _ in 0..2 {
            assert_eq!(relay.drain_once().await.unwrap_err().kind(), "histories_differ");
        }
        assert_eq!(copy.stalled_by().await.as_deref(), Some("histories_differ"));
        assert_eq!(copy.incidents().await.get("histories_differ"), Some(&1));
        // Nor does it go on in another process.
        drop(relay);
        copy.end_lease().await;
        let mut relay = copy.relay();
        assert_eq!(relay.drain_once().await.unwrap_err().kind(), "histories_differ");
        assert_eq!(copy.messages().await.len(), 300);
        if settle == "a rewind" {
            copy.sql("SELECT seqline.rewind_relay('jetstream', 200, true, 'the log is right')").await;
        } else {
            new_epoch(&copy).await;
        }
        relay.drain_once().await.unwrap();
        assert_eq!(copy.stalled_by().await, None);
        assert_eq!(copy.positions().await[300..], (201..=350).collect::<Vec<i64>>(), "after {settle}");
        let incidents = copy.incidents().await;
        assert!(!incidents.contains_key("stream_recreated"), "{incidents:?}");
    }
}
