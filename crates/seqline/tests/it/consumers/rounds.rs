//! One round.

use std::time::Duration;

use seqline::consumer::*;
use seqline::{Clock, StoredEvent};
use seqline_testkit::{Role, TestDb};

use crate::support::append;

struct Effects;

impl Handler for Effects {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO effects VALUES ($1)").bind(event.seq).execute(round.connection()).await?;
        Ok(())
    }
}

#[tokio::test]
async fn smoke() {
    let db = TestDb::new().await;
    sqlx::query("CREATE TABLE effects (seq bigint)").execute(&db.app()).await.unwrap();
    append(&db.producer(), 1..=3).await;
    let config = ConsumerConfig { poll_interval: Duration::from_secs(3600), ..Default::default() };
    let mut consumers = Consumers::new(db.app(), db.options(Role::App), config, Clock::system());
    let name = ConsumerName::new("effects").unwrap();
    consumers.register(Consumer::new(name.clone(), Effects).start_at(StartAt::Oldest)).unwrap();
    consumers.ensure().await.unwrap();
    let result = consumers.round(&name).await.unwrap();
    assert_eq!((result.outcome, result.processed), (Outcome::Processed, 3));
    assert_eq!(consumers.round(&name).await.unwrap().outcome, Outcome::Idle);
    let mut listening = consumers.listening();
    let stop = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(consumers.run(stop.clone()));
    listening.wait_for(|up| *up).await.unwrap();
    append(&db.producer(), 4..=5).await;
    seqline_testkit::eventually(Duration::from_secs(10), "effects", async || {
        let n: i64 = sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(&db.app()).await.unwrap();
        n == 5
    })
    .await;
    println!("{:?}", states(&mut db.connect(Role::App).await).await.unwrap());
    stop.cancel();
    running.await.unwrap().unwrap();

    sqlx::query("SELECT seqline.register_consumer('p', 'oldest')").execute(&db.consumer()).await.unwrap();
    let rows: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM seqline.poll('p', 3)").fetch_all(&db.consumer()).await.unwrap();
    assert_eq!(rows, [1, 2, 3]);
    let rows: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM seqline.poll('p', 3)").fetch_all(&db.consumer()).await.unwrap();
    assert_eq!(rows, [4, 5]);
    let rows: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM seqline.poll('p', 3)").fetch_all(&db.consumer()).await.unwrap();
    assert_eq!(rows, [] as [i64; 0]);
}
