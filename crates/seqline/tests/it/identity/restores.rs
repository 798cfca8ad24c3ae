//! Real backups of real servers: what is seen of a restore, and that nothing is handed out on a wrong number.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seqline::consumer::{Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round};
use seqline::identity::{
    self, Acted, BrokenReason, Difference, HistoryWatch, Look, Need, OnChange, RestoredConsumers, Standing,
    WaitReason,
};
use seqline::settings::Sequencing;
use seqline::tail::{Sink, SinkError, Start, Tail, TailConfig, TailError};
use seqline::{Clock, StoredEvent};
use seqline_testkit::backup::load_dump;
use seqline_testkit::{Backup, FaultProxy, Role, Standby, TestDb, TestServer, drain, eventually};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{check_as, epoch, finalize};
use crate::consumers::cursor;
use crate::support::{append, head};

const DEADLINE: Duration = Duration::from_secs(60);

/// Events by number and id, as somebody was given them.
#[derive(Clone, Default)]
struct Given(Arc<Mutex<Vec<(i64, Uuid)>>>);

impl Given {
    fn all(&self) -> Vec<(i64, Uuid)> {
        self.0.lock().unwrap().clone()
    }

    fn take(&self, event: &StoredEvent) {
        self.0.lock().unwrap().push((event.seq, event.id));
    }
}

impl Sink for Given {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        batch.iter().for_each(|event| self.take(event));
        Box::pin(async { Ok(()) })
    }
}

impl Handler for Given {
    async fn handle(&self, event: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        self.take(event);
        Ok(())
    }
}

/// Whatever the consumer `probe` has to do in this database is done.
async fn consume(db: &TestDb) -> Given {
    let given = Given::default();
    let mut consumers =
        Consumers::new(db.app(), db.options(Role::App), ConsumerConfig::default(), Clock::system());
    let name = ConsumerName::new("probe").unwrap();
    consumers.register(Consumer::new(name.clone(), given.clone())).unwrap();
    consumers.ensure().await.unwrap();
    drain(&consumers, &name).await.unwrap();
    given
}

/// A tail that goes on for as long as it can.
fn follow(tail: Tail, given: &Given, stop: &CancellationToken) -> JoinHandle<Result<(), TailError>> {
    tokio::spawn(tail.run(vec![Box::new(given.clone())], stop.clone()))
}

fn tail_config(start: Start) -> TailConfig {
    TailConfig {
        start,
        poll_interval: Duration::from_millis(20),
        listen_reconnect_backoff_cap: Duration::from_millis(100),
        ..TailConfig::default()
    }
}

async fn tail_of(db: &TestDb, start: Start) -> Tail {
    let (pool, listen) = (db.pool(Role::Reader, 2), db.options(Role::Reader));
    Tail::new(pool, listen, tail_config(start), Clock::system()).await.unwrap()
}

async fn log(options: PgConnectOptions) -> Vec<(i64, Uuid)> {
    crate::support::log(&mut PgConnection::connect_with(&options).await.unwrap()).await
}

async fn look(db: &TestDb, watch: &mut HistoryWatch, rule: OnChange) -> Look {
    look_at(db.options(Role::App), watch, rule).await
}

async fn look_at(options: PgConnectOptions, watch: &mut HistoryWatch, rule: OnChange) -> Look {
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    identity::look(&mut connection, watch, rule).await.unwrap()
}

/// A log of 5 events of which `probe` has handled 3, a backup of that, and 5 events more of which it has handled all. Somebody
/// watches.
struct Past {
    server: TestServer,
    db: TestDb,
    backup: Backup,
    watch: HistoryWatch,
    /// What the log was before the restore.
    log: Vec<(i64, Uuid)>,
}

async fn past() -> Past {
    let server = TestServer::durable().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    sqlx::query("SELECT seqline.ensure_consumer('probe', 'worker', 'head')")
        .execute(&db.app())
        .await
        .unwrap();
    append(&db.producer(), 1..=3).await;
    consume(&db).await;
    append(&db.producer(), 4..=5).await;
    head(&db).await;
    let backup = Backup::take(&server).await;
    append(&db.producer(), 6..=10).await;
    head(&db).await;
    consume(&db).await;
    let mut watch = HistoryWatch::default();
    let looked = look(&db, &mut watch, OnChange::Refuse).await;
    assert!(matches!(looked, Look::NewEpoch { from: None, acted: Acted::Nothing, .. }), "{looked:?}");
    let log = log(db.options(Role::Admin)).await;
    assert_eq!((log.len(), watch.seen(epoch(&db).await)), (10, Some(10)));
    Past { server, db, backup, watch, log }
}

#[tokio::test]
async fn a_backup_restored_in_place_is_seen_by_whoever_was_there() {
    let mut past = past().await;
    past.backup.restore_in_place(&mut past.server).await;
    // Nothing in the database says so.
    let check = check_as(&past.db, Role::App).await;
    assert_eq!((check.standing(), check.head), (Standing::Matches, 5));
    let broken = |looked: Look| {
        let reason = WaitReason::Broken(BrokenReason::HeadWentBack);
        assert!(
            matches!(&looked, Look::Wait { reason: found, recorded: true, .. } if *found == reason),
            "{looked:?}"
        );
    };
    broken(look(&past.db, &mut past.watch, OnChange::Accept).await);
    // From here on everybody knows, also when the log has grown past what was seen.
    append(&past.db.producer(), 11..=20).await;
    broken(look(&past.db, &mut HistoryWatch::default(), OnChange::Accept).await);
    let done = finalize(&past.db, RestoredConsumers::Keep, Need::Found).await.unwrap();
    assert_eq!((done.head, done.moves[0].from, done.moves[0].to), (15, 3, 3));
    let looked = look(&past.db, &mut past.watch, OnChange::Refuse).await;
    assert!(
        matches!(looked, Look::NewEpoch { from: Some(from), .. } if from == done.old_epoch),
        "{looked:?}"
    );
}

#[tokio::test]
async fn consumers_that_are_kept_handle_again_what_came_after_the_backup() {
    let mut past = past().await;
    past.backup.restore_in_place(&mut past.server).await;
    finalize(&past.db, RestoredConsumers::Keep, Need::Stated).await.unwrap();
    append(&past.db.producer(), 11..=12).await;
    let given = consume(&past.db).await;
    let now = log(past.db.options(Role::Admin)).await;
    assert_eq!((now.len(), &now[..5]), (7, &past.log[..5]));
    assert_eq!(given.all(), now[3..]);
    assert_eq!(cursor(&past.db, "probe").await, 7);
}

#[tokio::test]
async fn consumers_at_the_head_get_new_events_only() {
    let mut past = past().await;
    past.backup.restore_in_place(&mut past.server).await;
    finalize(&past.db, RestoredConsumers::Head, Need::Stated).await.unwrap();
    append(&past.db.producer(), 11..=12).await;
    let given = consume(&past.db).await;
    let now = log(past.db.options(Role::Admin)).await;
    assert_eq!(given.all(), now[5..]);
}

/// The tail was at 10. The log is at 5 when it comes back: it ends and says why.
#[tokio::test]
async fn a_tail_ends_when_the_log_was_taken_back() {
    let mut past = past().await;
    let (given, stop) = (Given::default(), CancellationToken::new());
    let tail = tail_of(&past.db, Start::After(0)).await;
    let position = tail.head();
    let running = follow(tail, &given, &stop);
    eventually(DEADLINE, "the tail at the head", async || *position.borrow() == 10).await;
    past.backup.restore_in_place(&mut past.server).await;
    let ended = tokio::time::timeout(DEADLINE, running).await.expect("it ends").unwrap();
    assert!(matches!(ended, Err(TailError::AheadOfHead { position: 10, head: 5 })), "{ended:?}");
    assert_eq!(given.all(), past.log);
}

/// The log has grown past the tail's position, with other events, before the tail looks again.
#[tokio::test]
async fn a_tail_ends_when_its_position_is_another_event_by_now() {
    let mut past = past().await;
    let (given, stop) = (Given::default(), CancellationToken::new());
    let target = (Ipv4Addr::LOCALHOST, past.db.options(Role::Reader).get_port()).into();
    let proxy = FaultProxy::start(target).await.unwrap();
    let through = past.db.options(Role::Reader).port(proxy.addr().port());
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(through.clone());
    let tail = Tail::new(pool, through, tail_config(Start::After(0)), Clock::system()).await.unwrap();
    let position = tail.head();
    let running = follow(tail, &given, &stop);
    eventually(DEADLINE, "the tail at the head", async || *position.borrow() == 10).await;
    proxy.refuse();
    proxy.cut();
    past.backup.restore_in_place(&mut past.server).await;
    append(&past.db.producer(), 11..=20).await;
    assert_eq!(head(&past.db).await, 15);
    proxy.heal();
    let ended = tokio::time::timeout(DEADLINE, running).await.expect("it ends").unwrap();
    assert!(matches!(ended, Err(TailError::OtherHistory { position: 10 })), "{ended:?}");
    assert_eq!(given.all(), past.log);
}

#[tokio::test]
async fn a_backup_that_was_recovered_elsewhere_is_on_another_timeline_and_no_clean_failover() {
    let mut past = past().await;
    let restored = past.backup.recover().await;
    let app = || restored.options(past.db.options(Role::App));
    let mut connection = PgConnection::connect_with(&app()).await.unwrap();
    let check = identity::check(&mut connection).await.unwrap();
    assert_eq!(check.standing(), Standing::Differs(&[Difference::Timeline { recorded: 1, server: 2 }]));
    assert_eq!(check.head, 5);
    let looked = look_at(app(), &mut HistoryWatch::default(), OnChange::Refuse).await;
    assert!(matches!(looked, Look::Wait { reason: WaitReason::Differs(_), .. }), "{looked:?}");
    // It has seen 10 events, of which 5 are gone: that is no clean failover.
    let looked = look_at(app(), &mut past.watch, OnChange::Accept).await;
    let reason = WaitReason::Broken(BrokenReason::HeadWentBack);
    assert!(
        matches!(&looked, Look::Wait { reason: found, recorded: true, .. } if *found == reason),
        "{looked:?}"
    );
    let looked = look_at(app(), &mut HistoryWatch::default(), OnChange::Accept).await;
    assert!(matches!(&looked, Look::Wait { reason: found, .. } if *found == reason), "{looked:?}");
    let looked = look_at(app(), &mut past.watch, OnChange::NewEpoch).await;
    let Look::NewEpoch { acted: Acted::Finalized(done), .. } = looked else { panic!("{looked:?}") };
    assert_eq!((done.head, done.moves[0].to), (5, 3));
    let after = identity::check(&mut connection).await.unwrap();
    assert_eq!((after.standing(), after.server.timeline), (Standing::Matches, Some(2)));
}

#[tokio::test]
async fn a_dump_in_another_cluster_is_not_the_log_that_it_was_taken_from() {
    let (server, other) = (TestServer::durable().await, TestServer::durable().await);
    let (db, _roles) = (TestDb::numbering(&server, Sequencing::AtCommit).await, TestDb::on(&other).await);
    sqlx::query("SELECT seqline.ensure_consumer('probe', 'worker', 'head')")
        .execute(&db.app())
        .await
        .unwrap();
    append(&db.producer(), 1..=5).await;
    let mut watch = HistoryWatch::default();
    look(&db, &mut watch, OnChange::Refuse).await;
    let loaded = TestDb::empty_on(&other).await;
    load_dump(&db, &loaded).await;
    assert_eq!(log(loaded.options(Role::Admin)).await, log(db.options(Role::Admin)).await);

    let check = check_as(&loaded, Role::Reader).await;
    let names: Vec<&str> = check.differences.iter().map(Difference::name).collect();
    assert_eq!(names, ["system", "database"]);
    // All of the log is there, as whoever has seen it knows, and nobody else.
    let looked = look(&loaded, &mut HistoryWatch::default(), OnChange::Accept).await;
    assert!(matches!(looked, Look::Wait { reason: WaitReason::Differs(_), .. }), "{looked:?}");
    let before = epoch(&loaded).await;
    let done = finalize(&loaded, RestoredConsumers::Keep, Need::Found).await.unwrap();
    assert_eq!((done.old_epoch, done.head, epoch(&db).await), (before, 5, before));
    append(&loaded.producer(), 6..=7).await;
    assert_eq!(consume(&loaded).await.all(), log(loaded.options(Role::Admin)).await);
}

#[tokio::test]
async fn a_log_that_was_moved_as_a_whole_is_accepted_by_whoever_has_seen_it() {
    let (server, other) = (TestServer::durable().await, TestServer::durable().await);
    let (db, _roles) = (TestDb::numbering(&server, Sequencing::AtCommit).await, TestDb::on(&other).await);
    append(&db.producer(), 1..=5).await;
    let mut watch = HistoryWatch::default();
    look(&db, &mut watch, OnChange::Refuse).await;
    let loaded = TestDb::empty_on(&other).await;
    load_dump(&db, &loaded).await;
    let mut behind = HistoryWatch::default();
    behind.remember(epoch(&db).await, 6);
    let looked = look(&loaded, &mut watch, OnChange::Accept).await;
    assert!(matches!(looked, Look::GoOn { acted: Acted::Accepted, .. }), "{looked:?}");
    assert_eq!(check_as(&loaded, Role::App).await.standing(), Standing::Matches);
    let looked = look(&loaded, &mut behind, OnChange::Accept).await;
    assert!(matches!(looked, Look::Wait { reason: WaitReason::Broken(_), .. }), "{looked:?}");
}

#[tokio::test]
async fn a_copy_in_the_same_cluster_is_another_database() {
    let server = TestServer::fast().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    append(&db.producer(), 1..=3).await;
    let mut watch = HistoryWatch::default();
    look(&db, &mut watch, OnChange::Refuse).await;
    let copy = TestDb::copy_of(&db, &server).await;
    let looked = look(&copy, &mut watch, OnChange::Accept).await;
    let Look::Wait { reason: WaitReason::Differs(differences), .. } = looked else { panic!("{looked:?}") };
    assert_eq!(differences.iter().map(Difference::name).collect::<Vec<_>>(), ["database"]);
}

#[tokio::test]
async fn a_clean_failover_is_accepted_by_that_rule_and_refused_by_the_other() {
    let mut primary = TestServer::durable().await;
    let db = TestDb::numbering(&primary, Sequencing::AtCommit).await;
    let mut standby = Standby::synchronous(&primary).await;
    append(&db.producer(), 1..=5).await;
    let before = epoch(&db).await;
    let (mut watch, mut refusing) = (HistoryWatch::default(), HistoryWatch::default());
    look(&db, &mut watch, OnChange::Accept).await;
    look(&db, &mut refusing, OnChange::Refuse).await;
    // Where commits wait for others the process says itself what is durable: what it has handed out.
    watch.remember(before, 5);
    let app = standby.options(db.options(Role::App));
    let mut follower = PgConnection::connect_with(&app).await.unwrap();
    eventually(DEADLINE, "the events on the standby", async || {
        identity::check(&mut follower).await.unwrap().head == 5
    })
    .await;
    let check = identity::check(&mut follower).await.unwrap();
    assert_eq!((check.standing(), check.in_recovery()), (Standing::Matches, true));

    primary.kill().await;
    standby.promote().await;
    let looked = look_at(app.clone(), &mut refusing, OnChange::Refuse).await;
    let Look::Wait { reason, recorded: false, .. } = &looked else { panic!("{looked:?}") };
    assert_eq!(reason.to_string(), "the log belongs to another server: timeline 2 instead of 1");
    let looked = look_at(app.clone(), &mut watch, OnChange::Accept).await;
    assert!(
        matches!(&looked, Look::GoOn { epoch, acted: Acted::Accepted, .. } if *epoch == before),
        "{looked:?}"
    );
    let looked = look_at(app, &mut refusing, OnChange::Refuse).await;
    assert!(matches!(looked, Look::GoOn { acted: Acted::Nothing, .. }), "{looked:?}");
}
