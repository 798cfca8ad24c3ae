//! A client of the API that keeps to nothing but HTTP.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{HeaderMap, Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::support::DEADLINE;

/// Asks one server, as somebody or as nobody. Each request has a connection of its own.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) address: String,
    pub(crate) headers: Vec<(String, String)>,
}

/// What it was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Client {
    pub(crate) fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), headers: Vec::new() }
    }

    /// The same with a header in every request.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with this token.
    pub(crate) fn token(self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: &str) -> Answer {
        self.ask(Method::POST, path, Some(body.to_owned())).await
    }

    /// An answer has to come, in time.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<String>) -> Answer {
        let what = format!("{method} {path}");
        let answer = self.try_ask(method, path, body).await;
        answer.unwrap_or_else(|| panic!("no answer to {what}"))
    }

    /// The same, where the connection may break.
    pub(crate) async fn try_ask(&self, method: Method, path: &str, body: Option<String>) -> Option<Answer> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.address);
        let is_typed = self.headers.iter().any(|(name, _)| name == "content-type");
        if body.is_some() && !is_typed {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = self.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let request =
            request.body(Full::new(Bytes::from(body.unwrap_or_default()))).expect("it is a request");
        let asked = async {
            let stream = TcpStream::connect(&self.address).await.ok()?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
            let connection = tokio::spawn(connection);
            let (head, body) = sender.send_request(request).await.ok()?.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            connection.abort();
            // Images of the reference page are none.
            let text = String::from_utf8_lossy(&body).into_owned();
            Some(Answer { status: head.status.as_u16(), headers: head.headers, text })
        };
        within(asked).await
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    const LIMIT: Duration = DEADLINE;
    tokio::time::timeout(LIMIT, future).await.expect("an answer comes in time")
}

impl Answer {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub(crate) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    /// The refusal with this code, which has everything that refusals have.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.json();
        assert_eq!((self.status, &problem["code"]), (status, &code.into()), "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(problem["type"], format!("urn:seqline:problem:{code}"));
        assert_eq!(problem["status"], status);
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
        problem
    }

    /// A header, empty if it is not there.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a header is text"))
    }
}
