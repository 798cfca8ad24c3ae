use std::collections::BTreeSet;

use proptest::prelude::*;
use seqline::maintenance::MaintenanceConfig;
use seqline::sequencer::SequencerConfig;
use seqline::tail::TailConfig;

use super::checks::{CHECKS, Check};
use super::schema::{KEYS, Key};
use super::values::duration_text;
use super::*;

mod checks;
mod kinds;
mod streaming;

const PAGE: &str = "docs/guide/configuration.md";

fn page() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    std::fs::read_to_string(path).unwrap()
}

fn file(text: &str) -> ConfigFile {
    ConfigFile { name: "seqline.toml".to_owned(), bytes: text.as_bytes().to_vec() }
}

fn loaded(text: &str, variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
    load(Some(&file(text)), variables, [])
        .map(|loaded| loaded.config)
        .map_err(|problems| problems.to_string().lines().skip(1).map(|line| line.trim().to_owned()).collect())
}

fn set(options: &[&str]) -> Result<Loaded, Problems> {
    load(None, [], options.iter().copied())
}

fn problems(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
    loaded(text, variables).expect_err("something is wrong")
}

#[test]
fn every_key_is_here_and_sets_a_field_of_its_name() {
    let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    // The fields as the derived text of the structs shows them.
    let mut fields = Vec::new();
    let mut section = String::new();
    for line in format!("{:#?}", Config::default()).lines().skip(1) {
        let Some((name, value)) = line.trim().split_once(": ") else { continue };
        match value.ends_with('{') {
            true => section = name.to_owned(),
            false => fields.push(format!("{section}.{name}")),
        }
    }
    assert_eq!(names, fields);
    // Each is changed alone, and only the field of its name changes.
    for key in KEYS {
        let mut config = Config::default();
        assert_eq!(key.set_text(&mut config, &largest(key)), Ok(()), "{}", key.name);
        let (before, after) = (format!("{:#?}", Config::default()), format!("{config:#?}"));
        let changed: Vec<&str> =
            after.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
        let (_, name) = key.name.split_once('.').unwrap();
        // A list is shown on three lines.
        let lines = if key.name.starts_with("recorder.") { 3 } else { 1 };
        assert_eq!(changed.len(), lines, "{}: {changed:?}", key.name);
        assert!(changed[0].trim().starts_with(&format!("{name}: ")), "{}: {changed:?}", key.name);
    }
}

/// The largest value, which is no default.
fn largest(key: &Key) -> String {
    match key.name {
        "jobs.schema" => "z".repeat(46),
        "api.listen" | "ops.listen" => "[::1]:65535".to_owned(),
        "telemetry.otlp_endpoint" => "http://192.0.2.1:4318".to_owned(),
        "auth.jwks_url" => "https://id.example.com/keys".to_owned(),
        name if name.starts_with("auth.jwt_") => "z".repeat(500),
        "database.listen" => "false".to_owned(),
        "epoch.on_change" => "accept".to_owned(),
        "nats.tls_required" => "true".to_owned(),
        name if name.starts_with("nats.") && name.ends_with("_file") => "z".repeat(500),
        "stream.name" => "Z".repeat(255),
        "relay.name" => "z".repeat(63),
        "relay.mode" | "stream_consumer.recorder" => "off".to_owned(),
        "relay.start" => "head".to_owned(),
        // Any value that is a type as well.
        name if name.starts_with("recorder.") => name.to_owned(),
        _ => key.bounds().rsplit(" to ").next().unwrap().to_owned(),
    }
}

#[test]
fn defaults_are_within_their_bounds_and_pass_all_checks() {
    for key in KEYS {
        let mut config = Config::default();
        assert_eq!(key.set_text(&mut config, &key.default_text()), Ok(()), "{}", key.name);
        assert_eq!(config, Config::default(), "{}", key.name);
    }
    assert_eq!(load(None, [], []).unwrap().config, Config::default());
}

#[test]
fn the_defaults_of_the_library_are_those_of_the_schema() {
    assert_eq!(format!("{:#?}", Config::default().consumers()), format!("{:#?}", ConsumerConfig::default()));
    assert_eq!(
        format!("{:#?}", Config::default().maintenance()),
        format!("{:#?}", MaintenanceConfig::default())
    );
    assert_eq!(format!("{:#?}", Config::default().sequencer()), format!("{:#?}", SequencerConfig::default()));
    assert_eq!(format!("{:#?}", Config::default().tail()), format!("{:#?}", TailConfig::default()));
}

/// The fields of the library that are not named like their keys.
const OTHER_NAMES: [(&str, &str); 7] = [
    ("tail.poll_interval", "sync.log_poll_interval"),
    ("tail.batch_size", "sync.tail_batch_size"),
    ("reconnect_backoff_cap", "database.listen_reconnect_backoff_cap"),
    ("stop_timeout", "shutdown.total_timeout"),
    ("retention", "sync.event_retention"),
    ("retention_hold", "sync.event_retention_hold"),
    ("partition_max_age", "sync.event_log_partition_max_age"),
];

#[test]
fn every_field_of_the_library_is_set_by_the_key_of_its_name() {
    let mut config = Config::default();
    for (at, key) in KEYS.iter().enumerate() {
        let value = match key.default_text().parse::<u32>() {
            Ok(_) if key.name.ends_with("_bytes_max") => format!("{}", 10_000 + at),
            Ok(_) if key.name.ends_with("_bytes") => format!("{}", 2_000_000 + at),
            Ok(_) if key.name == "stream.replicas" => "1".to_owned(),
            Ok(_) if key.name == "stream_consumer.attempts" => "9".to_owned(),
            // Below all others, and within a hundred.
            Ok(_) if key.name.ends_with("_percent") => format!("{}", 2 + at % 7),
            Ok(_) => format!("{}", 10 + at),
            Err(_) if key.name == "jobs.schema" => format!("schema_{at}"),
            Err(_) if key.name.ends_with(".listen") && key.name != "database.listen" => {
                format!("127.0.0.1:{at}")
            }
            Err(_) if key.name == "telemetry.otlp_endpoint" => format!("http://192.0.2.1:{at}"),
            Err(_) if key.name == "auth.jwks_url" => format!("https://192.0.2.1:{at}"),
            Err(_) if key.name.starts_with("auth.jwt_") => key.name.to_owned(),
            Err(_) if key.name == "database.listen" => "false".to_owned(),
            Err(_) if key.name == "epoch.on_change" => "accept".to_owned(),
            Err(_) if key.name.starts_with("recorder.") => key.name.to_owned(),
            Err(_) if key.name == "nats.tls_required" => "true".to_owned(),
            Err(_) if key.name == "relay.mode" => "off".to_owned(),
            Err(_) if key.name == "stream_consumer.recorder" => "on".to_owned(),
            Err(_) if key.name == "relay.start" => "head".to_owned(),
            Err(_) if key.name.ends_with("_file") || key.name.ends_with(".name") => {
                key.name.replace('.', "_")
            }
            // Not less than a day.
            Err(_) if key.name == "stream.max_age" => format!("{}ms", 100_000_000 + at),
            Err(_) => format!("{}ms", 1000 + at),
        };
        assert_eq!(key.set_text(&mut config, &value), Ok(()), "{}", key.name);
    }
    let values: Vec<String> = KEYS.iter().map(|key| value_of(&config, key)).collect();
    assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), KEYS.len());
    let mut fields = 0;
    for (section, text) in [
        ("consumer", format!("{:#?}", config.consumers())),
        ("sync", format!("{:#?}", config.maintenance())),
        ("sequencer", format!("{:#?}", config.sequencer())),
        ("tail", format!("{:#?}", config.tail())),
    ] {
        for line in text.lines() {
            let Some((field, value)) = line.trim().trim_end_matches(',').split_once(": ") else { continue };
            let other =
                OTHER_NAMES.iter().find(|(name, _)| *name == field || *name == format!("{section}.{field}"));
            let other = other.map(|(_, key)| *key);
            // Where a tail starts is no setting of a process.
            if section == "tail" && field == "start" {
                continue;
            }
            let named = |key: &&Key| key.name.rsplit('.').next() == Some(field);
            let of_section = Key::find(&format!("{section}.{field}"));
            let key = other.and_then(Key::find).or(of_section).or_else(|| KEYS.iter().find(named));
            let key = key.unwrap_or_else(|| panic!("no key is named like {field}"));
            assert_eq!(value, value_of(&config, key), "{field}");
            fields += 1;
        }
    }
    assert_eq!(fields, 13 + 9 + 6 + 7);
}

/// The field of a key as the derived text of the struct shows it.
fn value_of(config: &Config, key: &Key) -> String {
    let (section, name) = key.name.split_once('.').unwrap();
    let text = format!("{config:#?}");
    let (_, section) = text.split_once(&format!("    {section}: ")).unwrap();
    let (_, value) = section.split_once(&format!("        {name}: ")).unwrap();
    value.split(',').next().unwrap().to_owned()
}

#[test]
fn the_default_alert_does_not_fire_during_a_restart() {
    let config = Config::default();
    let restart = config.shutdown.total_timeout + 10 * config.consumer.poll_interval;
    assert!(2 * restart < config.consumer.pending_alert_after);
}

#[test]
fn the_guide_has_exactly_these_keys_defaults_and_checks() {
    let (page, reference) = (page(), reference());
    assert!(page.contains(&reference), "put this into {PAGE}:\n\n{reference}");
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, KEYS.len() + CHECKS.len());
    for check in CHECKS {
        assert_eq!(page.matches(&format!("\n| `{}` |", check.name)).count(), 1, "{}", check.name);
    }
}

#[test]
fn the_example_of_the_guide_is_valid() {
    let page = page();
    let examples: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        assert!(loaded(example, &[]).is_ok(), "{example}");
    }
}

#[test]
fn the_environment_comes_before_the_file_and_the_file_before_the_defaults() {
    let text = "[consumer]\nbatch_size = 7\npoll_interval = \"1s\"\n";
    let config = loaded(text, &[("SEQLINE_CONSUMER__BATCH_SIZE", "9")]).unwrap();
    assert_eq!((config.consumer.batch_size, config.consumer.poll_interval), (9, Duration::from_secs(1)));
    assert_eq!(config.consumer.event_timeout, Config::default().consumer.event_timeout);
    let config = loaded(text, &[("SEQLINE_CONSUMER__BATCH_SIZE", "")]).unwrap();
    assert_eq!(config.consumer.batch_size, 7);
}

#[test]
fn every_way_to_write_a_table_means_the_same() {
    for text in [
        "[consumer]\nbatch_size = 7",
        "consumer.batch_size = 7",
        "consumer = { batch_size = 0x7 }",
        "[consumer]\n\"batch_size\" = +7",
    ] {
        assert_eq!(loaded(text, &[]).unwrap().consumer.batch_size, 7, "{text}");
    }
}

#[test]
fn durations_have_a_unit() {
    let accepted = ["2s", "2 s", "2sec", "2000ms", "1s 1000ms"];
    for text in accepted {
        let config = loaded(&format!("consumer.poll_interval = \"{text}\""), &[]).unwrap();
        assert_eq!(config.consumer.poll_interval, Duration::from_secs(2), "{text}");
    }
    for value in
        ["2", "\"2\"", "\"0\"", "\"\"", "\"s\"", "-2", "\"-2s\"", "2.5", "true", "[]", "{}", "2026-11-29"]
    {
        let found = problems(&format!("consumer.poll_interval = {value}"), &[]);
        assert_eq!(
            found,
            [
                "seqline.toml line 1: consumer.poll_interval: expected a duration with its unit, such as \"1s\", from 10ms to 1h"
            ],
            "{value}"
        );
    }
}

#[test]
fn numbers_are_whole_and_within_bounds() {
    for value in ["0", "10001", "-1", "1.0", "\"200\"", "true", "99999999999999999999", "[200]"] {
        let found = problems(&format!("consumer.batch_size = {value}"), &[]);
        assert_eq!(
            found,
            ["seqline.toml line 1: consumer.batch_size: expected a whole number from 1 to 10000"]
        );
    }
    for value in ["0", "10001", "-1", "1.0", "\"200\"", "x", "0x10", "99999999999999999999"] {
        let found = problems("", &[("SEQLINE_CONSUMER__BATCH_SIZE", value)]);
        assert_eq!(
            found,
            ["SEQLINE_CONSUMER__BATCH_SIZE: consumer.batch_size: expected a whole number from 1 to 10000"]
        );
    }
    for value in ["1", "10000"] {
        assert!(loaded(&format!("consumer.batch_size = {value}"), &[]).is_ok());
        assert!(loaded("", &[("SEQLINE_CONSUMER__BATCH_SIZE", value)]).is_ok());
    }
}

#[test]
fn a_schema_is_a_plain_name_that_is_nobody_elses() {
    let longest = "z".repeat(46);
    for name in ["a", "_1", "seqline_jobs", "seqline2", longest.as_str()] {
        assert_eq!(loaded(&format!("jobs.schema = \"{name}\""), &[]).unwrap().jobs.schema, name);
        assert_eq!(loaded("", &[("SEQLINE_JOBS__SCHEMA", name)]).unwrap().jobs.schema, name);
    }
    let too_long = "z".repeat(47);
    let refused =
        ["", " a", "A", "1a", "a-b", "a.b", "a\\\"b", "\u{e4}", "seqline", "pg_catalog", "pg_x", &too_long];
    for name in refused {
        let found = problems(&format!("jobs.schema = \"{name}\""), &[]);
        assert_eq!(
            found,
            [
                "seqline.toml line 1: jobs.schema: expected the name of a schema of 1 to 46 bytes: a-z, 0-9 and _, no digit first, not seqline and not pg_..."
            ],
            "{name}"
        );
    }
    assert_eq!(problems("jobs.schema = 5", &[]).len(), 1);
    assert_eq!(problems("", &[("SEQLINE_JOBS__SCHEMA", "Seqline")]).len(), 1);
}

#[test]
fn a_filter_is_a_list_of_texts_and_an_empty_one_is_everything() {
    let types = ["order.created", "invoice.*"];
    let filter = Filter::everything().types(types).spaces(["shop-1"]);
    let text = "[recorder]\ntypes = [\"order.created\", 'invoice.*']\nspaces = [\"shop-1\"]\nchannels = []";
    assert_eq!(loaded(text, &[]).unwrap().recorder(), filter);
    let variables =
        [("SEQLINE_RECORDER__TYPES", " order.created,invoice.* "), ("SEQLINE_RECORDER__SPACES", "shop-1")];
    assert_eq!(loaded("", &variables).unwrap().recorder(), filter);
    let all = Filter::everything().channels(["a b"]).resource_kinds(["order"]);
    let text = "recorder = { channels = [\"a b\"], resource_kinds = [\"order\"] }";
    assert_eq!(loaded(text, &[]).unwrap().recorder(), all);
    // The variable takes the place of the list.
    let text = "recorder.types = [\"a.b\", \"c.d\"]";
    let config = loaded(text, &[("SEQLINE_RECORDER__TYPES", "e.f")]).unwrap();
    assert_eq!(config.recorder(), Filter::everything().types(["e.f"]));
    for everything in ["", "recorder.types = []"] {
        assert!(loaded(everything, &[("SEQLINE_RECORDER__SPACES", " ")]).unwrap().recorder().is_everything());
    }
}

#[test]
fn what_is_unknown_is_refused_with_what_was_meant() {
    let text = "[consumer]\nbatch_sise = 1\npolling = \"1s\"\nevent_retention = \"1d\"\nA_Secret = 1\n\n[consumr]\nbatch_size = 1\n\n[smtp]\nhost = \"x\"\n";
    assert_eq!(
        problems(text, &[]),
        [
            "seqline.toml line 2: unknown key consumer.batch_sise, did you mean consumer.batch_size?",
            "seqline.toml line 3: unknown key consumer.polling",
            "seqline.toml line 4: unknown key consumer.event_retention, did you mean sync.event_retention?",
            "seqline.toml line 5: unknown key",
            "seqline.toml line 7: unknown section consumr, did you mean consumer?",
            "seqline.toml line 10: unknown section smtp",
        ]
    );
    assert_eq!(
        problems(
            "",
            &[
                ("SEQLINE_CONSUMER__BATCH_SISE", "1"),
                ("SEQLINE_X__Y", ""),
                ("SEQLINE_CONSUMER_BATCH_SIZE", "1")
            ]
        ),
        [
            "SEQLINE_CONSUMER__BATCH_SISE: unknown key, did you mean SEQLINE_CONSUMER__BATCH_SIZE?",
            "SEQLINE_X__Y: unknown key",
            "SEQLINE_CONSUMER_BATCH_SIZE: unknown key, did you mean SEQLINE_CONSUMER__BATCH_SIZE?",
        ]
    );
    // Of others, or for something else.
    let others = [("SEQLINE_DATABASE_URL", "x"), ("SEQLINE_LOG", "x"), ("OTHER_X__Y", "x"), ("SEQLINE", "x")];
    assert!(loaded("", &others).is_ok());
}

#[test]
fn of_what_is_no_key_it_is_told_where_it_comes_from() {
    let text = "[nats]\nurl = \"nats://alex:hunter2@broker.example.com\"\nuser = \"alex\"\n";
    assert_eq!(
        problems(text, &[]),
        [
            "seqline.toml line 2: nats.url is no key: the URL of the broker comes from --nats-url or SEQLINE_NATS_URL",
            "seqline.toml line 3: nats.user is no key: it stands in the URL of --nats-url or SEQLINE_NATS_URL",
        ]
    );
    assert_eq!(
        problems("", &[("SEQLINE_NATS__URL", "x"), ("SEQLINE_DATABASE__URL", "x")]),
        [
            "SEQLINE_NATS__URL: nats.url is no key: the URL of the broker comes from --nats-url or SEQLINE_NATS_URL",
            "SEQLINE_DATABASE__URL: database.url is no key: the URL of the database comes from --database-url or SEQLINE_DATABASE_URL",
        ]
    );
    let found = set(&["nats.password=hunter2"]).unwrap_err().to_string();
    let expected = "--set: nats.password is no key: it stands in the URL of --nats-url or SEQLINE_NATS_URL";
    assert_eq!(found, format!("the configuration is not valid\n  {expected}"));
    assert!(loaded("", &[("SEQLINE_NATS_URL", "x")]).is_ok());
    let others = ["database.user", "database.password", "database.listen_url", "nats.token"];
    for name in others {
        let found = set(&[&format!("{name}=hunter2")]).unwrap_err().to_string();
        assert!(found.contains(&format!("{name} is no key: ")) && !found.contains("hunter2"), "{found}");
    }
}

#[test]
fn a_section_is_a_table() {
    for text in ["consumer = 7", "[[consumer]]\nbatch_size = 7", "consumer = \"x\""] {
        let expected = "seqline.toml line 1: consumer is a section: expected a table";
        assert_eq!(problems(text, &[]), [expected], "{text}");
    }
}

#[test]
fn what_is_not_toml_is_placed_and_nothing_else_of_the_file_is_said() {
    let text = "[consumer]\nbatch_size = 0\npoll_interval = hunter2 hunter2\n";
    assert_eq!(
        problems(text, &[("SEQLINE_SYNC__DETACH_ATTEMPTS", "0")]),
        [
            "seqline.toml line 3: this is not TOML, or it is there a second time",
            "SEQLINE_SYNC__DETACH_ATTEMPTS: sync.detach_attempts: expected a whole number from 1 to 100",
        ]
    );
    let not_text = ConfigFile { name: "f".to_owned(), bytes: b"\n\xff".to_vec() };
    let found = load(Some(&not_text), [], []).unwrap_err();
    assert_eq!(
        found.to_string(),
        "the configuration is not valid\n  f line 2: this is not TOML, or it is there a second time"
    );
    assert_eq!(
        problems("[consumer]\n[consumer]\n", &[]),
        ["seqline.toml line 2: this is not TOML, or it is there a second time"]
    );
}

#[test]
fn durations_are_written_as_one_would_type_them() {
    for (duration, text) in [
        (Duration::ZERO, "0s"),
        (Duration::from_millis(50), "50ms"),
        (Duration::from_secs(30), "30s"),
        (Duration::from_secs(90), "1min 30s"),
        (Duration::from_secs(30 * 24 * 60 * 60), "30d"),
    ] {
        assert_eq!(duration_text(duration), text);
        assert_eq!(humantime::parse_duration(text).unwrap(), duration);
    }
}

const SECRET: &str = "Tr0ub4dor-and-3";

/// Values of all kinds with the secret in them, and pieces of TOML.
fn piece() -> impl Strategy<Value = String> {
    let key = proptest::sample::select(KEYS).prop_map(|key| key.name.to_owned());
    prop_oneof![
        key,
        Just(SECRET.to_owned()),
        Just(format!("\"{SECRET}\"")),
        Just(format!("[\"{SECRET}\"]")),
        Just(format!("{{ a = '{SECRET}' }}")),
        proptest::sample::select(vec![
            "=", "[", "]", "\n", " ", "\"", "'''", "consumer", "sync", ".", "#", "5", "\"5s\"", "{", "}"
        ])
        .prop_map(str::to_owned),
        ".{0,4}",
    ]
}

proptest! {
    #[test]
    fn no_garbage_breaks_the_loader_and_no_value_is_repeated(
        text in proptest::collection::vec(piece(), 0..24).prop_map(|pieces| pieces.concat()),
        values in proptest::collection::vec((piece(), piece()), 0..4),
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let _ = load(Some(&ConfigFile { name: "f".to_owned(), bytes }), [], []);
        let variables = values.iter().map(|(name, value)| {
            let name = format!("SEQLINE_{}", name.replace('.', "__").to_uppercase());
            (name.into(), value.into())
        });
        let options = values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        let options = options.iter().map(String::as_str);
        if let Err(problems) = load(Some(&file(&text)), variables, options) {
            let message = format!("{problems} {problems:?}");
            prop_assert!(!message.contains(SECRET), "{}", message);
        }
    }

    #[test]
    fn a_secret_in_the_place_of_any_value_is_not_repeated(at in 0..KEYS.len()) {
        let key = &KEYS[at];
        // Where any text is a value, nothing is said at all.
        prop_assume!(key.set_text(&mut Config::default(), SECRET).is_err());
        let variable = key.variable();
        for value in [format!("\"{SECRET}\""), format!("[\"{SECRET}\"]"), SECRET.to_owned(), format!("\"{SECRET}")] {
            let found = problems(&format!("{} = {value}", key.name), &[(&variable, SECRET)]);
            prop_assert_eq!(found.len(), 2);
            prop_assert!(!found.concat().contains(SECRET));
            prop_assert!(found[1].contains(key.name));
            let found = set(&[&format!("{}={SECRET}", key.name)]).unwrap_err().to_string();
            prop_assert!(found.contains(key.name) && !found.contains(SECRET), "{}", found);
        }
    }
}
