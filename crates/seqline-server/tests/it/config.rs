//! What a server process says about its configuration before it does anything.

use std::path::PathBuf;

use seqline_testkit::{Role, TestDb};
use tempfile::TempDir;

use crate::support::{Seqline, on, seqline};

/// A folder with a file of settings.
struct Settings(TempDir);

impl Settings {
    fn new(text: impl AsRef<[u8]>) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        std::fs::write(folder.path().join("seqline.toml"), text).expect("a file can be written");
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("seqline.toml")
    }

    /// A worker that reads them, by a short name and without a database.
    fn worker(&self) -> Seqline {
        worker().args(["--config", "seqline.toml"]).current_dir(self.0.path())
    }
}

/// A worker without a database: it looks for one after it has read its configuration.
fn worker() -> Seqline {
    seqline(["serve", "--role", "worker"])
}

const NO_DATABASE: &str =
    "no database: give --database-url, or set SEQLINE_DATABASE_URL or DATABASE_URL (seqline up starts one)";

/// What is wrong, line by line.
async fn problems(worker: Seqline) -> Vec<String> {
    let outcome = worker.run().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(2), ""), "{outcome:?}");
    let mut lines = outcome.stderr.lines();
    assert_eq!(lines.next(), Some("seqline: the configuration is not valid"), "{outcome:?}");
    lines.map(|line| line.strip_prefix("  ").expect("problems are indented").to_owned()).collect()
}

#[tokio::test]
async fn nothing_has_to_be_configured() {
    assert_eq!(worker().refused(2).await, NO_DATABASE);
}

#[tokio::test]
async fn everything_that_is_wrong_is_told_at_once_and_no_value_is_repeated() {
    let settings = Settings::new(
        "[consumer]\n\
         batch_size = 987654321\n\
         poll_interval = 987654321\n\
         batch_sise = 987654321\n\
         \n\
         [smtp]\n\
         password = \"987654321\"\n",
    );
    let worker = settings
        .worker()
        .env("SEQLINE_SYNC__DETACH_ATTEMPTS", "987654321")
        .env("SEQLINE_SYNC__EVENT_RETENTIONS", "987654321")
        .env("SEQLINE_CONSUMER__PENDING_ALERT_AFTER", "50d");
    let mut found = problems(worker).await;
    // Variables have no order.
    found[4..].sort();
    assert_eq!(
        found,
        [
            "seqline.toml line 2: consumer.batch_size: expected a whole number from 1 to 10000",
            "seqline.toml line 3: consumer.poll_interval: expected a duration with its unit, such as \"1s\", from 10ms to 1h",
            "seqline.toml line 4: unknown key consumer.batch_sise, did you mean consumer.batch_size?",
            "seqline.toml line 6: unknown section smtp",
            "SEQLINE_SYNC__DETACH_ATTEMPTS: sync.detach_attempts: expected a whole number from 1 to 100",
            "SEQLINE_SYNC__EVENT_RETENTIONS: unknown key, did you mean SEQLINE_SYNC__EVENT_RETENTION?",
            "consumer.pending_alert_after has to be less than sync.event_retention (check consumer_alert_below_retention)",
        ]
    );
    assert!(!found.concat().contains("987654321"));
}

#[tokio::test]
async fn the_file_is_named_by_the_option_or_the_variable_and_the_option_comes_first() {
    let (wrong, right) = (Settings::new("[x]"), Settings::new("[consumer]\nbatch_size = 7"));
    let unknown = format!("{} line 1: unknown section x", wrong.path().display());
    let variable = |settings: &Settings| worker().env("SEQLINE_CONFIG", settings.path());
    for worker in [variable(&wrong), variable(&right).arg("--config").arg(wrong.path())] {
        assert_eq!(problems(worker).await.concat(), unknown);
    }
    assert_eq!(variable(&wrong).arg("--config").arg(right.path()).refused(2).await, NO_DATABASE);
}

#[tokio::test]
async fn a_variable_comes_before_the_file() {
    // Whether the check holds tells which value counts.
    let settings = Settings::new("[consumer]\npending_alert_after = \"31d\"");
    let check = "consumer.pending_alert_after has to be less than sync.event_retention (check consumer_alert_below_retention)";
    assert_eq!(problems(settings.worker()).await, [check]);
    let variable = "SEQLINE_CONSUMER__PENDING_ALERT_AFTER";
    assert_eq!(settings.worker().env(variable, "29d").refused(2).await, NO_DATABASE);
    assert_eq!(problems(settings.worker().env(variable, "30d")).await, [check]);
    assert_eq!(problems(settings.worker().env(variable, "")).await, [check]);
}

#[tokio::test]
async fn an_alert_has_to_come_before_events_are_lost() {
    for of_whom in ["consumer", "agent"] {
        let key = format!("SEQLINE_{}__PENDING_ALERT_AFTER", of_whom.to_uppercase());
        let with = |alert: &str, retention: &str| {
            worker().env(&key, alert).env("SEQLINE_SYNC__EVENT_RETENTION", retention)
        };
        assert_eq!(with("2h", "3h").refused(2).await, NO_DATABASE);
        for (alert, retention) in [("3h", "3h"), ("180min", "3h"), ("4h", "3h")] {
            let found = problems(with(alert, retention)).await;
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].ends_with(&format!("(check {of_whom}_alert_below_retention)")), "{found:?}");
            assert!(!found[0].contains(|c: char| c.is_ascii_digit()), "{found:?}");
        }
    }
}

#[tokio::test]
async fn what_is_not_toml_is_placed_and_not_repeated() {
    let settings = Settings::new("[consumer]\nbatch_size = 7\npassword: hunter2\n");
    assert_eq!(
        problems(settings.worker()).await,
        ["seqline.toml line 3: this is not TOML, or it is there a second time"]
    );
    let settings = Settings::new(b"\n\xff");
    assert_eq!(
        problems(settings.worker()).await,
        ["seqline.toml line 2: this is not TOML, or it is there a second time"]
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_named() {
    let settings = Settings::new("");
    let missing = worker().args(["--config", "missing.toml"]).current_dir(settings.0.path());
    let sentence = missing.refused(3).await;
    assert!(sentence.starts_with("cannot read missing.toml: "), "{sentence}");
    let folder = worker().arg("--config").arg(settings.0.path()).refused(3).await;
    assert!(folder.starts_with("cannot read /"), "{folder}");
    let endless = worker().args(["--config", "/dev/zero"]).refused(2).await;
    assert_eq!(endless, "/dev/zero has more than 1048576 bytes: this is not a file with settings");
}

#[tokio::test]
async fn commands_that_take_no_settings_do_not_care() {
    let db = TestDb::new().await;
    on(&db, Role::App, ["partitions"])
        .env("SEQLINE_X__Y", "z")
        .env("SEQLINE_CONFIG", "missing.toml")
        .ok()
        .await;
}

#[tokio::test]
async fn commands_that_need_a_setting_refuse_a_wrong_one() {
    for command in [&["status"][..], &["migrate"], &["migrate", "--print"], &["jobs", "list"], &["up"]] {
        let wrong = seqline(command).env("SEQLINE_JOBS__SCHEMA", "pg_hunter2");
        let found = problems(wrong).await;
        assert_eq!(found.len(), 1, "{command:?}: {found:?}");
        assert!(
            found[0].starts_with("SEQLINE_JOBS__SCHEMA: jobs.schema: expected "),
            "{command:?}: {found:?}"
        );
        assert!(!found[0].contains("hunter2"), "{command:?}: {found:?}");
    }
}

#[tokio::test]
async fn what_is_set_is_shown_with_where_it_comes_from() {
    let settings = Settings::new("[ops]\nlook_interval = \"3s\"\n");
    let check = || {
        let check = seqline(["config", "check"]).current_dir(settings.0.path());
        check.without("SEQLINE_OPS__LISTEN").without("SEQLINE_API__LISTEN")
    };
    let none = check().run().await;
    assert_eq!(
        (none.stdout.as_str(), none.stderr.as_str()),
        ("", "The configuration is valid.\nNothing is set, so all defaults hold.\n")
    );
    let given = || check().args(["--config", "seqline.toml", "--set", "consumer.batch_size=7"]);
    assert_eq!(
        given().run().await.stdout,
        " key                  value  default  from\n consumer.batch_size  7      200      --set\n ops.look_interval    3s     2s       line 2 of the file\n"
    );
    let text = given().arg("--json").ok().await;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["valid"], json["settings"].as_array().map(Vec::len)),
        (&true.into(), Some(2)),
        "{text}"
    );
    assert_eq!(json["settings"][0]["key"], "consumer.batch_size");
}

#[tokio::test]
async fn keys_are_printed_for_people_for_a_file_and_for_editors() {
    let reference = seqline(["config", "reference"]).ok().await;
    assert!(
        reference.starts_with("## Keys\n") && reference.contains("| `ops.look_interval` |"),
        "{reference}"
    );
    let file = Settings::new(seqline(["config", "reference", "--toml"]).ok().await);
    assert_eq!(file.worker().refused(2).await, NO_DATABASE, "all of it is a comment");
    let schema: serde_json::Value = serde_json::from_str(&seqline(["config", "schema"]).ok().await).unwrap();
    assert!(schema["properties"]["ops"]["properties"]["look_interval"]["description"].is_string());
}
