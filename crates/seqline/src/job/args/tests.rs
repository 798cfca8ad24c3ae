use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Texts with the characters that encoders of JSON disagree about.
fn text() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        '<',
        '>',
        '&',
        '"',
        '\\',
        '/',
        '\u{8}',
        '\u{c}',
        '\n',
        '\r',
        '\t',
        '\0',
        '\u{1f}',
        '\u{7f}',
        '\u{85}',
        '\u{2027}',
        '\u{2028}',
        '\u{2029}',
        '\u{fffd}',
        '\u{1f600}',
        'a',
    ]);
    prop::collection::vec(prop_oneof![odd, any::<char>()], 0..12).prop_map(String::from_iter)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_json_is_the_one_that_river_writes(
        members in prop::collection::btree_map(text(), prop_oneof![
            any::<i64>().prop_map(Value::from),
            text().prop_map(Value::from),
        ], 0..6),
    ) {
        let mut args = JobArgs::new();
        for (name, value) in &members {
            args = match value {
                Value::Number(number) => args.with(name, number.as_i64().expect("it is one")),
                value => args.with(name, value.as_str().expect("it is a text")),
            };
        }
        let expected = riverqueue::encoding::encode_args(&members).expect("it can be encoded");
        prop_assert_eq!(args.to_json(), expected.get());
        // What the other sinks get means the same.
        let own: BTreeMap<String, Value> = serde_json::from_str(&args.to_json()).expect("it is JSON");
        let serialized = serde_json::to_value(&args).expect("it can be serialized");
        prop_assert_eq!(serde_json::to_value(&own).expect("it is JSON"), serialized);
        prop_assert_eq!(own, members);
    }

    #[test]
    fn a_name_is_what_the_rule_says(name in "[a-z_A9.é-]{0,4}") {
        let letters: Vec<char> = name.chars().collect();
        let is_letter = |c: &char| c.is_ascii_lowercase() || *c == '_' || *c == 'A';
        let ok = letters.first().is_some_and(is_letter) && letters.iter().all(|c| is_letter(c) || *c == '9');
        prop_assert_eq!(JobArgs::new().with(name, 1).check(), if ok { Ok(()) } else { Err(InvalidJob::ArgumentName) });
    }
}

#[test]
fn every_type_that_is_an_id_or_a_number_can_be_an_argument() {
    let borrowed = "b".to_owned();
    let args = JobArgs::new()
        .with("small", 1_i32)
        .with("large", i64::MIN)
        .with("text", "t")
        .with("string", "s".to_owned())
        .with("borrowed", &borrowed)
        .with("uuid", Uuid::from_u128(0x17));
    let expected = r#"{"borrowed":"b","large":-9223372036854775808,"small":1,"string":"s","text":"t","uuid":"00000000-0000-0000-0000-000000000017"}"#;
    assert_eq!(args.to_json(), expected);
    assert_eq!(JobArgs::new().to_json(), "{}");
    assert_eq!(JobArgs::new().with("n", 1).with("n", 2).to_json(), r#"{"n":2}"#, "the last one stays");
}

#[test]
fn arguments_that_are_no_ids_are_refused_and_never_repeated() {
    const MARKER: &str = "swordfish";
    let many = |count: usize| (0..count).fold(JobArgs::new(), |args, n| args.with(format!("a{n}"), MARKER));
    let of = |name: &str, value: &str| JobArgs::new().with(name, value);
    let padded = |fill: &str, count: usize| format!("{MARKER}{}", fill.repeat(count - MARKER.len()));
    let a_name = "the name of an argument must have 1 to 64 letters, digits or _, the first not a digit";
    let control = "argument order_id of a job contains a control character";
    for (args, expected) in [
        (many(32), ""),
        (many(33), "a job has at most 32 arguments: it carries ids, not data"),
        (of("", MARKER), a_name),
        (of("1st", MARKER), a_name),
        (of("order id", MARKER), a_name),
        (of("bestellnummer_\u{e4}", MARKER), a_name),
        (of(&"n".repeat(64), MARKER), ""),
        (of(&"n".repeat(65), MARKER), a_name),
        (of("order_id", ""), "argument order_id of a job is empty"),
        (of("order_id", " "), ""),
        (of("order_id", &padded("\u{e4}", 128)), ""),
        (
            of("order_id", &padded("\u{e4}", 129)),
            "argument order_id of a job has more than 128 characters: it carries ids, not data",
        ),
        (of("order_id", "swordfish\n"), control),
        (of("order_id", "swordfish\0"), control),
        (of("order_id", "swordfish\u{7f}"), control),
        (of("order_id", "swordfish\u{85}"), control),
        (of("order_id", "swordfish\u{2028}<>&"), ""),
    ] {
        let said = args.check().map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(said, expected, "{}", args.to_json());
        assert!(!said.contains(MARKER));
    }
}
