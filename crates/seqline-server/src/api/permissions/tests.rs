use std::sync::atomic::AtomicUsize;

use futures_util::poll;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, oneshot};

use super::*;
use crate::api::hub::rendered::tests::stored;

const MAX_AGE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

fn credential(n: u8) -> Credential {
    Credential::Token([n; 32])
}

/// What a database says of a credential.
#[derive(Clone, Copy)]
struct Given {
    version: i64,
    expires_at: Option<OffsetDateTime>,
}

fn given(version: i64) -> Option<Given> {
    Some(Given { version, expires_at: None })
}

fn access(given: Given) -> Access {
    Access {
        principal: "alex".to_owned(),
        kind: seqline::access::PrincipalKind::User,
        rights: seqline::access::Rights::default(),
        viewer: seqline::access::Viewer::new("alex", Vec::new()),
        permission_version: given.version,
        expires_at: given.expires_at,
    }
}

/// A database of one test: what it answers, and how often it was asked.
#[derive(Clone, Default)]
struct Database {
    answer: Arc<Mutex<Option<Given>>>,
    version: Arc<AtomicI64>,
    /// How often it was asked for the version.
    versions: Arc<AtomicUsize>,
    away: Arc<Mutex<bool>>,
    asked: Arc<AtomicUsize>,
    /// When there is one, a question takes a permit before it looks, and another one before it answers.
    held: Option<Arc<Semaphore>>,
}

impl Database {
    fn gives(answer: Option<Given>) -> Self {
        let database = Self::default();
        database.change(answer);
        database
    }

    fn held(mut self) -> (Self, Arc<Semaphore>) {
        let held = Arc::new(Semaphore::new(0));
        self.held = Some(held.clone());
        (self, held)
    }

    fn change(&self, answer: Option<Given>) {
        let before = self.version.load(Ordering::SeqCst);
        self.version.store(answer.map_or(before + 1, |answer| answer.version), Ordering::SeqCst);
        *self.answer.lock().unwrap() = answer;
    }

    /// Somebody else's permissions change.
    fn change_others(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    fn versions(&self) -> usize {
        self.versions.load(Ordering::SeqCst)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn permissions(&self) -> (Permissions, seqline::clock::ClockHand) {
        let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
        let (database, versions) = (self.clone(), self.clone());
        let load = move |_| -> BoxFuture<'static, _> {
            let database = database.clone();
            Box::pin(async move {
                database.asked.fetch_add(1, Ordering::SeqCst);
                let permit = async || {
                    if let Some(held) = &database.held {
                        held.acquire().await.unwrap().forget();
                    }
                };
                permit().await;
                let away = *database.away.lock().unwrap();
                let answer = *database.answer.lock().unwrap();
                permit().await;
                if away { Err(sqlx::Error::PoolTimedOut.into()) } else { Ok(answer.map(access)) }
            })
        };
        let version = move || -> BoxFuture<'static, _> {
            let database = versions.clone();
            Box::pin(async move {
                database.versions.fetch_add(1, Ordering::SeqCst);
                if let Some(held) = &database.held {
                    held.acquire().await.unwrap().forget();
                }
                let away = *database.away.lock().unwrap();
                let version = database.version.load(Ordering::SeqCst);
                if away { Err(sqlx::Error::PoolTimedOut.into()) } else { Ok(version) }
            })
        };
        let questions = Questions { access: Box::new(load), version: Box::new(version) };
        (Permissions::new(questions, MAX_AGE, PATIENCE, clock), hand)
    }
}

/// What the tail shows next: an event of this version of the permissions.
async fn shows(permissions: &mut Permissions, version: i64) {
    let mut event = stored(1, "order.created", "{}");
    event.permission_version = version;
    permissions.accept(&[event]).await.unwrap();
}

async fn version_of(permissions: &Permissions) -> Option<i64> {
    let access = permissions.of(&credential(1)).await.expect("the database answers");
    access.map(|access| access.permission_version)
}

#[tokio::test]
async fn an_answer_is_used_until_it_has_its_age() {
    let database = Database::gives(given(3));
    let (permissions, hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    database.change(given(4));
    hand.advance(MAX_AGE - Duration::from_millis(1));
    assert_eq!((version_of(&permissions).await, database.asked()), (Some(3), 1));
    hand.advance(Duration::from_millis(1));
    assert_eq!((version_of(&permissions).await, database.asked()), (Some(4), 2));
}

#[tokio::test]
async fn what_has_its_age_holds_as_long_as_the_database_has_the_same_version() {
    let database = Database::gives(given(3));
    let (permissions, hand) = database.permissions();
    let of = async |n| permissions.of(&credential(n)).await.unwrap().map(|access| access.permission_version);
    assert_eq!((of(1).await, of(2).await), (Some(3), Some(3)));
    for round in 1..=5 {
        hand.advance(MAX_AGE);
        assert_eq!((of(1).await, of(2).await), (Some(3), Some(3)));
        // One question for both.
        assert_eq!((database.asked(), database.versions()), (2, round));
    }
    // A revocation of somebody else's makes it look again, one of one's own is noticed.
    database.change_others();
    hand.advance(MAX_AGE);
    assert_eq!((of(1).await, database.asked()), (Some(3), 3));
    database.change(None);
    hand.advance(MAX_AGE);
    assert_eq!((of(1).await, of(2).await), (None, None));
}

#[tokio::test]
async fn what_is_kept_is_read_anew_after_a_while_all_the_same() {
    let database = Database::gives(given(3));
    let (permissions, hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    hand.advance(PERMISSION_KEPT);
    assert_eq!((version_of(&permissions).await, database.asked()), (Some(3), 2));
}

#[tokio::test]
async fn a_version_of_before_an_event_makes_nothing_hold_after_it() {
    let database = Database::gives(given(3));
    let (mut permissions, hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    hand.advance(MAX_AGE);
    assert_eq!((version_of(&permissions).await, database.versions()), (Some(3), 1));
    database.change(None);
    shows(&mut permissions, 4).await;
    assert_eq!(version_of(&permissions).await, None);
}

#[tokio::test]
async fn those_who_wait_for_the_version_take_what_one_of_them_is_told_or_fail_with_it() {
    let (database, held) = Database::gives(given(3)).held();
    let (permissions, hand) = database.permissions();
    held.add_permits(40);
    for n in 0..20 {
        permissions.of(&credential(n)).await.unwrap().unwrap();
    }
    for away in [false, true] {
        *database.away.lock().unwrap() = away;
        hand.advance(MAX_AGE);
        let before = database.versions();
        let credentials: Vec<_> = (0..20).map(credential).collect();
        let asking: Vec<_> =
            credentials.iter().map(|credential| Box::pin(permissions.of(credential))).collect();
        let mut asking = futures_util::future::join_all(asking);
        assert!(poll!(&mut asking).is_pending());
        held.add_permits(1);
        assert!(asking.await.iter().all(|answer| answer.is_err() == away));
        assert_eq!((database.asked(), database.versions() - before), (20, 1));
    }
    // A server that was away may have lost what it said before: nothing is taken for granted.
    *database.away.lock().unwrap() = false;
    hand.advance(MAX_AGE);
    let before = database.versions();
    held.add_permits(40);
    permissions.of(&credential(7)).await.unwrap().unwrap();
    assert_eq!((database.asked(), database.versions() - before), (21, 0));
}

#[tokio::test]
async fn a_token_that_expires_while_nothing_changes_gives_nothing_from_then_on() {
    let expires_at = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(90);
    let database = Database::gives(Some(Given { version: 3, expires_at: Some(expires_at) }));
    let (permissions, hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    hand.advance(Duration::from_secs(89));
    assert_eq!(version_of(&permissions).await, Some(3));
    hand.advance(Duration::from_secs(1));
    assert_eq!((version_of(&permissions).await, database.asked()), (None, 1));
}

#[tokio::test]
async fn that_a_credential_gives_nothing_is_remembered_too() {
    let database = Database::gives(None);
    let (permissions, hand) = database.permissions();
    assert_eq!((version_of(&permissions).await, version_of(&permissions).await), (None, None));
    assert_eq!(database.asked(), 1);
    database.change(given(3));
    hand.advance(MAX_AGE);
    assert_eq!(version_of(&permissions).await, Some(3));
}

#[tokio::test]
async fn a_revocation_counts_before_any_later_sink_sees_the_event_behind_it() {
    let database = Database::gives(given(3));
    let (mut permissions, _hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    database.change(None);
    // An event of before it tells nothing new.
    shows(&mut permissions, 3).await;
    assert_eq!(version_of(&permissions).await, Some(3));
    shows(&mut permissions, 4).await;
    assert_eq!(version_of(&permissions).await, None);
    // And nothing of before comes back with an event that is late.
    shows(&mut permissions, 2).await;
    assert_eq!((version_of(&permissions).await, database.asked()), (None, 2));
}

#[tokio::test]
async fn a_grant_counts_at_once_as_well() {
    let database = Database::gives(None);
    let (mut permissions, _hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, None);
    database.change(given(4));
    shows(&mut permissions, 4).await;
    assert_eq!(version_of(&permissions).await, Some(4));
}

#[tokio::test]
async fn an_answer_that_was_on_its_way_during_a_change_is_not_used_after_it() {
    let (database, held) = Database::gives(given(3)).held();
    let (mut permissions, _hand) = database.permissions();
    let asking = permissions.clone();
    let credential = credential(1);
    let mut early = std::pin::pin!(asking.of(&credential));
    assert!(poll!(&mut early).is_pending());
    // It has looked, and its answer is on the way.
    held.add_permits(1);
    assert!(poll!(&mut early).is_pending());
    database.change(None);
    shows(&mut permissions, 4).await;
    let later = permissions.clone();
    let mut late = std::pin::pin!(later.of(&credential));
    assert!(poll!(&mut late).is_pending());
    held.add_permits(3);
    // Whoever asked before the change may be told what held before it; nobody who asks after it.
    assert!(early.await.unwrap().is_some());
    assert!(late.await.unwrap().is_none());
    assert_eq!(database.asked(), 2);
}

#[tokio::test]
async fn many_who_want_to_know_the_same_ask_once() {
    let (database, held) = Database::gives(given(3)).held();
    let (permissions, _hand) = database.permissions();
    let (done, finished) = oneshot::channel();
    let asking: Vec<_> = (0..1_000)
        .map(|_| {
            let permissions = permissions.clone();
            tokio::spawn(async move { permissions.of(&credential(1)).await.unwrap().is_some() })
        })
        .collect();
    tokio::spawn(async move {
        for task in asking {
            assert!(task.await.unwrap());
        }
        done.send(()).unwrap();
    });
    while database.asked() == 0 {
        tokio::task::yield_now().await;
    }
    held.add_permits(2);
    finished.await.unwrap();
    assert_eq!(database.asked(), 1);
}

#[tokio::test]
async fn those_who_wait_behind_a_question_without_an_answer_are_told_so_with_it() {
    let (database, held) = Database::gives(given(3)).held();
    let (permissions, hand) = database.permissions();
    let credential = credential(1);
    let asking: Vec<_> = (0..20).map(|_| Box::pin(permissions.of(&credential))).collect();
    let mut asking = futures_util::future::join_all(asking);
    assert!(poll!(&mut asking).is_pending());
    hand.advance(PATIENCE);
    let answers = asking.await;
    assert!(answers.iter().all(Result::is_err));
    assert_eq!(database.asked(), 1);
    // One who comes now asks anew.
    held.add_permits(2);
    assert_eq!((version_of(&permissions).await, database.asked()), (Some(3), 2));
}

#[tokio::test]
async fn a_failure_is_taken_by_those_who_waited_for_it_and_by_nobody_else() {
    let (database, held) = Database::gives(given(3)).held();
    let (permissions, _hand) = database.permissions();
    *database.away.lock().unwrap() = true;
    let credential = credential(1);
    let asking: Vec<_> = (0..20).map(|_| Box::pin(permissions.of(&credential))).collect();
    let mut asking = futures_util::future::join_all(asking);
    assert!(poll!(&mut asking).is_pending());
    held.add_permits(100);
    assert!(asking.await.iter().all(Result::is_err));
    assert_eq!(database.asked(), 1);
    *database.away.lock().unwrap() = false;
    assert_eq!(version_of(&permissions).await, Some(3));
}

#[tokio::test]
async fn whoever_waited_behind_one_who_took_long_has_no_more_time_than_anybody() {
    let (database, held) = Database::gives(given(3)).held();
    let (mut permissions, hand) = database.permissions();
    let credential = credential(1);
    let asking = permissions.clone();
    let mut early = std::pin::pin!(asking.of(&credential));
    assert!(poll!(&mut early).is_pending());
    shows(&mut permissions, 4).await;
    let later = permissions.clone();
    let mut late = std::pin::pin!(later.of(&credential));
    assert!(poll!(&mut late).is_pending());
    hand.advance(PATIENCE - Duration::from_secs(1));
    held.add_permits(2);
    early.await.unwrap();
    // It asks now, since what came is from before the change.
    assert!(poll!(&mut late).is_pending());
    assert_eq!(database.asked(), 2);
    hand.advance(Duration::from_secs(1));
    late.await.unwrap_err();
}

#[tokio::test]
async fn one_who_gives_up_leaves_the_question_to_the_next() {
    let (database, held) = Database::gives(given(3)).held();
    let (permissions, _hand) = database.permissions();
    let credential = credential(1);
    {
        let mut given_up = std::pin::pin!(permissions.of(&credential));
        assert!(poll!(&mut given_up).is_pending());
    }
    held.add_permits(2);
    assert_eq!(version_of(&permissions).await, Some(3));
}

#[tokio::test]
async fn a_database_that_is_away_is_an_error_once_the_age_is_reached_and_nothing_is_made_up() {
    let database = Database::gives(given(3));
    let (permissions, hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    *database.away.lock().unwrap() = true;
    assert_eq!(version_of(&permissions).await, Some(3));
    hand.advance(MAX_AGE);
    permissions.of(&credential(1)).await.unwrap_err();
    *database.away.lock().unwrap() = false;
    assert_eq!(version_of(&permissions).await, Some(3));
}

#[tokio::test]
async fn a_token_that_expires_gives_nothing_from_then_on_although_it_is_remembered() {
    let expires_at = OffsetDateTime::UNIX_EPOCH + Duration::from_millis(500);
    let database = Database::gives(Some(Given { version: 3, expires_at: Some(expires_at) }));
    let (permissions, hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    hand.advance(Duration::from_millis(500));
    assert_eq!((version_of(&permissions).await, database.asked()), (None, 1));
}

#[tokio::test]
async fn guessing_pushes_nobody_out() {
    let database = Database::gives(given(3));
    let (permissions, _hand) = database.permissions();
    assert_eq!(version_of(&permissions).await, Some(3));
    database.change(None);
    for guess in 0..PERMISSION_ENTRIES_MAX + 10 {
        let guessed = Credential::Principal(Vouched::always(guess.to_string()));
        assert!(permissions.of(&guessed).await.unwrap().is_none());
    }
    let asked = database.asked();
    assert_eq!((version_of(&permissions).await, database.asked()), (Some(3), asked));
    assert!(permissions.entries() <= PERMISSION_ENTRIES_MAX + 1);
}
