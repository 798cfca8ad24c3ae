//! Events that fail, and messages that are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seqline_testkit::eventually;

use super::support::*;

fn failing(numbers: impl Fn(i64) -> bool + Send + Sync + 'static) -> Probe {
    Probe::acting(move |event, _| {
        let fails = numbers(number(event));
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    })
}

#[tokio::test]
async fn a_handler_that_always_fails_runs_five_times_and_others_go_on_meanwhile() {
    let site = Site::new().await;
    let ids = site.feed(1..=1).await;
    let probe = failing(|n| n == 1);
    let mut config = quick();
    config.retry_backoff = Duration::from_secs(3600);
    config.retry_backoff_cap = Duration::from_secs(3600);
    let running = Running::start(site.runtime(PROBE, probe.clone(), config));
    eventually(DEADLINE, "it failed", async || site.retries(PROBE).await == 1).await;
    let later = site.feed(2..=6).await;
    site.handles(PROBE, &later).await;
    assert_eq!(probe.calls_for(1), 1, "later events waited for it");
    eventually(DEADLINE, "it is given up", async || {
        let due = sqlx::query("UPDATE seqline.stream_retries SET next_attempt_at = now()");
        due.execute(&site.db.admin()).await.unwrap();
        !site.dead_letters(PROBE).await.is_empty()
    })
    .await;
    let letter = ("attempts_exhausted".to_owned(), Some(ids[0]), Some(1), 5);
    assert_eq!(site.dead_letters(PROBE).await, [letter]);
    assert_eq!((site.retries(PROBE).await, site.effects(PROBE).await), (0, later.clone()));
    let mut ledger = later;
    ledger.sort();
    assert_eq!(site.ledger(PROBE).await, ledger);
    running.stops().await;
    // Nor in another process, and the broker has no more of it.
    let again = Running::start(site.runtime(PROBE, probe.clone(), quick()));
    site.handles(PROBE, &[site.effects(PROBE).await, site.feed(7..=7).await].concat()).await;
    assert_eq!(probe.calls_for(1), 5);
    assert_eq!(site.settled_info(PROBE).await.num_redelivered, 0);
    again.stops().await;
}

/// What one of them has read as due the other one may have tried meanwhile.
#[tokio::test]
async fn two_instances_try_an_event_that_fails_as_often_as_one() {
    let site = Site::new().await;
    site.feed(1..=40).await;
    let probe = Probe::acting(|_, context| {
        Box::pin(async {
            sqlx::query("SELECT pg_sleep(0.003)").execute(context.connection()).await?;
            Err("refused".into())
        })
    });
    let mut config = quick();
    config.retry_backoff = Duration::from_millis(1);
    config.retry_backoff_cap = Duration::from_millis(1);
    config.idle_pause = Duration::from_millis(1);
    let running = [(); 2].map(|()| Running::start(site.runtime(PROBE, probe.clone(), config.clone())));
    eventually(DEADLINE, "all are given up", async || site.dead_letters(PROBE).await.len() >= 40).await;
    for running in running {
        running.stops().await;
    }
    let often: Vec<i64> = (1..=40).filter(|n| probe.calls_for(*n) != 5).collect();
    assert_eq!((often, site.dead_letters(PROBE).await.len()), (vec![], 40));
}

#[tokio::test]
async fn an_attempt_says_which_it_is_and_a_success_ends_it() {
    let site = Site::new().await;
    let left = Arc::new(AtomicBool::new(true));
    let probe = Probe::acting(move |_, context| {
        let fails = context.attempt() < 3 && left.load(Ordering::Relaxed);
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    });
    let ids = site.feed(1..=1).await;
    let running = Running::start(site.runtime(PROBE, probe.clone(), quick()));
    site.handles(PROBE, &ids).await;
    let attempt: i32 =
        sqlx::query_scalar("SELECT attempt FROM public.effects").fetch_one(&site.db.admin()).await.unwrap();
    assert_eq!((attempt, probe.calls().len(), running.tally.retried()), (3, 3, 2));
    assert_eq!((site.retries(PROBE).await, site.ledger(PROBE).await), (0, ids));
    running.stops().await;
}

/// More than may be in hand at the broker.
#[tokio::test]
async fn a_hundred_failing_events_do_not_keep_the_others_waiting() {
    let site = Site::new().await;
    site.feed(1..=130).await;
    let good = site.feed(131..=150).await;
    let mut config = quick();
    config.retry_backoff = Duration::from_secs(3600);
    config.retry_backoff_cap = Duration::from_secs(3600);
    let running = Running::start(site.runtime(PROBE, failing(|n| n <= 130), config));
    site.handles(PROBE, &good).await;
    assert_eq!(site.retries(PROBE).await, 130);
    running.stops().await;
}

#[tokio::test]
async fn garbage_is_terminated_at_once_and_later_events_are_handled() {
    let site = Site::new().await;
    let seq = site.send_garbage("not an event").await;
    let ids = site.feed(1..=2).await;
    let runtime = site.runtime(PROBE, Probe::plain(), quick());
    let pass = runtime.poll_once().await.unwrap();
    assert_eq!((pass.terminated, pass.dead, pass.handled), (1, 1, 2));
    let letter = ("unreadable".to_owned(), None, Some(seq.cast_signed()), 0);
    assert_eq!(site.dead_letters(PROBE).await, [letter]);
    assert_eq!(site.effects(PROBE).await, ids);
    let info = site.settled_info(PROBE).await;
    assert_eq!((info.delivered.consumer_sequence, info.num_redelivered), (3, 0));
}

#[tokio::test]
async fn nothing_but_garbage_is_no_beginning() {
    let site = Site::new().await;
    site.append(1..=3).await;
    site.send_garbage("{}").await;
    let running = site.start(PROBE, Probe::plain());
    eventually(DEADLINE, "it is given up", async || running.tally.terminated() == 1).await;
    let ids = site.feed(4..=5).await;
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 5).await;
    assert_eq!((running.tally.dropped(), site.effects(PROBE).await), (0, ids));
    running.stops().await;
}

/// The letter is written when the broker hears of it: while it cannot be written the message stays.
#[tokio::test]
async fn a_dead_letter_is_written_before_the_message_is_terminated() {
    let site = Site::new().await;
    site.feed(1..=1).await;
    let mut config = quick();
    config.ack_wait = Duration::from_secs(1);
    let running = Running::start(site.runtime(PROBE, Probe::plain(), config));
    eventually(DEADLINE, "it runs", async || running.tally.handled() == 1).await;
    sqlx::query("ALTER TABLE seqline.dead_letters ADD CONSTRAINT closed CHECK (false) NOT VALID")
        .execute(&site.db.admin())
        .await
        .unwrap();
    site.send_garbage("?").await;
    eventually(DEADLINE, "it cannot be written", async || running.tally.failures() > 2).await;
    assert_eq!((running.tally.terminated(), site.info(PROBE).await.num_ack_pending), (0, 1));
    running.dies().await;
    sqlx::query("ALTER TABLE seqline.dead_letters DROP CONSTRAINT closed")
        .execute(&site.db.admin())
        .await
        .unwrap();
    let running = site.start(PROBE, Probe::plain());
    eventually(DEADLINE, "it is given up", async || running.tally.terminated() == 1).await;
    assert_eq!(site.dead_letters(PROBE).await.len(), 1);
    site.settled_info(PROBE).await;
    running.stops().await;
}

#[tokio::test]
async fn an_event_in_a_form_of_later_versions_is_a_dead_letter_with_its_name() {
    let site = Site::new().await;
    let ids = site.append(1..=2).await;
    let mut messages = site.messages(&ids, site.epoch().await).await;
    messages[0].headers.insert("Seqline-Envelope", "2");
    for message in messages {
        site.send(message).await;
    }
    let runtime = site.runtime(PROBE, Probe::plain(), quick());
    let pass = runtime.poll_once().await.unwrap();
    assert_eq!((pass.terminated, pass.dead, pass.handled), (1, 1, 1));
    assert_eq!(site.dead_letters(PROBE).await, [("future_version".to_owned(), Some(ids[0]), Some(1), 0)]);
}

#[tokio::test]
async fn a_dead_letter_that_is_replayed_is_handled() {
    let site = Site::new().await;
    let ids = site.feed(1..=1).await;
    let fails = Arc::new(AtomicBool::new(true));
    let of_handler = fails.clone();
    let probe = Probe::acting(move |_, _| {
        let fails = of_handler.load(Ordering::Relaxed);
        Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
    });
    let mut config = quick();
    config.attempts = 2;
    let running = Running::start(site.runtime(PROBE, probe.clone(), config));
    eventually(DEADLINE, "it is given up", async || running.tally.dead() == 1).await;
    fails.store(false, Ordering::Relaxed);
    let replayed: i64 =
        sqlx::query_scalar("SELECT seqline.settle_dead_letters($1, NULL, false, true, 'mended')")
            .bind(PROBE)
            .fetch_one(&site.db.app())
            .await
            .unwrap();
    assert_eq!(replayed, 1);
    site.handles(PROBE, &ids).await;
    assert_eq!((probe.calls().len(), site.dead_letters(PROBE).await.len()), (3, 0));
    running.stops().await;
}

/// It is not missed when the log is compared with what was handled.
#[tokio::test]
async fn a_dead_letter_that_is_discarded_is_not_tried_again() {
    let site = Site::new().await;
    site.feed(1..=2).await;
    let probe = failing(|n| n == 1);
    let mut config = quick();
    config.attempts = 1;
    config.reconcile_interval = Duration::from_secs(3600);
    let running = Running::start(site.runtime(PROBE, probe.clone(), config));
    eventually(DEADLINE, "it is given up", async || running.tally.dead() == 1).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    sqlx::query("UPDATE seqline.stream_consumers SET reconciled_to = 0")
        .execute(&site.db.admin())
        .await
        .unwrap();
    let discarded: i64 =
        sqlx::query_scalar("SELECT seqline.settle_dead_letters($1, NULL, true, true, 'of no use')")
            .bind(PROBE)
            .fetch_one(&site.db.app())
            .await
            .unwrap();
    let running = site.start(PROBE, probe.clone());
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 2).await;
    assert_eq!((discarded, running.tally.dropped(), probe.calls_for(1)), (1, 0, 1));
    running.stops().await;
}

/// What failed and is in neither log nor stream cannot be had.
#[tokio::test]
async fn an_event_that_is_gone_when_its_time_comes_is_a_dead_letter() {
    let site = Site::new().await;
    let ids = site.feed(1..=2).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    let lost = uuid::Uuid::now_v7();
    sqlx::query(
        "INSERT INTO seqline.stream_retries (consumer, event_id, position, stream_seq, attempts, next_attempt_at, cause)
         VALUES ($1, $2, 2, 2, 1, now(), 'failed')",
    )
    .bind(PROBE)
    .bind(lost)
    .execute(&site.db.admin())
    .await
    .unwrap();
    eventually(DEADLINE, "it is given up", async || running.tally.dead() == 1).await;
    assert_eq!(site.dead_letters(PROBE).await, [("gone".to_owned(), Some(lost), Some(2), 1)]);
    assert_eq!(site.retries(PROBE).await, 0);
    running.stops().await;
}

/// A message that came again because its acknowledgement was lost, after its event had failed: the failure is recorded once, and it is tried once
/// for each attempt.
#[tokio::test]
async fn what_waits_for_its_next_attempt_is_not_tried_because_its_message_comes_again() {
    let site = Site::new().await;
    let ids = site.feed(1..=1).await;
    let probe = failing(|_| true);
    let mut config = quick();
    config.retry_backoff = Duration::from_secs(3600);
    config.retry_backoff_cap = Duration::from_secs(3600);
    let runtime = site.runtime(PROBE, probe.clone(), config);
    assert_eq!(runtime.poll_once().await.unwrap().retried, 1);
    let mut again = site.messages(&ids, site.epoch().await).await.remove(0);
    again.headers.insert(async_nats::header::NATS_MESSAGE_ID, "again");
    site.send(again).await;
    assert_eq!(runtime.poll_once().await.unwrap().duplicates, 1);
    assert_eq!((probe.calls().len(), site.retries(PROBE).await), (1, 1));
    site.settled_info(PROBE).await;
}
