//! A server that is started before its database is there.

use seqline_testkit::{Role, TestDb, TestServer, eventually};

use crate::support::{DEADLINE, append, as_admin, run_sql, seqline, server_db, with_jobs};
use crate::worker::{Worker, messages, server, worker};

#[tokio::test]
async fn it_waits_for_its_database_and_says_so_once() {
    let mut postgres = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    let command = server(&db, "all").env("SEQLINE_OPS__LOOK_INTERVAL", "100ms");
    postgres.stop().await;
    let server = Worker::begin(command);
    server.says("database is away, waiting for it").await;
    server.becomes(&["started", "database"]).await;
    assert_eq!(server.get("/livez").await.0, 200);
    assert_eq!(server.figure("seqline_db_up").await, Some(0.0));
    postgres.start_again().await;
    append(&db.pool(Role::App, 1), [1]).await;
    server.records([1]).await;
    server.becomes(&[]).await;
    let log = server.stop().await;
    let messages = messages(&log);
    let beginning = [
        "server listening",
        "api listening",
        "database is away, waiting for it",
        "database is there",
        "server started",
    ];
    assert_eq!(messages[..5], beginning, "{messages:#?}");
}

#[tokio::test]
async fn what_time_does_not_mend_ends_it_also_while_it_waits() {
    let mut postgres = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    let command = worker(&db);
    as_admin(&db, "INSERT INTO seqline.schema_version (version, name, checksum) VALUES (999, 'later', '')")
        .await;
    postgres.stop().await;
    let server = Worker::begin(command);
    server.says("database is away, waiting for it").await;
    postgres.start_again().await;
    let (outcome, log) = server.end().await;
    assert_eq!(outcome.code(), Some(4), "{outcome:?} {log:#?}");
    let error = log.iter().find(|line| line["message"] == "server cannot start").unwrap();
    assert!(error["error"].as_str().unwrap().contains("use a newer program"), "{error}");
}

#[tokio::test]
async fn an_address_that_somebody_else_has_is_named_with_its_key() {
    let db = server_db().await;
    let taken = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for key in ["ops.listen", "api.listen"] {
        let sentence = server(&db, "all").args(["--set", &format!("{key}={address}")]).refused(3).await;
        assert!(sentence.starts_with(&format!("cannot listen on {address}: ")), "{sentence}");
        assert!(sentence.ends_with(&format!("choose another address with {key}")), "{sentence}");
    }
}

#[tokio::test]
async fn without_an_answer_a_health_check_says_who_does_not_answer() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let check = seqline(["healthcheck", "--address", &address, "--timeout", "100ms"]);
    assert_eq!(check.refused(3).await, format!("the server at {address} does not answer in time"));
    drop(silent);
    let refused = seqline(["healthcheck", "--address", &address]).refused(3).await;
    assert!(refused.starts_with(&format!("no server answers at {address}: ")), "{refused}");
    let any = seqline(["healthcheck"]).refused(2).await;
    assert!(any.starts_with("ops.listen takes a free port"), "{any}");
}

#[tokio::test]
async fn a_health_check_prints_what_the_server_says() {
    let db = server_db().await;
    let (mut admin, mut db_admin) = (db.connect(Role::Admin).await, db.connect(Role::Admin).await);
    let worker = Worker::start(worker(&db)).await;
    let address = worker.ops().await;
    // Its consumers have begun.
    append(&db.app(), [1]).await;
    worker.records([1]).await;
    worker.becomes(&[]).await;
    for (option, answer) in [("--live", "\"alive\":true"), ("--timeout=9s", "\"ready\":true")] {
        let said = seqline(["healthcheck", "--address", &address, option]).ok().await;
        assert!(said.contains(answer) && said.contains("\"role\":\"worker\""), "{said}");
    }
    let mut allow_connections = async |allow: bool| {
        let sql = format!("UPDATE pg_database SET datallowconn = {allow} WHERE datname = current_database()");
        run_sql(&mut admin, &sql).await;
    };
    // The configuration names the address as well.
    let key = format!("ops.listen={address}");
    seqline(["healthcheck", "--set", &key]).ok().await;
    allow_connections(false).await;
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND usename = 'seqline_test_app'";
    run_sql(&mut db_admin, terminate).await;
    eventually(DEADLINE, "it is not ready", async || {
        let outcome = seqline(["healthcheck", "--address", &address]).run().await;
        outcome.code() == Some(3) && outcome.stdout.contains("the database does not answer")
    })
    .await;
    allow_connections(true).await;
    worker.stop().await;
}
