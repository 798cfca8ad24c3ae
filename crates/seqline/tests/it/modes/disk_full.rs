//! A full disk: what cannot be written is refused, nothing is lost or numbered twice, and all goes on when there is room.
//!
//! A table whose file leads to `/dev/full` cannot grow: the operating system answers as a full disk does, and so does PostgreSQL.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use seqline::consumer::{FailurePolicy, Outcome};
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::Sequencing;
use seqline::{AppendError, Clock, CommitError, DatabaseError, ErrorKind, NewEvent};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::PgPool;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::consumers::{self, Bench, Captured, acting, config, probe};
use crate::sequencing::{change, settled};
use crate::support::{append, assert_nothing_staged, event, head, numbers};

const DEADLINE: Duration = Duration::from_secs(30);

/// A table that cannot grow, until there is room again.
struct Full<'a> {
    db: &'a TestDb,
    file: PathBuf,
    kept: PathBuf,
}

impl<'a> Full<'a> {
    /// It has to be empty: what is in it would not be found.
    async fn table(server: &TestServer, db: &'a TestDb, table: &str) -> Self {
        let path: String = sqlx::query_scalar("SELECT pg_relation_filepath($1::regclass)")
            .bind(table)
            .fetch_one(&db.admin())
            .await
            .unwrap();
        let size: i64 = sqlx::query_scalar("SELECT pg_relation_size($1::regclass)")
            .bind(table)
            .fetch_one(&db.admin())
            .await
            .unwrap();
        assert_eq!(size, 0, "{table} is empty");
        // A file that is new has to be made durable, and a server that fails to do so restarts: `/dev/full` cannot be flushed.
        sqlx::raw_sql("CHECKPOINT").execute(&db.admin()).await.unwrap();
        let file = server.postgres().data_dir().join("pgdata").join(path);
        let kept = file.with_extension("kept");
        std::fs::rename(&file, &kept).unwrap();
        symlink("/dev/full", &file).unwrap();
        let full = Self { db, file, kept };
        full.close_files().await;
        full
    }

    async fn room(self) {
        std::fs::remove_file(&self.file).unwrap();
        std::fs::rename(&self.kept, &self.file).unwrap();
        self.close_files().await;
    }

    /// Sessions keep files open. Pools and background components make new ones.
    async fn close_files(&self) {
        let others = "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        sqlx::raw_sql(others).execute(&mut self.db.connect(Role::Admin).await).await.unwrap();
    }
}

fn assert_full(error: &DatabaseError) {
    assert_eq!(error.sqlstate(), Some("53100"), "{error}");
    assert!(error.is_retryable() && !error.is_connection_failure(), "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
}

async fn try_to_append(pool: &PgPool, events: &[NewEvent]) -> Result<(), AppendError> {
    let mut tx = seqline::begin(pool).await.unwrap();
    seqline::append(&mut tx, events).await?;
    seqline::commit(tx).await.unwrap();
    Ok(())
}

async fn try_to_commit(pool: &PgPool, events: &[NewEvent]) -> CommitError {
    let mut tx = seqline::begin(pool).await.unwrap();
    seqline::append(&mut tx, events).await.unwrap();
    seqline::commit(tx).await.unwrap_err()
}

/// On a server and a database of its own.
async fn database() -> (TestServer, TestDb) {
    let server = TestServer::durable().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    (server, db)
}

fn with_id() -> NewEvent {
    NewEvent::builder("test.happened", "test", "any").id(Uuid::now_v7()).build().unwrap()
}

#[tokio::test]
async fn an_append_that_finds_no_room_is_refused() {
    let server = TestServer::durable().await;
    for (table, events) in [
        ("seqline.pending_transactions", vec![event(1)]),
        ("seqline.pending_events", vec![event(1), event(2)]),
        ("seqline.staged_events", vec![with_id()]),
    ] {
        let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
        let full = Full::table(&server, &db, table).await;
        let error = try_to_append(&db.producer(), &events).await.unwrap_err();
        assert_eq!((error.kind(), error.had_no_effect()), (ErrorKind::Unavailable, true));
        let AppendError::Database(error) = error else { panic!("{error:?}") };
        assert_full(&error);
        full.room().await;
        assert_eq!(head(&db).await, 0);
        try_to_append(&db.producer(), &events).await.unwrap();
        assert_eq!(head(&db).await, events.len() as i64);
        assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
    }
}

/// The first partition of the log, which has no event.
async fn first_partition(db: &TestDb) -> String {
    let name: String = sqlx::query_scalar("SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'seqline.event_log'::regclass")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    name
}

#[tokio::test]
async fn a_commit_that_finds_no_room_for_its_events_appends_nothing_and_takes_no_number() {
    let (server, db) = database().await;
    let full = Full::table(&server, &db, &first_partition(&db).await).await;
    for events in [vec![event(0)], vec![event(0), event(0)]] {
        let error = try_to_commit(&db.producer(), &events).await;
        assert!(error.is_retryable() && error.had_no_effect(), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let CommitError::Database(error) = error else { panic!("{error:?}") };
        assert_full(&error);
    }
    full.room().await;
    append(&db.producer(), [1]).await;
    append(&db.producer(), [2, 3]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

fn impatient_sequencer(db: &TestDb) -> DropGuard {
    let stop = CancellationToken::new();
    let config = SequencerConfig { reconnect_backoff_cap: Duration::from_millis(50), ..Default::default() };
    tokio::spawn(Sequencer::new(db.pool(Role::App, 2), config, Clock::system()).run(stop.clone()));
    stop.drop_guard()
}

#[tokio::test]
async fn what_waits_for_its_number_waits_until_there_is_room_for_it() {
    let (captured, _guard) = Captured::start();
    let (server, db) = database().await;
    change(&db, Sequencing::AfterCommit).await;
    let full = Full::table(&server, &db, &first_partition(&db).await).await;
    let _sequencer = impatient_sequencer(&db);
    for n in 1..=3 {
        try_to_append(&db.producer(), &[event(n)]).await.unwrap();
    }
    eventually(DEADLINE, "the sequencer says so", async || captured.count("No space left on device") > 0)
        .await;
    assert_eq!(seqline::read::head(&mut db.connect(Role::Reader).await).await.unwrap(), 0);
    full.room().await;
    settled(&db).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3]);
    let counts = || (captured.count("sequencer cannot go on"), captured.count("sequencer recovered"));
    eventually(
        DEADLINE,
        "the end of every outage",
        async || matches!(counts(), (began, ended) if began == ended),
    )
    .await;
    // Once for the disk, however many attempts it took, and once more if it had recovered before its session was ended.
    assert!((1..=2).contains(&counts().0), "{:?}", counts());
}

#[tokio::test]
async fn a_commit_that_finds_no_room_to_wait_appends_nothing() {
    let (server, db) = database().await;
    change(&db, Sequencing::AfterCommit).await;
    let full = Full::table(&server, &db, "seqline.staged_transactions").await;
    let error = try_to_commit(&db.producer(), &[event(0)]).await;
    assert!(error.is_retryable() && error.had_no_effect(), "{error:?}");
    let CommitError::Database(error) = error else { panic!("{error:?}") };
    assert_full(&error);
    full.room().await;
    let _sequencer = impatient_sequencer(&db);
    try_to_append(&db.producer(), &[event(1)]).await.unwrap();
    settled(&db).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1]);
}

/// The round is rolled back, and the event is not to blame: a consumer that parks does not park it.
#[tokio::test]
async fn a_round_that_finds_no_room_is_done_again_and_parks_nothing() {
    let server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    consumers::make_effects(&db).await;
    append(&db.producer(), [1]).await;
    let handler = acting(|_, _| Box::pin(async { Ok(()) }));
    let policy = FailurePolicy::Park { after_attempts: 1, backoff: Duration::from_millis(1) };
    let bench = Bench::on(db, config(), probe(handler).on_failure(policy)).await;
    let full = Full::table(&server, &bench.db, "effects").await;
    for _ in 0..3 {
        // What closes the files has ended the connection of the pool, which finds that out with its first use.
        let mut last = None;
        eventually(DEADLINE, "a round that comes to the handler", async || {
            let error = bench.round().await.unwrap_err();
            let reached = error.error_type() == "handler";
            last = Some(error);
            reached
        })
        .await;
        assert_eq!(last.unwrap().seq(), Some(1));
    }
    full.room().await;
    let mut outcome = None;
    eventually(DEADLINE, "a round", async || {
        outcome = bench.round().await.ok();
        outcome.is_some()
    })
    .await;
    let result = outcome.unwrap();
    assert_eq!((result.outcome, result.parked), (Outcome::Processed, 0));
    assert_eq!(consumers::effects(&bench.db).await, consumers::twice([1]));
}

/// What people read of it.
#[tokio::test]
async fn the_error_says_what_it_is_and_nothing_of_a_payload() {
    let (server, db) = database().await;
    let full = Full::table(&server, &db, &first_partition(&db).await).await;
    let secret = seqline::Payload::from_json(r#"{"card": "swordfish"}"#).unwrap();
    let event = NewEvent::builder("test.happened", "test", "any").payload(secret).build().unwrap();
    let error = try_to_commit(&db.producer(), &[event]).await;
    let text = format!("{error} {error:?}");
    assert!(text.starts_with("database refused the commit: could not extend file"), "{text}");
    assert!(!text.contains("swordfish"), "{text}");
    full.room().await;
}
