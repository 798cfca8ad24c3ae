//! Where correlation and trace context of an event come from, and where they lead.

#[cfg(feature = "opentelemetry")]
mod rounds;

#[cfg(feature = "opentelemetry")]
mod spans {
    use opentelemetry::trace::{TraceContextExt, TracerProvider};
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use seqline::NewEvent;
    use seqline_testkit::{Role, TestDb, settled};
    use sqlx::PgPool;
    use tracing::{Instrument, Span};
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    use tracing_subscriber::layer::SubscriberExt;
    use uuid::Uuid;

    use crate::support::{event, more_subscribers};

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const HEADER_TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    /// Traces what happens on this thread as the sampler says, for as long as it is held.
    #[must_use]
    struct Tracing {
        _subscriber: tracing::subscriber::DefaultGuard,
        _provider: SdkTracerProvider,
    }

    fn trace_with(sampler: Sampler) -> Tracing {
        more_subscribers();
        let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        Tracing { _subscriber: tracing::subscriber::set_default(subscriber), _provider: provider }
    }

    async fn append(pool: &PgPool, events: &[NewEvent]) {
        let mut tx = seqline::begin(pool).await.unwrap();
        seqline::append(&mut tx, events).await.unwrap();
        seqline::commit(tx).await.unwrap();
        settled(pool).await;
    }

    /// Correlation id and trace context of each event.
    async fn fields(db: &TestDb) -> Vec<(Option<Uuid>, Option<String>)> {
        sqlx::query_as("SELECT correlation_id, trace_context FROM seqline.event_log ORDER BY seq")
            .fetch_all(&mut db.connect(Role::Reader).await)
            .await
            .unwrap()
    }

    fn ids_of(span: &Span) -> (String, String) {
        let context = span.context();
        let span = context.span();
        let span = span.span_context();
        (span.trace_id().to_string(), span.span_id().to_string())
    }

    #[tokio::test]
    async fn a_sampled_span_gives_correlation_and_trace_context() {
        let db = TestDb::new().await;
        let _tracing = trace_with(Sampler::AlwaysOn);
        let span = tracing::info_span!("request");
        append(&db.producer(), &[event(1)]).instrument(span.clone()).await;
        let (trace_id, span_id) = ids_of(&span);
        let expected =
            (Some(Uuid::parse_str(&trace_id).unwrap()), Some(format!("00-{trace_id}-{span_id}-01")));
        assert_eq!(fields(&db).await, [expected]);
    }

    #[tokio::test]
    async fn an_unsampled_span_gives_the_correlation_only() {
        let db = TestDb::new().await;
        let _tracing = trace_with(Sampler::AlwaysOff);
        let span = tracing::info_span!("request");
        append(&db.producer(), &[event(1)]).instrument(span.clone()).await;
        let trace_id = Uuid::parse_str(&ids_of(&span).0).unwrap();
        assert!(!trace_id.is_nil());
        assert_eq!(fields(&db).await, [(Some(trace_id), None)]);
    }

    #[tokio::test]
    async fn without_a_span_there_is_neither() {
        let db = TestDb::new().await;
        let _tracing = trace_with(Sampler::AlwaysOn);
        append(&db.producer(), &[event(1)]).await;
        assert_eq!(fields(&db).await, [(None, None)]);
    }

    #[tokio::test]
    async fn a_span_that_nobody_traces_gives_neither() {
        let db = TestDb::new().await;
        let span = tracing::info_span!("request");
        append(&db.producer(), &[event(1)]).instrument(span).await;
        assert_eq!(fields(&db).await, [(None, None)]);
    }

    #[tokio::test]
    async fn a_traceparent_of_the_event_wins_over_the_span() {
        let db = TestDb::new().await;
        let _tracing = trace_with(Sampler::AlwaysOn);
        let own = NewEvent::builder("test.happened", "test", "any").traceparent(HEADER).build().unwrap();
        append(&db.producer(), &[own]).instrument(tracing::info_span!("request")).await;
        let expected = (Some(Uuid::parse_str(HEADER_TRACE_ID).unwrap()), Some(HEADER.to_owned()));
        assert_eq!(fields(&db).await, [expected]);
    }

    #[tokio::test]
    async fn every_event_of_a_batch_gets_its_own_traceparent_or_that_of_the_span() {
        let db = TestDb::new().await;
        let _tracing = trace_with(Sampler::AlwaysOn);
        let own = NewEvent::builder("test.happened", "test", "any").traceparent(HEADER).build().unwrap();
        let span = tracing::info_span!("request");
        append(&db.producer(), &[event(1), own, event(3)]).instrument(span.clone()).await;
        let (of_span, of_header) =
            (Uuid::parse_str(&ids_of(&span).0).unwrap(), Uuid::parse_str(HEADER_TRACE_ID).unwrap());
        let correlations: Vec<Option<Uuid>> = fields(&db).await.into_iter().map(|(id, _)| id).collect();
        assert_eq!(correlations, [Some(of_span), Some(of_header), Some(of_span)]);
    }
}
