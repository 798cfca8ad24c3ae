//! Handlers that spoil the transaction: the failure is theirs, and the other events of the batch have their effects.

use std::time::Duration;

use seqline_testkit::eventually;
use sqlx::Connection;

use super::support::*;

/// Nine events in one batch, of which the fifth misbehaves each time. What it fails with.
async fn spoils(handler: Probe) -> (Site, String) {
    spoils_in(handler, quick()).await
}

async fn spoils_in(probe: Probe, mut config: seqline_nats::consumer::StreamConsumerConfig) -> (Site, String) {
    config.attempts = 2;
    let site = Site::new().await;
    let ids = site.feed(1..=9).await;
    let running = Running::start(site.runtime(PROBE, probe.clone(), config));
    eventually(DEADLINE, "it is given up", async || !site.dead_letters(PROBE).await.is_empty()).await;
    let others: Vec<_> = ids.iter().copied().filter(|id| *id != ids[4]).collect();
    let mut ledger = others.clone();
    ledger.sort();
    eventually(DEADLINE, "the others are handled", async || site.ledger(PROBE).await == ledger).await;
    assert_eq!(site.dead_letters(PROBE).await, [("attempts_exhausted".to_owned(), Some(ids[4]), Some(5), 2)]);
    site.settled_info(PROBE).await;
    running.stops().await;
    let effects: Vec<_> = site.effects(PROBE).await.into_iter().filter(|id| *id != ids[4]).collect();
    assert_eq!(effects, others, "each of the others once");
    let admin = site.db.admin();
    let kind = sqlx::query_scalar("SELECT error_type FROM seqline.dead_letters").fetch_one(&admin);
    let kind: String = kind.await.unwrap();
    // What is refused at the end is called once more, to find out whose it is.
    assert_eq!(probe.calls_for(5), 2 + usize::from(kind == "commit_refused"));
    (site, kind)
}

async fn leaves_no_effect(site: &Site) {
    assert_eq!(site.effects(PROBE).await.len(), 8, "what failed left something");
}

/// Does it at the fifth event.
fn at_five(
    act: impl for<'a, 'c> Fn(&'a mut seqline_nats::consumer::Context<'c>) -> Handling<'a> + Send + Sync + 'static,
) -> Probe {
    Probe::acting(move |event, context| match number(event) {
        5 => act(context),
        _ => Box::pin(async { Ok(()) }),
    })
}

#[tokio::test]
async fn an_error() {
    let (site, kind) = spoils(at_five(|_| Box::pin(async { Err("refused".into()) }))).await;
    assert_eq!(kind, "handler");
    leaves_no_effect(&site).await;
}

#[tokio::test]
async fn a_panic() {
    let (site, kind) =
        spoils(at_five(|_| Box::pin(async { std::panic::resume_unwind(Box::new("on purpose")) }))).await;
    assert_eq!(kind, "panic");
    leaves_no_effect(&site).await;
}

#[tokio::test]
async fn a_handler_that_hangs() {
    let mut config = quick();
    config.handler_timeout = Duration::from_millis(300);
    let (site, kind) = spoils_in(at_five(|_| Box::pin(std::future::pending())), config).await;
    assert_eq!(kind, "timeout");
    leaves_no_effect(&site).await;
}

/// The server goes on with what it was asked for, and has the events in hand until it notices.
#[tokio::test]
async fn a_handler_that_hangs_in_the_database() {
    let mut config = quick();
    config.handler_timeout = Duration::from_millis(300);
    let probe = at_five(|context| {
        Box::pin(async {
            sqlx::raw_sql("SET LOCAL statement_timeout = 0; SELECT pg_sleep(600)")
                .execute(context.connection())
                .await?;
            Ok(())
        })
    });
    let (site, kind) = spoils_in(probe, config).await;
    assert_eq!(kind, "timeout");
    leaves_no_effect(&site).await;
}

#[tokio::test]
async fn a_statement_that_fails_and_is_passed_over() {
    let (site, kind) = spoils(at_five(|context| {
        Box::pin(async {
            let _ = sqlx::query("SELECT 1 / 0").execute(context.connection()).await;
            Ok(())
        })
    }))
    .await;
    assert_eq!(kind, "transaction_failed");
    leaves_no_effect(&site).await;
}

#[tokio::test]
async fn a_handler_that_rolls_back() {
    let (site, kind) = spoils(at_five(|context| {
        Box::pin(async {
            sqlx::raw_sql("ROLLBACK").execute(context.connection()).await?;
            Ok(())
        })
    }))
    .await;
    assert_eq!(kind, "transaction_ended");
    leaves_no_effect(&site).await;
}

/// What it wrote until then is there, as it wanted. The events after it were claimed with it, and not handled.
#[tokio::test]
async fn a_handler_that_commits() {
    let (site, kind) = spoils(at_five(|context| {
        Box::pin(async {
            sqlx::raw_sql("COMMIT").execute(context.connection()).await?;
            Ok(())
        })
    }))
    .await;
    assert_eq!(kind, "transaction_ended");
    assert_eq!(site.effects(PROBE).await.len(), 10);
}

#[tokio::test]
async fn a_handler_that_commits_and_begins_anew() {
    let (_, kind) = spoils(at_five(|context| {
        Box::pin(async {
            sqlx::raw_sql("COMMIT; BEGIN").execute(context.connection()).await?;
            Ok(())
        })
    }))
    .await;
    assert_eq!(kind, "transaction_ended");
}

#[tokio::test]
async fn a_nested_transaction_that_is_left_open() {
    let (site, kind) = spoils(at_five(|context| {
        Box::pin(async {
            std::mem::forget(context.connection().begin().await?);
            Ok(())
        })
    }))
    .await;
    assert_eq!(kind, "nested_transaction");
    leaves_no_effect(&site).await;
}

#[tokio::test]
async fn a_nested_transaction_that_is_dropped_is_none_of_our_business() {
    let site = Site::new().await;
    let ids = site.feed(1..=3).await;
    let probe = Probe::acting(|_, context| {
        Box::pin(async {
            let mut inner = context.connection().begin().await?;
            sqlx::query("INSERT INTO public.effects VALUES ('inner', gen_random_uuid(), 1, 1)")
                .execute(&mut *inner)
                .await?;
            drop(inner);
            let inner = context.connection().begin().await?;
            inner.commit().await?;
            Ok(())
        })
    });
    let running = site.start(PROBE, probe);
    site.handles(PROBE, &ids).await;
    assert!(site.effects("inner").await.is_empty());
    running.stops().await;
}

/// It shows at COMMIT, where nobody can tell whose it is: each is then alone.
#[tokio::test]
async fn a_deferred_constraint_that_fails_at_commit() {
    let probe = at_five(|context| {
        Box::pin(async {
            sqlx::raw_sql(
                "CREATE TABLE IF NOT EXISTS public.parents (id int PRIMARY KEY);
                 CREATE TABLE IF NOT EXISTS public.children (parent int REFERENCES public.parents DEFERRABLE INITIALLY DEFERRED);
                 INSERT INTO public.children VALUES (1)",
            )
            .execute(context.connection())
            .await?;
            Ok(())
        })
    });
    let (site, kind) = spoils(probe).await;
    assert_eq!(kind, "commit_refused");
    leaves_no_effect(&site).await;
}

#[tokio::test]
async fn a_handler_that_ends_its_session() {
    let mut config = quick();
    config.attempts = 2;
    let site = Site::new().await;
    let ids = site.feed(1..=3).await;
    let probe = Probe::acting(|event, context| {
        let ends = number(event) == 2;
        Box::pin(async move {
            if ends {
                sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())")
                    .execute(context.connection())
                    .await?;
            }
            Ok(())
        })
    });
    let running = Running::start(site.runtime(PROBE, probe, config));
    eventually(DEADLINE, "it is given up", async || !site.dead_letters(PROBE).await.is_empty()).await;
    site.handles(PROBE, &[ids[0], ids[2]]).await;
    running.stops().await;
}

/// A deadlock is bad luck, and not counted.
#[tokio::test]
async fn a_conflict_is_no_failure() {
    let site = Site::new().await;
    let ids = site.feed(1..=3).await;
    let probe = Probe::acting({
        let lost = std::sync::atomic::AtomicU32::new(0);
        move |event, context| {
            let loses = number(event) == 2 && lost.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2;
            Box::pin(async move {
                if loses {
                    sqlx::raw_sql("DO $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = 'deadlock_detected'; END $$")
                        .execute(context.connection())
                        .await?;
                }
                Ok(())
            })
        }
    });
    let running = site.start(PROBE, probe.clone());
    site.handles(PROBE, &ids).await;
    assert_eq!((probe.calls_for(2), running.tally.retried()), (3, 0));
    running.stops().await;
}
