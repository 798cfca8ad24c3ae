//! What is told of events that a crash of the server can still take back: nothing, until it cannot.

use std::time::Duration;

use seqline_testkit::{Role, TestDb, TestServer, eventually};

use crate::api::{APPEND, Client, another_token, token};
use crate::support::{DEADLINE, Sessions, WAITS_TO_NUMBER, append, as_admin, numbers, on, run_sql};
use crate::worker::{Worker, server};

/// A server whose commits wait for a standby that is away, as soon as it is told so.
struct Replicated {
    _server: TestServer,
    db: TestDb,
}

impl Replicated {
    async fn new() -> Self {
        let server = TestServer::durable().await;
        let db = TestDb::on(&server).await;
        Self { _server: server, db }
    }

    /// From now on commits wait. The server takes a moment to go by a setting that it shows already.
    async fn standby_is_away(&self) {
        self.standbys("away").await;
        let admin = self.db.admin();
        let commits = tokio::spawn(async move {
            let commit = "SELECT pg_logical_emit_message(true, 'test', '')";
            while sqlx::raw_sql(commit).execute(&admin).await.is_ok() {}
        });
        self.waits(Role::Admin).await;
        as_admin(
            &self.db,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
        )
        .await;
        commits.await.expect("it was told");
    }

    async fn standby_is_needed_no_more(&self) {
        self.standbys("").await;
    }

    async fn standbys(&self, names: &str) {
        as_admin(&self.db, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await;
        as_admin(&self.db, "SELECT pg_reload_conf()").await;
        eventually(DEADLINE, "the server has read it", async || {
            let shown = sqlx::query_scalar("SELECT current_setting('synchronous_standby_names')");
            shown
                .fetch_one(&mut self.db.connect(Role::Admin).await)
                .await
                .is_ok_and(|shown: String| shown == names)
        })
        .await;
    }

    /// Waits until the program waits for the standby.
    async fn waits(&self, role: Role) {
        Sessions::of(&self.db, role).reach(1, WAITS_FOR_THE_STANDBY).await;
    }
}

const WAITS_FOR_THE_STANDBY: &str = "wait_event = 'SyncRep'";

#[tokio::test]
async fn tail_prints_nothing_that_a_standby_has_not_and_says_for_what_it_waits() {
    let replicated = Replicated::new().await;
    append(&replicated.db.producer(), 1..=2).await;
    replicated.standby_is_away().await;
    let mut tail = on(&replicated.db, Role::Reader, ["tail"]).start();
    replicated.waits(Role::Reader).await;
    let said = tail.talk_until("\n").await;
    assert_eq!(
        said,
        "seqline: waiting until the events are durable: the server or a synchronous standby of it has not confirmed them\n"
    );
    replicated.standby_is_needed_no_more().await;
    let outcome = tail.end().await;
    assert_eq!((outcome.code(), outcome.stdout.lines().count()), (Some(0), 2), "{outcome:?}");
}

#[tokio::test]
async fn tail_that_follows_prints_nothing_that_a_standby_has_not() {
    let replicated = Replicated::new().await;
    append(&replicated.db.producer(), [1]).await;
    let mut tail = on(&replicated.db, Role::Reader, ["tail", "--follow", "--poll-interval", "20ms"]).start();
    assert!(tail.line().await.starts_with("1 "));
    replicated.standby_is_away().await;
    let db = &replicated.db;
    let appended = async { append(&db.producer(), [2]).await };
    let printed = async {
        // It is in the log, where everybody may see it, and is not told.
        eventually(DEADLINE, "it is visible", async || numbers(db).await == [1, 2]).await;
        replicated.waits(Role::Reader).await;
        replicated.standby_is_needed_no_more().await;
        assert!(tail.line().await.starts_with("2 "));
    };
    tokio::join!(appended, printed);
}

#[tokio::test]
async fn an_append_that_is_committed_and_not_known_to_be_durable_can_be_asked_for_again() {
    const ID: &str = "0190b1a0-0000-7000-8000-000000000017";
    let replicated = Replicated::new().await;
    let db = &replicated.db;
    replicated.standby_is_away().await;
    let append = || on(db, Role::Producer, ["append", "a.b", "--resource-kind", "x", "--id", ID]);
    let running = append().start();
    replicated.waits(Role::Producer).await;
    Sessions::of(db, Role::Producer).terminate().await;
    let sentence = running.end().await.sentence(3);
    assert!(
        sentence.starts_with("committed, but the connection was lost before that was durable"),
        "{sentence}"
    );
    assert!(
        sentence.ends_with(&format!("run the same command with --id {ID}: it cannot append twice")),
        "{sentence}"
    );
    replicated.standby_is_needed_no_more().await;
    assert_eq!(append().refused(4).await, format!("event id {ID} is already in the log"));
}

#[tokio::test]
async fn an_import_counts_lines_when_they_are_durable_and_doubles_none() {
    let replicated = Replicated::new().await;
    let db = &replicated.db;
    as_admin(db, "UPDATE seqline.settings SET numbering_lock_timeout_ms = 600000").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.ndjson");
    std::fs::write(&file, "{\"n\": 1}\n{\"n\": 2}\n{\"n\": 3}\n").unwrap();
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE").await;
    let import =
        on(db, Role::App, ["import", "--type", "test.happened", "--resource-kind", "test"]).arg(&file);
    let mut running = import.start();
    let sessions = Sessions::of(db, Role::App);
    sessions.reach(1, WAITS_TO_NUMBER).await;
    replicated.standby_is_away().await;
    run_sql(&mut holder, "ROLLBACK").await;
    replicated.waits(Role::App).await;
    sessions.terminate().await;
    // It has found that the lines are done, and waits until they are durable.
    replicated.waits(Role::App).await;
    assert!(!running.has_ended());
    replicated.standby_is_needed_no_more().await;
    assert_eq!(running.end().await.ok(), "3 imported, 0 rejected\n");
    assert_eq!(numbers(db).await, [1, 2, 3]);
}

#[tokio::test]
async fn those_who_ask_the_api_for_an_event_that_a_standby_has_not_leave_connections_to_the_others() {
    let replicated = Replicated::new().await;
    let db = &replicated.db;
    let token = token(db, "shop", APPEND).await;
    let other = another_token(db, "shop").await;
    let serving = Worker::start(server(db, "api").args(["--set", "database.max_connections=5"])).await;
    let address = serving.api().await;
    let client = Client::new(&address).token(&token);
    append(&db.producer(), [1]).await;
    let head = client.get("/v1/log").await.ok(200)["head"].clone();
    replicated.standby_is_away().await;
    let appended = async { append(&db.producer(), [2]).await };
    let asked = async {
        eventually(DEADLINE, "it is visible", async || numbers(db).await == [1, 2]).await;
        let events = seqline::read::events_after(&mut db.connect(Role::Admin).await, 1, 10).await.unwrap();
        let path = format!("/v1/events/{}", events[0].id);
        let asking: Vec<_> = (0..20)
            .map(|_| {
                let (client, path) = (client.clone(), path.clone());
                tokio::spawn(async move { client.get(&path).await })
            })
            .collect();
        replicated.waits(Role::App).await;
        // One for whom the database has to be asked, and the log, which ends where nothing can be taken back.
        let others = async {
            Client::new(&address).token(&other).get("/v1/me").await.ok(200);
            assert_eq!(client.get("/v1/log").await.ok(200)["head"], head);
        };
        tokio::time::timeout(Duration::from_secs(20), others).await.expect("others are answered");
        assert!(asking.iter().all(|asked| !asked.is_finished()), "nobody gets it");
        replicated.standby_is_needed_no_more().await;
        for asked in asking {
            assert_eq!(asked.await.unwrap().ok(200)["seq"], 2);
        }
    };
    tokio::join!(appended, asked);
    serving.stop().await;
}
