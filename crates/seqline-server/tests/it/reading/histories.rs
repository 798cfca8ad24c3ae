//! Many writers, and readers of every kind that come and go: nobody misses an event, nobody gets one twice.

use futures_util::future::join_all;
use seqline_testkit::{History, check};
use sqlx::PgPool;
use uuid::Uuid;

use super::Site;
use super::client::{Client, place};
use crate::support::event;

const WRITERS: u64 = 6;
const TRANSACTIONS: usize = 60;

/// Transactions of one to three events, some of which are rolled back.
async fn write(pool: PgPool, history: History, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..TRANSACTIONS {
        let attempt = history.begin();
        let events: Vec<_> = (0..random.usize(1..=3)).map(|_| event(random.i64(..))).collect();
        let mut tx = seqline::begin(&pool).await.unwrap();
        let ids = seqline::append(&mut tx, &events).await.unwrap();
        if random.u8(..) < 40 {
            tx.rollback().await.unwrap();
            attempt.rolled_back(ids);
        } else {
            seqline::commit(tx).await.unwrap();
            attempt.committed(ids);
        }
    }
}

/// What a reader got.
type Seen = Vec<(i64, Uuid)>;

/// The last event of the test, by which readers know that they have all.
fn is_last(event: &serde_json::Value) -> bool {
    event["type"] == "test.ended"
}

async fn one_stream(client: Client) -> Seen {
    let (mut seen, mut stream) = (Vec::new(), client.stream("after=oldest").await);
    loop {
        let event = stream.event().await;
        seen.push(place(&event));
        if is_last(&event) {
            return seen;
        }
    }
}

/// A stream that breaks after a few events, again and again.
async fn broken_streams(client: Client, mut random: fastrand::Rng) -> Seen {
    let (mut seen, mut last_id) = (Vec::new(), None::<String>);
    loop {
        let mut stream = match &last_id {
            None => client.stream("after=oldest").await,
            Some(id) => client.resume("after=oldest", id).await,
        };
        for _ in 0..random.usize(1..40) {
            let event = stream.event().await;
            seen.push(place(&event));
            if is_last(&event) {
                return seen;
            }
        }
        last_id = stream.last_id.clone();
    }
}

async fn pages(client: Client, mut random: fastrand::Rng) -> Seen {
    let (mut seen, mut after) = (Vec::new(), "oldest".to_owned());
    loop {
        let (limit, wait) = (random.usize(1..50), random.usize(0..3));
        let page = client.page(&format!("after={after}&limit={limit}&wait={wait}")).await;
        seen.extend(page.events.iter().map(place));
        if page.events.iter().any(is_last) {
            return seen;
        }
        after = page.next;
    }
}

/// Memory holds few events and the database is read in small steps, so that readers go from one to the other all the time.
#[tokio::test]
async fn readers_see_every_event_once_in_order_while_writers_write() {
    let keys =
        [("api.hub_events_max", "40"), ("api.catch_up_scan_size", "25"), ("sync.tail_batch_size", "10")];
    let site = Site::new(&keys).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let clients = [site.user("alex", &[]).await, site.user("sam", &[]).await, site.user("robin", &[]).await];
    let history = History::new();
    let mut readers = Vec::new();
    for n in 0..2 {
        let random = |salt: u64| fastrand::Rng::with_seed(seed ^ (salt << 32) ^ n);
        readers.push(tokio::spawn(one_stream(clients[0].clone())));
        readers.push(tokio::spawn(broken_streams(clients[1].clone(), random(1))));
        readers.push(tokio::spawn(pages(clients[2].clone(), random(2))));
    }
    let pool = site.db.app_pool(6);
    join_all((0..WRITERS).map(|n| write(pool.clone(), history.clone(), seed.wrapping_add(n)))).await;
    // Some come when everything is there.
    readers.push(tokio::spawn(one_stream(clients[0].clone())));
    readers.push(tokio::spawn(pages(clients[2].clone(), fastrand::Rng::with_seed(seed))));
    let last = seqline::NewEvent::builder("test.ended", "test", "any").build().unwrap();
    let attempt = history.begin();
    let mut tx = seqline::begin(&pool).await.unwrap();
    let ids = seqline::append(&mut tx, &[last]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    attempt.committed(ids);
    for reader in readers {
        let seen = reader.await.unwrap();
        let summary =
            check(&history.snapshot(), &seen, 1).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong:?}"));
        assert_eq!(summary.events, seen.len());
        assert!(summary.rolled_back > 0 && summary.committed > 200, "{summary:?}");
    }
    site.stop().await;
}
