//! A worker that runs beside the test.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{DEADLINE, Outcome, PLANTED, Running, Seqline, on};

/// A worker that runs, and what it logs.
pub(crate) struct Worker {
    pub(crate) running: Running,
    log: Arc<Mutex<Vec<String>>>,
}

/// A worker on a database, before it is started.
pub(crate) fn worker(db: &TestDb) -> Seqline {
    server(db, "worker")
}

/// A server in any role.
pub(crate) fn server(db: &TestDb, role: &str) -> Seqline {
    on(db, Role::App, ["serve", "--role", role])
}

impl Worker {
    pub(crate) async fn start(worker: Seqline) -> Self {
        let worker = Self::begin(worker);
        worker.says("server started").await;
        worker
    }

    /// Starts it and waits for nothing.
    pub(crate) fn begin(worker: Seqline) -> Self {
        let mut running = worker.start();
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut stderr = running.take_stderr().lines();
        let written = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = stderr.next_line().await {
                written.lock().unwrap().push(line);
            }
        });
        Self { running, log }
    }

    /// Where it answers operators.
    pub(crate) async fn ops(&self) -> String {
        self.says("server listening").await["address"].as_str().expect("it has an address").to_owned()
    }

    /// Where it answers the API.
    pub(crate) async fn api(&self) -> String {
        self.says("api listening").await["address"].as_str().expect("it has an address").to_owned()
    }

    /// What it answers for a path: the status and the body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        get(&self.ops().await, path).await
    }

    /// Waits until `/readyz` has exactly these checks that fail.
    pub(crate) async fn becomes(&self, failing: &[&str]) {
        eventually(DEADLINE, &format!("the checks that fail are {failing:?}"), async || {
            let (status, body) = self.get("/readyz").await;
            let answer: Value = serde_json::from_str(&body).expect("it is JSON");
            assert_eq!(status == 200, answer["ready"] == true, "{status} {body}");
            let checks = answer["checks"].as_array().expect("there are checks");
            let failed: Vec<&str> = checks
                .iter()
                .filter(|check| check["ok"] == false)
                .filter_map(|check| check["check"].as_str())
                .collect();
            assert_eq!(failed.is_empty(), status == 200, "{status} {body}");
            failed == failing
        })
        .await;
    }

    /// The value of a line of its metrics, if it is there.
    pub(crate) async fn figure(&self, line: &str) -> Option<f64> {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200, "{text}");
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '))?;
        Some(value.parse().expect("a figure is a number"))
    }

    /// The same, once it is there. On a busy machine figures of the database are missing now and then: those that are old are not shown.
    pub(crate) async fn figure_there(&self, line: &str) -> f64 {
        let mut figure = None;
        eventually(DEADLINE, &format!("there is {line}"), async || {
            figure = self.figure(line).await;
            figure.is_some()
        })
        .await;
        figure.unwrap()
    }

    /// Waits for the value of a line of its metrics.
    pub(crate) async fn shows(&self, line: &str, value: f64) {
        eventually(DEADLINE, &format!("{line} is {value}"), async || self.figure(line).await == Some(value))
            .await;
    }

    /// Every line of the log, each one JSON object.
    pub(crate) fn log(&self) -> Vec<Value> {
        parsed(&self.log)
    }

    /// Waits for a message and returns its line.
    pub(crate) async fn says(&self, message: &str) -> Value {
        let mut found = None;
        eventually(DEADLINE, message, async || {
            found = self.log().into_iter().find(|line| line["message"] == message);
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Waits until it has said a message more often than that.
    pub(crate) async fn says_again(&self, message: &str, before: usize) {
        eventually(DEADLINE, message, async || self.count(message) > before).await;
    }

    /// How often it has said a message.
    pub(crate) fn count(&self, message: &str) -> usize {
        self.log().iter().filter(|line| line["message"] == message).count()
    }

    /// Waits until it has recorded these, whatever else.
    pub(crate) async fn records(&self, seqs: impl IntoIterator<Item = i64> + Clone) {
        eventually(DEADLINE, "all are recorded", async || {
            let recorded = recorded(&self.log());
            seqs.clone().into_iter().all(|seq| recorded.contains_key(&seq))
        })
        .await;
    }

    /// Waits for its end and returns it with everything that it has logged.
    pub(crate) async fn end(self) -> (Outcome, Vec<Value>) {
        let outcome = self.running.end().await;
        // The pipe is at its end when nobody holds the log but this.
        eventually(DEADLINE, "the log is read to its end", async || Arc::strong_count(&self.log) == 1).await;
        let log = parsed(&self.log);
        (outcome, log)
    }

    /// Ends it as a service manager does, and it has to be a good end.
    pub(crate) async fn stop(self) -> Vec<Value> {
        self.running.signal(Signal::SIGTERM);
        let (outcome, log) = self.end().await;
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), ""), "{outcome:?} {log:#?}");
        assert_eq!(log.last().unwrap()["message"], "server stopped", "{log:#?}");
        log
    }
}

/// Asks an address for a path over HTTP: the status and the body.
pub(crate) async fn get(address: &str, path: &str) -> (u16, String) {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.expect("it takes connections");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it takes a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("the answer is text");
        answer
    };
    let answer = tokio::time::timeout(DEADLINE, ask).await.expect("it answers in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it is an answer of HTTP");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("it has a status"), body.to_owned())
}

fn parsed(log: &Mutex<Vec<String>>) -> Vec<Value> {
    let parse = |line: &String| match serde_json::from_str(line) {
        _ if line.contains(PLANTED) => panic!("what an event says is in the log: {line}"),
        Ok(value @ Value::Object(_)) => value,
        _ => panic!("a line of the log is not a JSON object: {line}"),
    };
    log.lock().unwrap().iter().map(parse).collect()
}

/// Waits until a worker has recorded each of these a second time.
pub(crate) async fn again(worker: &Worker, seqs: impl IntoIterator<Item = i64> + Clone) {
    eventually(DEADLINE, "all are recorded again", async || {
        let recorded = recorded(&worker.log());
        seqs.clone().into_iter().all(|seq| recorded.get(&seq) == Some(&2))
    })
    .await;
}

/// The messages of a log in their order, without those of single events.
pub(crate) fn messages(log: &[Value]) -> Vec<&str> {
    log.iter()
        .map(|line| line["message"].as_str().expect("every line has a message"))
        .filter(|message| *message != "event recorded")
        .collect()
}

/// The numbers that were recorded, each with how often.
pub(crate) fn recorded(log: &[Value]) -> BTreeMap<i64, usize> {
    let mut recorded = BTreeMap::new();
    for line in log.iter().filter(|line| line["message"] == "event recorded") {
        *recorded.entry(line["seq"].as_i64().expect("it has a number")).or_default() += 1;
    }
    recorded
}
