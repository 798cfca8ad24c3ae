//! Messages of other histories: after a restore the log gives positions again.

use seqline::consumer::Mode;
use seqline::identity::{Need, RestoredConsumers, finalize};
use seqline_nats::consumer::{StartAt, StreamConsumer};
use seqline_testkit::{Role, eventually};
use uuid::Uuid;

use super::support::*;

/// Starts a new epoch, as the end of a restore does.
async fn finalizes(site: &Site) {
    let mut app = site.db.connect(Role::App).await;
    let why = Mode::Apply { why: Some("restored") };
    finalize(&mut app, RestoredConsumers::Keep, Need::Stated, why).await.unwrap();
}

#[tokio::test]
async fn what_was_written_before_histories_parted_is_handled_and_an_orphan_is_not() {
    let site = Site::new().await;
    let ids = site.append(1..=3).await;
    let before = site.epoch().await;
    let mut messages = site.messages(&ids, before).await;
    // At the position of the third there was another event.
    let orphan = Uuid::now_v7();
    let payload =
        std::str::from_utf8(&messages[2].payload).unwrap().replace(&ids[2].to_string(), &orphan.to_string());
    messages[2].headers.insert("Seqline-Event-Id", orphan.to_string());
    messages[2].headers.insert(async_nats::header::NATS_MESSAGE_ID, "orphan");
    messages[2].payload = payload.into();
    finalizes(&site).await;
    for message in messages {
        site.send(message).await;
    }
    site.publish(&ids[2..]).await;
    let runtime = site.runtime(PROBE, Probe::plain(), quick());
    let pass = runtime.poll_once().await.unwrap();
    assert_eq!((pass.handled, pass.dead, pass.terminated), (3, 1, 0));
    assert_eq!(site.effects(PROBE).await, ids);
    assert_eq!(site.dead_letters(PROBE).await, [("other_history".to_owned(), Some(orphan), Some(3), 0)]);
    site.settled_info(PROBE).await;
}

#[tokio::test]
async fn a_message_of_another_history_below_what_is_retained_is_handled() {
    let site = Site::new().await;
    let ids = site.append(1..=2).await;
    let messages = site.messages(&ids, Uuid::now_v7()).await;
    // As far as the log can say it may be its own.
    let mut admin = site.db.connect(Role::Admin).await;
    sqlx::raw_sql("DELETE FROM seqline.event_log WHERE seq = 1").execute(&mut admin).await.unwrap();
    for message in messages {
        site.send(message).await;
    }
    let runtime = site.runtime(PROBE, Probe::plain(), quick());
    assert_eq!(runtime.poll_once().await.unwrap().handled, 2);
}

/// A database that was restored to an older state, and not finalized: its log ends before what is in the stream.
#[tokio::test]
async fn a_message_ahead_of_the_log_stays_in_hand_until_the_database_is_there() {
    let site = Site::new().await;
    let ids = site.append(1..=2).await;
    let mut ahead = site.messages(&ids, site.epoch().await).await;
    let id = Uuid::now_v7();
    let payload =
        std::str::from_utf8(&ahead[1].payload).unwrap().replace(&ids[1].to_string(), &id.to_string());
    ahead[1].payload = payload.replace("\"seq\":2", "\"seq\":3").into();
    ahead[1].headers.insert("Seqline-Event-Id", id.to_string());
    ahead[1].headers.insert("Seqline-Position", "3");
    for message in ahead {
        site.send(message).await;
    }
    let running = site.start(PROBE, Probe::plain());
    eventually(DEADLINE, "it waits", async || running.tally.failures() > 3).await;
    assert_eq!(site.effects(PROBE).await, ids[..1]);
    let info = site.info(PROBE).await;
    assert_eq!((info.num_ack_pending, info.num_redelivered), (1, 0));
    // What the other database has done meanwhile comes with the replica.
    let event = seqline::NewEvent::builder("order.created", "order", "any").id(id).build().unwrap();
    append(&site.db.producer(), [event]).await;
    site.handles(PROBE, &[ids[0], id]).await;
    running.stops().await;
}

/// The ledger and the effects are those of the backup, and the broker has heard of all that was handled since.
#[tokio::test]
async fn what_was_handled_after_the_backup_is_handled_again_from_the_log() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=5).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 5).await;
    site.settled_info(PROBE).await;
    running.stops().await;
    let of_the_backup = "DELETE FROM seqline.consumed_events c USING public.effects e
            WHERE e.event_id = c.event_id AND e.position > 3;
        DELETE FROM public.effects WHERE position > 3;
        UPDATE seqline.stream_consumers SET reconciled_to = 3";
    sqlx::raw_sql(of_the_backup).execute(&site.db.admin()).await.unwrap();
    finalizes(&site).await;

    let running = site.start(PROBE, Probe::plain());
    ids.extend(site.feed(6..=6).await);
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 6).await;
    assert_eq!((running.tally.dropped(), site.retries(PROBE).await), (2, 0));
    running.stops().await;
}

/// What is recorded of a consumer can be newer than the log, where tables come from different backups.
#[tokio::test]
async fn numbers_that_are_those_of_other_events_after_a_restore_are_compared_again() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=6).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 6).await;
    running.stops().await;
    // It began at 10, and the events up to there are lost.
    sqlx::query("UPDATE seqline.stream_consumers SET start_position = 10, reconciled_to = 10")
        .execute(&site.db.admin())
        .await
        .unwrap();
    finalizes(&site).await;
    ids.extend(site.feed(7..=14).await);
    let stream = site.stream().await;
    for seq in 7..=9 {
        stream.delete_message(seq).await.unwrap();
    }
    let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap().start_at(StartAt::New);
    let running = Running::start(site.runtime_of(consumer, quick()));
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 14).await;
    assert_eq!(running.tally.dropped(), 3);
    running.stops().await;
}

/// Where it stood below the end of the log it stays.
#[tokio::test]
async fn a_new_epoch_does_not_compare_again_what_was_compared() {
    let site = Site::new().await;
    let ids = site.feed(1..=6).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 6).await;
    running.stops().await;
    site.append(7..=8).await;
    finalizes(&site).await;
    assert_eq!(site.reconciled_to(PROBE).await, 6);
}
