//! `seqline up`

mod embedded;
mod refusals;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::embedded::PostgresBinaries;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    DEADLINE, Outcome, Running, Seqline, Sessions, append, as_admin, on, run_sql, seqline, server_db,
    small_partitions,
};
use crate::worker::get;

/// A place for the data folder and the ready file. PostgreSQL may run as another user, who has to get in.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it can be opened");
        Self(folder)
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn ready_file(&self) -> PathBuf {
        self.0.path().join("ready.json")
    }

    /// `up` with its own server on this place.
    pub(crate) fn up(&self) -> Seqline {
        self.up_on(&self.data())
    }

    /// The same with its data elsewhere.
    fn up_on(&self, data: &Path) -> Seqline {
        let binaries = PostgresBinaries::find(None).expect("there is a PostgreSQL");
        self.up_without_binaries_on(data).arg("--pg-bin").arg(binaries.dir())
    }

    fn up_without_binaries(&self) -> Seqline {
        self.up_without_binaries_on(&self.data())
    }

    fn up_without_binaries_on(&self, data: &Path) -> Seqline {
        seqline(["up", "--data-dir"])
            .arg(data)
            .arg("--ready-file")
            .arg(self.ready_file())
            // Away from a checkout with binaries of its own.
            .current_dir(self.0.path())
    }

    /// Starts it and waits until it says that it is ready.
    pub(crate) async fn start(&self, up: Seqline) -> Up {
        let mut running = up.start();
        let mut ready = Value::Null;
        // One that was killed may have left its file, until this one removes it.
        eventually(DEADLINE, "the ready file is there", async || {
            assert!(!running.has_ended(), "it ended before it was ready");
            let Ok(text) = std::fs::read_to_string(self.ready_file()) else { return false };
            ready = serde_json::from_str(&text).expect("the ready file is JSON");
            ready["pid"] == running.pid()
        })
        .await;
        Up { running, ready }
    }
}

/// `up` that is ready.
pub(crate) struct Up {
    pub(crate) running: Running,
    ready: Value,
}

impl Up {
    fn url(&self) -> &str {
        self.ready["database_url"].as_str().expect("there is a URL")
    }

    fn password(&self) -> String {
        let (_, rest) = self.url().split_once("://app:").expect("there is a password");
        rest.split_once('@').expect("there is a host").0.to_owned()
    }

    fn postgres_pid(&self) -> i32 {
        self.ready["postgres_pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("there is a server")
    }

    /// Appends an event and returns its number.
    async fn append(&self) -> i64 {
        let line =
            seqline(["append", "a.b", "--resource-kind", "x", "--database-url", self.url()]).ok().await;
        line.split(' ').next().expect("there is a number").parse().expect("it is one")
    }

    /// Waits until it has maintained partitions.
    async fn is_at_work(&self) {
        let pool = sqlx::PgPool::connect(self.url()).await.expect("the server lets its user in");
        eventually(DEADLINE, "partitions are maintained", async || {
            let count = sqlx::query_scalar(
                // The last statement of a session, also of one that is idle by now: a drop ends with its COMMIT.
                "SELECT count(*) FROM pg_stat_activity
                 WHERE (query LIKE '%sync_event_log_%' OR query = 'COMMIT') AND pid <> pg_backend_pid()",
            );
            count.fetch_one(&pool).await.is_ok_and(|count: i64| count > 0)
        })
        .await;
        pool.close().await;
    }

    /// Stops it as a service manager does.
    pub(crate) async fn stop(self) -> Outcome {
        let postgres = self.postgres_pid();
        self.running.signal(Signal::SIGTERM);
        let outcome = self.running.end().await;
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
        assert!(has_ended(postgres), "PostgreSQL is still there");
        outcome
    }
}

fn has_ended(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)
}

/// Nothing runs on a data folder that nobody stopped in disorder.
fn assert_no_server(data: &Path) {
    assert!(!data.join("pgdata/postmaster.pid").exists(), "a server is running");
}

#[tokio::test]
async fn with_a_url_it_migrates_that_database_and_starts_no_server() {
    let db = TestDb::empty().await;
    let place = Place::new();
    let up = place.start(place.up().args(["--database-url", &db.url(Role::Admin)])).await;
    let ops_url = up.ready["ops_url"].as_str().unwrap().to_owned();
    let api_url = up.ready["api_url"].as_str().unwrap().to_owned();
    let expected = json!({
        "database_url": db.url(Role::Admin), "api_url": api_url, "ops_url": ops_url, "pid": up.running.pid(),
    });
    assert_eq!(up.ready, expected);
    assert_eq!(get(api_url.strip_prefix("http://").unwrap(), "/v1/me").await.0, 401);
    let address = ops_url.strip_prefix("http://").unwrap();
    assert_eq!(get(address, "/livez").await.0, 200);
    eventually(DEADLINE, "it is ready", async || get(address, "/readyz").await.0 == 200).await;
    eventually(DEADLINE, "it shows the log", async || {
        get(address, "/metrics").await.1.contains("\nseqline_log_head 0\n")
    })
    .await;
    assert_eq!(up.append().await, 1);
    up.running.signal(Signal::SIGINT);
    let outcome = up.running.end().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    let version = seqline::migrate::newest_version();
    let place_of_db = format!("127.0.0.1:{}/{}", db.options(Role::Admin).get_port(), db.name());
    let said = format!(
        "Using database {place_of_db}, given by --database-url. \
         To run an embedded server instead, leave out --database-url.\n\
         The schema was created (version {version}).\nReady. The API is at {api_url}, and {api_url}/v1/docs says what it takes. \
         Who may append, and a token for them:\n\n  PROGRAM principals create shop --kind app --rights append\n  \
         PROGRAM tokens create shop\n\nHealth and metrics: {ops_url}/livez, {ops_url}/readyz, {ops_url}/metrics\n\n\
         Press Ctrl-C to stop.\nStopping.\n"
    );
    assert_eq!(outcome.stderr.replace(env!("CARGO_BIN_EXE_seqline"), "PROGRAM"), said);
    assert!(!place.data().exists() && !place.ready_file().exists());
}

#[tokio::test]
async fn with_a_url_it_applies_retention_and_makes_partitions() {
    let db = server_db().await;
    crate::support::small_partitions(&db, 2, 1).await;
    crate::support::append(&db.app(), 1..=2).await;
    let place = Place::new();
    let up = place
        .start(place.up().args(["--database-url", &db.url(Role::App), "--partition-max-age", "1h"]))
        .await;
    let room = async || {
        let status: Value =
            serde_json::from_str(&on(&db, Role::App, ["status", "--json"]).run().await.stdout).unwrap();
        status["headroom"].as_i64().unwrap() > 0
    };
    eventually(DEADLINE, "there is room for more events", room).await;
    up.running.signal(Signal::SIGTERM);
    assert_eq!(up.running.end().await.code(), Some(0));
}

#[tokio::test]
async fn with_a_url_of_a_role_that_may_not_migrate_it_says_so_and_ends() {
    let db = server_db().await;
    let place = Place::new();
    let outcome = place.up().args(["--database-url", &db.url(Role::Nobody)]).run().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(4), ""), "{outcome:?}");
    assert!(outcome.stderr.contains("permission denied"), "{outcome:?}");
    assert!(!place.ready_file().exists() && !place.data().exists());
}

#[tokio::test]
async fn a_variable_that_names_the_database_is_named_and_the_password_is_not() {
    let db = server_db().await;
    let place = Place::new();
    let url = db.url(Role::App);
    let up = place
        .up()
        .env("SEQLINE_DATABASE_URL", &url)
        .env("DATABASE_URL", "postgres://robin:hunter2@elsewhere/db");
    let up = place.start(up).await;
    up.running.signal(Signal::SIGTERM);
    let outcome = up.running.end().await;
    let said = "given by SEQLINE_DATABASE_URL. To run an embedded server instead, leave out SEQLINE_DATABASE_URL and DATABASE_URL.";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    let (start, _) = url.split_once('@').unwrap();
    let (_, password) = start.rsplit_once(':').unwrap();
    assert!(!outcome.stderr.contains(password) && !outcome.stderr.contains("hunter2"), "{outcome:?}");
}

#[tokio::test]
async fn stopped_while_it_migrates_a_given_database_it_ends() {
    let db = server_db().await;
    let place = Place::new();
    let mut admin = db.connect(Role::Admin).await;
    run_sql(&mut admin, "BEGIN; LOCK TABLE seqline.schema_version").await;
    let running = place.up().args(["--database-url", &db.url(Role::App)]).start();
    Sessions::of(&db, Role::App).reach(1, "wait_event_type = 'Lock'").await;
    running.signal(Signal::SIGTERM);
    let outcome = running.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(outcome.stderr.ends_with("\nStopping.\n"), "{outcome:?}");
    assert!(!place.ready_file().exists());
}

#[tokio::test]
async fn a_ready_file_that_was_left_by_a_killed_process_is_removed_first() {
    let db = server_db().await;
    let place = Place::new();
    let up = place.start(place.up().args(["--database-url", &db.url(Role::App)])).await;
    up.running.signal(Signal::SIGKILL);
    up.running.end().await;
    assert!(place.ready_file().exists());
    let nowhere = format!("postgres://127.0.0.1:{}/db", crate::support::closed_port());
    place.up().args(["--database-url", &nowhere]).refused(3).await;
    assert!(!place.ready_file().exists());
}

#[tokio::test]
async fn it_numbers_and_drops_nothing_while_the_database_is_another_and_goes_by_the_settings() {
    let db = server_db().await;
    small_partitions(&db, 2, 2).await;
    append(&db.app(), 1..=3).await;
    as_admin(&db, "UPDATE seqline.log_identity SET timeline = timeline + 1").await;
    let place = Place::new();
    let settings = [
        "sync.event_retention=2s",
        "sync.partition_maintenance_interval=1s",
        "consumer.pending_alert_after=1s",
        "agent.pending_alert_after=1s",
        "shutdown.total_timeout=900ms",
        "ops.look_interval=100ms",
    ];
    let up = settings.into_iter().fold(place.up(), |up, setting| up.args(["--set", setting]));
    let mut up = place.start(up.args(["--database-url", &db.url(Role::Admin)])).await;
    let address = up.ready["ops_url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    up.running.talk_until("nothing is handed out until seqline restore finalize").await;
    assert_eq!(get(&address, "/readyz").await.0, 503);
    let oldest = async || {
        let oldest = sqlx::query_scalar("SELECT seqline.min_retained()").fetch_one(&db.admin()).await;
        oldest.unwrap_or(0_i64)
    };
    assert_eq!(oldest().await, 1);
    let finalize = ["restore", "finalize", "--consumers", "keep", "--yes", "--reason", "test"];
    on(&db, Role::App, finalize).run().await.ok();
    eventually(DEADLINE, "the first two expire", async || oldest().await == 3).await;
    eventually(DEADLINE, "it is ready", async || get(&address, "/readyz").await.0 == 200).await;
    // The same again, under one that is at work.
    as_admin(&db, "UPDATE seqline.log_identity SET timeline = timeline + 1").await;
    up.running.talk_until("nothing is handed out until seqline restore finalize").await;
    eventually(DEADLINE, "it is not ready", async || get(&address, "/readyz").await.0 == 503).await;
    on(&db, Role::App, finalize).run().await.ok();
    eventually(DEADLINE, "it is ready again", async || get(&address, "/readyz").await.0 == 200).await;
    up.running.signal(Signal::SIGTERM);
    assert_eq!(up.running.end().await.code(), Some(0));
}

#[tokio::test]
async fn what_it_could_not_maintain_is_said_and_done_when_it_can() {
    const HIDE: &str = "ALTER TABLE seqline.settings RENAME TO hidden_settings;
         ALTER TABLE seqline.idempotency_keys RENAME TO hidden_keys;
         ALTER TABLE seqline.stream_consumers RENAME TO hidden_consumers";
    const OLD: &str = "INSERT INTO seqline.hidden_keys (principal_id, key, fingerprint, created_at)
         VALUES ('robin', 'once', sha256('x'), now() - interval '25 hours')";
    const SHOW: &str = "ALTER TABLE seqline.hidden_settings RENAME TO settings;
         ALTER TABLE seqline.hidden_keys RENAME TO idempotency_keys;
         ALTER TABLE seqline.hidden_consumers RENAME TO stream_consumers";
    let db = server_db().await;
    let place = Place::new();
    let up = place.up().args(["--set", "sync.partition_maintenance_interval=1s"]);
    let mut up = place.start(up.args(["--database-url", &db.url(Role::Admin)])).await;
    as_admin(&db, HIDE).await;
    up.running.talk_until("partition maintenance failed").await;
    up.running.talk_until("idempotency keys were not forgotten").await;
    up.running.talk_until("events that were handled long ago were not forgotten").await;
    as_admin(&db, OLD).await;
    as_admin(&db, SHOW).await;
    let keys = async || {
        let keys = sqlx::query_scalar("SELECT count(*) FROM seqline.idempotency_keys");
        keys.fetch_one(&db.admin()).await.unwrap_or(1_i64)
    };
    eventually(DEADLINE, "an old key is forgotten", async || keys().await == 0).await;
    up.running.signal(Signal::SIGTERM);
    assert_eq!(up.running.end().await.code(), Some(0));
}
