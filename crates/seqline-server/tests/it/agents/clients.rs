//! The clients for agents in `clients/`: their examples, as programs of their own, against a real server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use nix::sys::signal::Signal;
use seqline_testkit::eventually;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::{Consumer, Site, number, with_keys};
use crate::support::{DEADLINE, Outcome, Running, append, closed_port, program};
use crate::worker::Worker;

/// A client and how its example is run.
#[derive(Clone, Copy)]
enum Language {
    Python,
    TypeScript,
}

/// Each of these is a test for each client.
macro_rules! for_each_client {
    ($($scenario:ident),+ $(,)?) => {
        mod python {
            $(#[tokio::test] async fn $scenario() { super::$scenario(super::Language::Python).await; })+
        }
        mod typescript {
            $(#[tokio::test] async fn $scenario() { super::$scenario(super::Language::TypeScript).await; })+
        }
    };
}

for_each_client!(
    killed_and_started_again_it_misses_nothing,
    a_server_that_is_killed_is_waited_for,
    whoever_it_was_taken_by_has_it,
    where_no_websocket_gets_through_it_asks,
    a_token_that_is_revoked_ends_it,
);

async fn killed_and_started_again_it_misses_nothing(language: Language) {
    let site = Site::new(&[]).await;
    let mut first = language.connected(&site.consumer).await;
    let pool = site.db.app();
    let writing = tokio::spawn(async move {
        for _ in 0..60 {
            append(&pool, 1..=10).await;
        }
    });
    let mut before = seqs(&mut first, 100).await;
    first.signal(Signal::SIGKILL);
    // What it did beyond that before it was dead.
    before.extend(first.end().await.stdout.lines().map(seq));
    let done = *before.last().expect("it was given some");
    let mut second = language.start(&site.consumer);
    writing.await.unwrap();
    site.append(1).await;
    let again = lines_until(&mut second, 601).await;
    assert_in_order(&before);
    assert_in_order(&again);
    assert_eq!(before[0], 1);
    assert!((1..=done + 1).contains(&again[0]), "{} comes after {done}: events are missing", again[0]);
    second.signal(Signal::SIGTERM);
    let outcome = second.end().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    let state = site.consumer.state().await;
    assert_eq!(
        (number(&state["acked"]), state.get("holder")),
        (601, None),
        "all is done, and it is given up"
    );
    site.stop().await;
}

async fn a_server_that_is_killed_is_waited_for(language: Language) {
    let address = format!("127.0.0.1:{}", closed_port());
    let site = Site::new(&[("api.listen", &address)]).await;
    let mut example = language.connected(&site.consumer).await;
    site.append(3).await;
    assert_eq!(seqs(&mut example, 3).await, [1, 2, 3]);
    site.server.running.signal(Signal::SIGKILL);
    let Site { db, server, consumer, .. } = site;
    server.end().await;
    append(&db.app(), 1..=3).await;
    db.settled().await;
    let server = Worker::start(with_keys(&db, &[("api.listen", &address)])).await;
    let after = lines_until(&mut example, 6).await;
    assert_in_order(&after);
    assert!((1..=4).contains(&after[0]), "what it had not saved comes again: {after:?}");
    stop(example).await;
    assert_eq!(number(&consumer.state().await["acked"]), 6);
    server.stop().await;
}

async fn whoever_it_was_taken_by_has_it(language: Language) {
    let site = Site::new(&[]).await;
    let first = language.connected(&site.consumer).await;
    let mut second = language.connected(&site.consumer).await;
    assert_ends_as(first.end().await, "ConsumerReplaced");
    site.append(2).await;
    assert_eq!(seqs(&mut second, 2).await, [1, 2]);
    stop(second).await;
    site.stop().await;
}

async fn where_no_websocket_gets_through_it_asks(language: Language) {
    let site = Site::new(&[]).await;
    let mut through = site.consumer.clone();
    through.client.address = without_websockets(&site.consumer.client.address).await;
    let mut example = language.start(&through);
    example.talk_until("asking over HTTP").await;
    has_a_holder(&site.consumer).await;
    site.append(250).await;
    assert_in_order(&lines_until(&mut example, 250).await);
    stop(example).await;
    assert_eq!(number(&site.consumer.state().await["acked"]), 250);
    // Over HTTP too it is told when it was taken from it.
    let example = language.start(&through);
    eventually(DEADLINE, "it asks again", async || site.server.figure(super::WAITING).await == Some(1.0))
        .await;
    let newer = language.connected(&site.consumer).await;
    // Its request hears of that when there is something to give, or at its end.
    site.append(1).await;
    assert_ends_as(example.end().await, "ConsumerReplaced");
    stop(newer).await;
    site.stop().await;
}

async fn a_token_that_is_revoked_ends_it(language: Language) {
    let site = Site::new(&[]).await;
    let example = language.connected(&site.consumer).await;
    crate::support::as_admin(&site.db, "UPDATE seqline.api_tokens SET revoked_at = now()").await;
    site.append(1).await;
    assert_ends_as(example.end().await, "Unauthenticated");
    site.stop().await;
}

impl Language {
    /// Starts the example.
    fn start(self, consumer: &Consumer) -> Running {
        let example = match self {
            Self::Python => {
                let client = root().join("clients/python");
                let path = env::join_paths([client.clone(), websockets()]).expect("paths have no colons");
                let example =
                    program("python3", [client.join("examples/agent.py").into_os_string(), NAME.into()]);
                example.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1")
            }
            Self::TypeScript => program("node", [compiled().into_os_string(), NAME.into()]),
        };
        let url = format!("http://{}", consumer.client.address);
        example.env("SEQLINE_URL", url).env("SEQLINE_TOKEN", token(consumer)).start()
    }

    /// The same, and waits until it has the consumer over a connection.
    async fn connected(self, consumer: &Consumer) -> Running {
        let mut running = self.start(consumer);
        running.talk_until("connected: consumer").await;
        running
    }
}

/// Of the consumer.
const NAME: &str = "invoices";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn websockets() -> PathBuf {
    let folder: Option<OsString> = env::var_os("SEQLINE_WEBSOCKETS").filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| root().join(".dev/python/websockets/wheel"), PathBuf::from);
    assert!(
        folder.join("websockets").is_dir(),
        "run `cargo xtask setup`, or set SEQLINE_WEBSOCKETS to the folder that holds `websockets`"
    );
    folder
}

/// The example in TypeScript, as JavaScript.
fn compiled() -> PathBuf {
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let folder = root().join("target/clients/typescript/dist");
    for part in ["src", "examples"] {
        for source in fs::read_dir(root().join("clients/typescript").join(part)).expect("there are sources") {
            let source = source.expect("it can be listed").path();
            let name = source.with_extension("js");
            let script = folder.join(part).join(name.file_name().expect("it has a name"));
            assert!(
                changed(&script) >= changed(&source),
                "run `cargo xtask setup`: {} is missing or older than its source",
                script.display()
            );
        }
    }
    folder.join("examples/agent.js")
}

/// What it shows the server.
fn token(consumer: &Consumer) -> &str {
    let shown = consumer.client.headers.iter().find_map(|(_, value)| value.strip_prefix("Bearer "));
    shown.expect("it shows a token")
}

/// The seq of a line of an example.
fn seq(line: &str) -> i64 {
    let (seq, kind) = line.split_once(' ').unwrap_or_else(|| panic!("it is no event: {line}"));
    assert_eq!(kind, "test.happened");
    seq.parse().expect("it begins with a number")
}

async fn seqs(running: &mut Running, count: usize) -> Vec<i64> {
    let mut seqs = Vec::new();
    while seqs.len() < count {
        seqs.push(seq(&running.line().await));
    }
    seqs
}

async fn lines_until(running: &mut Running, last: i64) -> Vec<i64> {
    let mut seqs = Vec::new();
    while seqs.last() != Some(&last) {
        seqs.push(seq(&running.line().await));
    }
    seqs
}

/// Each event is for the agent, so each follows the one before.
#[track_caller]
fn assert_in_order(seqs: &[i64]) {
    assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seqs:?}");
}

#[track_caller]
fn assert_ends_as(outcome: Outcome, name: &str) {
    let last = outcome.stderr.lines().last().unwrap_or_default();
    assert!(outcome.code() == Some(1) && last.starts_with(&format!("{name}: ")), "{outcome:?}");
}

/// Ends it, which has to go well.
async fn stop(running: Running) {
    running.signal(Signal::SIGTERM);
    let outcome = running.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
}

async fn has_a_holder(consumer: &Consumer) {
    eventually(DEADLINE, "somebody has the consumer", async || {
        let answer = consumer.client.get(&consumer.path).await;
        answer.status == 200 && answer.ok(200)["holder"]["over"] == "rest"
    })
    .await;
}

/// Something in between that knows of no WebSockets. Returns where it is.
async fn without_websockets(server: &str) -> String {
    const ASKS: &[u8] = b"GET /v1/gateway";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
    let address = listener.local_addr().expect("it has an address").to_string();
    let server = server.to_owned();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let mut begins = [0; ASKS.len()];
                while client.peek(&mut begins).await.is_ok_and(|length| length > 0 && length < ASKS.len()) {}
                if begins == ASKS {
                    let refusal =
                        b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    let _ = client.write_all(refusal).await;
                } else if let Ok(mut behind) = TcpStream::connect(&server).await {
                    let _ = copy_bidirectional(&mut client, &mut behind).await;
                }
            });
        }
    });
    address
}
