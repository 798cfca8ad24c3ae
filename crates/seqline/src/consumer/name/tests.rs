use proptest::prelude::*;

use super::*;

#[test]
fn names_have_lowercase_letters_digits_and_underscores_and_begin_with_a_letter() {
    let longest = "a".repeat(NAME_CHARACTERS_MAX);
    for name in
        ["a", "z", "a0", "a_", "a__b", "invoices", "invoices_2", "push2", "webhook", "pushh", &longest]
    {
        assert_eq!(ConsumerName::new(name).map(|name| name.to_string()), Ok(name.to_owned()));
    }
}

#[test]
fn other_texts_are_no_names() {
    let too_long = "a".repeat(NAME_CHARACTERS_MAX + 1);
    for text in [
        "", "_a", "0a", "A", "aB", "a-b", "a.b", "a b", " a", "a ", "a\n", "\na", "a\0", "\u{e9}", "a\u{e9}",
        "a\u{661}", "\u{ff41}", "Push", &too_long,
    ] {
        assert_eq!(ConsumerName::new(text), Err(InvalidConsumerName::Form), "{text:?}");
    }
}

#[test]
fn the_names_of_built_in_consumers_are_reserved() {
    assert_eq!(ConsumerName::RESERVED, ["push", "webhooks"]);
    for name in ConsumerName::RESERVED {
        assert_eq!(ConsumerName::new(name), Err(InvalidConsumerName::Reserved));
    }
    let built_in = [ConsumerName::push(), ConsumerName::webhooks()];
    assert_eq!(built_in.each_ref().map(ConsumerName::as_str), ConsumerName::RESERVED);
}

proptest! {
    #[test]
    fn a_name_is_accepted_as_it_is_or_not_at_all(text in prop_oneof!["\\PC{0,4}", "[a-zA-Z0-9_. -]{0,70}"]) {
        let first = text.bytes().next();
        let of_the_form = (1..=63).contains(&text.len())
            && first.is_some_and(|byte| byte.is_ascii_lowercase())
            && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        match ConsumerName::new(text.as_str()) {
            Ok(name) => {
                prop_assert!(of_the_form);
                prop_assert_eq!(name.as_str(), text);
            }
            Err(InvalidConsumerName::Form) => prop_assert!(!of_the_form),
            Err(InvalidConsumerName::Reserved) => prop_assert!(ConsumerName::RESERVED.contains(&text.as_str())),
        }
    }
}
