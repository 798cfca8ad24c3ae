//! A client of the API: requests, and streams that are read as they come.

use std::collections::VecDeque;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::DEADLINE;

/// Somebody with a token.
#[derive(Clone)]
pub(super) struct Client {
    address: String,
    token: String,
}

/// What a request was answered with.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) retry_after: Option<String>,
    pub(super) content_type: String,
    pub(super) text: String,
}

/// A page of events.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) text: String,
    pub(super) events: Vec<Value>,
    pub(super) next: String,
    pub(super) head: String,
    pub(super) caught_up: bool,
}

impl Client {
    pub(super) fn new(address: &str, token: &str) -> Self {
        Self { address: address.to_owned(), token: token.to_owned() }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Sends a request on a connection of its own, and returns when the head of the answer is there.
    pub(super) async fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        let stream = TcpStream::connect(&self.address).await.expect("it takes connections");
        self.ask_on(stream, path, headers).await
    }

    /// The same on this connection.
    pub(super) async fn ask_on(
        &self,
        stream: TcpStream,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Response<Incoming> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
        tokio::spawn(connection);
        let mut request = Request::get(path)
            .header("host", &self.address)
            .header("authorization", format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::<Bytes>::new()).expect("it is a request");
        let answer = tokio::time::timeout(DEADLINE + Duration::from_secs(30), sender.send_request(request));
        let answer = answer.await.expect("it answers in time");
        // Whoever drops the sender says that no request follows, and the answer still comes.
        answer.expect("it answers")
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        Answer::read(self.ask(path, &[]).await).await
    }

    /// The next events after this.
    pub(super) async fn page(&self, query: &str) -> Page {
        self.page_of("/v1/events", query).await
    }

    pub(super) async fn page_of(&self, path: &str, query: &str) -> Page {
        self.get(&format!("{path}?{query}")).await.page()
    }

    /// What a request for events is refused with: the status and the document.
    pub(super) async fn refused(&self, query: &str) -> (u16, Value) {
        self.get(&format!("/v1/events?{query}")).await.refusal()
    }

    pub(super) async fn stream(&self, query: &str) -> EventStream {
        self.stream_with(query, &[]).await
    }

    /// Goes on where a stream was.
    pub(super) async fn resume(&self, query: &str, last_event_id: &str) -> EventStream {
        self.stream_with(query, &[("last-event-id", last_event_id)]).await
    }

    async fn stream_with(&self, query: &str, headers: &[(&str, &str)]) -> EventStream {
        let answer = self.ask(&format!("/v1/events/stream?{query}"), headers).await;
        if answer.status() != 200 {
            panic!("there is no stream: {:?}", Answer::read(answer).await);
        }
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        EventStream::new(answer.into_body())
    }

    /// What a request for a stream is refused with.
    pub(super) async fn stream_refused(&self, query: &str) -> (u16, Value) {
        self.get(&format!("/v1/events/stream?{query}")).await.refusal()
    }
}

impl Answer {
    pub(super) async fn read(answer: Response<Incoming>) -> Self {
        let (head, body) = answer.into_parts();
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let read = tokio::time::timeout(DEADLINE, body.collect()).await.expect("the body comes in time");
        let bytes = read.expect("the body can be read").to_bytes();
        Self {
            status: head.status.as_u16(),
            retry_after: header("retry-after").map(str::to_owned),
            content_type: header("content-type").unwrap_or_default().to_owned(),
            text: String::from_utf8(bytes.to_vec()).expect("it is text"),
        }
    }

    #[track_caller]
    pub(super) fn page(self) -> Page {
        assert_eq!((self.status, self.content_type.as_str()), (200, "application/json"), "{}", self.text);
        let value: Value = serde_json::from_str(&self.text).expect("it is JSON");
        let text = |member: &str| value[member].as_str().expect("it is a position").to_owned();
        Page {
            events: value["events"].as_array().expect("it is a list").clone(),
            next: text("next"),
            head: text("head"),
            caught_up: value["caught_up"].as_bool().expect("it is said"),
            text: self.text,
        }
    }

    #[track_caller]
    pub(super) fn refusal(self) -> (u16, Value) {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        let document: Value = serde_json::from_str(&self.text).expect("it is JSON");
        assert_eq!(document["status"], self.status, "{document}");
        (self.status, document)
    }
}

impl Page {
    pub(super) fn seqs(&self) -> Vec<i64> {
        self.events.iter().map(seq).collect()
    }
}

pub(super) fn seq(event: &Value) -> i64 {
    event["seq"].as_i64().expect("it has a number")
}

/// An event's number and id.
pub(super) fn place(event: &Value) -> (i64, Uuid) {
    let id = event["id"].as_str().and_then(|id| Uuid::try_parse(id).ok());
    (seq(event), id.expect("it has an id"))
}

/// The number of a position.
pub(super) fn number(position: &str) -> i64 {
    let (_, seq) = position.split_once(':').expect("it is a position");
    seq.parse().expect("it has a number")
}

/// What a stream sends between two empty lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) id: Option<String>,
    pub(super) event: Option<String>,
    pub(super) data: Option<String>,
    pub(super) comment: Option<String>,
    pub(super) retry: Option<String>,
}

/// A stream that is read.
pub(super) struct EventStream {
    body: Incoming,
    rest: String,
    messages: VecDeque<Message>,
    /// The last id, as a browser would come back with it.
    pub(super) last_id: Option<String>,
}

impl EventStream {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, rest: String::new(), messages: VecDeque::new(), last_id: None }
    }

    /// The next message, none at its end. A connection that breaks in the middle is not an end.
    pub(super) async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                if message.id.is_some() {
                    self.last_id.clone_from(&message.id);
                }
                return Some(message);
            }
            let frame =
                tokio::time::timeout(DEADLINE, self.body.frame()).await.expect("something comes in time");
            match frame {
                None => {
                    assert_eq!(self.rest, "", "it ends in the middle of a message");
                    return None;
                }
                Some(frame) => {
                    let bytes = frame.expect("the stream goes on").into_data().expect("it has data");
                    self.rest.push_str(std::str::from_utf8(&bytes).expect("pieces are whole messages"));
                    self.take_messages();
                }
            }
        }
    }

    /// The next event of the log; heartbeats are passed.
    pub(super) async fn event(&mut self) -> Value {
        serde_json::from_str(&self.event_text().await).expect("it is JSON")
    }

    pub(super) async fn event_text(&mut self) -> String {
        loop {
            let message = self.next().await.expect("the stream goes on");
            assert_eq!(message.event, None, "it is said why the stream ends: {message:?}");
            if let Some(data) = message.data {
                return data;
            }
        }
    }

    /// The next heartbeat, and nothing before it.
    pub(super) async fn heartbeat(&mut self) -> String {
        loop {
            let message = self.next().await.expect("the stream goes on");
            assert_eq!((&message.event, &message.data), (&None, &None), "nothing comes before the heartbeat");
            if message.comment.is_some() {
                return message.id.expect("a heartbeat has a position");
            }
        }
    }

    /// Reads to its end, which has to be told, and returns the events before it and what was told.
    pub(super) async fn end(&mut self) -> (Vec<Value>, Value) {
        let mut events = Vec::new();
        while let Some(message) = self.next().await {
            let value = message.data.map(|data| serde_json::from_str(&data).expect("it is JSON"));
            match (message.event.as_deref(), value) {
                (None, Some(event)) => events.push(event),
                (None, None) => {}
                (Some("problem"), Some(problem)) => {
                    assert_eq!(message.id, None, "a client comes back to where it was");
                    assert_eq!(self.next().await, None, "nothing comes after it");
                    return (events, problem);
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("it ends without a word, after {} events", events.len());
    }

    fn take_messages(&mut self) {
        while let Some(end) = self.rest.find("\n\n") {
            let text: String = self.rest.drain(..end + 2).collect();
            let mut message = Message::default();
            for line in text.lines().filter(|line| !line.is_empty()) {
                let (name, value) = line.split_once(':').expect("a line has a name");
                let value = Some(value.strip_prefix(' ').unwrap_or(value).to_owned());
                match name {
                    "" => message.comment = value,
                    "id" => message.id = value,
                    "event" => message.event = value,
                    "data" => message.data = value,
                    "retry" => message.retry = value,
                    name => panic!("a line of an unknown kind: {name}"),
                }
            }
            self.messages.push_back(message);
        }
    }
}
