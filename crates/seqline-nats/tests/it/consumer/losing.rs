//! What retention takes out of the log before it was compared with what was handled.

use seqline_testkit::{Role, eventually};

use super::support::*;

async fn lost(site: &Site) -> i64 {
    sqlx::query_scalar("SELECT lost FROM seqline.stream_consumers").fetch_one(&site.db.admin()).await.unwrap()
}

#[tokio::test]
async fn what_is_gone_from_both_is_counted() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=2).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 2).await;
    assert_eq!((running.tally.lost(), lost(&site).await), (0, 0));
    running.stops().await;
    let gone = site.feed(3..=12).await;
    site.stream().await.purge().await.unwrap();
    let mut admin = site.db.connect(Role::Admin).await;
    sqlx::raw_sql("DELETE FROM seqline.event_log WHERE seq < 8").execute(&mut admin).await.unwrap();
    ids.extend(&gone[5..]);
    ids.extend(site.feed(13..=14).await);
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 14).await;
    assert_eq!((running.tally.lost(), running.tally.dropped(), lost(&site).await), (5, 5, 5));
    running.stops().await;
}

/// Of a consumer that is new nothing was expected before.
#[tokio::test]
async fn what_was_gone_before_a_consumer_began_is_not() {
    let site = Site::new().await;
    let ids = site.feed(1..=4).await;
    let mut admin = site.db.connect(Role::Admin).await;
    sqlx::raw_sql("DELETE FROM seqline.event_log WHERE seq < 3").execute(&mut admin).await.unwrap();
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 4).await;
    assert_eq!((running.tally.lost(), lost(&site).await), (0, 0));
    running.stops().await;
}
