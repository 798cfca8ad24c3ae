//! Finding the database, and each way in which that fails.

use std::net::SocketAddr;

use seqline_testkit::{FaultProxy, Role, TestDb};
use serde_json::Value;

use crate::support::{as_admin, closed_port, on, seqline};

/// A command line of every command that needs a database.
const COMMANDS: [&str; 7] = [
    "migrate",
    "append order.created --resource-kind order",
    "import /dev/null --type order.created --resource-kind order",
    "tail",
    "status",
    "partitions",
    "serve --role worker",
];

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace()
}

#[tokio::test]
async fn without_a_database_every_command_says_how_to_name_one() {
    for line in COMMANDS {
        assert_eq!(
            seqline(words(line)).refused(2).await,
            "no database: give --database-url, or set SEQLINE_DATABASE_URL or DATABASE_URL (seqline up starts one)",
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_url_that_is_not_valid_is_refused_and_not_repeated() {
    for url in [
        "mysql://alex:hunter2@example.com/db",
        "postgres://alex:hunter2@localhost:port/db",
        "postgres://alex:hunter2@localhost/db?sslmode=hunter2",
        "host=localhost password=hunter2",
        "postgres:alex:hunter2",
    ] {
        for line in COMMANDS.into_iter().chain(["up"]) {
            let sentence = seqline(words(line)).args(["--database-url", url]).refused(2).await;
            assert_eq!(
                sentence,
                "the database URL is not valid: expected postgres://user:password@host:port/database",
                "{line} on {url}"
            );
        }
    }
}

#[tokio::test]
async fn a_listen_url_that_is_not_valid_is_refused_and_not_repeated() {
    let db = TestDb::new().await;
    let sentence = on(&db, Role::App, ["tail", "--listen-url", "mysql://hunter2"]).refused(2).await;
    assert!(sentence.contains("URL is not valid") && !sentence.contains("hunter2"), "{sentence}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let port = closed_port();
    // A server waits for its database.
    for line in COMMANDS.into_iter().filter(|line| !line.starts_with("serve")).chain(["up"]) {
        let url = format!("postgres://alex:hunter2@127.0.0.1:{port}/db");
        let sentence = seqline(words(line)).env("DATABASE_URL", url).refused(3).await;
        let start = format!("no PostgreSQL server answers at 127.0.0.1:{port}: ");
        assert!(sentence.starts_with(&start) && !sentence.contains("hunter2"), "{line}: {sentence}");
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_given_up() {
    let db = TestDb::new().await;
    let proxy = proxy(&db).await;
    proxy.black_hole();
    let sentence = seqline(["status", "--database-url", &url_through(&db, &proxy)]).refused(3).await;
    assert_eq!(sentence, format!("{} does not answer", proxy.addr()));
}

async fn proxy(db: &TestDb) -> FaultProxy {
    let server = SocketAddr::from(([127, 0, 0, 1], db.options(Role::App).get_port()));
    FaultProxy::start(server).await.unwrap()
}

fn url_through(db: &TestDb, proxy: &FaultProxy) -> String {
    let port = |port: u16| format!("@127.0.0.1:{port}/");
    db.url(Role::App).replace(&port(db.options(Role::App).get_port()), &port(proxy.addr().port()))
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_repeated() {
    let db = TestDb::new().await;
    let (start, rest) = db.url(Role::App).split_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let user_only = start.rsplit_once(':').unwrap().0;
    let url = format!("{user_only}:hunter2@{rest}");
    for line in COMMANDS {
        let sentence = seqline(words(line)).args(["--database-url", &url]).refused(4).await;
        assert!(sentence.contains("refused the login of role seqline_test_app: "), "{line}: {sentence}");
        assert!(!sentence.contains("hunter2"), "{line}: {sentence}");
    }
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_named() {
    let db = TestDb::new().await;
    let url = db.url(Role::App).replace(db.name(), "no_such_database");
    for line in COMMANDS {
        let sentence = seqline(words(line)).args(["--database-url", &url]).refused(4).await;
        let named = sentence.contains("has no such database: database \"no_such_database\" does not exist");
        assert!(named, "{line}: {sentence}");
    }
}

#[tokio::test]
async fn a_role_without_rights_is_told_what_it_needs() {
    let db = TestDb::new().await;
    for line in COMMANDS {
        let sentence = on(&db, Role::Nobody, words(line)).refused(4).await;
        assert!(sentence.contains("permission denied"), "{line}: {sentence}");
        let roles = match words(line).next() {
            Some("append") => "seqline_producer or seqline_app",
            Some("tail") => "seqline_reader or seqline_app",
            _ => "seqline_app",
        };
        assert!(sentence.ends_with(&format!(": grant this role {roles}")), "{line}: {sentence}");
    }
}

#[tokio::test]
async fn a_role_that_may_not_create_the_schema_gets_the_sql_for_one_that_may() {
    let db = TestDb::empty().await;
    // A role of its own: what it is granted holds on the whole server.
    as_admin(&db, "CREATE ROLE robin LOGIN PASSWORD 'hunter2'").await;
    let (_, place) = db.url(Role::Nobody).split_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let url = format!("postgres://robin:hunter2@{place}");
    let outcome = seqline(["migrate", "--database-url", &url]).run().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(4), ""), "{outcome:?}");
    let (sentence, sql) = outcome.stderr.split_once("\n\n").unwrap();
    assert_eq!(
        sentence,
        format!(
            "seqline: role robin may not create Seqline's roles and schema in database {}. \
             Ask somebody who may to run this, then migrate again:",
            db.name()
        )
    );
    as_admin(&db, sql).await;
    let migrated = seqline(["migrate", "--database-url", &url]).ok().await;
    assert!(migrated.starts_with("schema created"), "{migrated}");
}

#[tokio::test]
async fn a_database_without_the_schema_is_told_from_one_that_is_out_of_reach() {
    let db = TestDb::empty().await;
    for line in COMMANDS.into_iter().filter(|line| *line != "migrate") {
        assert_eq!(
            on(&db, Role::App, words(line)).refused(4).await,
            "this database has no Seqline schema, or an older one: run seqline migrate",
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_worker_is_not_started_on_an_older_schema() {
    let db = TestDb::new().await;
    as_admin(&db, "DELETE FROM seqline.schema_version WHERE version = (SELECT max(version) FROM seqline.schema_version)")
        .await;
    let known = seqline::migrate::newest_version();
    assert_eq!(
        on(&db, Role::App, ["serve", "--role", "worker"]).refused(4).await,
        format!("the schema has version {}, this program needs {known}: run seqline migrate", known - 1)
    );
}

#[tokio::test]
async fn variables_that_are_empty_are_not_set_and_a_wrong_url_is_named() {
    let db = TestDb::new().await;
    for line in ["serve --role worker", "tail --follow"] {
        let refused = on(&db, Role::App, words(line)).env("SEQLINE_LISTEN_URL", "nonsense").refused(2).await;
        assert_eq!(
            refused,
            "the URL of --listen-url or SEQLINE_LISTEN_URL is not valid: expected postgres://user:password@host:port/database"
        );
    }
    let empty = TestDb::empty().await;
    let refused = on(&empty, Role::App, ["serve", "--role", "worker"])
        .env("SEQLINE_CONFIG", "")
        .env("SEQLINE_LISTEN_URL", "")
        .env("SEQLINE_LOG", "")
        .refused(4)
        .await;
    assert!(refused.starts_with("this database has no Seqline schema"), "only that is wrong: {refused}");
    for filter in ["inof", "===", "info,wran"] {
        let refused =
            on(&db, Role::App, words("serve --role worker")).env("SEQLINE_LOG", filter).refused(2).await;
        assert_eq!(refused, "SEQLINE_LOG is not a filter such as info, debug or seqline=debug");
    }
}

#[tokio::test]
async fn a_schema_of_a_newer_program_is_left_alone() {
    let db = TestDb::new().await;
    as_admin(&db, "INSERT INTO seqline.schema_version (version, name, checksum) VALUES (999, 'later', '')")
        .await;
    let known = seqline::migrate::newest_version();
    let refused = format!("the schema has version 999, this program knows {known}: use a newer program");
    assert_eq!(on(&db, Role::Admin, ["migrate"]).refused(4).await, refused);
    for line in COMMANDS {
        assert_eq!(on(&db, Role::App, words(line)).refused(4).await, refused, "{line}");
    }
    // A role that may not look up the version goes on: what it may use has kept its meaning.
    let append = ["append", "order.created", "--resource-kind", "order"];
    on(&db, Role::Producer, append).ok().await;
}

/// The id of the log that `status` finds with these arguments and variables.
async fn log_found(url: Option<&str>, variables: &[(&str, &str)]) -> String {
    let mut command = seqline(["status", "--json"]);
    if let Some(url) = url {
        command = command.args(["--database-url", url]);
    }
    for (name, value) in variables {
        command = command.env(name, value);
    }
    let status: Value = serde_json::from_str(&command.ok().await).unwrap();
    status["log_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_option_comes_before_the_own_variable_and_that_before_the_common_one() {
    let (a, b, c) = (TestDb::new().await, TestDb::new().await, TestDb::new().await);
    let [a, b, c] = [&a, &b, &c].map(|db| db.url(Role::App));
    let own = log_found(Some(&a), &[]).await;
    let (second, third) = (log_found(Some(&b), &[]).await, log_found(Some(&c), &[]).await);
    let both = [("SEQLINE_DATABASE_URL", b.as_str()), ("DATABASE_URL", c.as_str())];
    assert_eq!(log_found(Some(&a), &both).await, own);
    assert_eq!(log_found(None, &both).await, second);
    assert_eq!(log_found(None, &both[1..]).await, third);
}

#[tokio::test]
async fn an_empty_variable_counts_as_not_set() {
    let db = TestDb::new().await;
    let url = db.url(Role::App);
    let expected = log_found(Some(&url), &[]).await;
    assert_eq!(log_found(None, &[("SEQLINE_DATABASE_URL", ""), ("DATABASE_URL", &url)]).await, expected);
}
