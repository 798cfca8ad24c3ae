//! A database that lost its end, and goes on in the same epoch: its log has other events where messages of the stream say theirs are.

use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use seqline_nats::consumer::PassError;
use seqline_nats::message::Outgoing;
use seqline_testkit::{Role, eventually};
use uuid::Uuid;

use super::support::*;

/// The message of an event, as if it were of another event at another position.
fn altered(mut message: Outgoing, id: Uuid, from: (Uuid, i64), position: i64) -> Outgoing {
    let payload = std::str::from_utf8(&message.payload).unwrap();
    let payload = payload.replace(&from.0.to_string(), &id.to_string());
    message.payload = payload.replace(&format!("\"seq\":{}", from.1), &format!("\"seq\":{position}")).into();
    message.headers.insert("Seqline-Event-Id", id.to_string());
    message.headers.insert("Seqline-Position", position.to_string());
    message.headers.insert(NATS_MESSAGE_ID, id.to_string());
    message
}

#[tokio::test]
async fn an_event_of_the_lost_end_is_not_handled_when_the_log_comes_as_far_again() {
    let site = Site::new().await;
    let ids = site.append(1..=2).await;
    let epoch = site.epoch().await;
    let lost = Uuid::now_v7();
    let second = site.messages(&ids[1..], epoch).await.remove(0);
    site.publish(&ids).await;
    site.send(altered(second, lost, (ids[1], 2), 3)).await;
    let mut config = quick();
    config.ack_wait = Duration::from_millis(900);
    let runtime = site.runtime(PROBE, Probe::plain(), config);
    assert!(matches!(runtime.poll_once().await, Err(PassError::DatabaseBehind)));
    // The number is given again, to another event.
    let other = site.append(3..=3).await;
    for _ in 0..3 {
        let error = runtime.poll_once().await.unwrap_err();
        assert!(matches!(error, PassError::HistoriesDiffer), "{error}");
        assert_eq!(error.kind(), "histories_differ");
    }
    assert_eq!(site.effects(PROBE).await, ids);
    assert_eq!((site.dead_letters(PROBE).await.len(), site.info(PROBE).await.num_ack_pending), (0, 1));
    // What decides is what the log says then: the restore is finalized.
    let mut app = site.db.connect(Role::App).await;
    seqline::identity::finalize(
        &mut app,
        seqline::identity::RestoredConsumers::Keep,
        seqline::identity::Need::Stated,
        seqline::consumer::Mode::Apply { why: Some("restored") },
    )
    .await
    .unwrap();
    assert_eq!(runtime.poll_once().await.unwrap().dead, 1);
    assert_eq!(site.dead_letters(PROBE).await, [("other_history".to_owned(), Some(lost), Some(3), 0)]);
    site.publish(&other).await;
    let running = Running::start(runtime);
    site.handles(PROBE, &[ids, other].concat()).await;
    running.stops().await;
}

/// With all that a relay writes, and of an event that never was.
#[tokio::test]
async fn a_forged_message_is_not_handled() {
    let site = Site::new().await;
    let ids = site.append(1..=3).await;
    let second = site.messages(&ids[1..2], site.epoch().await).await.remove(0);
    site.send(altered(second, Uuid::now_v7(), (ids[1], 2), 2)).await;
    site.publish(&ids).await;
    let running = site.start(PROBE, Probe::plain());
    // The others do not wait for it as far as they are in hand with it.
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "it cannot go on", async || running.tally.failures() > 2).await;
    assert_eq!(site.effects(PROBE).await, ids);
    running.stops().await;
}

#[tokio::test]
async fn what_retention_took_is_compared_with_nothing() {
    let site = Site::new().await;
    let ids = site.append(1..=4).await;
    site.publish(&ids).await;
    let mut admin = site.db.connect(Role::Admin).await;
    sqlx::raw_sql("DELETE FROM seqline.event_log WHERE seq < 3").execute(&mut admin).await.unwrap();
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    assert_eq!(running.tally.failures(), 0);
    running.stops().await;
}
