//! `seqline stream forget`: a consumer that is out of use.

use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Recorder, Runtime, StreamConsumer, StreamConsumerConfig};
use seqline_nats::stream::StreamSettings;
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::walk::copied;
use super::{consume, stream_of};
use crate::support::{DEADLINE, Seqline, on, run_sql};

fn forget(db: &TestDb, nats: &NatsServer, name: &str) -> Seqline {
    on(db, Role::App, ["stream", "forget", name]).env("SEQLINE_NATS_URL", nats.url())
}

async fn names(db: &TestDb, nats: &NatsServer) -> (Vec<String>, Vec<String>) {
    let recorded = sqlx::query_scalar("SELECT name FROM seqline.stream_consumers ORDER BY name");
    let consumers = stream_of(nats).await.expect("there is a stream").consumers;
    let at_broker = consumers.into_iter().map(|consumer| consumer.name).collect();
    (recorded.fetch_all(&db.admin()).await.unwrap(), at_broker)
}

#[tokio::test]
async fn it_is_gone_from_the_broker_and_the_database_with_all_that_waits_and_only_with_yes() {
    let (db, nats) = copied(5).await;
    consume(&db, &nats, "mail", 3).await;
    consume(&db, &nats, "totals", 2).await;
    run_sql(
        &mut db.connect(Role::App).await,
        "INSERT INTO seqline.stream_retries (consumer, event_id, position, attempts, next_attempt_at, cause)
         SELECT 'mail', id, seq, 1, now(), 'failed' FROM seqline.event_log WHERE seq = 4;
         INSERT INTO seqline.dead_letters (consumer, reason, stream, stream_created, stream_seq, attempts)
         VALUES ('mail', 'unreadable', 'EVENTS', 1, 7, 0), ('mail', 'unreadable', 'EVENTS', 1, 8, 0)",
    )
    .await;
    let both = vec!["mail".to_owned(), "totals".to_owned()];
    let said = forget(&db, &nats, "mail").ok().await;
    let with = "at the broker and in the database, with 1 event to be tried again and 2 dead letters";
    assert_eq!(said.trim_end(), format!("would forget consumer mail {with}. Add --yes to do it"));
    assert_eq!(names(&db, &nats).await, (both.clone(), both));
    let outcome = forget(&db, &nats, "mail").arg("--yes").run().await;
    assert!(outcome.code() == Some(2) && outcome.stderr.contains("--reason"), "{outcome:?}");
    let said = forget(&db, &nats, "mail").args(["--yes", "--reason", "out of use"]).ok().await;
    assert_eq!(said.trim_end(), format!("consumer mail is forgotten {with}"));
    let left = vec!["totals".to_owned()];
    assert_eq!(names(&db, &nats).await, (left.clone(), left));
    let audit: (String, String, Value, String) =
        sqlx::query_as("SELECT action, subject, before, why FROM seqline.audit_log ORDER BY id DESC LIMIT 1")
            .fetch_one(&db.admin())
            .await
            .unwrap();
    let before = json!({ "stream": "EVENTS", "retries": 1, "dead_letters": 2 });
    let expected = ("streamconsumers.forget".to_owned(), "mail".to_owned(), before, "out of use".to_owned());
    assert_eq!(audit, expected);
    let handled: i64 =
        sqlx::query_scalar("SELECT count(*) FROM seqline.consumed_events WHERE consumer = 'mail'")
            .fetch_one(&db.admin())
            .await
            .unwrap();
    assert_eq!(handled, 3, "one of the same name that comes later handles nothing twice");
    let sentence = forget(&db, &nats, "mail").refused(4).await;
    assert!(sentence.starts_with("there is no stream consumer of this name"), "{sentence}");
}

#[tokio::test]
async fn one_that_runs_stays_and_one_that_the_broker_lost_goes() {
    let (db, nats) = copied(2).await;
    let broker = Broker::new(BrokerConfig::new(nats.url()));
    let stop = CancellationToken::new();
    let consumer = StreamConsumer::new("mail", Recorder).unwrap();
    let (stream, config) = (StreamSettings::default(), StreamConsumerConfig::default());
    let runtime = Runtime::new(db.app(), broker.clone(), stream, consumer, config, Clock::system());
    let tally = runtime.tally();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { runtime.run(stop).await }
    });
    eventually(DEADLINE, "it handles all", async || tally.handled() == 2).await;
    for _ in 0..5 {
        let sentence = forget(&db, &nats, "mail").args(["--yes", "--reason", "x"]).refused(4).await;
        assert_eq!(sentence, "a process runs consumer mail: stop it first");
    }
    stop.cancel();
    running.await.unwrap();
    let jetstream = broker.jetstream().await.unwrap();
    jetstream.get_stream("EVENTS").await.unwrap().delete_consumer("mail").await.unwrap();
    let said = forget(&db, &nats, "mail").args(["--yes", "--reason", "x", "--json"]).ok().await;
    let said: Value = serde_json::from_str(&said).unwrap();
    let expected = json!({
        "consumer": "mail", "stream": "EVENTS", "at_broker": false, "retries": 0, "dead_letters": 0, "done": true
    });
    assert_eq!(said, expected);
    assert_eq!(names(&db, &nats).await, (Vec::new(), Vec::new()));
    broker.close().await;
}
