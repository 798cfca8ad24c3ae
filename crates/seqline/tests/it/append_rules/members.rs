//! The rules about the members of an event, its payload aside.

use serde_json::Value;

use super::{Draft, Refusal, assert_accepted, assert_refused};

const TYPE_FORMAT: &str =
    "member type must be two or more lowercase words joined by dots, such as order.created";

const OPTIONAL_TEXTS: [&str; 6] =
    ["resource_id", "space_id", "channel_id", "thread_id", "audience_principal_id", "client_msg_id"];

/// Every member whose text has a bound, with a draft in which it may be set.
fn texts() -> impl Iterator<Item = (&'static str, Draft)> {
    let required = ["resource_kind", "receive_action"].map(|member| (member, Draft::valid()));
    let optional = OPTIONAL_TEXTS.map(|member| (member, Draft::valid()));
    let principal = ("actor_principal_id", Draft::valid().with("actor_kind", "agent"));
    required.into_iter().chain(optional).chain([principal])
}

#[tokio::test]
async fn a_type_that_is_not_words_joined_by_dots_is_refused() {
    let bad = [
        "order",
        "order.v2",
        "order2.created",
        "order.re-opened",
        "Order.created",
        "order.Created",
        "order..created",
        ".order.created",
        "order.created.",
        "_order.created",
        "order._created",
        "order.created\n",
        "order created",
        "orderXcreated",
        "\u{f6}rder.created",
        " order.created",
        "order.created\u{7f}",
    ];
    let refusal = Refusal::new("type_format", "type", TYPE_FORMAT);
    assert_refused(
        bad.into_iter().map(|name| (Draft::valid().with("type", name), refusal.clone())).collect(),
    )
    .await;
}

#[tokio::test]
async fn a_member_that_every_event_has_must_be_there() {
    let mut table = Vec::new();
    for member in ["type", "resource_kind", "receive_action"] {
        let refusal = Refusal::new("missing", member, format!("member {member} is missing"));
        for draft in [
            Draft::valid().without(member),
            Draft::valid().with(member, ""),
            Draft::valid().with(member, Value::Null),
        ] {
            table.push((draft, refusal.clone()));
        }
    }
    table.push((
        Draft::valid().without_payload(),
        Refusal::new("missing", "payload", "member payload is missing"),
    ));
    assert_refused(table).await;
}

#[tokio::test]
async fn a_text_of_more_than_128_characters_is_refused() {
    let mut table: Vec<(Draft, Refusal)> = texts()
        .flat_map(|(member, draft)| {
            let refusal =
                Refusal::new("too_long", member, format!("member {member} is longer than 128 characters"));
            [
                (draft.clone().with(member, "x".repeat(129)), refusal.clone()),
                (draft.with(member, "\u{1f600}".repeat(129)), refusal),
            ]
        })
        .collect();
    table.push((
        Draft::valid().with("type", format!("a.{}", "b".repeat(127))),
        Refusal::new("too_long", "type", "member type is longer than 128 characters"),
    ));
    assert_refused(table).await;
}

#[tokio::test]
async fn a_control_character_is_refused_in_every_text() {
    // The first and the last of both ranges, and those that look harmless.
    let characters = ["\u{1}", "\t", "\n", "\r", "\u{1f}", "\u{7f}", "\u{80}", "\u{85}", "\u{9f}"];
    let mut table = Vec::new();
    for (member, draft) in texts() {
        let refusal = Refusal::new(
            "control_character",
            member,
            format!("member {member} contains a control character"),
        );
        for character in characters {
            table.push((draft.clone().with(member, format!("a{character}b")), refusal.clone()));
        }
        table.push((draft.with(member, "ends\n"), refusal));
    }
    assert_refused(table).await;
}

#[tokio::test]
async fn a_schema_version_below_1_is_refused() {
    let refusal =
        Refusal::new("schema_version", "schema_version", "member schema_version must be at least 1");
    let versions = [0, -1, -999_999_999];
    assert_refused(
        versions
            .into_iter()
            .map(|version| (Draft::valid().with("schema_version", version), refusal.clone()))
            .collect(),
    )
    .await;
}

#[tokio::test]
async fn an_actor_kind_outside_the_set_is_refused() {
    let refusal =
        Refusal::new("actor_kind", "actor_kind", "member actor_kind must be user, agent, app or system");
    let table = ["robot", "User", " user", "users"]
        .into_iter()
        .map(|kind| (Draft::valid().with("actor_kind", kind), refusal.clone()))
        .collect();
    assert_refused(table).await;
}

#[tokio::test]
async fn an_actor_that_has_a_principal_must_name_it() {
    let refusal = Refusal::new(
        "actor_principal_missing",
        "actor_principal_id",
        "member actor_principal_id is missing: an actor of kind user, agent or app names its principal",
    );
    let table = ["user", "agent", "app"]
        .into_iter()
        .flat_map(|kind| {
            let draft = Draft::valid().with("actor_kind", kind);
            [(draft.clone(), refusal.clone()), (draft.with("actor_principal_id", ""), refusal.clone())]
        })
        .collect();
    assert_refused(table).await;
}

#[tokio::test]
async fn a_principal_without_an_actor_that_has_one_is_refused() {
    let refusal = Refusal::new(
        "actor_principal_unexpected",
        "actor_principal_id",
        "member actor_principal_id needs an actor_kind of user, agent or app",
    );
    let draft = Draft::valid().with("actor_principal_id", "sam");
    assert_refused(vec![
        (draft.clone(), refusal.clone()),
        (draft.clone().with("actor_kind", ""), refusal.clone()),
        (draft.with("actor_kind", "system"), refusal),
    ])
    .await;
}

#[tokio::test]
async fn self_without_an_audience_is_refused() {
    let refusal = Refusal::new(
        "audience_missing",
        "audience_principal_id",
        "member audience_principal_id is missing: receive_action self needs it",
    );
    let draft = Draft::valid().with("receive_action", "self");
    assert_refused(vec![
        (draft.clone(), refusal.clone()),
        (draft.with("audience_principal_id", ""), refusal),
    ])
    .await;
}

#[tokio::test]
async fn what_the_rules_allow_is_accepted() {
    let mut drafts: Vec<Draft> = texts()
        .flat_map(|(member, draft)| {
            [
                draft.clone().with(member, "x".repeat(128)),
                draft.with(member, "\u{1f600}\u{a0}\u{2028}".repeat(42)),
            ]
        })
        .collect();
    for name in ["a.b", "order.created", "github.pull_request.review_.opened", "a__.b_"] {
        drafts.push(Draft::valid().with("type", name));
    }
    drafts.push(Draft::valid().with("type", format!("a.{}", "b".repeat(126))));
    for kind in ["user", "agent", "app"] {
        drafts.push(Draft::valid().with("actor_kind", kind).with("actor_principal_id", "robin"));
    }
    drafts.push(Draft::valid().with("actor_kind", "system"));
    drafts.push(Draft::valid().with("receive_action", "self").with("audience_principal_id", "alex"));
    assert_accepted(drafts).await;
}

#[tokio::test]
async fn the_largest_integers_are_accepted_every_way_in() {
    assert_accepted(vec![
        Draft::valid().with("schema_version", i32::MAX),
        Draft::valid().with("resource_version", i64::MAX),
        Draft::valid().with("resource_version", i64::MIN),
    ])
    .await;
}
