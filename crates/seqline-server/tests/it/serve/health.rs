//! `/livez` and `/readyz` of a server that runs.

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use seqline_testkit::{FaultProxy, Role, TestDb, TestServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    DEADLINE, Seqline, Sessions, append, as_admin, closed_port, on, run_sql, server_db, with_jobs,
};
use crate::worker::{Worker, get, server, worker};

/// A server that looks and gives up often.
fn quick(server: Seqline) -> Seqline {
    server
        .env("SEQLINE_OPS__LOOK_INTERVAL", "100ms")
        .env("SEQLINE_OPS__READY_LAG_MAX", "1500ms")
        .env("SEQLINE_SYNC__LOG_POLL_INTERVAL", "100ms")
        .env("SEQLINE_DATABASE__LISTEN_RECONNECT_BACKOFF_CAP", "2s")
        .env("SEQLINE_CONSUMER__POLL_INTERVAL", "100ms")
}

/// A database behind a proxy, and the URL that leads through it.
async fn proxied(db: &TestDb) -> (FaultProxy, String) {
    let port = db.options(Role::App).get_port();
    let proxy = FaultProxy::start(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    let at = |port: u16| format!("@127.0.0.1:{port}/");
    let url = db.url(Role::App).replace(&at(port), &at(proxy.addr().port()));
    (proxy, url)
}

#[tokio::test]
async fn it_is_ready_in_every_role_and_says_which_it_has() {
    let db = server_db().await;
    for role in ["api", "worker", "all", "relay"] {
        let serve = match role {
            // Its broker is away, which makes it no less ready.
            "relay" => server(&db, role).env("SEQLINE_NATS_URL", format!("127.0.0.1:{}", closed_port())),
            _ => server(&db, role),
        };
        let server = Worker::start(serve).await;
        server.becomes(&[]).await;
        let (status, live) = server.get("/livez").await;
        assert_eq!(status, 200);
        assert!(live.contains(&format!("\"role\":\"{role}\"")) && live.contains("\"alive\":true"), "{live}");
        let tail = server.get("/readyz").await.1.contains("\"check\":\"tail\"");
        assert_eq!(tail, ["api", "all"].contains(&role));
        assert_eq!(server.get("/").await.0, 404);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_database_that_hangs_is_noticed_and_so_is_its_return_and_nothing_waits_for_it() {
    let db = server_db().await;
    let (proxy, url) = proxied(&db).await;
    let server = Worker::start(quick(server(&db, "all")).args(["--database-url", &url])).await;
    server.becomes(&[]).await;
    proxy.black_hole();
    server.becomes(&["database"]).await;
    assert_eq!(server.get("/livez").await.0, 200);
    assert_eq!(server.figure("seqline_db_up").await, Some(0.0));
    proxy.heal();
    proxy.cut();
    server.becomes(&[]).await;
    append(&db.app(), [1]).await;
    server.records([1]).await;
    server.stop().await;
}

#[tokio::test]
async fn it_is_not_ready_while_its_tail_is_stuck_although_the_database_answers() {
    let db = server_db().await;
    let server = Worker::start(quick(server(&db, "api"))).await;
    server.becomes(&[]).await;
    append(&db.app(), [1]).await;
    server.shows("seqline_tail_lag", 0.0).await;
    stop_reads(&db).await;
    append(&db.app(), [2]).await;
    server.becomes(&["tail"]).await;
    allow_reads(&db).await;
    server.becomes(&[]).await;
    server.stop().await;
}

/// Nobody may read events of the log; its head is asked of a function of the owner.
async fn stop_reads(db: &TestDb) {
    as_admin(db, "REVOKE SELECT ON seqline.event_log FROM seqline_app, seqline_reader").await;
}

async fn allow_reads(db: &TestDb) {
    as_admin(db, "GRANT SELECT ON seqline.event_log TO seqline_app, seqline_reader").await;
}

#[tokio::test]
async fn a_server_of_postgres_that_takes_no_writes_is_not_ready() {
    let postgres = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    let server = Worker::start(quick(worker(&db))).await;
    server.becomes(&[]).await;
    let role = format!("ALTER ROLE {} IN DATABASE \"{}\"", Role::App.login(), db.name());
    as_admin(&db, &format!("{role} SET default_transaction_read_only = on")).await;
    Sessions::of(&db, Role::App).terminate().await;
    server.becomes(&["database"]).await;
    // Sessions that are there keep what they had, so only new ones can find out.
    as_admin(&db, &format!("{role} RESET ALL")).await;
    server.becomes(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn while_it_stops_it_answers_that_it_is_not_ready() {
    let db = server_db().await;
    let held = worker(&db)
        .env("SEQLINE_DATABASE__LOCK_TIMEOUT", "10min")
        .env("SEQLINE_DATABASE__STATEMENT_TIMEOUT", "15min");
    let worker = Worker::start(held).await;
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.event_consumer_cursors IN SHARE MODE").await;
    append(&db.app(), [1]).await;
    worker.records([1]).await;
    worker.running.signal(Signal::SIGTERM);
    worker.says("server stopping").await;
    worker.becomes(&["started"]).await;
    assert_eq!(worker.get("/livez").await.0, 200);
    run_sql(&mut holder, "COMMIT").await;
    let (outcome, _) = worker.end().await;
    assert_eq!(outcome.code(), Some(0));
}

/// Neither silent clients nor a full house delay the end.
#[tokio::test]
async fn clients_that_say_nothing_do_not_keep_it_from_stopping() {
    let db = server_db().await;
    let bounded =
        worker(&db).env("SEQLINE_OPS__MAX_CONNECTIONS", "1").env("SEQLINE_OPS__REQUEST_TIMEOUT", "60s");
    let worker = Worker::start(bounded).await;
    let address = worker.ops().await;
    let _first = TcpStream::connect(&address).await.unwrap();
    let mut second = TcpStream::connect(&address).await.unwrap();
    second.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let log = worker.stop().await;
    assert!(!log.iter().any(|line| line["message"] == "component did not stop in time and was dropped"));
    let mut answer = Vec::new();
    let _ = second.read_to_end(&mut answer).await;
    assert_eq!(answer, b"", "the first has the only place");
}

#[tokio::test]
async fn clients_that_say_nothing_or_too_much_keep_nobody_out() {
    let db = server_db().await;
    let bounded =
        worker(&db).env("SEQLINE_OPS__MAX_CONNECTIONS", "2").env("SEQLINE_OPS__REQUEST_TIMEOUT", "300ms");
    let worker = Worker::start(bounded).await;
    let address = worker.ops().await;
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    // They are given up one after the other, and then it is this one's turn.
    assert_eq!(get(&address, "/livez").await.0, 200);
    let mut talker = TcpStream::connect(&address).await.unwrap();
    let endless = async {
        let _ = talker.write_all(b"GET /livez HTTP/1.1\r\nX: ").await;
        while talker.write_all(&[b'x'; 4096]).await.is_ok() {}
        let mut answer = Vec::new();
        let _ = talker.read_to_end(&mut answer).await;
    };
    tokio::time::timeout(DEADLINE, endless).await.expect("it is cut off");
    assert_eq!(get(&address, "/livez").await.0, 200);
    // One that would like to ask again later has to come again.
    let mut patient = TcpStream::connect(&address).await.unwrap();
    patient.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let read = patient.read_to_string(&mut answer);
    tokio::time::timeout(DEADLINE, read).await.expect("the connection ends").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    worker.stop().await;
}

#[tokio::test]
async fn a_role_that_may_not_work_is_refused_before_anything_is_answered() {
    let db = server_db().await;
    let refused = on(&db, Role::Reader, ["serve", "--role", "all"]).refused(4).await;
    assert!(refused.contains("seqline_app"), "{refused}");
}
