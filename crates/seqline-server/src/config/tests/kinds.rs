//! Values of each kind, sources beyond the file, and the pages that are made from the table.

use super::*;

#[test]
fn the_command_line_comes_before_everything_and_each_source_is_known() {
    let text = "[consumer]\nbatch_size = 7\nscan_size = 8\n";
    let variables = [("SEQLINE_CONSUMER__SCAN_SIZE".into(), "9".into())];
    let loaded =
        load(Some(&file(text)), variables, ["consumer.scan_size=10", "database.listen=false"]).unwrap();
    let consumer = &loaded.config.consumer;
    assert_eq!((consumer.batch_size, consumer.scan_size, loaded.config.database.listen), (7, 10, false));
    let expected = [
        ("consumer.batch_size", Source::Line(2)),
        ("consumer.scan_size", Source::Option),
        ("database.listen", Source::Option),
    ];
    assert_eq!(loaded.sources.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn what_an_option_sets_is_a_key_and_a_value() {
    for (option, problem) in [
        ("consumer.batch_size", "--set: expected section.key=value"),
        (
            "consumer.batch_sise=5",
            "--set: unknown key consumer.batch_sise, did you mean consumer.batch_size?",
        ),
        ("hunter2=x", "--set: unknown key"),
        ("Hunter2.x=x", "--set: unknown key"),
        ("consumer.batch_size=0", "--set: consumer.batch_size: expected a whole number from 1 to 10000"),
        ("consumer.batch_size=", "--set: consumer.batch_size: expected a whole number from 1 to 10000"),
    ] {
        let found = set(&[option]).unwrap_err().to_string();
        assert_eq!(found, format!("the configuration is not valid\n  {problem}"), "{option}");
    }
    assert!(set(&["telemetry.otlp_endpoint="]).is_ok());
}

#[test]
fn a_switch_is_true_or_false() {
    for value in ["0", "1", "\"true\"", "\"on\"", "[]", "{}"] {
        let found = problems(&format!("database.listen = {value}"), &[]);
        assert_eq!(found, ["seqline.toml line 1: database.listen: expected true or false"], "{value}");
    }
    for value in ["TRUE", "on", "1", "x"] {
        let found = problems("", &[("SEQLINE_DATABASE__LISTEN", value)]);
        assert_eq!(found, ["SEQLINE_DATABASE__LISTEN: database.listen: expected true or false"], "{value}");
    }
    assert!(!loaded("database.listen = false", &[]).unwrap().database.listen);
}

#[test]
fn the_rules_for_another_history_are_those_of_the_library() {
    let names = OnChange::ALL.map(OnChange::as_str);
    assert_eq!(Key::find("epoch.on_change").unwrap().bounds(), names.join(", "));
}

#[test]
fn a_choice_is_one_of_its_names() {
    for (value, choice) in [
        ("refuse", OnChange::Refuse),
        ("new_epoch", OnChange::NewEpoch),
        (" accept ", OnChange::Accept),
        ("Accept", OnChange::Accept),
    ] {
        let config = loaded("", &[("SEQLINE_EPOCH__ON_CHANGE", value)]).unwrap();
        assert_eq!(config.epoch.on_change, choice);
    }
    for value in ["off", "OFF", "Off"] {
        let config =
            loaded(&format!("stream_consumer.recorder = \"{value}\""), &[("SEQLINE_RELAY__MODE", value)]);
        let config = config.unwrap();
        assert_eq!((config.relay.mode, config.stream_consumer.recorder), (Runs::Off, Runs::Off), "{value}");
    }
    for value in ["Refused", "new-epoch", "x"] {
        assert_eq!(
            problems(&format!("epoch.on_change = \"{value}\""), &[]),
            ["seqline.toml line 1: epoch.on_change: expected one of refuse, new_epoch, accept"]
        );
    }
}

#[test]
fn an_address_has_a_port_and_no_name() {
    for value in ["0.0.0.0:80", "[::1]:7465", " 192.0.2.7:1 "] {
        let config = loaded("", &[("SEQLINE_OPS__LISTEN", value)]).unwrap();
        assert_eq!(config.ops.listen.to_string(), value.trim());
    }
    for value in ["localhost:80", "127.0.0.1", ":80", "127.0.0.1:65536", "http://127.0.0.1:80", "::1:80:x"] {
        assert_eq!(
            problems("", &[("SEQLINE_OPS__LISTEN", value)]),
            [
                "SEQLINE_OPS__LISTEN: ops.listen: expected an IP address and a port, such as \"127.0.0.1:7465\" or \"[::1]:7465\""
            ],
            "{value}"
        );
    }
}

#[test]
fn an_endpoint_holds_nothing_secret() {
    for value in ["http://127.0.0.1:4318", "https://otel.example.com/prefix", ""] {
        let config = loaded(&format!("telemetry.otlp_endpoint = \"{value}\""), &[]).unwrap();
        assert_eq!(config.telemetry.otlp_endpoint, value);
    }
    let long = format!("http://{}", "z".repeat(2000));
    for value in [
        "http://alex:hunter2@otel.example.com",
        "http://otel.example.com?token=hunter2",
        "http://otel.example.com#hunter2",
        "ftp://otel.example.com",
        "http://",
        "http:///v1",
        "otel.example.com:4318",
        "http://a b",
        &long,
    ] {
        assert_eq!(
            problems(&format!("telemetry.otlp_endpoint = \"{value}\""), &[]),
            [
                "seqline.toml line 1: telemetry.otlp_endpoint: expected a URL that begins with http:// or https://, without a user, up to 2000 bytes"
            ],
            "{value}"
        );
    }
}

#[test]
fn names_are_what_streams_and_relays_can_be_called() {
    for name in ["EVENTS", "7", "-a_B"] {
        assert!(loaded(&format!("stream.name = \"{name}\""), &[]).is_ok(), "{name}");
    }
    for name in ["", "a.b", "a b", "a*", &"x".repeat(256)] {
        assert_eq!(
            problems(&format!("stream.name = \"{name}\""), &[]),
            ["seqline.toml line 1: stream.name: expected a name of 1 to 255 bytes: letters, digits, - and _"],
            "{name}"
        );
    }
    for name in ["j", "jet-stream_2"] {
        assert!(loaded(&format!("relay.name = \"{name}\""), &[]).is_ok(), "{name}");
    }
    for name in ["", "7", "Jetstream", "-a", "a.b", &"x".repeat(64)] {
        let [problem] = &problems(&format!("relay.name = \"{name}\""), &[])[..] else { panic!("{name}") };
        assert!(problem.contains("relay.name: expected a name of 1 to 63 bytes: a-z"), "{problem}");
    }
}

#[test]
fn a_broker_knows_one_login_and_a_certificate_with_its_key() {
    for (text, check) in [
        ("tls_cert_file = \"c\"", "client_certificate_has_its_key"),
        ("tls_key_file = \"k\"", "client_key_has_its_certificate"),
        ("credentials_file = \"c\"\nnkey_seed_file = \"s\"", "one_login_at_the_broker"),
    ] {
        let found = problems(&format!("[nats]\n{text}\n"), &[]);
        let [problem] = &found[..] else { panic!("{found:?}") };
        assert!(problem.ends_with(&format!("(check {check})")), "{problem}");
    }
    assert!(loaded("[nats]\ntls_cert_file = \"c\"\ntls_key_file = \"k\"\n", &[]).is_ok());
}

#[test]
fn a_part_that_needs_a_broker_runs_where_one_was_named() {
    let runs = |text: &str| {
        let config = loaded(&format!("relay.mode = \"{text}\""), &[]).unwrap();
        [false, true].map(|url_is_given| config.relay.mode.is_on(url_is_given))
    };
    assert_eq!([runs("auto"), runs("on"), runs("off")], [[false, true], [true, true], [false, false]]);
}

#[test]
fn an_identity_provider_is_set_as_a_whole_or_not_at_all() {
    const ALL: &str =
        "[auth]\njwks_url = \"URL\"\njwt_issuer = \"https://id.example.com\"\njwt_audience = \"shop\"\n";
    let with = |url: &str| ALL.replace("URL", url);
    for url in [
        "https://id.example.com/keys",
        "http://127.0.0.1:8080/keys",
        "http://127.9.9.9",
        "http://[::1]:8080/keys",
        "http://localhost/keys",
    ] {
        assert!(loaded(&with(url), &[]).is_ok(), "{url}");
    }
    for url in [
        "http://id.example.com/keys",
        "http://192.0.2.1",
        "http://127.0.0.1.example.com",
        "http://[2001:db8::1]/",
    ] {
        let [problem] = &problems(&with(url), &[])[..] else { panic!("{url}") };
        assert!(problem.ends_with("(check keys_come_encrypted)"), "{problem}");
    }
    let all = with("https://id.example.com/keys");
    for (without, checks) in [
        ("jwks_url", &["issuer_has_keys"][..]),
        ("jwt_issuer", &["keys_have_an_issuer"]),
        ("jwt_audience", &["keys_have_an_audience"]),
    ] {
        let text: String =
            all.lines().filter(|line| !line.starts_with(without)).map(|line| format!("{line}\n")).collect();
        let found = problems(&text, &[]);
        let named =
            checks.iter().zip(&found).all(|(check, problem)| problem.ends_with(&format!("(check {check})")));
        assert!(named && found.len() == checks.len(), "{without}: {found:?}");
    }
    assert!(loaded("[auth]\njwt_principal_claim = \"\"\n", &[]).is_err());
    assert!(loaded("[auth]\njwt_issuer = \"a\\u0007\"\n", &[]).is_err());
    assert!(loaded(&format!("[auth]\njwt_issuer = \"{}\"\n", "x".repeat(3000)), &[]).is_err());
}

/// For each key: misspelt, of each wrong type, and just out of bounds on both sides.
#[test]
fn every_key_refuses_everything_else_with_its_name_and_what_it_expects() {
    for key in KEYS {
        let (section, name) = key.name.split_once('.').unwrap();
        let misspelt = format!("[{section}]\n{name}x = 1\n");
        let meant = format!("seqline.toml line 2: unknown key {}x, did you mean {}?", key.name, key.name);
        assert_eq!(problems(&misspelt, &[]), [meant], "{}", key.name);

        let expected = format!("seqline.toml line 1: {}: expected {}", key.name, key.expected());
        let accepts = |value: &str| {
            loaded(&format!("{} = {value}", key.name), &[])
                .map_or_else(|found| !found.contains(&expected), |_| true)
        };
        let kinds = ["-1", "1.5", "{}", "[[]]", "2026-11-30", "\"\\u0001\"", "nan"];
        for value in kinds {
            assert!(!accepts(value), "{} takes {value}", key.name);
        }
        let bounds = key.bounds();
        if let (false, Some((least, most))) = (key.name.starts_with("recorder."), bounds.split_once(" to ")) {
            let outside = match (least.parse::<u64>(), humantime::parse_duration(least)) {
                (Ok(least), _) if !most.contains("bytes") => {
                    vec![
                        least.checked_sub(1).map_or_else(|| "-1".to_owned(), |less| less.to_string()),
                        (most.parse::<u64>().unwrap() + 1).to_string(),
                    ]
                }
                (_, Ok(least)) => {
                    let most = humantime::parse_duration(most).unwrap();
                    let less = least.checked_sub(Duration::from_millis(1));
                    let more = most + Duration::from_millis(1);
                    let text = |duration: Duration| format!("\"{}\"", duration_text(duration));
                    less.into_iter().chain([more]).map(text).collect()
                }
                _ => Vec::new(),
            };
            assert!(most.contains("bytes") || !outside.is_empty(), "{}", key.name);
            for value in outside {
                assert!(!accepts(&value), "{} takes {value}", key.name);
            }
        }
    }
}

#[test]
fn the_commented_file_sets_nothing_and_shows_every_default() {
    let file = commented_file();
    assert_eq!(loaded(&file, &[]).unwrap(), Config::default());
    let all: String = file
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let loaded = load(Some(&ConfigFile { name: "f".to_owned(), bytes: all.into_bytes() }), [], []).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert_eq!(loaded.sources.len(), KEYS.len());
}

#[test]
fn the_schema_for_editors_has_every_key_with_its_kind_and_default() {
    let schema = json_schema();
    let mut count = 0;
    for (section, of) in schema["properties"].as_object().unwrap() {
        assert_eq!(of["additionalProperties"], false, "{section}");
        for (name, property) in of["properties"].as_object().unwrap() {
            let key = Key::find(&format!("{section}.{name}")).unwrap();
            assert!(property["description"].as_str().unwrap().starts_with(key.doc), "{}", key.name);
            let default = match &property["default"] {
                serde_json::Value::String(text) => text.clone(),
                serde_json::Value::Array(list) if list.is_empty() => String::new(),
                other => other.to_string(),
            };
            assert_eq!(default, key.default_text(), "{}", key.name);
            count += 1;
        }
    }
    assert_eq!(count, KEYS.len());
    assert_eq!(schema["properties"]["consumer"]["properties"]["batch_size"]["maximum"], 10_000);
    assert_eq!(schema["properties"]["epoch"]["properties"]["on_change"]["enum"][1], "new_epoch");
}

#[test]
fn a_filter_that_breaks_a_rule_is_refused_with_the_rule_and_its_key() {
    for value in ["[\"Order\"]", "[\"order\"]", "[\"order.created\", \"order*\"]"] {
        assert_eq!(
            problems(&format!("recorder.types = {value}"), &[]),
            [
                "seqline.toml line 1: recorder.types: a filter by type takes types such as order.created, or beginnings of types such as order.*"
            ],
            "{value}"
        );
    }
    let long = "z".repeat(129);
    for value in ["a,,b", ",", long.as_str(), "a\tb\u{7}"] {
        assert_eq!(
            problems("", &[("SEQLINE_RECORDER__RESOURCE_KINDS", value)]),
            [
                "SEQLINE_RECORDER__RESOURCE_KINDS: recorder.resource_kinds: a filter by resource kind has a value that is empty, too long or has a control character"
            ],
            "{value}"
        );
    }
    let many = ["a"; 101].join(",");
    assert_eq!(
        problems("", &[("SEQLINE_RECORDER__CHANNELS", &many)]),
        ["SEQLINE_RECORDER__CHANNELS: recorder.channels: a filter by channel has more than 100 values"]
    );
    for value in ["\"order.created\"", "5", "[5]", "[\"a.b\", 5]", "[[\"a.b\"]]", "{}", "true"] {
        assert_eq!(
            problems(&format!("recorder.types = {value}"), &[]),
            [
                "seqline.toml line 1: recorder.types: expected a list of texts, up to 100 values of 1 to 128 characters"
            ],
            "{value}"
        );
    }
}
