//! What a broker or a due event can do to a pass, and must not.

use std::time::Duration;

use seqline_testkit::eventually;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::support::*;

/// A broker takes a subject that PostgreSQL cannot hold.
#[tokio::test]
async fn a_subject_with_a_zero_byte_is_given_up_like_any_other() {
    let site = Site::new().await;
    let mut socket = BufReader::new(TcpStream::connect(site.nats.addr()).await.unwrap());
    let mut line = String::new();
    socket.read_line(&mut line).await.unwrap();
    socket
        .write_all(b"CONNECT {\"verbose\":false}\r\nPUB events.order\0created._ 2\r\nno\r\nPING\r\n")
        .await
        .unwrap();
    line.clear();
    socket.read_line(&mut line).await.unwrap();
    assert_eq!(line, "PONG\r\n");
    let ids = site.feed(1..=1).await;
    let pass = site.runtime(PROBE, Probe::plain(), quick()).poll_once().await.unwrap();
    assert_eq!((pass.dead, pass.terminated, pass.handled), (1, 1, 1));
    assert_eq!(site.effects(PROBE).await, ids);
    let subject: String = sqlx::query_scalar("SELECT subject FROM seqline.dead_letters")
        .fetch_one(&site.db.admin())
        .await
        .unwrap();
    assert_eq!(subject, "events.order\u{fffd}created._");
}

/// The broker is asked for what is not in the log, and does not answer.
#[tokio::test]
async fn an_event_that_is_due_and_cannot_be_had_now_keeps_nothing_waiting() {
    let site = Site::new().await;
    let mut ids = site.feed(1..=1).await;
    // It may read the stream, except for single messages.
    let users = "authorization { users: [ { user: reader, password: secret, permissions: { publish: { deny: [\"$JS.API.STREAM.MSG.GET.>\"] } } },
        { user: all, password: secret } ] }";
    let nats =
        seqline_testkit::nats::NatsServer::with(seqline_testkit::nats::NatsOptions::default().lines(users))
            .await;
    let url = |user: &str| nats.url().replace("nats://", &format!("nats://{user}:secret@"));
    let broker = seqline_nats::broker::Broker::new(seqline_nats::broker::BrokerConfig::new(url("all")));
    seqline_nats::stream::ensure_stream(&broker, &site.settings).await.unwrap();
    let site = Site { broker, nats, ..site };
    site.publish(&ids).await;
    let mut config =
        seqline_nats::broker::BrokerConfig::new(site.nats.url().replace("nats://", "nats://reader:secret@"));
    config.request_timeout = Duration::from_millis(200);
    let mut settings = quick();
    settings.reconcile_interval = Duration::from_secs(3600);
    sqlx::query(
        "INSERT INTO seqline.stream_consumers (name, stream, start_position, reconciled_to) VALUES ($1, 'EVENTS', 0, 0)",
    )
    .bind(PROBE)
    .execute(&site.db.admin())
    .await
    .unwrap();
    let consumer = seqline_nats::consumer::StreamConsumer::new(PROBE, Probe::plain()).unwrap();
    let runtime = seqline_nats::consumer::Runtime::new(
        site.db.app_pool(2),
        seqline_nats::broker::Broker::new(config),
        site.settings.clone(),
        consumer,
        settings,
        seqline::Clock::system(),
    );
    // Comparing needs single messages too, and is not due again for long.
    let _ = runtime.poll_once().await;
    sqlx::query(
        "INSERT INTO seqline.stream_retries (consumer, event_id, position, stream_seq, attempts, next_attempt_at, cause)
         VALUES ($1, gen_random_uuid(), 900, 1, 1, now(), 'failed')",
    )
    .bind(PROBE)
    .execute(&site.db.admin())
    .await
    .unwrap();
    let running = Running::start(runtime);
    ids.extend(site.feed(2..=3).await);
    site.handles(PROBE, &ids).await;
    eventually(DEADLINE, "it waits", async || site.retries(PROBE).await == 1).await;
    running.stops().await;
}

/// The oldest of what is due is in hand elsewhere.
#[tokio::test]
async fn processes_divide_what_is_due() {
    let site = Site::new().await;
    site.append(1..=10).await;
    sqlx::raw_sql(
        "INSERT INTO seqline.stream_consumers (name, stream, start_position, reconciled_to) VALUES ('probe', 'EVENTS', 0, 0);
         INSERT INTO seqline.stream_retries (consumer, event_id, position, attempts, next_attempt_at, cause)
         SELECT 'probe', e.id, e.seq, 1, now() - interval '1 hour' + e.seq * interval '1 second', 'failed' FROM seqline.event_log e",
    )
    .execute(&site.db.admin())
    .await
    .unwrap();
    let mut config = quick();
    config.batch = 5;
    let (entered, go) =
        (std::sync::Arc::new(tokio::sync::Notify::new()), std::sync::Arc::new(tokio::sync::Notify::new()));
    let (of_handler, told) = (entered.clone(), go.clone());
    let slow = Probe::acting(move |event, _| {
        let (first, entered, go) = (number(event) == 1, of_handler.clone(), told.clone());
        Box::pin(async move {
            if first {
                entered.notify_one();
                go.notified().await;
            }
            Ok(())
        })
    });
    let (first, second) =
        (site.runtime(PROBE, slow, config.clone()), site.runtime(PROBE, Probe::plain(), config));
    let meanwhile = async {
        entered.notified().await;
        let pass = second.poll_once().await;
        go.notify_one();
        pass.unwrap()
    };
    let (of_first, of_second) = tokio::join!(first.poll_once(), meanwhile);
    assert_eq!((of_first.unwrap().handled, of_second.handled), (5, 5));
}

#[tokio::test]
async fn a_batch_has_a_bound_whatever_is_set() {
    let site = Site::new().await;
    site.feed(1..=520).await;
    let mut config = quick();
    config.batch = 100_000;
    config.max_ack_pending = 100_000;
    let runtime = site.runtime(PROBE, Probe::plain(), config);
    assert_eq!(runtime.poll_once().await.unwrap().handled, 500);
    assert_eq!(runtime.poll_once().await.unwrap().handled, 20);
}

#[tokio::test]
async fn all_dead_letters_are_settled_however_many_there_are() {
    use seqline::consumer::Mode;
    use seqline_nats::dead_letter::{Settle, settle};

    let site = Site::new().await;
    sqlx::raw_sql(
        "INSERT INTO seqline.stream_consumers (name, stream, start_position, reconciled_to) VALUES ('probe', 'EVENTS', 0, 0);
         INSERT INTO seqline.dead_letters (consumer, reason, event_id, position, stream, attempts)
         SELECT 'probe', 'attempts_exhausted', gen_random_uuid(), n, 'EVENTS', 5 FROM generate_series(1, 2500) n;
         INSERT INTO seqline.dead_letters (consumer, reason, stream, stream_created, stream_seq, attempts)
         VALUES ('probe', 'unreadable', 'EVENTS', 1, 1, 0)",
    )
    .execute(&site.db.admin())
    .await
    .unwrap();
    let mut app = site.db.connect(seqline_testkit::Role::App).await;
    let mut settled = async |settling, mode| settle(&mut app, PROBE, None, settling, mode).await.unwrap();
    assert_eq!(settled(Settle::Replay, Mode::Plan).await, 2500);
    assert_eq!(site.dead_letters(PROBE).await.len(), 2501);
    assert_eq!(settled(Settle::Replay, Mode::Apply { why: Some("mended") }).await, 2500);
    assert_eq!((site.retries(PROBE).await, site.dead_letters(PROBE).await.len()), (2500, 1));
    assert_eq!(settled(Settle::Discard, Mode::Apply { why: Some("of no use") }).await, 1);
    let at_once: i64 = sqlx::query_scalar(
        "SELECT max((before->>'count')::bigint) FROM seqline.audit_log WHERE action LIKE 'deadletters.%'",
    )
    .fetch_one(&site.db.admin())
    .await
    .unwrap();
    assert_eq!(at_once, 1000);
}
