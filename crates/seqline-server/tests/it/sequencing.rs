//! Appending, importing and reading where events are numbered after commit.

use nix::sys::signal::Signal;
use seqline::Clock;
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::settings::{Sequencing, set_sequencing};
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{DEADLINE, append, as_admin, numbers, on, seqline};

/// Numbers events after commit from now on.
pub(crate) async fn after_commit(db: &TestDb) {
    let changed = set_sequencing(&mut db.connect(Role::App).await, Sequencing::AfterCommit, None).await;
    changed.expect("numbering can be changed");
}

/// A sequencer in the process of the test.
pub(crate) struct TestSequencer {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Starts one that has the lease.
pub(crate) async fn sequencer_of_the_test(db: &TestDb) -> TestSequencer {
    let stop = CancellationToken::new();
    let sequencer = Sequencer::new(db.app(), SequencerConfig::default(), Clock::system());
    let task = tokio::spawn(sequencer.run(stop.clone()));
    let pool = db.app();
    eventually(DEADLINE, "the sequencer has the lease, or nothing to do", async || {
        let settings = seqline::settings::settings(&mut pool.acquire().await.unwrap()).await.unwrap();
        settings.is_at_commit_only() || holder(db).await.is_some()
    })
    .await;
    TestSequencer { stop, task }
}

impl TestSequencer {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it ends well");
    }
}

/// Who has a lease that holds.
pub(crate) async fn holder(db: &TestDb) -> Option<Uuid> {
    sqlx::query_scalar(
        "SELECT (SELECT holder FROM seqline.sequencer_lease WHERE expires_at >= clock_timestamp())",
    )
    .fetch_one(&db.admin())
    .await
    .expect("there is a lease")
}

const APPEND: [&str; 4] = ["append", "a.b", "--resource-kind", "x"];

#[tokio::test]
async fn append_waits_for_the_number_that_the_sequencer_gives() {
    let db = TestDb::new().await;
    after_commit(&db).await;
    let sequencer = sequencer_of_the_test(&db).await;
    for seq in 1..=5 {
        let line = on(&db, Role::App, APPEND).ok().await;
        assert!(line.starts_with(&format!("{seq} ")), "{line}");
    }
    let json: Value = serde_json::from_str(&on(&db, Role::App, APPEND).arg("--json").ok().await).unwrap();
    assert_eq!(json["seq"], 6);
    sequencer.stop().await;
}

#[tokio::test]
async fn without_a_sequencer_append_gives_the_id_and_says_that_the_number_comes_later() {
    const WAITS: &str =
        "appended, and the event waits for its number: seqline serve --role worker gives it one";
    let db = TestDb::new().await;
    after_commit(&db).await;
    let outcome = on(&db, Role::App, APPEND).run().await;
    assert_eq!(outcome.sentence(0), WAITS);
    let id = Uuid::try_parse(outcome.stdout.trim_end()).expect("the id alone");
    let outcome = on(&db, Role::App, APPEND).arg("--json").run().await;
    assert_eq!(outcome.sentence(0), WAITS);
    let object: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(object.as_object().unwrap().keys().collect::<Vec<_>>(), ["id"]);
    // It is in, so the same id is refused, and it gets its number later.
    let again = on(&db, Role::App, APPEND).args(["--id", &id.to_string()]).refused(4).await;
    assert_eq!(again, format!("event id {id} is already in the log"));
    assert_eq!(on(&db, Role::Reader, ["tail"]).ok().await, "");
    let sequencer = sequencer_of_the_test(&db).await;
    eventually(DEADLINE, "they have numbers", async || {
        on(&db, Role::Reader, ["tail"]).ok().await.lines().count() == 2
    })
    .await;
    sequencer.stop().await;
    // A role that may append and not read waits for nothing.
    assert!(Uuid::try_parse(on(&db, Role::Producer, APPEND).ok().await.trim_end()).is_ok());
}

#[tokio::test]
async fn an_append_that_is_refused_because_too_much_waits_says_what_to_run() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET staged_transactions_max = 2").await;
    after_commit(&db).await;
    append(&db.producer(), [1]).await;
    append(&db.producer(), [2]).await;
    let sentence = on(&db, Role::Producer, APPEND).refused(3).await;
    assert_eq!(
        sentence,
        "append refused: 2 transactions wait for the sequencer, staged_transactions_max is 2 (SQLSTATE 53400): seqline serve --role worker numbers what waits, try again then"
    );
    let status = on(&db, Role::App, ["status"]).run().await;
    assert_eq!(
        status.sentence(4),
        "staged_transactions_max is reached, appends are refused: seqline serve --role worker numbers what waits"
    );
}

/// A file of lines with the numbers from 1 on.
fn numbered(lines: i64) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("events.ndjson");
    let text: String = (1..=lines).map(|n| format!("{{\"n\": {n}}}\n")).collect();
    std::fs::write(&file, text).expect("a file can be written");
    let file = file.display().to_string();
    (folder, file)
}

#[tokio::test]
async fn an_import_leaves_its_events_to_the_sequencer_and_they_keep_the_order_of_the_lines() {
    let db = TestDb::new().await;
    after_commit(&db).await;
    let (_folder, file) = numbered(500);
    let import = || {
        on(&db, Role::App, ["import", &file, "--type", "test.happened", "--resource-kind", "test"])
            .args(["--batch", "7"])
    };
    assert_eq!(import().ok().await, "500 imported, 0 rejected\n");
    assert_eq!(numbers(&db).await, [0_i64; 0]);
    // What is done is done, although it has no numbers yet.
    assert_eq!(import().ok().await, "0 imported, 0 rejected, 500 lines were done before\n");
    let sequencer = sequencer_of_the_test(&db).await;
    eventually(DEADLINE, "all have numbers", async || numbers(&db).await.len() == 500).await;
    sequencer.stop().await;
    assert_eq!(numbers(&db).await, (1..=500).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_import_that_is_killed_and_run_again_loses_and_doubles_no_line() {
    let db = TestDb::new().await;
    after_commit(&db).await;
    let sequencer = sequencer_of_the_test(&db).await;
    let (_folder, file) = numbered(2000);
    let import =
        || {
            on(&db, Role::App, ["import", &file, "--type", "test.happened", "--resource-kind", "test"])
                .args(["--batch", "2", "--writers", "4"])
        };
    let running = import().start();
    eventually(DEADLINE, "some lines are in the log", async || numbers(&db).await.len() > 100).await;
    running.signal(Signal::SIGKILL);
    running.end().await;
    // Nothing says that the killed one's sessions have ended, but for the next run, which waits for them.
    import().ok().await;
    eventually(DEADLINE, "all have numbers", async || numbers(&db).await.len() >= 2000).await;
    sequencer.stop().await;
    let mut lines = numbers(&db).await;
    lines.sort_unstable();
    assert_eq!(lines, (1..=2000).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_import_that_meets_a_full_backlog_stops_and_goes_on_later() {
    let db = TestDb::new().await;
    as_admin(&db, "UPDATE seqline.settings SET staged_transactions_max = 5").await;
    after_commit(&db).await;
    let (_folder, file) = numbered(20);
    let import = || {
        on(&db, Role::App, ["import", &file, "--type", "test.happened", "--resource-kind", "test"])
            .args(["--batch", "1"])
    };
    let outcome = import().run().await;
    let sentence = outcome.sentence(3);
    assert!(sentence.starts_with("append refused: 5 transactions wait"), "{sentence}");
    assert!(sentence.ends_with("; run the same command again to go on"), "{sentence}");
    assert_eq!(outcome.stdout, "5 imported, 0 rejected\n");
    // The sequencer writes down only now and then how far it has come, and at its end: what may wait is counted from there.
    as_admin(&db, "UPDATE seqline.settings SET staged_transactions_max = 1000000").await;
    let sequencer = sequencer_of_the_test(&db).await;
    assert_eq!(import().ok().await, "15 imported, 0 rejected, 5 lines were done before\n");
    eventually(DEADLINE, "all have numbers", async || numbers(&db).await.len() == 20).await;
    sequencer.stop().await;
    assert_eq!(numbers(&db).await, (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn tail_shows_what_has_a_number_and_follows_the_sequencer() {
    let db = TestDb::new().await;
    append(&db.producer(), [1]).await;
    after_commit(&db).await;
    append(&db.producer(), [2]).await;
    let tail = on(&db, Role::Reader, ["tail"]).ok().await;
    assert_eq!(tail.lines().count(), 1, "{tail}");
    let mut following = on(&db, Role::Reader, ["tail", "--follow", "--poll-interval", "1h"]).start();
    assert!(following.line().await.starts_with("1 "));
    let sequencer = sequencer_of_the_test(&db).await;
    // Told and not polled.
    assert!(following.line().await.starts_with("2 "));
    for n in 3..=5 {
        append(&db.producer(), [n]).await;
        assert!(following.line().await.starts_with(&format!("{n} ")));
    }
    sequencer.stop().await;
}

#[tokio::test]
async fn up_numbers_after_commit_as_long_as_it_runs() {
    let db = crate::support::server_db().await;
    let mut up = seqline(["up", "--database-url", &db.url(Role::App)]).start();
    up.talk_until("Ready").await;
    let change = on(&db, Role::App, ["settings", "sequencing", "after_commit"]).ok().await;
    assert_eq!(change, "events are numbered after commit from now on, by the sequencer\n");
    eventually(DEADLINE, "the sequencer has the lease", async || holder(&db).await.is_some()).await;
    assert!(on(&db, Role::App, APPEND).ok().await.starts_with("1 "));
    up.signal(Signal::SIGTERM);
    let outcome = up.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(holder(&db).await, None, "it gives its lease back");
    let status: Value = serde_json::from_str(&on(&db, Role::App, ["status", "--json"]).ok().await).unwrap();
    assert_eq!(status["numbering"]["sequencer"], json!(false));
}
