//! Three brokers that store together.

use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_testkit::eventually;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::support::*;

/// The node that leads the stream and the one that leads the consumer, by turns, while a relay publishes and two consumers work.
#[tokio::test]
async fn leaders_that_are_killed_cost_no_effect_and_count_as_no_failure() {
    let mut site = Site::of_three().await;
    // How far they may come.
    let (open, opened) = watch::channel(0);
    let slow = || {
        let opened = opened.clone();
        Probe::acting(move |event, context| {
            let (n, mut opened) = (number(event), opened.clone());
            Box::pin(async move {
                opened.wait_for(|to| n <= *to).await?;
                sqlx::query("SELECT pg_sleep(0.01)").execute(context.connection()).await?;
                Ok(())
            })
        })
    };
    let mut relaying = RelayConfig::default();
    relaying.stream = site.settings.clone();
    let relay_broker = Broker::new(BrokerConfig::new(&site.url));
    let mut relay = Relay::new(site.db.app_pool(3), relay_broker, relaying, Clock::system());
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let relay = tokio::spawn(async move { relay.run(stopped).await });
    let mut config = quick();
    config.handler_timeout = DEADLINE;
    let running = [slow(), slow()].map(|probe| Running::start(site.runtime(PROBE, probe, config.clone())));
    let mut ids = Vec::new();
    for round in 0..2 {
        open.send_replace(round * 300 + 150);
        ids.extend(site.append(round * 300 + 1..=round * 300 + 300).await);
        let done = ids.len() - 300;
        eventually(DEADLINE, "they work", async || site.effects(PROBE).await.len() > done + 50).await;
        let leading = match round % 2 {
            0 => site.stream().await.cached_info().cluster.clone(),
            _ => site.info(PROBE).await.cluster,
        };
        let leader = leading.and_then(|cluster| cluster.leader).expect("somebody leads");
        site.nats.named(&leader).expect("a node").kill().await;
        assert!(site.effects(PROBE).await.len() < ids.len(), "they were done before it was killed");
        open.send_replace(i64::MAX);
        site.handles(PROBE, &ids).await;
        site.nats.named(&leader).expect("a node").restart().await;
        site.nats.until_ready().await;
    }
    let attempts: Vec<i32> = sqlx::query_scalar("SELECT DISTINCT attempt FROM public.effects")
        .fetch_all(&site.db.admin())
        .await
        .unwrap();
    assert_eq!(attempts, [1]);
    assert_eq!((site.retries(PROBE).await, site.dead_letters(PROBE).await.len()), (0, 0));
    for running in running {
        assert!(running.tally.handled() > 0, "one of them did nothing");
        assert_eq!((running.tally.retried(), running.tally.dropped()), (0, 0));
        running.stops().await;
    }
    stop.cancel();
    relay.await.unwrap();
}
