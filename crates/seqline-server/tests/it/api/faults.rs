//! Clients that send too much, too slowly or too often, and a database that is away.

use std::time::Duration;

use seqline_testkit::eventually;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{APPEND, Client, event, event_with, proxied, serving, token};
use crate::support::{DEADLINE, numbers, server_db};
use crate::worker::{Worker, server};

/// What a raw request is answered with, to the end of the connection.
async fn raw(address: &str, parts: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    for part in parts {
        // It may have been told already that nobody wants it.
        let _ = stream.write_all(part).await;
    }
    let mut answer = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("the connection ends in time");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_its_sender_reads_why() {
    let db = server_db().await;
    let token = token(&db, "shop", APPEND).await;
    let server = Worker::start(server(&db, "api").env("SEQLINE_API__REQUEST_BYTES_MAX", "5000")).await;
    let address = server.api().await;
    let client = Client::new(&address).token(&token);
    let of = |bytes: usize| event_with(1, &json!({ "payload": { "n": 1, "text": "x".repeat(bytes) } }));
    client.post("/v1/events", &of(4000)).await.ok(201);
    for bytes in [5000, 3_000_000] {
        let problem = client.post("/v1/events", &of(bytes)).await.problem(413, "request_too_large");
        assert!(problem["detail"].as_str().unwrap().contains("5000"), "{problem}");
    }
    // One that does not say how large it is.
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let chunk = format!("fa0\r\n{}\r\n", "x".repeat(4000));
    let answer = raw(&address, &[head.as_bytes(), chunk.as_bytes(), chunk.as_bytes(), b"0\r\n\r\n"]).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(numbers(&db).await.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_says_too_little_for_too_long_loses_its_place() {
    let db = server_db().await;
    let token = token(&db, "shop", APPEND).await;
    let quick = server(&db, "api").env("SEQLINE_API__REQUEST_TIMEOUT", "500ms");
    let server = Worker::start(quick.env("SEQLINE_API__CONNECTIONS_MAX", "3")).await;
    let address = server.api().await;
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{\"type\""
    );
    // One that never ends its body is told so, one that never ends its head, or never begins, is not.
    let [body, part, none, preface] =
        [head.as_bytes(), b"GET /v1/log HT", b"", b"PRI * HTTP/2.0\r\n"].map(|sent| {
            let (address, sent) = (address.clone(), sent.to_vec());
            tokio::spawn(async move { raw(&address, &[&sent]).await })
        });
    let body = body.await.unwrap();
    assert!(body.starts_with("HTTP/1.1 408 ") && body.contains("request_timeout"), "{body}");
    for ended in [part, none, preface] {
        let ended = ended.await.unwrap();
        assert!(!ended.contains(" 200 "), "{ended}");
    }
    // All places are free again.
    Client::new(&address).token(&token).get("/v1/me").await.ok(200);
    assert_eq!(numbers(&db).await, [0; 0]);
    server.stop().await;
}

#[tokio::test]
async fn a_form_of_a_browser_is_no_json() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json5", ""]
    {
        let sent = client.clone().with("content-type", kind).post("/v1/events", &event(1)).await;
        sent.problem(415, "unsupported_media_type");
    }
    let sent =
        client.with("content-type", "application/json; charset=utf-8").post("/v1/events", &event(1)).await;
    sent.ok(201);
    server.stop().await;
}

#[tokio::test]
async fn a_principal_that_asks_too_often_slows_itself_down_and_nobody_else() {
    let db = server_db().await;
    let [shop, robin] = [token(&db, "shop", APPEND).await, token(&db, "Robin", APPEND).await];
    let limited = server(&db, "api").env("SEQLINE_API__REQUESTS_PER_SECOND", "1");
    let server = Worker::start(limited.env("SEQLINE_API__REQUESTS_BURST", "20")).await;
    let address = server.api().await;
    let [shop, robin] = [&shop, &robin].map(|token| Client::new(&address).token(token));
    robin.get("/v1/me").await.ok(200);
    let mut refused = 0;
    for _ in 0..60 {
        let answer = shop.get("/v1/me").await;
        if answer.status == 429 {
            answer.problem(429, "rate_limited");
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
        } else {
            answer.ok(200);
        }
    }
    assert!(refused >= 30, "{refused}");
    robin.get("/v1/me").await.ok(200);
    // Whoever comes back as told is let in.
    eventually(DEADLINE, "it is let in again", async || shop.get("/v1/me").await.status == 200).await;

    // Those who are nobody have one rate together, and whoever was known does not notice them.
    let unknown = seqline::access::Token::generate().reveal().to_owned();
    let nobody = Client::new(&address).token(&unknown);
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..60 {
        told.insert(nobody.get("/v1/me").await.status);
        told.insert(Client::new(&address).get("/v1/me").await.status);
    }
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [401, 429]);
    robin.get("/v1/me").await.ok(200);
    server.stop().await;
}

#[tokio::test]
async fn while_the_database_is_away_nothing_hangs_and_afterwards_all_works_again() {
    let db = server_db().await;
    let (proxy, url) = proxied(&db).await;
    let token = token(&db, "shop", APPEND).await;
    let quick = [
        ("SEQLINE_OPS__LOOK_INTERVAL", "100ms"),
        ("SEQLINE_DATABASE__STATEMENT_TIMEOUT", "2s"),
        ("SEQLINE_DATABASE__LOCK_TIMEOUT", "1s"),
        ("SEQLINE_DATABASE__LISTEN_RECONNECT_BACKOFF_CAP", "2s"),
    ];
    let command = server(&db, "api").args(["--database-url", &url]);
    // The checks of the configuration keep what belongs to it below that.
    let command = command.env("SEQLINE_SYNC__DETACH_LOCK_TIMEOUT_MAX", "1s");
    let server =
        Worker::start(quick.into_iter().fold(command, |server, (key, value)| server.env(key, value))).await;
    let client = Client::new(server.api().await).token(&token);
    client.post("/v1/events", &event(1)).await.ok(201);
    for silent in [true, false] {
        if silent {
            proxy.black_hole()
        } else {
            proxy.refuse()
        }
        if !silent {
            proxy.cut();
        }
        // Requests that were under way, and those that come before anybody has noticed.
        let asking: Vec<_> = (0..16)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move {
                    match n % 2 {
                        0 => client.post("/v1/events", &event(100 + n)).await,
                        _ => client.get("/v1/log").await,
                    }
                })
            })
            .collect();
        for asked in asking {
            let answer = asked.await.unwrap();
            assert_eq!(answer.status, 503, "{answer:?}");
            assert_ne!(answer.header("retry-after"), "");
        }
        // From then on it is known, and said at once.
        eventually(DEADLINE, "it is known", async || {
            let answer = client.get("/v1/me").await;
            answer.status == 503 && answer.text.contains("the database does not answer")
        })
        .await;
        let many: Vec<_> = (0..200)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.post("/v1/events", &event(200)).await.status })
            })
            .collect();
        let all = async {
            for asked in many {
                assert_eq!(asked.await.unwrap(), 503);
            }
        };
        tokio::time::timeout(Duration::from_secs(10), all).await.expect("nobody waits for the database");
        proxy.heal();
        proxy.cut();
        eventually(DEADLINE, "it works again", async || {
            client.post("/v1/events", &event(2)).await.status == 201
        })
        .await;
    }
    server.stop().await;
}

#[tokio::test]
async fn at_the_end_of_the_process_those_who_have_asked_get_their_answer() {
    let db = server_db().await;
    let (server, client) = serving(&db).await;
    let mut tx = seqline::begin(&db.admin()).await.unwrap();
    sqlx::query("LOCK TABLE seqline.numbering").execute(&mut *tx).await.unwrap();
    let asking: Vec<_> = (1..=20)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.post("/v1/events", &event(n)).await })
        })
        .collect();
    crate::support::Sessions::of(&db, seqline_testkit::Role::App)
        .reach(1, crate::support::WAITS_TO_NUMBER)
        .await;
    server.running.signal(nix::sys::signal::Signal::SIGTERM);
    server.says("server stopping").await;
    // Those who come from now on, or a moment later, are sent elsewhere.
    eventually(DEADLINE, "who comes late is sent elsewhere", async || {
        let late = client.try_ask(hyper::Method::GET, "/v1/me", None).await;
        late.is_none_or(|late| late.status == 503)
    })
    .await;
    tx.rollback().await.unwrap();
    let mut appended = 0;
    for asked in asking {
        let answer = asked.await.unwrap();
        if answer.status == 503 {
            // It had not been taken up when the end began.
            continue;
        }
        answer.ok(201);
        appended += 1;
    }
    assert!(appended > 0);
    assert_eq!(numbers(&db).await.len(), appended);
    let (outcome, log) = server.end().await;
    assert_eq!(outcome.code(), Some(0), "{log:#?}");
}
