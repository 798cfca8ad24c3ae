//! A consumer is handed nothing that a crash can take back: what its program remembers besides the database would be another event's.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, StartAt,
};
use seqline::embedded::Durability;
use seqline::settings::Sequencing;
use seqline::{Clock, StoredEvent};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use uuid::Uuid;

use super::late::LAZY;

const DEADLINE: Duration = Duration::from_secs(60);

/// Commits one event that is visible and not durable.
async fn commit_without_flush(db: &TestDb) -> Uuid {
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    sqlx::raw_sql("SET LOCAL synchronous_commit = off; SET LOCAL seqline.grouped_commit = on")
        .execute(&mut *tx)
        .await
        .unwrap();
    let append = "SELECT seqline.append('test.happened', '{}', 'test', 'any')";
    let id = sqlx::query_scalar(append).fetch_one(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    id
}

/// Kills the server, and says whether the event is there afterwards.
async fn survives(server: &mut TestServer, db: &TestDb, id: Uuid) -> bool {
    server.kill().await;
    server.start_again().await;
    let mut admin = db.connect(Role::Admin).await;
    seqline::read::seq_of(&mut admin, id).await.unwrap().is_some()
}

async fn lazy() -> (TestServer, TestDb) {
    let server = TestServer::with(Durability::Durable, &LAZY).await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    (server, db)
}

/// Remembers what it is given, and is not done with it.
#[derive(Clone, Default)]
struct Remembers(Arc<Mutex<Vec<Uuid>>>);

impl Handler for Remembers {
    async fn handle(&self, event: &StoredEvent, _round: &mut Round<'_>) -> Result<(), HandlerError> {
        self.0.lock().unwrap().push(event.id);
        std::future::pending().await
    }
}

#[tokio::test]
async fn what_a_handler_was_given_survives_a_crash_in_its_round() {
    let (mut server, db) = lazy().await;
    let handler = Remembers::default();
    let mut consumers =
        Consumers::new(db.app_pool(2), db.options(Role::App), ConsumerConfig::default(), Clock::system());
    let name = ConsumerName::new("remembers").unwrap();
    consumers.register(Consumer::new(name.clone(), handler.clone()).start_at(StartAt::Oldest)).unwrap();
    consumers.ensure().await.unwrap();
    let id = commit_without_flush(&db).await;
    let round = tokio::spawn(async move { consumers.round(&name).await.map(drop) });
    eventually(DEADLINE, "the event in the handler", async || *handler.0.lock().unwrap() == [id]).await;
    assert!(survives(&mut server, &db, id).await, "the handler was given an event that is gone");
    round.abort();
}

#[tokio::test]
async fn what_a_program_has_polled_survives_a_crash_before_it_commits() {
    let (mut server, db) = lazy().await;
    // Older servers cannot flush inside a transaction, and are waited for only so long.
    if server.postgres().major() < 17 {
        return;
    }
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql("SELECT seqline.register_consumer('polls', 'oldest')").execute(&mut admin).await.unwrap();
    let id = commit_without_flush(&db).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let polled: Vec<Uuid> =
        sqlx::query_scalar("SELECT id FROM seqline.poll('polls', 10)").fetch_all(&mut *tx).await.unwrap();
    assert_eq!(polled, [id]);
    assert!(survives(&mut server, &db, id).await, "the program was given an event that is gone");
}
