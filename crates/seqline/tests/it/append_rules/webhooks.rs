//! Real payloads: 329 examples of webhooks, most of them full of nulls.

use std::path::{Path, PathBuf};

use seqline::{NewEvent, Payload, Rule};
use seqline_testkit::{TestDb, settled};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Webhook {
    examples: Vec<Box<RawValue>>,
}

/// The examples come with the development environment: a missing file is a failure, not a reason to skip.
fn examples_file() -> PathBuf {
    if let Some(file) = std::env::var_os("SEQLINE_WEBHOOKS_EXAMPLES") {
        return file.into();
    }
    let below = ["api.github.com/index.json", "package/api.github.com/index.json"];
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .flat_map(|folder| below.map(|file| folder.join(".dev/webhooks-examples").join(file)))
        .find(|file| file.is_file())
        .expect("set SEQLINE_WEBHOOKS_EXAMPLES to the package's api.github.com/index.json")
}

fn examples() -> Vec<Box<RawValue>> {
    let file = examples_file();
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let webhooks: Vec<Webhook> = serde_json::from_str(&text).unwrap();
    webhooks.into_iter().flat_map(|webhook| webhook.examples).collect()
}

#[tokio::test]
async fn every_real_payload_is_accepted_as_it_is_or_without_its_nulls() {
    let db = TestDb::new().await;
    let (app, mut refused) = (db.app(), 0);
    let examples = examples();
    assert_eq!(examples.len(), 329);
    for example in &examples {
        let payload = Payload::from_json(example.get()).or_else(|error| {
            assert_eq!(error.rule(), Rule::PayloadNull, "{error}");
            refused += 1;
            Payload::without_nulls(example.get())
        });
        let event = NewEvent::builder("webhook.received", "webhook", "any")
            .payload(payload.unwrap())
            .build()
            .unwrap();
        let mut tx = seqline::begin(&app).await.unwrap();
        let ids = seqline::append(&mut tx, &[event]).await.unwrap();
        seqline::commit(tx).await.unwrap();
        settled(&app).await;
        let kept: bool = sqlx::query_scalar(
            "SELECT payload = seqline.without_nulls($2::jsonb) FROM seqline.event_log WHERE id = $1",
        )
        .bind(ids[0])
        .bind(example.get())
        .fetch_one(&app)
        .await
        .unwrap();
        assert!(kept, "{}", example.get());
    }
    // Of a set without nulls this would prove nothing.
    assert_eq!(refused, 305);
}
