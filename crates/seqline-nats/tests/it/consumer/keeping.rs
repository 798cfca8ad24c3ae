//! Word of what is in hand, while passes fail.

use std::time::Duration;

use seqline::Clock;
use seqline_testkit::eventually;

use super::support::*;

/// Each pass connects anew, because the database that comes back can be another one.
#[tokio::test]
async fn what_is_in_hand_stays_there_while_the_database_refuses_each_pass() {
    let site = Site::new().await;
    site.feed(1..=1).await;
    let mut config = quick();
    config.ack_wait = Duration::from_secs(3);
    let running = Running::start(site.runtime(PROBE, Probe::plain(), config));
    eventually(DEADLINE, "it runs", async || running.tally.handled() == 1).await;
    let close = "ALTER TABLE seqline.dead_letters ADD CONSTRAINT closed CHECK (false) NOT VALID";
    sqlx::query(close).execute(&site.db.admin()).await.unwrap();
    site.send_garbage("?").await;
    eventually(DEADLINE, "it cannot be written", async || running.tally.failures() > 0).await;
    // Which would give it to this one.
    let other = site.start(PROBE, Probe::plain());
    let clock = Clock::system();
    eventually(DEADLINE, "the broker would give it out again", async || {
        clock.elapsed() > Duration::from_secs(8)
    })
    .await;
    let info = site.info(PROBE).await;
    assert_eq!((info.num_ack_pending, info.num_redelivered, other.tally.redelivered()), (1, 0, 0));
    other.stops().await;
    running.stops().await;
}
