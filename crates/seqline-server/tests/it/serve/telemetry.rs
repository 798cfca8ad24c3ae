//! What leaves the process over OTLP, and what happens when nobody takes it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, Uri};
use nix::sys::signal::Signal;
use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::SchemaName;
use riverqueue::{Client, InsertOpts};
use seqline::{NewEvent, Payload};
use seqline_server::jobs::maintenance::PartitionMaintenance;
use seqline_testkit::{TestDb, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{DEADLINE, JOBS_SCHEMA, Seqline, append, closed_port, server_db};
use crate::worker::{Worker, worker};

const TRACE_ID: [u8; 16] = *b"\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36";
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// How long a server waits for who takes its telemetry.
const SEND_TIMEOUT: Duration = Duration::from_secs(3);

/// What a receiver does with what it gets.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Takes,
    Fails,
    /// Never answers.
    Hangs,
}

/// The path and the body of a request.
type Request = (String, Vec<u8>);

/// Takes what is sent over OTLP, and keeps it.
struct Receiver {
    address: String,
    got: Arc<Mutex<Vec<Request>>>,
    answer: Arc<Mutex<Answer>>,
    serving: JoinHandle<()>,
}

impl Receiver {
    async fn start(answer: Answer) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port can be had");
        let address = listener.local_addr().expect("it has an address").to_string();
        let (got, answer) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(Mutex::new(answer)));
        let (kept, asked) = (got.clone(), answer.clone());
        let take = move |uri: Uri, body: Bytes| async move {
            kept.lock().unwrap().push((uri.path().to_owned(), body.to_vec()));
            let answer = *asked.lock().unwrap();
            match answer {
                Answer::Takes => StatusCode::OK,
                Answer::Fails => StatusCode::INTERNAL_SERVER_ERROR,
                Answer::Hangs => std::future::pending().await,
            }
        };
        let serving = tokio::spawn(async move {
            axum::serve(listener, Router::new().fallback(take)).await.expect("it serves");
        });
        Self { address, got, answer, serving }
    }

    /// The contents of all that came to a path.
    fn got(&self, path: &str) -> Vec<u8> {
        let got = self.got.lock().unwrap();
        got.iter().filter(|(to, _)| to == path).flat_map(|(_, body)| body).copied().collect()
    }

    fn count(&self, path: &str) -> usize {
        self.got.lock().unwrap().iter().filter(|(to, _)| to == path).count()
    }

    async fn gets(&self, path: &str, what: &[u8]) {
        let name = format!("{path} brings {}", String::from_utf8_lossy(what));
        eventually(DEADLINE, &name, async || contains(&self.got(path), what)).await;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|found| found == what)
}

/// Sends what it has to this address, as often as that can be.
fn sending(server: Seqline, address: &str, sample_percent: u32) -> Seqline {
    server
        .args(["--set", &format!("telemetry.otlp_endpoint=http://{address}")])
        .args(["--set", &format!("telemetry.trace_sample_percent={sample_percent}")])
        .args(["--set", "telemetry.refresh_interval=100ms"])
        .env("OTEL_METRIC_EXPORT_INTERVAL", "200")
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
}

/// An event whose request was recorded elsewhere.
async fn append_recorded(db: &TestDb) {
    let event = NewEvent::builder("order.paid", "order", "any")
        .resource_id("hunter2")
        .payload(Payload::from_json("{\"password\": \"hunter2\"}").unwrap())
        .traceparent(TRACEPARENT)
        .build()
        .unwrap();
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event]).await.unwrap();
    seqline::commit(tx).await.unwrap();
}

#[tokio::test]
async fn figures_and_traces_arrive_and_hold_nothing_that_an_event_says() {
    let db = server_db().await;
    let receiver = Receiver::start(Answer::Takes).await;
    let worker = Worker::start(sending(worker(&db), &receiver.address, 100)).await;
    append_recorded(&db).await;
    worker.records([1]).await;
    receiver.gets("/v1/metrics", b"seqline.log.head").await;
    receiver.gets("/v1/traces", b"consumer round").await;
    receiver.gets("/v1/traces", b"consumer event").await;
    receiver.gets("/v1/traces", b"partition_maintenance").await;
    let log = worker.stop().await;
    let (metrics, traces) = (receiver.got("/v1/metrics"), receiver.got("/v1/traces"));
    assert!(contains(&traces, &TRACE_ID), "it is linked to the request");
    assert!(contains(&traces, b"service.name") && contains(&metrics, b"service.name"));
    for (bytes, what) in [(&metrics, "metrics"), (&traces, "traces")] {
        assert!(!contains(bytes, b"hunter2"), "{what}");
    }
    let others: Vec<&Value> = log.iter().filter(|line| line["level"] != "INFO").collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[tokio::test]
async fn a_request_that_was_recorded_is_seen_through_although_no_trace_begins_here() {
    let db = server_db().await;
    let receiver = Receiver::start(Answer::Takes).await;
    let worker = Worker::start(sending(worker(&db), &receiver.address, 0)).await;
    append(&db.app(), [1]).await;
    worker.records([1]).await;
    append_recorded(&db).await;
    receiver.gets("/v1/traces", b"consumer event").await;
    worker.stop().await;
    let traces = receiver.got("/v1/traces");
    assert!(contains(&traces, &TRACE_ID));
    let rounds = traces.windows(14).filter(|found| found == b"consumer round").count();
    assert_eq!(rounds, 1, "that of the other event is not recorded");
    assert!(!contains(&traces, b"partition_maintenance"));
}

#[tokio::test]
async fn a_line_that_is_written_in_a_recorded_span_says_in_which() {
    let db = server_db().await;
    let receiver = Receiver::start(Answer::Takes).await;
    let worker = Worker::start(sending(worker(&db), &receiver.address, 100)).await;
    append_recorded(&db).await;
    worker.records([1]).await;
    let line = worker.says("event recorded").await;
    let members: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        ["consumer", "event_id", "level", "message", "seq", "span_id", "target", "timestamp", "trace_id"];
    assert_eq!(members, expected);
    let job = worker.says("partition maintenance done").await;
    assert!(job["trace_id"].is_string() && job["trace_id"] != line["trace_id"], "{job}");
    append(&db.app(), [2]).await;
    worker.records([2]).await;
    let log = worker.stop().await;
    let (trace_id, span_id) = (bytes(&line["trace_id"]), bytes(&line["span_id"]));
    let traces = receiver.got("/v1/traces");
    assert!(contains(&traces, &trace_id) && contains(&traces, &span_id), "{line}");
    // One that nobody traces is as it always is.
    let plain = log.iter().find(|line| line["seq"] == 2).unwrap();
    assert_eq!(plain.get("trace_id"), None, "{plain}");
    assert!(
        log.iter()
            .filter(|line| line["message"] == "server started")
            .all(|line| line.get("trace_id").is_none())
    );
}

fn bytes(hexadecimal: &Value) -> Vec<u8> {
    let text = hexadecimal.as_str().expect("it is a text");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn an_attempt_at_a_job_goes_on_from_what_the_job_carries() {
    let db = server_db().await;
    let receiver = Receiver::start(Answer::Takes).await;
    let schema = SchemaName::new(JOBS_SCHEMA).unwrap();
    let client = Client::builder(PostgresDatabase::new(db.app()).with_schema(schema)).build().unwrap();
    let carried = json!({"traceparent": TRACEPARENT}).as_object().cloned().unwrap();
    let opts = InsertOpts::default().with_queue("maintenance").with_metadata(carried);
    client.insert(PartitionMaintenance {}).opts(opts).await.unwrap();
    let worker = Worker::start(sending(worker(&db), &receiver.address, 0)).await;
    receiver.gets("/v1/traces", &TRACE_ID).await;
    let traces = receiver.got("/v1/traces");
    for attribute in ["job_id", "sync.partition_maintenance", "attempt", "maintenance"] {
        assert!(contains(&traces, attribute.as_bytes()), "{attribute}");
    }
    // That job, and the one of the worker itself, whose span is not recorded.
    worker.says_again("partition maintenance done", 1).await;
    let log = worker.stop().await;
    let traced: Vec<&Value> = log.iter().filter_map(|line| line.get("trace_id")).collect();
    assert_eq!(traced, ["4bf92f3577b34da6a3ce929d0e0e4736"], "{log:#?}");
}

/// A server that sends to this address works as ever, says once that nothing arrives, and ends in time.
async fn is_not_disturbed(address: &str) {
    let db = server_db().await;
    let worker = Worker::start(sending(worker(&db), address, 100)).await;
    for n in 1..=20 {
        append_recorded(&db).await;
        worker.records([n]).await;
    }
    for signal in ["metrics", "traces"] {
        eventually(DEADLINE, "it says that nothing arrives", async || lost(&worker.log(), signal) == 1).await;
    }
    let clock = seqline::Clock::system();
    worker.running.signal(Signal::SIGTERM);
    worker.says("server stopped").await;
    let stopped = clock.elapsed();
    let (outcome, log) = worker.end().await;
    let took = clock.elapsed() - stopped;
    assert_eq!(outcome.code(), Some(0), "{outcome:?} {log:#?}");
    // For figures and traces together, and what a busy machine takes.
    assert!(took < SEND_TIMEOUT + Duration::from_secs(2), "{took:?}");
    assert_eq!(log.last().unwrap()["message"], "server stopped", "{log:#?}");
    let others: Vec<&Value> = log.iter().filter(|line| line["level"] != "INFO").collect();
    assert_eq!(others.len(), 2, "{others:#?}");
    assert_eq!((lost(&log, "metrics"), lost(&log, "traces")), (1, 1));
}

fn lost(log: &[Value], signal: &str) -> usize {
    let says = |line: &&Value| line["message"] == "telemetry does not arrive, it is lost meanwhile";
    log.iter().filter(says).filter(|line| line["signal"] == signal).count()
}

#[tokio::test]
async fn an_endpoint_that_refuses_disturbs_nothing() {
    is_not_disturbed(&format!("127.0.0.1:{}", closed_port())).await;
}

#[tokio::test]
async fn an_endpoint_that_fails_disturbs_nothing() {
    let receiver = Receiver::start(Answer::Fails).await;
    is_not_disturbed(&receiver.address).await;
    assert!(receiver.count("/v1/metrics") > 1, "it goes on sending");
}

#[tokio::test]
async fn an_endpoint_that_hangs_disturbs_nothing() {
    let receiver = Receiver::start(Answer::Hangs).await;
    is_not_disturbed(&receiver.address).await;
}

#[tokio::test]
async fn what_is_lost_at_the_end_is_not_worth_a_line() {
    let db = server_db().await;
    let address = format!("127.0.0.1:{}", closed_port());
    let late = sending(worker(&db), &address, 100)
        .env("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
        .env("OTEL_BSP_SCHEDULE_DELAY", "3600000");
    let worker = Worker::start(late).await;
    append_recorded(&db).await;
    worker.records([1]).await;
    let log = worker.stop().await;
    assert!(log.iter().all(|line| line["level"] == "INFO"), "{log:#?}");
}

#[tokio::test]
async fn it_says_when_what_it_sends_arrives_again() {
    let db = server_db().await;
    let receiver = Receiver::start(Answer::Fails).await;
    let worker = Worker::start(sending(worker(&db), &receiver.address, 100)).await;
    eventually(DEADLINE, "it says so", async || lost(&worker.log(), "metrics") == 1).await;
    *receiver.answer.lock().unwrap() = Answer::Takes;
    let again = |line: &Value| line["message"] == "telemetry arrives again" && line["signal"] == "metrics";
    eventually(DEADLINE, "it says that it is over", async || worker.log().iter().any(again)).await;
    worker.stop().await;
}
