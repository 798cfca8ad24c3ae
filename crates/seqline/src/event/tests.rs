use proptest::prelude::*;

use super::*;

fn valid() -> NewEventBuilder {
    NewEvent::builder("order.created", "order", "any")
}

fn refused(builder: NewEventBuilder) -> (Rule, String) {
    let error = builder.build().unwrap_err();
    assert!(error.to_string().contains(error.member()), "the message names the member: {error}");
    (error.rule(), error.member().to_owned())
}

#[test]
fn every_rule_names_its_member() {
    let long = "x".repeat(TEXT_CHARACTERS_MAX + 1);
    let table: Vec<(NewEventBuilder, Rule, &str)> = vec![
        (NewEvent::builder("", "order", "any"), Rule::Missing, "type"),
        (NewEvent::builder("order", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder("order.v2", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder("order.re-opened", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder("Order.created", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder("order..created", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder(".order.created", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder("_order.created", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder("order.created\n", "order", "any"), Rule::TypeFormat, "type"),
        (NewEvent::builder(format!("a.{long}"), "order", "any"), Rule::TooLong, "type"),
        (NewEvent::builder("order.created", "", "any"), Rule::Missing, "resource_kind"),
        (NewEvent::builder("order.created", "order", ""), Rule::Missing, "receive_action"),
        (NewEvent::builder("order.created", long.clone(), "any"), Rule::TooLong, "resource_kind"),
        (NewEvent::builder("order.created", "order", "a\u{7f}b"), Rule::ControlCharacter, "receive_action"),
        (valid().schema_version(0), Rule::SchemaVersion, "schema_version"),
        (valid().schema_version(-1), Rule::SchemaVersion, "schema_version"),
        (valid().resource_id(long.clone()), Rule::TooLong, "resource_id"),
        (valid().space("a\nb"), Rule::ControlCharacter, "space_id"),
        (valid().channel("a\u{85}b"), Rule::ControlCharacter, "channel_id"),
        (valid().thread(long.clone()), Rule::TooLong, "thread_id"),
        (valid().client_msg_id("\u{1}"), Rule::ControlCharacter, "client_msg_id"),
        (valid().audience(long.clone()), Rule::TooLong, "audience_principal_id"),
        (valid().actor(Actor::User(String::new())), Rule::ActorPrincipalMissing, "actor_principal_id"),
        (valid().actor(Actor::App(long)), Rule::TooLong, "actor_principal_id"),
        (NewEvent::builder("order.created", "order", "self"), Rule::AudienceMissing, "audience_principal_id"),
        (
            NewEvent::builder("order.created", "order", "self").audience(""),
            Rule::AudienceMissing,
            "audience_principal_id",
        ),
    ];
    for (builder, rule, member) in table {
        let what = format!("{builder:?}");
        assert_eq!(refused(builder), (rule, member.to_owned()), "{what}");
    }
}

#[test]
fn what_is_allowed_builds() {
    for builder in [
        valid(),
        NewEvent::builder("a.b", "o", "self").audience("alex"),
        NewEvent::builder("github.pull_request.opened", "pull_request", "any"),
        valid().actor(Actor::System),
        valid().actor(Actor::Agent("robin".into())).space("1").channel("2").thread("3"),
        valid().resource_id("x".repeat(TEXT_CHARACTERS_MAX)),
        valid().resource_id("\u{fc}".repeat(TEXT_CHARACTERS_MAX)),
        valid().schema_version(i32::MAX).resource_version(0),
    ] {
        builder.build().unwrap();
    }
}

#[test]
fn empty_texts_and_the_nil_id_mean_absent() {
    let event = valid().space("").resource_id("").id(Uuid::nil()).build().unwrap();
    assert_eq!((event.0.space_id, event.0.resource_id, event.0.id), (None, None, None));
}

#[test]
fn every_rule_has_a_name_of_its_own() {
    for (rule, name) in Rule::NAMES {
        assert_eq!(Rule::from_name(name), Some(rule));
        assert_eq!(rule.name(), name);
    }
}

proptest! {
    #[test]
    fn an_event_type_is_what_the_pattern_says(text in "[a-z_.A0]{0,12}") {
        // A second reading of the rule, word by word.
        let words: Vec<&str> = text.split('.').collect();
        let ok = words.len() >= 2
            && words.iter().all(|word| {
                let mut letters = word.chars();
                letters.next().is_some_and(|c| c.is_ascii_lowercase())
                    && letters.all(|c| c == '_' || c.is_ascii_lowercase())
            });
        prop_assert_eq!(NewEvent::builder(text, "order", "any").build().is_ok(), ok);
    }

    #[test]
    fn any_text_is_answered_without_a_panic(text in "\\PC{0,200}", other in any::<String>()) {
        let _ = NewEvent::builder(text.clone(), other.clone(), text.clone()).space(other).resource_id(text).build();
    }
}
