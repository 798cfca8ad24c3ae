//! Behind a pooler in transaction mode that knows no prepared statements of the protocol, as PgBouncer before 1.21: each transaction of a client
//! may get another session of the server, in which somebody else was before.
//!
//! `SEQLINE_TEST_POOLER=transaction` runs many other tests in this way. Here is what has to hold with many clients on few sessions.

use std::time::Duration;

use futures_util::future::join_all;
use seqline::consumer::{Consumer, FailurePolicy, StartAt};
use seqline::maintenance::{Maintenance, MaintenanceConfig};
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::Sequencing;
use seqline::tail::{Start, TailConfig};
use seqline::{Clock, NewEvent};
use seqline_testkit::{Pooler, Role, TestDb, TestServer, eventually};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::consumers::{self, DEADLINE, acting, make_effects, name, plain, quick, twice};
use crate::sequencing::{change, settled};
use crate::support::event;
use crate::tail;

const WRITERS: i64 = 8;
const EACH: i64 = 20;

struct Pooled {
    db: TestDb,
    pooler: Pooler,
    _server: TestServer,
}

impl Pooled {
    /// So many clients for so few sessions that they meet.
    async fn new() -> Self {
        let server = TestServer::durable().await;
        let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
        make_effects(&db).await;
        Self { pooler: Pooler::start(&server, 3).await, db, _server: server }
    }

    fn pool(&self, role: Role, clients: u32) -> PgPool {
        let options = self.pooler.through(&self.db.options(role));
        PgPoolOptions::new().max_connections(clients).connect_lazy_with(options)
    }

    /// All forms of an append, by many at once.
    async fn write(&self) {
        let pool = self.pool(Role::Producer, WRITERS as u32);
        let with_id =
            || NewEvent::builder("test.happened", "test", "any").id(Uuid::now_v7()).build().unwrap();
        let write = async |writer: i64| {
            for n in 0..EACH {
                let first = event(writer * EACH + n);
                let events = match n % 3 {
                    0 => vec![first],
                    1 => vec![first, with_id()],
                    _ => vec![first, event(-1)],
                };
                let mut tx = seqline::begin(&pool).await.unwrap();
                for events in events.chunks(1 + n as usize % 2) {
                    seqline::append(&mut tx, events).await.unwrap();
                }
                seqline::commit(tx).await.unwrap();
            }
        };
        join_all((0..WRITERS).map(write)).await;
    }

    async fn assert_written(&self) -> i64 {
        let mut logged = sqlx::query_scalar::<_, Option<i64>>(
            "SELECT (payload ->> 'n')::bigint FROM seqline.event_log ORDER BY seq",
        )
        .fetch_all(&self.db.admin())
        .await
        .unwrap();
        let all = logged.len() as i64;
        logged.retain(|n| n.is_some_and(|n| n >= 0));
        logged.sort_unstable();
        assert_eq!(logged, (0..WRITERS * EACH).map(Some).collect::<Vec<_>>());
        all
    }
}

#[tokio::test]
async fn many_clients_on_few_sessions_append_commit_and_wait_until_that_is_durable() {
    let pooled = Pooled::new().await;
    pooled.write().await;
    pooled.assert_written().await;
}

/// Two workers, one that parks and one that does not, and a tail: their looks, rounds, marks and failures.
#[tokio::test]
async fn consumers_and_a_tail_get_every_event_once() {
    let pooled = Pooled::new().await;
    let park = FailurePolicy::Park { after_attempts: 1, backoff: Duration::from_millis(1) };
    let fails = || {
        acting(|event, _| {
            let fails = event.seq % 50 == 0;
            Box::pin(async move { if fails { Err("not this one".into()) } else { Ok(()) } })
        })
    };
    let workers: Vec<_> = (0..2)
        .map(|_| {
            // Whoever is first to register them may come when something is written already.
            let list =
                [Consumer::new(name("all"), plain()), Consumer::new(name("some"), fails()).on_failure(park)]
                    .map(|consumer| consumer.start_at(StartAt::Oldest));
            let listen = pooled.db.options(Role::App);
            let pool = pooled.pool(Role::App, 6);
            consumers::Running::start(consumers::consumers(pool, listen, quick(), Clock::system(), list))
        })
        .collect();
    let config = TailConfig { listen: false, ..tail::quick(Start::After(0)) };
    let options = pooled.db.options(Role::Reader);
    let mut tail = tail::Running::start(pooled.pool(Role::Reader, 2), options, config, Clock::system()).await;
    pooled.write().await;
    let all = pooled.assert_written().await;
    tail.reaches(all).await;
    for consumer in ["all", "some"] {
        eventually(2 * DEADLINE, consumer, async || consumers::cursor(&pooled.db, consumer).await == all)
            .await;
    }
    for worker in workers {
        worker.stops().await;
    }
    assert_eq!(effects_of(&pooled.db, "all").await, twice(1..=all));
    assert_eq!(effects_of(&pooled.db, "some").await, twice((1..=all).filter(|seq| seq % 50 != 0)));
}

async fn effects_of(db: &TestDb, consumer: &str) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM effects WHERE consumer = $1 ORDER BY seq")
        .bind(consumer)
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_transaction_of_a_lease_is_one_behind_it_too() {
    let pooled = Pooled::new().await;
    let mut lease = seqline::pool::Lease::acquire(&pooled.pool(Role::App, 1)).await.unwrap();
    let mut tx = lease.begin().await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    lease.done();
    let head: i64 = sqlx::query_scalar("SELECT seqline.head()").fetch_one(&pooled.db.admin()).await.unwrap();
    assert_eq!(head, 1);
}

#[tokio::test]
async fn a_sequencer_and_maintenance_work_behind_it() {
    let pooled = Pooled::new().await;
    change(&pooled.db, Sequencing::AfterCommit).await;
    let stop = CancellationToken::new();
    let sequencer = Sequencer::new(pooled.pool(Role::App, 1), SequencerConfig::default(), Clock::system());
    let running = tokio::spawn(sequencer.run(stop.clone()));
    let maintenance =
        Maintenance::new(pooled.pool(Role::App, 1), MaintenanceConfig::default(), Clock::system());
    pooled.write().await;
    for _ in 0..5 {
        maintenance.run().await.unwrap();
    }
    settled(&pooled.db).await;
    pooled.assert_written().await;
    stop.cancel();
    running.await.unwrap();
}
