//! The end of a consumer: what is being handled is handled, and the rest is given back.

use std::time::Duration;

use seqline_testkit::eventually;
use tokio_util::sync::CancellationToken;

use super::support::*;

#[tokio::test]
async fn the_event_in_hand_is_handled_and_the_rest_is_given_back_at_once() {
    let site = Site::new().await;
    let ids = site.feed(1..=20).await;
    let (entered, leave) = (CancellationToken::new(), CancellationToken::new());
    let probe = {
        let (entered, leave) = (entered.clone(), leave.clone());
        Probe::acting(move |event, _| {
            let (waits, entered, leave) = (number(event) == 3, entered.clone(), leave.clone());
            Box::pin(async move {
                if waits {
                    entered.cancel();
                    leave.cancelled().await;
                }
                Ok(())
            })
        })
    };
    // The broker would give out again what is not given back, long after this test.
    let mut config = quick();
    config.ack_wait = Duration::from_secs(600);
    let running = Running::start(site.runtime(PROBE, probe.clone(), config.clone()));
    entered.cancelled().await;
    let stopping = running.stops();
    let stopping = async {
        tokio::pin!(stopping);
        assert!(futures_util::poll!(&mut stopping).is_pending());
        leave.cancel();
        stopping.await;
    };
    stopping.await;
    assert_eq!(site.effects(PROBE).await, ids[..3]);
    assert_eq!(site.ledger(PROBE).await.len(), 3, "claims without effects were left");
    let next = Probe::plain();
    let running = Running::start(site.runtime(PROBE, next.clone(), config));
    eventually(DEADLINE, "the rest is handled", async || next.calls().len() == 17).await;
    site.handles(PROBE, &ids).await;
    assert_eq!(probe.calls(), [1, 2, 3]);
    running.stops().await;
}

#[tokio::test]
async fn it_stops_at_once_while_it_waits() {
    let site = Site::new().await;
    let mut config = quick();
    config.fetch_expiry = Duration::from_secs(600);
    let running = Running::start(site.runtime(PROBE, Probe::plain(), config));
    eventually(DEADLINE, "it waits", async || match site.stream().await.consumer_info(PROBE).await {
        Ok(info) => info.num_waiting > 0,
        Err(_) => false,
    })
    .await;
    running.stops().await;
    assert_eq!(site.info(PROBE).await.num_ack_pending, 0);
}

#[tokio::test]
async fn it_stops_while_broker_and_database_are_away() {
    let mut site = Site::new().await;
    site.nats.kill().await;
    let running = site.start(PROBE, Probe::plain());
    eventually(DEADLINE, "it tries", async || running.tally.failures() > 1).await;
    running.stops().await;
}
