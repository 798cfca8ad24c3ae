//! How often an event has failed, when its transaction is lost and another process has it before that is recorded.

use std::sync::Arc;
use std::time::Duration;

use seqline_testkit::{Role, eventually};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::support::*;

/// A handler that says when it was called, and panics when it is told to.
fn panicking() -> (Probe, Arc<Notify>, Arc<Notify>) {
    let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (of_handler, told) = (entered.clone(), go.clone());
    let probe = Probe::acting(move |_, _| {
        let (entered, go) = (of_handler.clone(), told.clone());
        Box::pin(async move {
            entered.notify_one();
            go.notified().await;
            std::panic::resume_unwind(Box::new("on purpose"))
        })
    });
    (probe, entered, go)
}

fn slow_retries() -> seqline_nats::consumer::StreamConsumerConfig {
    let mut config = quick();
    config.retry_backoff = Duration::from_secs(3600);
    config.retry_backoff_cap = Duration::from_secs(3600);
    config
}

async fn run(site: &Site, statement: String) {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&site.db.admin()).await.unwrap();
}

/// What a process does that takes an event in hand as the runtime does. The server gives the lock to whoever waits longest: so nobody who asks for
/// the event later comes before it.
fn in_hand(id: Uuid, statement: &str) -> String {
    format!("SELECT pg_advisory_xact_lock(hashtextextended('{PROBE}:{id}', 0)); {statement}")
}

/// What another process does as soon as it can, once it is known to wait for this one.
async fn waits(site: &Site, mut other: PgConnection, statement: String) -> JoinHandle<PgConnection> {
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.unwrap();
    let waiting = tokio::spawn(async move {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut other).await.unwrap();
        other
    });
    let admin = site.db.admin();
    eventually(DEADLINE, "the other one waits", async || {
        sqlx::query_scalar("SELECT cardinality(pg_blocking_pids($1)) > 0")
            .bind(pid)
            .fetch_one(&admin)
            .await
            .unwrap()
    })
    .await;
    waiting
}

async fn attempts(site: &Site) -> Vec<i32> {
    sqlx::query_scalar("SELECT attempts FROM seqline.stream_retries")
        .fetch_all(&site.db.admin())
        .await
        .unwrap()
}

/// An event that has failed so often and is due, while it is tried; and another process that does something in between.
async fn in_between(failed: i32, statement: impl Fn(Uuid) -> String) -> (Site, seqline_nats::consumer::Pass) {
    let site = Site::new().await;
    let ids = site.feed(1..=1).await;
    let (probe, entered, go) = panicking();
    let runtime = site.runtime(PROBE, probe.clone(), slow_retries());
    let first = async {
        entered.notified().await;
        go.notify_one();
    };
    assert_eq!(tokio::join!(runtime.poll_once(), first).0.unwrap().retried, 1);
    run(&site, format!("UPDATE seqline.stream_retries SET attempts = {failed}, next_attempt_at = now()"))
        .await;
    let other = site.db.connect(Role::Admin).await;
    let meanwhile = async {
        entered.notified().await;
        let waiting = waits(&site, other, in_hand(ids[0], &statement(ids[0]))).await;
        go.notify_one();
        waiting.await.unwrap();
    };
    // Another one, which looks for what is due at once.
    let runtime = site.runtime(PROBE, probe, slow_retries());
    let (pass, ()) = tokio::join!(runtime.poll_once(), meanwhile);
    (site, pass.unwrap())
}

#[tokio::test]
async fn a_failure_is_added_to_those_of_others() {
    let again = |_| "UPDATE seqline.stream_retries SET attempts = attempts + 1".to_owned();
    let (site, pass) = Box::pin(in_between(1, again)).await;
    assert_eq!((attempts(&site).await, pass.retried), (vec![3], 1));
}

#[tokio::test]
async fn what_another_one_gave_up_is_one_dead_letter() {
    let gives_up = |id| {
        format!(
            "WITH r AS (DELETE FROM seqline.stream_retries RETURNING *)
             INSERT INTO seqline.dead_letters (consumer, reason, event_id, position, stream, stream_seq, attempts)
             SELECT r.consumer, 'attempts_exhausted', '{id}', r.position, 'EVENTS', r.stream_seq, 5 FROM r"
        )
    };
    let (site, pass) = Box::pin(in_between(4, gives_up)).await;
    assert_eq!((site.dead_letters(PROBE).await.len(), pass.dead, pass.retried), (1, 0, 0));
    assert_eq!(site.retries(PROBE).await, 0);
}

/// A message that fails here too: what the other one wrote meanwhile is not taken back to one.
#[tokio::test]
async fn a_message_that_fails_is_added_to_what_waits() {
    let site = Site::new().await;
    site.feed(1..=1).await;
    let (probe, entered, go) = panicking();
    let runtime = site.runtime(PROBE, probe, slow_retries());
    let meanwhile = async {
        entered.notified().await;
        run(
            &site,
            "INSERT INTO seqline.stream_retries (consumer, event_id, position, attempts, next_attempt_at, cause)
             SELECT 'probe', e.id, e.seq, 3, now() + interval '1 hour', 'failed' FROM seqline.event_log e"
                .to_owned(),
        )
        .await;
        go.notify_one();
    };
    let (pass, ()) = tokio::join!(runtime.poll_once(), meanwhile);
    assert_eq!((pass.unwrap().retried, attempts(&site).await), (1, vec![4]));
}

/// The other one hangs in turn. The failure is recorded when it is done, and the event is not tried before.
#[tokio::test]
async fn a_failure_that_cannot_be_recorded_now_is_recorded_later() {
    let site = Site::new().await;
    let ids = site.feed(1..=1).await;
    let (probe, entered, go) = panicking();
    let runtime = site.runtime(PROBE, probe.clone(), slow_retries());
    let mut other = site.db.connect(Role::Admin).await;
    sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
    let meanwhile = async {
        entered.notified().await;
        let waiting = waits(&site, other, in_hand(ids[0], "")).await;
        go.notify_one();
        waiting.await.unwrap()
    };
    let (pass, mut other) = tokio::join!(runtime.poll_once(), meanwhile);
    pass.unwrap();
    assert_eq!((probe.calls().len(), site.retries(PROBE).await), (1, 0));
    // Still not.
    assert_eq!(runtime.poll_once().await.unwrap().retried, 0);
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(runtime.poll_once().await.unwrap().retried, 1);
    assert_eq!((probe.calls().len(), attempts(&site).await), (1, vec![1]));
    let running = Running::start(runtime);
    // The message comes again, and waits for nothing but its next attempt.
    site.settled_info(PROBE).await;
    assert_eq!((probe.calls().len(), attempts(&site).await), (1, vec![1]));
    running.stops().await;
}
