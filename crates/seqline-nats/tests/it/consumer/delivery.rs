//! Delivered, handled once, acknowledged.

use seqline_nats::consumer::{StartAt, StreamConsumer};
use seqline_testkit::{FaultProxy, Role, TestServer, eventually};
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use super::support::*;
use crate::older::older_broker;

#[tokio::test]
async fn an_event_is_delivered_handled_once_and_acknowledged() {
    let site = Site::new().await;
    let ids = site.feed(1..=3).await;
    let probe = Probe::plain();
    let runtime = site.runtime(PROBE, probe.clone(), quick());
    let pass = runtime.poll_once().await.unwrap();
    assert_eq!((pass.handled, pass.duplicates, pass.retried), (3, 0, 0));
    assert_eq!((probe.calls(), site.effects(PROBE).await), (vec![1, 2, 3], ids));
    let info = site.settled_info(PROBE).await;
    assert_eq!((info.ack_floor.stream_sequence, info.num_redelivered), (3, 0));
    assert!(runtime.poll_once().await.unwrap().is_idle());
}

#[tokio::test]
async fn the_consumer_at_the_broker_is_as_it_has_to_be() {
    let site = Site::new().await;
    let runtime = site.runtime(PROBE, Probe::plain(), quick());
    runtime.poll_once().await.unwrap();
    let config = site.info(PROBE).await.config;
    assert_eq!(config.durable_name.as_deref(), Some(PROBE));
    assert_eq!((config.max_deliver, config.max_ack_pending, config.ack_wait.as_secs()), (-1, 100, 3));
    assert_eq!((config.filter_subject.as_str(), config.deliver_subject), ("events.>", None));
    // What may be changed is, by whoever comes next.
    let mut changed = quick();
    changed.ack_wait = std::time::Duration::from_secs(7);
    let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap().types(["order.*", "a.b"]).unwrap();
    site.runtime_of(consumer, changed).poll_once().await.unwrap();
    let config = site.info(PROBE).await.config;
    assert_eq!((config.ack_wait.as_secs(), config.filter_subjects.len()), (7, 2));
}

#[tokio::test]
async fn what_comes_twice_has_its_effect_once_also_after_a_restart() {
    let site = Site::new().await;
    let ids = site.feed(1..=3).await;
    let first = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    first.stops().await;
    // The broker remembers ids for a while: another one is another message.
    let epoch = site.epoch().await;
    for mut message in site.messages(&ids, epoch).await {
        message.headers.insert(async_nats::header::NATS_MESSAGE_ID, uuid::Uuid::new_v4().to_string());
        site.send(message).await;
    }
    let probe = Probe::plain();
    let second = site.start(PROBE, probe.clone());
    eventually(DEADLINE, "all are recognised", async || second.tally.duplicates() == 3).await;
    assert_eq!(probe.calls(), [0; 0]);
    assert_eq!(site.effects(PROBE).await, ids);
    assert_eq!(site.settled_info(PROBE).await.ack_floor.stream_sequence, 6);
    second.stops().await;
}

#[tokio::test]
async fn two_instances_divide_the_work_and_each_event_is_handled_by_one() {
    let site = Site::new().await;
    let slow = || {
        Probe::acting(|_, context| {
            Box::pin(async {
                sqlx::query("SELECT pg_sleep(0.002)").execute(context.connection()).await?;
                Ok(())
            })
        })
    };
    let (one, other) = (slow(), slow());
    let running = [site.start(PROBE, one.clone()), site.start(PROBE, other.clone())];
    eventually(DEADLINE, "both wait", async || {
        let info = site.stream().await.consumer_info(PROBE).await;
        info.is_ok_and(|info| info.num_waiting == 2)
    })
    .await;
    let ids = site.feed(1..=400).await;
    site.handles(PROBE, &ids).await;
    let mut calls = [one.calls(), other.calls()].concat();
    calls.sort_unstable();
    assert_eq!(calls, (1..=400).collect::<Vec<_>>());
    assert!(!one.calls().is_empty() && !other.calls().is_empty(), "one of them did nothing");
    for running in running {
        running.stops().await;
    }
}

#[tokio::test]
async fn each_consumer_gets_every_event() {
    let site = Site::new().await;
    let running = [site.start("invoices", Probe::plain()), site.start("mails", Probe::plain())];
    let ids = site.feed(1..=60).await;
    site.handles("invoices", &ids).await;
    site.handles("mails", &ids).await;
    for running in running {
        running.stops().await;
    }
}

#[tokio::test]
async fn what_is_published_while_it_is_stopped_arrives_afterwards() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=5).await;
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    running.stops().await;
    ids.extend(site.feed(6..=80).await);
    let running = site.start(PROBE, Probe::plain());
    site.handles(PROBE, &ids).await;
    running.stops().await;
}

fn in_space(event_type: &str, space: &str, n: i64) -> seqline::NewEvent {
    let payload = seqline::Payload::from_json(&format!("{{\"n\": {n}}}")).unwrap();
    seqline::NewEvent::builder(event_type, "order", "any").space(space).payload(payload).build().unwrap()
}

#[tokio::test]
async fn what_was_not_asked_for_is_passed_over() {
    let site = Site::new().await;
    let probe = Probe::plain();
    // No subject can say this, so the broker sends more.
    let consumer = StreamConsumer::new(PROBE, probe.clone()).unwrap();
    let consumer = consumer.types(["order.*"]).unwrap().spaces(["shop-1"]).unwrap();
    let events =
        [event(1), in_space("order.paid", "shop-1", 2), in_space("cart.filled", "shop-1", 3), event(4)];
    let ids = append(&site.db.producer(), events).await;
    site.publish(&ids).await;
    let running = Running::start(site.runtime_of(consumer, quick()));
    site.handles(PROBE, &ids[1..2]).await;
    eventually(DEADLINE, "the others are passed over", async || running.tally.skipped() == 2).await;
    let info = site.settled_info(PROBE).await;
    assert_eq!(info.delivered.consumer_sequence, 3, "the broker leaves out what it can");
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 4).await;
    let tally = running.tally.clone();
    running.stops().await;
    assert_eq!((tally.dropped(), site.retries(PROBE).await), (0, 0), "what was passed over was missed");
    assert_eq!((probe.calls(), site.ledger(PROBE).await), (vec![2], ids[1..2].to_vec()));
}

/// More subjects than a consumer may have at the broker, so that it sends everything.
#[tokio::test]
async fn what_the_broker_is_not_told_is_passed_over_too() {
    let site = Site::new().await;
    let types = ('a'..='t').map(|kind| format!("order.kind_{kind}"));
    let spaces = (1..=20).map(|n| format!("shop-{n}"));
    let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap();
    let consumer = consumer.types(types).unwrap().spaces(spaces).unwrap();
    let events = [
        ("order.kind_g", "shop-3"),
        ("order.kind_u", "shop-3"),
        ("order.kind_g.more", "shop-3"),
        ("order.kind_g", "shop-21"),
        ("order.kind_t", "shop-20"),
    ];
    let events = events.into_iter().zip(1..).map(|((event_type, space), n)| in_space(event_type, space, n));
    let ids = append(&site.db.producer(), events).await;
    site.publish(&ids).await;
    let running = Running::start(site.runtime_of(consumer, quick()));
    site.handles(PROBE, &[ids[0], ids[4]]).await;
    eventually(DEADLINE, "the log is compared", async || site.reconciled_to(PROBE).await == 5).await;
    let tally = running.tally.clone();
    running.stops().await;
    assert_eq!(site.effects(PROBE).await, [ids[0], ids[4]]);
    assert_eq!((tally.skipped(), tally.dropped(), site.retries(PROBE).await), (3, 0, 0));
    assert_eq!(site.info(PROBE).await.delivered.consumer_sequence, 5, "the broker left something out");
}

#[tokio::test]
async fn one_that_starts_with_what_is_new_never_gets_what_was_there() {
    let site = Site::new().await;
    let old = site.feed(1..=5).await;
    let consumer = || StreamConsumer::new(PROBE, Probe::plain()).unwrap().start_at(StartAt::New);
    let running = Running::start(site.runtime_of(consumer(), quick()));
    eventually(DEADLINE, "it is at the broker", async || {
        site.stream().await.consumer_info(PROBE).await.is_ok()
    })
    .await;
    let new = site.feed(6..=8).await;
    site.handles(PROBE, &new).await;
    running.stops().await;
    // Also when its place is lost.
    site.stream().await.delete_consumer(PROBE).await.unwrap();
    let running = Running::start(site.runtime_of(consumer(), quick()));
    eventually(DEADLINE, "everything came again", async || {
        (running.tally.skipped(), running.tally.duplicates()) == (old.len() as u64, new.len() as u64)
    })
    .await;
    assert_eq!(site.effects(PROBE).await, new);
    running.stops().await;
}

#[tokio::test]
async fn a_handler_may_append_events_of_its_own() {
    let site = Site::new().await;
    let probe = Probe::acting(|event, context| {
        let n = number(event);
        Box::pin(async move {
            seqline::append(context.transaction(), &[event_of("order.seen", n)]).await?;
            match n {
                2 => Err("refused".into()),
                _ => Ok(()),
            }
        })
    });
    let ids = site.feed(1..=3).await;
    let mut config = quick();
    config.attempts = 1;
    let running = Running::start(site.runtime(PROBE, probe, config));
    site.handles(PROBE, &[ids[0], ids[2]]).await;
    site.db.settled().await;
    let seen: Vec<i64> = sqlx::query_scalar(
        "SELECT (payload ->> 'n')::bigint FROM seqline.event_log WHERE type = 'order.seen' ORDER BY 1",
    )
    .fetch_all(&site.db.admin())
    .await
    .unwrap();
    assert_eq!(seen, [1, 3]);
    running.stops().await;
}

#[tokio::test]
async fn a_slow_handler_is_not_run_twice() {
    let site = Site::new().await;
    let ids = site.feed(1..=3).await;
    let probe = Probe::acting(|event, context| {
        let slow = number(event) == 1;
        Box::pin(async move {
            if slow {
                sqlx::query("SELECT pg_sleep(9)").execute(context.connection()).await?;
            }
            Ok(())
        })
    });
    let mut config = quick();
    config.ack_wait = std::time::Duration::from_secs(4);
    config.statement_timeout = std::time::Duration::from_secs(30);
    let running = [
        Running::start(site.runtime(PROBE, probe.clone(), config.clone())),
        Running::start(site.runtime(PROBE, probe.clone(), config)),
    ];
    site.handles(PROBE, &ids).await;
    let info = site.settled_info(PROBE).await;
    // Those that waited behind it were kept in hand too.
    assert_eq!((probe.calls().len(), info.delivered.consumer_sequence, info.num_redelivered), (3, 3, 0));
    for running in running {
        assert_eq!(running.tally.redelivered(), 0);
        running.stops().await;
    }
}

/// The same event twice in the stream, in the hands of two processes at once: the second one waits for nobody.
#[tokio::test]
async fn an_event_that_another_process_has_in_hand_keeps_nobody_waiting() {
    let site = Site::new().await;
    let ids = site.append(1..=2).await;
    let mut messages = site.messages(&ids, site.epoch().await).await;
    let mut again = messages[0].clone();
    again.headers.insert(async_nats::header::NATS_MESSAGE_ID, "again");
    let second = messages.pop().unwrap();
    for message in [messages.pop().unwrap(), again, second] {
        site.send(message).await;
    }
    let (entered, leave) = (CancellationToken::new(), CancellationToken::new());
    let stuck = {
        let (entered, leave) = (entered.clone(), leave.clone());
        Probe::acting(move |_, _| {
            let (entered, leave) = (entered.clone(), leave.clone());
            Box::pin(async move {
                entered.cancel();
                leave.cancelled().await;
                Ok(())
            })
        })
    };
    let mut config = quick();
    config.batch = 1;
    let first = site.runtime(PROBE, stuck.clone(), config.clone());
    let first = tokio::spawn(async move { first.poll_once().await.unwrap() });
    entered.cancelled().await;
    let other = Probe::plain();
    let second = Running::start(site.runtime(PROBE, other.clone(), config));
    eventually(DEADLINE, "the other event is handled", async || site.effects(PROBE).await == ids[1..]).await;
    assert_eq!(other.calls(), [2]);
    leave.cancel();
    assert_eq!(first.await.unwrap().handled, 1);
    eventually(DEADLINE, "it is recognised", async || second.tally.duplicates() == 1).await;
    assert_eq!(site.effects(PROBE).await, ids);
    site.settled_info(PROBE).await;
    second.stops().await;
}

/// A pass that was dropped keeps nothing from the broker.
#[tokio::test]
async fn what_a_dropped_pass_had_in_hand_comes_again() {
    let site = Site::new().await;
    let ids = site.feed(1..=4).await;
    let entered = CancellationToken::new();
    let probe = {
        let (entered, first) = (entered.clone(), std::sync::atomic::AtomicBool::new(true));
        Probe::acting(move |_, _| {
            let (entered, hangs) = (entered.clone(), first.swap(false, std::sync::atomic::Ordering::Relaxed));
            Box::pin(async move {
                if hangs {
                    entered.cancel();
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        })
    };
    let runtime = site.runtime(PROBE, probe, quick());
    tokio::select! {
        passed = runtime.poll_once() => panic!("{passed:?}"),
        () = entered.cancelled() => {}
    }
    let running = Running::start(runtime);
    site.handles(PROBE, &ids).await;
    running.stops().await;
}

/// What a batch costs is what its handlers cost, and little more.
#[tokio::test]
async fn a_batch_takes_few_round_trips() {
    let site = Site::new().await;
    let address = site.db.options(Role::App);
    let target = format!("127.0.0.1:{}", address.get_port()).parse().unwrap();
    let proxy = FaultProxy::start(target).await.unwrap();
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(address.port(proxy.addr().port()));
    let probe = Probe::plain();
    let mut config = quick();
    config.reconcile_interval = std::time::Duration::from_secs(3600);
    config.idle_pause = std::time::Duration::from_secs(3600);
    let consumer = StreamConsumer::new(PROBE, probe).unwrap();
    let runtime = site.runtime_with(pool, consumer, config);
    site.feed(1..=25).await;
    assert_eq!(runtime.poll_once().await.unwrap().handled, 25);
    site.feed(26..=50).await;
    let before = proxy.requests();
    assert_eq!(runtime.poll_once().await.unwrap().handled, 25);
    let cost = proxy.requests() - before;
    // A ping of the pool, a look at the log, BEGIN, lock, claim, 26 savepoints, two for the commit; and one statement of each handler.
    assert!(cost <= 25 + 33, "{cost} round trips");
}

#[tokio::test]
async fn an_event_that_is_twice_in_one_batch_is_handled_once() {
    let site = Site::new().await;
    let ids = site.append(1..=2).await;
    for round in 0..2 {
        for mut message in site.messages(&ids, site.epoch().await).await {
            if round == 1 {
                message.headers.insert(async_nats::header::NATS_MESSAGE_ID, uuid::Uuid::new_v4().to_string());
            }
            site.send(message).await;
        }
    }
    let running = site.start(PROBE, Probe::plain());
    eventually(DEADLINE, "they are recognised", async || running.tally.duplicates() == 2).await;
    assert_eq!((site.effects(PROBE).await, running.tally.handled()), (ids, 2));
    site.settled_info(PROBE).await;
    running.stops().await;
}

/// It knows one filter at most, and sends the rest too.
#[tokio::test]
async fn an_older_broker_delivers_what_is_asked_for() {
    let Some(nats) = older_broker().await else { return };
    let site = Site::with(TestServer::shared().await, nats).await;
    let consumer = StreamConsumer::new(PROBE, Probe::plain()).unwrap().types(["order.*", "a.b"]).unwrap();
    let events = (1..=30).map(|n| event_of(if n % 3 == 0 { "cart.filled" } else { "order.paid" }, n));
    let ids = append(&site.db.producer(), events).await;
    site.publish(&ids).await;
    let orders: Vec<_> = ids.iter().enumerate().filter(|(at, _)| at % 3 != 2).map(|(_, id)| *id).collect();
    let running = Running::start(site.runtime_of(consumer, quick()));
    site.handles(PROBE, &orders).await;
    assert_eq!(site.settled_info(PROBE).await.num_redelivered, 0);
    running.stops().await;
}
