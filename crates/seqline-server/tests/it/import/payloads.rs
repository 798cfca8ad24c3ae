//! Real payloads, and where the members of an event come from.

use std::path::{Path, PathBuf};

use seqline::Payload;
use seqline_testkit::{Role, TestDb};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::Row;

use super::{Input, import};
use crate::support::on;

#[derive(Deserialize)]
struct Webhook {
    name: String,
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

/// The name of the hook, without digits, which a type cannot have, and its payload.
fn examples() -> Vec<(String, String)> {
    let file = examples_file();
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let webhooks: Vec<Webhook> = serde_json::from_str(&text).unwrap();
    let examples = webhooks.into_iter().flat_map(|webhook| {
        let name: String = webhook.name.chars().filter(|c| !c.is_ascii_digit()).collect();
        webhook.examples.into_iter().map(move |example| (name.clone(), example.get().to_owned()))
    });
    examples.collect()
}

#[tokio::test]
async fn every_real_payload_is_imported_by_four_writers() {
    let db = TestDb::new().await;
    let examples = examples();
    assert_eq!(examples.len(), 329);
    let lines = examples.iter().map(|(name, payload)| {
        let payload: Value = serde_json::from_str(payload).unwrap();
        format!("{}\n", json!({ "event": name, "payload": payload }))
    });
    let input = Input::new(lines.collect::<String>());
    let outcome = on(&db, Role::App, ["import"])
        .arg(&input.file)
        .args(["--type-pointer", "/event", "--type-prefix", "github.", "--payload-pointer", "/payload"])
        .args(["--resource-kind", "hook", "--strip-nulls", "--writers", "4", "--batch", "10"])
        .ok()
        .await;
    assert_eq!(outcome, "329 imported, 0 rejected\n");
    let rows = sqlx::query("SELECT type, payload::text, seq FROM seqline.event_log ORDER BY seq");
    let rows = rows.fetch_all(&db.admin()).await.unwrap();
    let sorted = |mut events: Vec<(String, String)>| {
        events.sort();
        events
    };
    let canonical = |json: &str| serde_json::from_str::<Value>(json).unwrap().to_string();
    let found = rows.iter().map(|row| (row.get(0), canonical(row.get(1)))).collect();
    let expected = examples.iter().map(|(name, payload)| {
        let payload = Payload::without_nulls(payload).unwrap();
        (format!("github.{name}"), canonical(payload.as_json()))
    });
    assert_eq!(sorted(found), sorted(expected.collect()));
    assert_eq!(rows.last().unwrap().get::<i64, _>(2), 329);
}

#[tokio::test]
async fn members_come_from_pointers_and_options() {
    let db = TestDb::new().await;
    let input = Input::new(concat!(
        r#"{"kind":"order","data":{"id":17,"total":1.5}}"#,
        "\n",
        r#"{"kind":"invoice","data":{"id":"a/b"}}"#,
        "\n",
        r#"{"kind":"invoice","data":{}}"#,
        "\n",
    ));
    on(&db, Role::App, ["import"])
        .arg(&input.file)
        .args([
            "--type",
            "thing.seen",
            "--resource-kind-pointer",
            "/kind",
            "--resource-id-pointer",
            "/data/id",
        ])
        .args(["--payload-pointer", "/data", "--space", "shop", "--channel", "sales", "--thread", "t1"])
        .args(["--actor-kind", "app", "--actor-id", "feed", "--schema-version", "4"])
        .args(["--receive-action", "self", "--audience", "sam"])
        .ok()
        .await;
    let text = on(&db, Role::Reader, ["tail", "--json"]).ok().await;
    let expected = [
        (json!({"kind": "order", "id": "17"}), json!({"id": 17, "total": 1.5})),
        (json!({"kind": "invoice", "id": "a/b"}), json!({"id": "a/b"})),
        (json!({"kind": "invoice"}), json!({})),
    ];
    assert_eq!(text.lines().count(), expected.len());
    for ((seq, line), (resource, payload)) in (1..).zip(text.lines()).zip(expected) {
        let mut envelope: Value = serde_json::from_str(line).unwrap();
        let members = envelope.as_object_mut().unwrap();
        assert!(members.remove("id").is_some() && members.remove("occurred_at").is_some());
        assert_eq!(
            envelope,
            json!({
                "type": "thing.seen",
                "schema_version": 4,
                "seq": seq,
                "permission_version": 0,
                "actor": {"kind": "app", "id": "feed"},
                "scope": {"space_id": "shop", "channel_id": "sales", "thread_id": "t1"},
                "resource": resource,
                "audience": "self",
                "payload": payload,
            })
        );
    }
}

#[tokio::test]
async fn numbers_keep_every_digit_whether_the_payload_is_the_line_or_a_part_of_it() {
    let db = TestDb::new().await;
    let payload = r#"{"a":1.000000000000000000001,"b":123456789012345678901234567890,"c":1e400}"#;
    let whole = Input::new(payload);
    import(&db, &whole.file).ok().await;
    let part = Input::new(format!("{{\"data\":{payload}}}"));
    import(&db, &part.file).args(["--payload-pointer", "/data"]).ok().await;
    let kept: Vec<bool> =
        sqlx::query_scalar("SELECT payload = $1::jsonb FROM seqline.event_log ORDER BY seq")
            .bind(payload)
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(kept, [true, true]);
}

#[tokio::test]
async fn what_is_wrong_with_the_command_itself_is_said_before_anything_is_done() {
    let db = TestDb::new().await;
    let input = Input::numbered(3);
    let table: [(&[&str], i32, &str); 3] = [
        (
            &["--type-pointer", "event", "--resource-kind", "x"],
            2,
            "event is not a JSON pointer: it starts with a slash, such as /event/type",
        ),
        (
            &["--type", "a.b", "--resource-kind", "x", "--actor-kind", "bot"],
            4,
            "member actor_kind must be user, agent, app or system",
        ),
        (
            &["--type", "a.b", "--resource-kind", "x", "--actor-kind", "system", "--actor-id", "alex"],
            4,
            "member actor_principal_id needs an actor_kind of user, agent or app",
        ),
    ];
    for (args, code, sentence) in table {
        let import = on(&db, Role::App, ["import"]).arg(&input.file).args(args);
        assert_eq!(import.refused(code).await, sentence);
    }
    assert_eq!(on(&db, Role::Reader, ["tail"]).ok().await, "");
}
