//! From the request over the event and its round to the job.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry::trace::{Status, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use seqline::consumer::{FailurePolicy, Handler, Outcome};
use seqline::job::{JobArgs, JobSink, NewJob, River, SqlSink};
use seqline::{NewEvent, Payload};
use seqline_testkit::TestDb;
use serde_json::{Value, json};
use sqlx::PgPool;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

use crate::consumers::{Bench, acting, as_admin, config, database, plain, probe};
use crate::jobs::bring_up;
use crate::support::more_subscribers;

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN_ID: &str = "00f067aa0ba902b7";

/// What an event is appended with whose request was recorded elsewhere, or was not.
fn header(recorded: bool) -> String {
    format!("00-{TRACE_ID}-{SPAN_ID}-0{}", u8::from(recorded))
}

/// Keeps what is exported.
#[derive(Debug, Clone, Default)]
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// Traces what happens on this thread, for as long as it is held. Of all targets and levels, as whoever does not know better.
#[must_use]
struct Tracing {
    exported: Exported,
    _subscriber: tracing::subscriber::DefaultGuard,
    _provider: SdkTracerProvider,
}

impl Tracing {
    fn with(sampler: Sampler) -> Self {
        more_subscribers();
        let exported = Exported::default();
        let provider =
            SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(exported.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        Self { exported, _subscriber: tracing::subscriber::set_default(subscriber), _provider: provider }
    }

    /// The finished spans of this name.
    fn spans(&self, name: &str) -> Vec<SpanData> {
        self.exported.0.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }

    fn span(&self, name: &str) -> SpanData {
        let mut spans = self.spans(name);
        assert_eq!(spans.len(), 1, "spans called {name}");
        spans.remove(0)
    }
}

/// The attributes that are the product's.
fn attributes(span: &SpanData) -> BTreeMap<String, String> {
    let own = |key: &str| {
        !["code.", "thread.", "busy_ns", "idle_ns", "level", "target"].iter().any(|of| key.starts_with(of))
    };
    let attributes = span.attributes.iter().map(|pair| (pair.key.to_string(), pair.value.to_string()));
    attributes.filter(|(key, _)| own(key)).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Trace and span of each link.
fn links(span: &SpanData) -> Vec<(String, String)> {
    let ids = |context: &opentelemetry::trace::SpanContext| {
        (context.trace_id().to_string(), context.span_id().to_string())
    };
    span.links.iter().map(|link| ids(&link.span_context)).collect()
}

fn traceparent_of(span: &SpanData) -> String {
    format!("00-{}-{}-01", span.span_context.trace_id(), span.span_context.span_id())
}

async fn append(pool: &PgPool, events: &[NewEvent]) {
    let mut tx = seqline::begin(pool).await.unwrap();
    seqline::append(&mut tx, events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    seqline_testkit::settled(pool).await;
}

fn event(traceparent: Option<&str>) -> NewEvent {
    let event = NewEvent::builder("test.happened", "test", "any");
    let event = match traceparent {
        Some(traceparent) => event.traceparent(traceparent),
        None => event,
    };
    event.build().unwrap()
}

fn job() -> NewJob {
    NewJob::new("invoice.send", JobArgs::new().with("order_id", "a-4711"))
}

/// Asks for a job for each event.
fn with_jobs() -> impl Handler {
    acting(|_, round| {
        let inserted = round.jobs().insert(job());
        Box::pin(async move { Ok(inserted?) })
    })
}

async fn bench_with_jobs() -> Bench {
    let db = database().await;
    bring_up(&db, "queue", None).await;
    Bench::on(db, config(), probe(with_jobs()).jobs(River::in_schema("queue"))).await
}

/// The `traceparent` of each job.
async fn carried(db: &TestDb) -> Vec<Option<String>> {
    sqlx::query_scalar("SELECT metadata ->> 'traceparent' FROM queue.river_job ORDER BY id")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

async fn trace_contexts(db: &TestDb) -> Vec<Option<String>> {
    db.settled().await;
    sqlx::query_scalar("SELECT trace_context FROM seqline.event_log ORDER BY seq")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_request_is_followed_through_its_event_and_the_round_to_the_job() {
    let bench = bench_with_jobs().await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    append(&bench.db.producer(), &[event(None)]).instrument(tracing::info_span!("request")).await;
    let request = tracing.span("request");
    assert_eq!(trace_contexts(&bench.db).await, [Some(traceparent_of(&request))]);

    bench.processes(1).await;
    let (round, event) = (tracing.span("consumer round"), tracing.span("consumer event"));
    let of_request =
        (request.span_context.trace_id().to_string(), request.span_context.span_id().to_string());
    assert_eq!((links(&event), links(&round)), (vec![of_request.clone()], vec![of_request]));
    assert_eq!(event.parent_span_id, round.span_context.span_id());
    assert_eq!(event.span_context.trace_id(), round.span_context.trace_id());
    assert_ne!(event.span_context.trace_id(), request.span_context.trace_id());
    assert_eq!(carried(&bench.db).await, [Some(traceparent_of(&event))]);

    let id: uuid::Uuid =
        sqlx::query_scalar("SELECT id FROM seqline.event_log").fetch_one(&bench.db.admin()).await.unwrap();
    let id = id.to_string();
    let expected = [("consumer", "probe"), ("seq", "1"), ("event_id", &id), ("event_type", "test.happened")];
    assert_eq!(attributes(&event), pairs(&expected));
    let expected = [
        ("consumer", "probe"),
        ("lane", "0"),
        ("first_seq", "1"),
        ("last_seq", "1"),
        ("events", "1"),
        ("jobs", "1"),
        ("parked", "0"),
    ];
    assert_eq!(attributes(&round), pairs(&expected));
    assert_eq!((round.status, event.status), (Status::Unset, Status::Unset));
}

#[tokio::test]
async fn each_event_of_a_round_is_linked_to_its_own_request_and_those_that_nobody_recorded_have_no_span() {
    let bench = bench_with_jobs().await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    let other = header(true).replace("4bf9", "5bf9");
    let events = [
        event(None),
        event(Some(&header(false))),
        event(Some(&header(true))),
        event(Some(&other)),
        event(None),
    ];
    append(&bench.db.producer(), &events).await;
    bench.processes(5).await;
    let of: Vec<_> = tracing.spans("consumer event");
    let linked: Vec<_> = of.iter().map(|span| (attributes(span)["seq"].clone(), links(span))).collect();
    let link = |trace_id: &str| vec![(trace_id.to_owned(), SPAN_ID.to_owned())];
    let expected = [("3", link(TRACE_ID)), ("4", link(&TRACE_ID.replace("4bf9", "5bf9")))];
    assert_eq!(linked, expected.map(|(seq, links)| (seq.to_owned(), links)));
    assert_eq!(links(&tracing.span("consumer round")), link(TRACE_ID), "the first of them");
    let expected = [None, None, Some(traceparent_of(&of[0])), Some(traceparent_of(&of[1])), None];
    assert_eq!(carried(&bench.db).await, expected);
}

#[tokio::test]
async fn a_request_that_was_not_recorded_leaves_nothing_to_link_or_to_carry_on() {
    let bench = bench_with_jobs().await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    append(&bench.db.producer(), &[event(Some(&header(false)))]).await;
    assert_eq!(trace_contexts(&bench.db).await, [None]);
    bench.processes(1).await;
    assert_eq!(links(&tracing.span("consumer round")), []);
    assert_eq!(tracing.spans("consumer event").len(), 0);
    assert_eq!(carried(&bench.db).await, [None]);
}

#[tokio::test]
async fn a_round_that_is_not_recorded_carries_nothing_on() {
    let bench = bench_with_jobs().await;
    append(&bench.db.producer(), &[event(Some(&header(true)))]).await;
    let tracing = Tracing::with(Sampler::AlwaysOff);
    bench.processes(1).await;
    assert_eq!(tracing.exported.0.lock().unwrap().len(), 0);
    assert_eq!(carried(&bench.db).await, [None]);
}

#[tokio::test]
async fn a_round_that_finds_nothing_has_no_span() {
    let bench = Bench::new(config(), plain()).await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    assert_eq!(tracing.spans("consumer round").len(), 0);
    append(&bench.db.producer(), &[event(None)]).await;
    bench.processes(1).await;
    assert_eq!(tracing.spans("consumer round").len(), 1);
}

#[tokio::test]
async fn what_a_handler_appends_goes_on_from_the_event_that_it_handles() {
    let handler = acting(|handled, round| {
        let first = handled.seq <= 2;
        Box::pin(async move {
            if first {
                seqline::append(round.transaction(), &[event(None)]).await?;
            }
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), probe(handler).may_append()).await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    append(&bench.db.producer(), &[event(Some(&header(true))), event(None)]).await;
    bench.processes(2).await;
    let followed = traceparent_of(&tracing.span("consumer event"));
    // An event that nobody recorded leads on to none, although others of its round do.
    assert_eq!(trace_contexts(&bench.db).await, [Some(header(true)), None, Some(followed), None]);
}

/// Fails in both ways, with what must not get out.
fn telling() -> impl Handler {
    acting(|event, round| {
        let (panics, sql) = (event.seq == 2, "SELECT 'hunter2'::integer");
        Box::pin(async move {
            sqlx::query(sql).execute(round.connection()).await.map_err(|error| {
                assert!(!panics, "hunter2");
                format!("hunter2: {error}")
            })?;
            Ok(())
        })
    })
}

#[tokio::test]
async fn neither_what_an_event_says_nor_what_an_error_says_is_in_a_span() {
    let policy = FailurePolicy::Park { after_attempts: 1, backoff: std::time::Duration::ZERO };
    let bench = Bench::on(database().await, config(), probe(telling()).on_failure(policy)).await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    for resource in ["hunter2", "also hunter2"] {
        let event = NewEvent::builder("test.happened", "test", "any")
            .resource_id(resource)
            .space("hunter2")
            .payload(Payload::from_json("{\"password\": \"hunter2\"}").unwrap())
            .build()
            .unwrap();
        append(&bench.db.producer(), &[event]).instrument(tracing::info_span!("request")).await;
    }
    let mut failures = Vec::new();
    // With both events, with each alone, and until both are put aside.
    for _ in 0..10 {
        match bench.round().await {
            Err(error) => failures.push(error.error_type().to_owned()),
            Ok(result) if result.outcome == Outcome::Idle => break,
            Ok(_) => {}
        }
    }
    for (name, spans) in
        [("round", tracing.spans("consumer round")), ("event", tracing.spans("consumer event"))]
    {
        let failed = spans.iter().filter(|span| span.status != Status::Unset);
        let told: Vec<String> =
            failed.filter_map(|span| attributes(span).get("error.type").cloned()).collect();
        assert_eq!(told, failures, "{name}");
    }
    assert!(
        failures.contains(&"handler".to_owned()) && failures.contains(&"panic".to_owned()),
        "{failures:?}"
    );
    let all = format!("{:?}", tracing.exported.0.lock().unwrap());
    assert!(all.contains("consumer event") && !all.contains("hunter2"), "{all}");
}

#[tokio::test]
async fn a_parked_event_that_is_tried_again_has_a_round_of_its_own() {
    let policy = FailurePolicy::Park { after_attempts: 1, backoff: std::time::Duration::ZERO };
    let switch = crate::consumers::Switch::on();
    let consumer = probe(switch.failing_at(1)).on_failure(policy);
    let bench = Bench::on(database().await, config(), consumer).await;
    append(&bench.db.producer(), &[event(Some(&header(true)))]).await;
    while bench.round().await.is_err() {}
    switch.off();
    as_admin(&bench.db, "UPDATE seqline.parked_events SET next_attempt_at = now()").await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    bench.processes(1).await;
    let (round, event) = (tracing.span("consumer round"), tracing.span("consumer event"));
    assert_eq!(event.parent_span_id, round.span_context.span_id());
    assert_eq!(attributes(&round)["last_seq"], "1");
}

#[tokio::test]
async fn a_statement_of_the_application_gets_it_with_the_job() {
    let db = database().await;
    as_admin(
        &db,
        "CREATE TABLE calls (jobs jsonb); GRANT ALL ON calls TO PUBLIC;
         CREATE FUNCTION my_enqueue(jobs jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO calls VALUES (jobs) $$",
    )
    .await;
    let sink = SqlSink::new("SELECT my_enqueue($1)");
    let bench = Bench::on(db, config(), probe(with_jobs()).jobs(sink)).await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    append(&bench.db.producer(), &[event(None), event(Some(&header(true)))]).await;
    bench.processes(2).await;
    let jobs: Value =
        sqlx::query_scalar("SELECT jobs FROM calls").fetch_one(&bench.db.admin()).await.unwrap();
    assert_eq!(jobs[0].get("traceparent"), None);
    assert_eq!(jobs[1]["traceparent"], json!(traceparent_of(&tracing.span("consumer event"))));
}

#[tokio::test]
async fn a_transaction_of_ones_own_carries_on_the_span_that_it_is_in() {
    let db = database().await;
    bring_up(&db, "queue", None).await;
    append(&db.producer(), &[event(Some(&header(true))), event(Some(&header(false)))]).await;
    let events = seqline::read::events_after(&mut db.app().acquire().await.unwrap(), 0, 10).await.unwrap();
    let tracing = Tracing::with(Sampler::AlwaysOn);
    let inserting = async {
        let jobs: Vec<_> = events.iter().map(|event| job().check().unwrap().of(event)).collect();
        let mut tx = seqline::begin(&db.app()).await.unwrap();
        River::in_schema("queue").insert(&mut tx, &jobs).await.unwrap();
        tx.commit().await.unwrap();
    };
    inserting.instrument(tracing::info_span!("own")).await;
    assert_eq!(carried(&db).await, [Some(traceparent_of(&tracing.span("own"))), None]);
}

#[cfg(feature = "riverqueue")]
#[tokio::test]
async fn a_client_of_the_application_carries_it_on_and_keeps_what_the_application_has_set() {
    use riverqueue::database::PostgresDatabase;
    use riverqueue::migrate::SchemaName;
    use riverqueue::{Client, InsertOpts};
    use seqline::job::RiverClient;

    #[derive(serde::Serialize, serde::Deserialize, riverqueue::JobArgs)]
    #[river(kind = "invoice.send")]
    struct SendInvoice {
        order_id: String,
    }

    let db = database().await;
    bring_up(&db, "queue", None).await;
    let schema = SchemaName::new("queue").unwrap();
    let client = Client::builder(PostgresDatabase::new(db.app()).with_schema(schema)).build().unwrap();
    let river = RiverClient::new(client);
    let handler = acting(move |event, round| {
        let river = river.clone();
        Box::pin(async move {
            for own in [json!({}), json!({"traceparent": "own"})] {
                let opts = InsertOpts::default().with_metadata(own.as_object().cloned().unwrap());
                let args = SendInvoice { order_id: "a-4711".to_owned() };
                river.insert(round.transaction(), event, args, opts).await?;
            }
            Ok(())
        })
    });
    let bench = Bench::on(db, config(), probe(handler)).await;
    let tracing = Tracing::with(Sampler::AlwaysOn);
    append(&bench.db.producer(), &[event(Some(&header(true))), event(None)]).await;
    bench.processes(2).await;
    let followed = traceparent_of(&tracing.span("consumer event"));
    let own = || Some("own".to_owned());
    assert_eq!(carried(&bench.db).await, [Some(followed), own(), None, own()]);
}
