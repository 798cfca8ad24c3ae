use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::event::StoredPayload;

fn full() -> StoredEvent {
    StoredEvent {
        seq: 42,
        id: Uuid::from_u128(0x018f_0000_0000_7000_8000_0000_0000_0001),
        event_type: "order.created".into(),
        schema_version: 2,
        occurred_at: OffsetDateTime::from_unix_timestamp_nanos(1_790_000_000_123_456_000).unwrap(),
        permission_version: 7,
        actor_kind: Some("user".into()),
        actor_principal_id: Some("alex".into()),
        space_id: Some("shop-1".into()),
        channel_id: Some("orders".into()),
        thread_id: Some("t-1".into()),
        resource_kind: "order".into(),
        resource_id: Some("17".into()),
        resource_version: Some(3),
        audience_principal_id: Some("sam".into()),
        receive_action: "self".into(),
        payload: payload(r#"{"total": 12.50}"#),
        truncated: true,
        client_msg_id: Some("c-9".into()),
        correlation_id: Some(Uuid::from_u128(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736)),
        trace_context: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        redacted: true,
    }
}

fn bare() -> StoredEvent {
    StoredEvent {
        seq: 1,
        permission_version: 0,
        actor_kind: None,
        actor_principal_id: None,
        space_id: None,
        channel_id: None,
        thread_id: None,
        resource_id: None,
        resource_version: None,
        audience_principal_id: None,
        receive_action: "any".into(),
        payload: payload("{}"),
        truncated: false,
        client_msg_id: None,
        correlation_id: None,
        trace_context: None,
        redacted: false,
        ..full()
    }
}

fn payload(json: &str) -> StoredPayload {
    StoredPayload(RawValue::from_string(json.to_owned()).unwrap())
}

fn agent() -> Delivery {
    Delivery { include_trace_context: true, invocation_token: Some("tok".into()), redelivered: true }
}

fn render(event: &StoredEvent, delivery: &Delivery) -> Value {
    serde_json::from_str(&Envelope::new(event, delivery).to_json()).unwrap()
}

#[test]
fn an_envelope_with_every_member() {
    insta::assert_snapshot!(Envelope::new(&full(), &agent()).to_json());
}

#[test]
fn an_envelope_with_no_optional_member() {
    insta::assert_snapshot!(Envelope::new(&bare(), &Delivery::default()).to_json());
}

#[test]
fn a_permission_version_of_zero_is_rendered() {
    let json = render(&bare(), &Delivery::default());
    assert_eq!((&json["permission_version"], &json["seq"]), (&Value::from(0), &Value::from(1)));
}

#[test]
fn delivery_members_appear_only_when_the_delivery_sets_them() {
    let json = render(&full(), &Delivery::default());
    for member in ["redelivered", "invocation_token", "trace_context"] {
        assert!(json.get(member).is_none(), "{member}");
    }
    let json = render(&full(), &agent());
    assert_eq!((&json["redelivered"], &json["invocation_token"]), (&Value::from(true), &Value::from("tok")));
}

#[test]
fn only_a_delivery_that_asks_for_it_gets_the_trace_context() {
    let asked = Delivery { include_trace_context: true, ..Delivery::default() };
    assert!(render(&full(), &asked).get("trace_context").is_some());
    assert!(render(&full(), &Delivery::default()).get("trace_context").is_none());
    assert!(render(&bare(), &asked).get("trace_context").is_none());
}

#[test]
fn the_audience_is_not_named() {
    let json = Envelope::new(&full(), &Delivery::default()).to_json();
    assert!(json.contains(r#""audience":"self""#) && !json.contains("sam"));
    assert!(render(&bare(), &Delivery::default()).get("audience").is_none());
}

#[test]
fn an_actor_without_principal_is_only_its_kind() {
    let system = StoredEvent { actor_kind: Some("system".into()), ..bare() };
    assert_eq!(render(&system, &Delivery::default())["actor"], serde_json::json!({"kind": "system"}));
    assert!(render(&bare(), &Delivery::default()).get("actor").is_none());
}

#[test]
fn the_members_are_the_documented_ones() {
    let documented = include_str!("../../../../docs/guide/envelope.md");
    let mut missing = Vec::new();
    let mut rendered = std::collections::BTreeSet::new();
    let json = render(&full(), &agent());
    for (name, value) in json.as_object().unwrap() {
        rendered.insert(name.clone());
        if name != "payload" {
            rendered
                .extend(value.as_object().into_iter().flatten().map(|(inner, _)| format!("{name}.{inner}")));
        }
    }
    let listed: std::collections::BTreeSet<String> = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(str::to_owned))
        .collect();
    missing.extend(rendered.symmetric_difference(&listed));
    assert!(missing.is_empty(), "rendered and documented members differ: {missing:?}");
}

#[test]
fn what_was_rendered_can_be_read_back() {
    let json = Envelope::new(&full(), &agent()).to_json();
    let read: Envelope = serde_json::from_str(&json).unwrap();
    assert_eq!(read.to_json(), json);
    let newer = json.replacen('{', r#"{"a_member_of_the_future":1,"#, 1);
    assert!(serde_json::from_str::<Envelope>(&newer).is_ok(), "unknown members are ignored");
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(elements) => elements.iter().any(has_null),
        Value::Object(members) => members.values().any(has_null),
        _ => false,
    }
}

prop_compose! {
    fn any_event()(
        texts in prop::collection::vec(prop::option::of("\\PC{0,12}"), 9),
        numbers in (any::<i64>(), any::<i64>(), any::<i32>(), prop::option::of(any::<i64>())),
        flags in (any::<bool>(), any::<bool>()),
        correlation in prop::option::of(any::<u128>()),
        at in -30_000_000_000_i64..250_000_000_000,
    ) -> StoredEvent {
        let text = |at: usize| texts[at].clone();
        StoredEvent {
            seq: numbers.0,
            permission_version: numbers.1,
            schema_version: numbers.2,
            resource_version: numbers.3,
            actor_kind: text(0), actor_principal_id: text(1), space_id: text(2), channel_id: text(3),
            thread_id: text(4), resource_id: text(5), audience_principal_id: text(6), client_msg_id: text(7),
            trace_context: text(8),
            truncated: flags.0,
            redacted: flags.1,
            correlation_id: correlation.map(Uuid::from_u128),
            occurred_at: OffsetDateTime::from_unix_timestamp(at).unwrap(),
            ..bare()
        }
    }
}

proptest! {
    #[test]
    fn no_event_and_no_delivery_renders_a_null(
        event in any_event(),
        trace in any::<bool>(), token in prop::option::of("\\PC{0,8}"), redelivered in any::<bool>(),
    ) {
        let delivery = Delivery { include_trace_context: trace, invocation_token: token, redelivered };
        let json = render(&event, &delivery);
        prop_assert!(!has_null(&json));
        let members = json.as_object().unwrap();
        prop_assert_eq!(members["seq"].as_i64(), Some(event.seq));
        prop_assert_eq!(members["permission_version"].as_i64(), Some(event.permission_version));
        prop_assert_eq!(members.contains_key("actor"), event.actor_kind.is_some());
        prop_assert!(members["scope"].is_object());
        prop_assert_eq!(members.contains_key("trace_context"), trace && event.trace_context.is_some());
        prop_assert!(members["occurred_at"].as_str().unwrap().ends_with('Z'));
    }
}
