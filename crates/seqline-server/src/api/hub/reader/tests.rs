use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::poll;
use seqline::access::{Grant, PrincipalKind, Rights, Viewer};
use seqline::tail::Sink;
use seqline::{Clock, StoredEvent};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::mpsc;

use super::super::page::PageLimits;
use super::super::rendered::tests::{EPOCH, stored};
use super::super::ring::Bounds;
use super::*;
use crate::api::permissions::{Answer, Questions};

pub(crate) const CREDENTIAL: Credential = Credential::Token([7; 32]);

pub(crate) fn access(version: i64, grants: &[&str]) -> Access {
    Access {
        principal: "alex".to_owned(),
        kind: PrincipalKind::User,
        rights: Rights::default(),
        viewer: Viewer::new("alex", grants.iter().copied().map(Grant::of).collect()),
        permission_version: version,
        expires_at: None,
    }
}

pub(crate) fn event(seq: i64, permission_version: i64) -> StoredEvent {
    StoredEvent {
        permission_version,
        receive_action: "order.read".to_owned(),
        ..stored(seq, "order.created", "{}")
    }
}

/// What a database is asked whose permissions change all the time.
pub(crate) fn questions(
    access: impl Fn(Credential) -> Answer<Option<Access>> + Send + Sync + 'static,
) -> Questions {
    let changes = AtomicI64::new(i64::MAX);
    let version = move || -> Answer<i64> {
        let version = changes.fetch_sub(1, Ordering::SeqCst);
        Box::pin(async move { Ok(version) })
    };
    Questions { access: Box::new(access), version: Box::new(version) }
}

/// A reader whose database answers what the test says, when it says it, and knows no events.
pub(crate) fn reader() -> (Reader, mpsc::Sender<Access>) {
    let (sender, receiver) = mpsc::channel(8);
    let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
    let access = move |_| -> Answer<_> {
        let receiver = receiver.clone();
        Box::pin(async move { Ok(receiver.lock().await.recv().await) })
    };
    let clock = Clock::system();
    let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new().host("/nowhere"));
    let reader = Reader {
        hub: Hub::new(EPOCH, 0, Bounds { events: 20_000, bytes: 100_000_000 }),
        permissions: Permissions::new(
            questions(access),
            Duration::from_secs(60),
            Duration::from_secs(60),
            clock.clone(),
        ),
        database: Database::new(pool, clock, Duration::from_secs(1)),
        places: Arc::new(Semaphore::new(1)),
        scan: 100,
        behind_max: None,
    };
    (reader, sender)
}

/// What the tail does with a batch.
pub(crate) async fn tail_shows(reader: &Reader, events: &[StoredEvent]) {
    reader.permissions.clone().accept(events).await.unwrap();
    reader.hub.clone().accept(events).await.unwrap();
}

async fn page(reader: &Reader) -> (Vec<i64>, i64) {
    let mut page = Page::new(0, PageLimits { events: 10, bytes: 1_000_000 });
    reader.fill(&mut page, &CREDENTIAL, &Selection::default()).await.unwrap();
    (page.events.iter().map(|event| event.seq()).collect(), page.position)
}

#[tokio::test]
async fn an_event_that_came_while_permissions_were_read_is_not_judged_by_them() {
    let (reader, answers) = reader();
    let mut filling = std::pin::pin!(page(&reader));
    assert!(poll!(&mut filling).is_pending());
    // A grant is taken back, then an event is appended, and only then the answer from before arrives.
    tail_shows(&reader, &[event(1, 4)]).await;
    answers.send(access(3, &["order.read"])).await.unwrap();
    assert_eq!(filling.await, (Vec::new(), 0));
    answers.send(access(4, &[])).await.unwrap();
    assert_eq!(page(&reader).await, (Vec::new(), 1));
}

#[tokio::test]
async fn what_was_numbered_with_the_permissions_of_before_is_judged_by_those_or_later_ones() {
    let (reader, answers) = reader();
    tail_shows(&reader, &[event(1, 3), event(2, 3)]).await;
    answers.send(access(3, &["order.read"])).await.unwrap();
    assert_eq!(page(&reader).await, (vec![1, 2], 2));
    tail_shows(&reader, &[event(3, 4)]).await;
    answers.send(access(4, &[])).await.unwrap();
    assert_eq!(page(&reader).await, (Vec::new(), 3));
}
