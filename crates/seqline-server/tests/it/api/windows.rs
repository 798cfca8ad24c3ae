//! Clients of HTTP/2 that say how much of an answer may be sent, and what becomes of those that let nothing be sent.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use seqline_testkit::TestDb;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{APPEND, Client, event, token};
use crate::support::{DEADLINE, server_db};
use crate::worker::{Worker, server};

/// A connection, of whose answers so many bytes may be sent before any of them is read.
struct Connection {
    address: String,
    token: String,
    sender: SendRequest<Empty<Bytes>>,
    ends: JoinHandle<hyper::Result<()>>,
}

impl Connection {
    async fn new(address: &str, token: &str, window: u32) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut builder = Builder::new(TokioExecutor::new());
        let builder = builder.initial_stream_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let (address, token) = (address.to_owned(), token.to_owned());
        Self { address, token, sender, ends: tokio::spawn(connection) }
    }

    /// The head of the answer.
    async fn get(&mut self, path: &str) -> Response<Incoming> {
        let request = Request::get(format!("http://{}{path}", self.address));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let asked = self.sender.send_request(request.body(Empty::new()).unwrap());
        tokio::time::timeout(DEADLINE, asked).await.expect("an answer begins in time").unwrap()
    }

    async fn has_ended(self) {
        let ended = tokio::time::timeout(DEADLINE, self.ends).await;
        let _ = ended.expect("the connection ends in time");
    }
}

/// A server whose clients have to take something of their answers within that time.
async fn impatient(db: &TestDb, within: &str) -> (Worker, String, String) {
    let token = token(db, "shop", APPEND).await;
    let server = Worker::start(server(db, "api").env("SEQLINE_API__WRITE_TIMEOUT", within)).await;
    let address = server.api().await;
    (server, address, token)
}

#[tokio::test]
async fn a_client_that_lets_nothing_be_sent_loses_its_connection() {
    let db = server_db().await;
    let (server, address, token) = impatient(&db, "500ms").await;
    // Nothing at all, or a beginning of it that is soon used up.
    for window in [0, 1, 1000] {
        let mut connection = Connection::new(&address, &token, window).await;
        let answer = connection.get("/v1/openapi.json").await;
        assert_eq!(answer.status(), 200);
        connection.has_ended().await;
        drop(answer);
    }
    // Nobody is waited for.
    let mut connection = Connection::new(&address, &token, 0).await;
    let answer = connection.get("/v1/openapi.json").await;
    tokio::time::timeout(DEADLINE, server.stop()).await.expect("the process ends in time");
    drop(answer);
}

#[tokio::test]
async fn one_that_takes_its_answers_and_waits_for_more_keeps_it() {
    let db = server_db().await;
    let (server, address, token) = impatient(&db, "3s").await;
    let client = Client::new(&address).token(&token);
    let mut connection = Connection::new(&address, &token, 20_000).await;
    let mut stream = connection.get("/v1/events/stream?after=head").await.into_body();
    // Longer than anything may be left untaken.
    let waited = connection.get("/v1/events?after=head&wait=6").await;
    assert_eq!(waited.status(), 200);
    waited.into_body().collect().await.unwrap();
    let document = connection.get("/v1/openapi.json").await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(document, client.get("/v1/openapi.json").await.text);
    client.post("/v1/events", &event(1)).await.ok(201);
    let mut text = String::new();
    let read = async {
        while !text.contains("test.happened") {
            let frame = stream.frame().await.expect("the stream has no end").unwrap();
            text.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[], |data| &data[..])));
        }
    };
    tokio::time::timeout(DEADLINE, read).await.expect("the event comes");
    drop((stream, connection));
    tokio::time::timeout(Duration::from_secs(60), server.stop()).await.expect("the process ends in time");
}
